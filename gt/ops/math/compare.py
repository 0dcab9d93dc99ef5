"""Comparisons, logic and bits: nothing here has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops.infer import common, pointwise, refusing
from gt.ops.math.pointwise import COMPARING, INTEGRAL, TESTING, device_of
from gt.ops.op import EITHER, op
from gt.ops.split import elementwise

op(
    "eq",
    complex="rule",
    function="te",
    doc="True where the operands are equal.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a == b,
)

op(
    "ne",
    complex="rule",
    function="te",
    aliases=("not_equal",),
    doc="True where the operands differ.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a != b,
)

op(
    "lt",
    function="te",
    aliases=("less",),
    doc="True where the first operand is less than the second.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a < b,
)

op(
    "le",
    function="te",
    aliases=("less_equal",),
    doc="True where the first operand is not greater than the second.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a <= b,
)

op(
    "gt",
    function="te",
    aliases=("greater",),
    doc="True where the first operand is greater than the second.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a > b,
)

op(
    "ge",
    function="te",
    aliases=("greater_equal",),
    doc="True where the first operand is not less than the second.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **COMPARING,
    kernel=lambda xp, a, b: a >= b,
)

op(
    "isnan",
    complex="rule",
    function="t",
    doc="True for each element that is NaN.",
    no_gradient="its result is bool",
    **TESTING,
    kernel=lambda xp, x: xp.isnan(x),
)

op(
    "isinf",
    complex="rule",
    function="t",
    doc="True for each element that is infinite.",
    no_gradient="its result is bool",
    **TESTING,
    kernel=lambda xp, x: xp.isinf(x),
)

op(
    "isposinf",
    function="t",
    doc="True for each element that is positive infinity.",
    no_gradient="its result is bool",
    **TESTING,
    torch=lambda torch, x: torch.isposinf(x),
    kernel=lambda np, x: x == np.inf,
)

op(
    "isneginf",
    function="t",
    doc="True for each element that is negative infinity.",
    no_gradient="its result is bool",
    **TESTING,
    torch=lambda torch, x: torch.isneginf(x),
    kernel=lambda np, x: x == -np.inf,
)

op(
    "signbit",
    function="t",
    doc="True for each element whose sign is negative, -0.0 included.",
    no_gradient="its result is bool",
    **TESTING,
    torch=lambda torch, x: torch.signbit(x),
    kernel=lambda np, x: (x < 0) | _minus_zero(np, x),
)

op(
    "isfinite",
    complex="rule",
    function="t",
    doc="True for each element that is neither infinite nor NaN.",
    no_gradient="its result is bool",
    **TESTING,
    kernel=lambda xp, x: xp.isfinite(x),
)


def _minus_zero(np: Any, x: Any) -> Any:
    return np.signbit(x) if x.dtype.kind == "f" else False


def _logical(name: str) -> Callable[..., Any]:
    """torch's logical function, for numbers too, which count as bools."""

    def call(torch: Any, a: Any, b: Any) -> Any:
        at = device_of(torch, (a, b))
        a, b = (x if isinstance(x, torch.Tensor) else torch.full((), bool(x), device=at) for x in (a, b))
        return getattr(torch, name)(a, b)

    return call


def _logical_numpy(name: str) -> Callable[..., Any]:
    return lambda np, a, b: getattr(np, name)(*(x if isinstance(x, np.ndarray) else bool(x) for x in (a, b)))


op(
    "logical_and",
    complex="rule",
    function="tt",
    doc="True where both operands are not zero.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **TESTING,
    torch=_logical("logical_and"),
    kernel=_logical_numpy("logical_and"),
)

op(
    "logical_or",
    complex="rule",
    function="tt",
    doc="True where one of the operands is not zero.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **TESTING,
    torch=_logical("logical_or"),
    kernel=_logical_numpy("logical_or"),
)

op(
    "logical_xor",
    complex="rule",
    function="tt",
    doc="True where exactly one of the operands is not zero.",
    no_gradient="its result is bool",
    operands=EITHER * 2,
    **TESTING,
    torch=_logical("logical_xor"),
    kernel=_logical_numpy("logical_xor"),
)

