"""Comparisons, logic and bits: nothing here has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops.infer import common, pointwise, refusing
from gt.ops.math.pointwise import COMPARING, INTEGRAL, TESTING, device_of
from gt.ops.op import EITHER, op
from gt.ops.split import elementwise

op("eq", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a == b)

op("ne", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a != b)

op("lt", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a < b)

op("le", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a <= b)

op("gt", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a > b)

op("ge", operands=EITHER * 2, **COMPARING, kernel=lambda xp, a, b: a >= b)

op("isnan", **TESTING, kernel=lambda xp, x: xp.isnan(x))

op("isinf", **TESTING, kernel=lambda xp, x: xp.isinf(x))

op("isposinf", **TESTING, torch=lambda torch, x: torch.isposinf(x), kernel=lambda np, x: x == np.inf)

op("isneginf", **TESTING, torch=lambda torch, x: torch.isneginf(x), kernel=lambda np, x: x == -np.inf)

op("signbit", **TESTING, torch=lambda torch, x: torch.signbit(x), kernel=lambda np, x: (x < 0) | _minus_zero(np, x))

op("isfinite", **TESTING, kernel=lambda xp, x: xp.isfinite(x))


def _minus_zero(np: Any, x: Any) -> Any:
    return np.signbit(x) if x.dtype.kind == "f" else False


def _truths(name: str) -> Callable[..., Any]:
    """torch's logical function, for numbers too: only whether a number is zero counts."""

    def call(torch: Any, a: Any, b: Any) -> Any:
        at = device_of(torch, (a, b))
        a, b = (x if isinstance(x, torch.Tensor) else torch.full((), bool(x), device=at) for x in (a, b))
        return getattr(torch, name)(a, b)

    return call


def _truths_numpy(name: str) -> Callable[..., Any]:
    return lambda np, a, b: getattr(np, name)(*(x if isinstance(x, np.ndarray) else bool(x) for x in (a, b)))


op(
    "logical_and",
    operands=EITHER * 2,
    **TESTING,
    torch=_truths("logical_and"),
    kernel=_truths_numpy("logical_and"),
)

op(
    "logical_or",
    operands=EITHER * 2,
    **TESTING,
    torch=_truths("logical_or"),
    kernel=_truths_numpy("logical_or"),
)

op(
    "logical_xor",
    operands=EITHER * 2,
    **TESTING,
    torch=_truths("logical_xor"),
    kernel=_truths_numpy("logical_xor"),
)

op("logical_not", **TESTING, torch=lambda torch, x: torch.logical_not(x), kernel=lambda np, x: np.logical_not(x))

op("bitwise_and", operands=EITHER * 2, **INTEGRAL, kernel=lambda xp, a, b: a & b)

op("bitwise_or", operands=EITHER * 2, **INTEGRAL, kernel=lambda xp, a, b: a | b)

op("bitwise_xor", operands=EITHER * 2, **INTEGRAL, kernel=lambda xp, a, b: a ^ b)

op("bitwise_not", **INTEGRAL, kernel=lambda xp, x: ~x)

_WHOLE: dict[str, Any] = {
    "infer": refusing("bf", pointwise, "x.to(gt.int64)"), "common": common, "split": elementwise,
}  # fmt: skip


def _left(np: Any, a: Any, b: Any) -> Any:
    return np.where((b >= 0) & (b < a.dtype.itemsize * 8), a << np.maximum(b, 0), 0)


def _right(np: Any, a: Any, b: Any) -> Any:
    bits = a.dtype.itemsize * 8
    return np.where((b >= 0) & (b < bits), a >> np.clip(b, 0, bits - 1), np.where(a < 0, -1, 0))


op(
    "bitwise_left_shift",
    operands="t[ti]",
    **_WHOLE,
    torch=lambda torch, a, b: torch.bitwise_left_shift(a, b),
    kernel=_left,
)

op(
    "bitwise_right_shift",
    operands="t[ti]",
    **_WHOLE,
    torch=lambda torch, a, b: torch.bitwise_right_shift(a, b),
    kernel=_right,
)

op("gcd", **_WHOLE, torch=lambda torch, a, b: torch.gcd(a, b), kernel=lambda np, a, b: np.gcd(a, b))


def _lcm_torch(torch: Any, a: Any, b: Any) -> Any:
    """torch.lcm divides by torch.gcd, which is -1 for some pairs with the smallest integer. On x86-64 dividing the
    smallest integer by -1 ends the process. So this divides by the absolute value."""
    dtype = torch.result_type(a, b)
    wide = torch.promote_types(dtype, torch.int32)  # torch.lcm multiplies in int32 at least
    a, b, divisor = a.to(wide), b.to(wide), torch.gcd(a, b).to(wide).abs()
    return (torch.div(a, divisor + (divisor == 0), rounding_mode="trunc") * b).abs().to(dtype)


op("lcm", **_WHOLE, torch=_lcm_torch, kernel=lambda np, a, b: np.lcm(a, b))