op(
    "logical_not",
    complex="rule",
    function="t",
    doc="True for each element that is zero.",
    no_gradient="its result is bool",
    **TESTING,
    torch=lambda torch, x: torch.logical_not(x),
    kernel=lambda np, x: np.logical_not(x),
)

op(
    "bitwise_and",
    function="ee",
    doc="The bitwise AND of integers; logical AND for bool.",
    no_gradient="it is for integers",
    operands=EITHER * 2,
    **INTEGRAL,
    kernel=lambda xp, a, b: a & b,
)

op(
    "bitwise_or",
    function="ee",
    doc="The bitwise OR of integers; logical OR for bool.",
    no_gradient="it is for integers",
    operands=EITHER * 2,
    **INTEGRAL,
    kernel=lambda xp, a, b: a | b,
)

op(
    "bitwise_xor",
    function="ee",
    doc="The bitwise XOR of integers; logical XOR for bool.",
    no_gradient="it is for integers",
    operands=EITHER * 2,
    **INTEGRAL,
    kernel=lambda xp, a, b: a ^ b,
)

op(
    "bitwise_not",
    function="t",
    doc="The bits of each element inverted; logical NOT for bool.",
    no_gradient="it is for integers",
    **INTEGRAL,
    kernel=lambda xp, x: ~x,
)

_WHOLE: dict[str, Any] = {
    "infer": refusing("bf", pointwise, "x.to(gt.int64)"), "common": common, "split": elementwise,
}  # fmt: skip


def _left(np: Any, a: Any, b: Any) -> Any:
    a = a if isinstance(a, np.ndarray) else b.dtype.type(a)
    return np.where((b >= 0) & (b < a.dtype.itemsize * 8), a << np.maximum(b, 0), 0)


def _right(np: Any, a: Any, b: Any) -> Any:
    a = a if isinstance(a, np.ndarray) else b.dtype.type(a)
    bits = a.dtype.itemsize * 8
    return np.where((b >= 0) & (b < bits), a >> np.clip(b, 0, bits - 1), np.where(a < 0, -1, 0))


op(
    "bitwise_left_shift",
    function="ee",
    doc="The bits of the first operand shifted left by the second.",
    no_gradient="it is for integers",
    operands="[tib]" * 2,
    **_WHOLE,
    torch=lambda torch, a, b: torch.bitwise_left_shift(a, b),
    kernel=_left,
)

op(
    "bitwise_right_shift",
    function="ee",
    doc="The bits of the first operand shifted right by the second.",
    no_gradient="it is for integers",
    operands="[tib]" * 2,
    **_WHOLE,
    torch=lambda torch, a, b: torch.bitwise_right_shift(a, b),
    kernel=_right,
)

op(
    "gcd",
    function="tt",
    doc="The greatest common divisor of integers.",
    no_gradient="it is for integers",
    **_WHOLE,
    torch=lambda torch, a, b: torch.gcd(a, b),
    kernel=lambda np, a, b: np.gcd(a, b),
)


def _lcm_torch(torch: Any, a: Any, b: Any) -> Any:
    """torch.lcm divides by torch.gcd, which is -1 for some pairs with the smallest integer. On x86-64 dividing the
    smallest integer by -1 ends the process. So this divides by the absolute value."""
    dtype = torch.result_type(a, b)
    wide = torch.promote_types(dtype, torch.int32)  # torch.lcm multiplies in int32 at least
    a, b, divisor = a.to(wide), b.to(wide), torch.gcd(a, b).to(wide).abs()
    return (torch.div(a, divisor + (divisor == 0), rounding_mode="trunc") * b).abs().to(dtype)


op(
    "lcm",
    function="tt",
    doc="The least common multiple of integers.",
    no_gradient="it is for integers",
    **_WHOLE,
    torch=_lcm_torch,
    kernel=lambda np, a, b: np.lcm(a, b),
)
