"""Arithmetic ops of two and more operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import inf, log, nan
from typing import Any

from gt.errors import DTypeError
from gt.ops.elements import wide
from gt.ops.infer import common, pointwise, refusing_bool
from gt.ops.math.pointwise import FLOATING, NUMERIC, ONLY_FLOATING, PROMOTING, on_tensors, zero
from gt.ops.op import EITHER, NUMBER, op
from gt.ops.split import elementwise, linear, scaling
from gt.ops.varying import FORMULA_IN_COMMON_DTYPE
from gt.types import OperandType, Scalar, TensorType, bool_, result_dtype

op(
    "add",
    complex="rule",
    operands=EITHER * 2,
    **PROMOTING | linear((0, 1)),
    vjp=(lambda g, _y, _a, _b: g, lambda g, _y, _a, _b: g),
    kernel=lambda xp, a, b: a + b,
    inplace=lambda torch, a, b: a.add_(b),
)

op(
    "sub",
    complex="rule",
    operands=EITHER * 2,
    infer=refusing_bool(pointwise, "logical_xor, or logical_not to invert a mask"),
    common=common,
    **linear((0, 1)),
    vjp=(lambda g, _y, _a, _b: g, lambda g, _y, _a, _b: -g),
    kernel=lambda xp, a, b: a - b,
    inplace=lambda torch, a, b: a.sub_(b),
)

op(
    "mul",
    complex="holomorphic",
    function="ee",
    aliases=("multiply",),
    doc="The product of the operands, element by element.",
    operands=EITHER * 2,
    **PROMOTING | {"split": scaling},
    vjp=(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a),
    kernel=lambda xp, a, b: a * b,
    inplace=lambda torch, a, b: a.mul_(b),
)

# -- powers --------------------------------------------------------------------------------


def _pow_base(g: Any, _y: Any, a: Any, b: Any) -> Any:
    if isinstance(b, int | float):
        return zero(g) if b == 0 else g * (a * 2 if b == 2 else a ** (b - 1) * b)
    return (g * (b * a ** (b - 1))).masked_fill(b == 0, 0)


def _pow_exponent(g: Any, y: Any, a: Any, b: Any) -> Any:
    """0 where a is 0 and b is not negative: there, 0 ** b does not depend on b."""
    if y.dtype.kind == "c" and isinstance(a, int | float):
        a = y.new_full((), a)  # the logarithm of a negative number is complex
    if not isinstance(a, int | float):
        return (g * (y * a.to(y.dtype).log())).masked_fill((a == 0) & (b.real >= 0), 0)
    result = g * (y * (log(a) if a > 0 else nan if a else -inf))
    return result if a else result.masked_fill(b.real >= 0, 0)


def _pow_numpy(np: Any, a: Any, b: Any) -> Any:
    """numpy refuses negative powers of integers; torch rounds them towards zero."""
    if a.dtype.kind not in "iu" or b.dtype.kind == "u":
        return a**b
    rounded = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, rounded, a ** np.maximum(b, 0))


op(
    "pow",
    complex="holomorphic",
    autocast="float32",
    operands=EITHER * 2,
    **NUMERIC,
    vjp=(_pow_base, _pow_exponent),
    kernel=lambda xp, a, b: a**b,
    numpy=_pow_numpy,
    inplace=lambda torch, a, b: a.pow_(b),
)

op(
    "hypot",
    function="tt",
    doc="The square root of the sum of the squares of the operands.",
    **ONLY_FLOATING,
    vjp=(lambda g, y, a, _b: g * (a / y), lambda g, y, _a, b: g * (b / y)),
    wants_out=True,
    torch=on_tensors("hypot"),
    kernel=lambda np, a, b, *, out: np.hypot(a, b),
)

op(
    "xlogy",
    function="ee",
    doc="The first operand times the logarithm of the second; 0 where the first is 0.",
    operands=EITHER * 2,
    **FLOATING,
    vjp=(
        lambda g, _y, a, b: g._op("xlogy", b).masked_fill((a == 0) & (b <= 0), 0),
        lambda g, _y, a, b: g * a / b,
    ),
    torch=lambda torch, a, b: torch.xlogy(a, b),
    kernel=lambda np, a, b: np.where(np.isnan(b), b, np.where(a == 0, 0, a * np.log(b))),
)

op(
    "logaddexp",
    function="tt",
    doc="The logarithm of the sum of the exponentials of the operands.",
    **ONLY_FLOATING,
    vjp=(
        lambda g, _y, a, b: g / (1 + (b - a).exp()),
        lambda g, _y, a, b: g / (1 + (a - b).exp()),
    ),
    torch=lambda torch, a, b: torch.logaddexp(a, b),
    kernel=lambda np, a, b: np.logaddexp(a, b),
)

op(
    "logaddexp2",
    function="tt",
    doc="The logarithm to base 2 of the sum of the operands as powers of 2.",
    **ONLY_FLOATING,
    vjp=(
        lambda g, _y, a, b: g / (1 + (b - a).exp2()),
        lambda g, _y, a, b: g / (1 + (a - b).exp2()),
    ),
    torch=lambda torch, a, b: torch.logaddexp2(a, b),
    kernel=lambda np, a, b: np.logaddexp2(a, b),
)

# -- the greater, the lesser, the angle, the sign ------------------------------------------

op(
    "maximum",
    function="tt",
    doc="The greater of two elements; NaN if one is NaN.",
    operands=EITHER * 2,
    **PROMOTING,
    vjp=(
        lambda g, _y, a, b: (g / 2).where(a == b, g).masked_fill(a < b, 0),
        lambda g, _y, a, b: (g / 2).where(a == b, g).masked_fill(a > b, 0),
    ),
    wants_out=True,
    torch=on_tensors("maximum"),
    kernel=lambda np, a, b, *, out: np.maximum(a, b),
)

op(
    "minimum",
    function="tt",
    doc="The lesser of two elements; NaN if one is NaN.",
    operands=EITHER * 2,
    **PROMOTING,
    vjp=(
        lambda g, _y, a, b: (g / 2).where(a == b, g).masked_fill(a > b, 0),
        lambda g, _y, a, b: (g / 2).where(a == b, g).masked_fill(a < b, 0),
    ),
    wants_out=True,
    torch=on_tensors("minimum"),
    kernel=lambda np, a, b, *, out: np.minimum(a, b),
)

op(
    "fmax",
    function="tt",
    doc="The greater of two elements; the other one if one is NaN.",
    **PROMOTING,
    vjp=(
        lambda g, _y, a, b: g.where((a >= b) | (b != b), 0),
        lambda g, _y, a, b: g.masked_fill((a >= b) | (b != b), 0),
    ),
    torch=lambda torch, a, b: torch.fmax(a, b),
    kernel=lambda np, a, b: np.fmax(a, b),
)

op(
    "fmin",
    function="tt",
    doc="The lesser of two elements; the other one if one is NaN.",
    **PROMOTING,
    vjp=(
        lambda g, _y, a, b: g.where((a <= b) | (b != b), 0),
        lambda g, _y, a, b: g.masked_fill((a <= b) | (b != b), 0),
    ),
    torch=lambda torch, a, b: torch.fmin(a, b),
    kernel=lambda np, a, b: np.fmin(a, b),
)


def _per_square(a: Any, b: Any) -> Any:
    square = a * a + b * b
    return square.reciprocal().masked_fill(square == 0, 0)


op(
    "atan2",
    function="tt",
    aliases=("arctan2",),
    doc="The angle of the point (other, input), from -π to π.",
    autocast="widest",
    operands=EITHER * 2,
    **FLOATING,
    vjp=(
        lambda g, _y, a, b: g * (b * _per_square(a, b)),
        lambda g, _y, a, b: g * (-a * _per_square(a, b)),
    ),
    wants_out=True,
    torch=on_tensors("atan2"),
    kernel=lambda np, a, b, *, out: np.arctan2(a, b),
)

op(
    "copysign",
    function="te",
    doc="The first operand with the sign of the second.",
    operands=EITHER * 2,
    **FLOATING,
    vjp=(lambda g, y, a, _b: g * (y / a).masked_fill(a == 0, 0), zero),
    wants_out=True,
    torch=on_tensors("copysign"),
    kernel=lambda np, a, b, *, out: np.copysign(a, b),
)


def _alike(*types: OperandType) -> TensorType:
    if len({t.dtype for t in types}) > 1:
        raise DTypeError(f"dtypes differ: {' and '.join(t.dtype.name for t in types)}")
    return pointwise(*types)


op(
    "heaviside",
    no_gradient="torch has no gradient for it either",
    infer=_alike,
    common=common,
    split=elementwise,
    torch=lambda torch, x, values: torch.heaviside(x, values),
    kernel=lambda np, x, values: np.where(x == 0, values, x > 0),
)

op(
    "nextafter",
    function="tt",
    doc="The next floating-point number after the first operand towards the second.",
    **ONLY_FLOATING,
    vjp=(lambda g, _y, a, b: g.masked_fill(a == b, 0), zero),
    torch=lambda torch, a, b: torch.nextafter(a, b),
    kernel=lambda np, a, b: np.nextafter(a, b),
)

# -- three operands and a number -----------------------------------------------------------


def _added(x: TensorType, a: TensorType, b: TensorType, value: Scalar) -> TensorType:
    result = pointwise(x, a, b)
    if result.dtype is bool_ or (result.dtype.kind not in "fc" and value.dtype.kind == "f"):
        raise DTypeError(f"not defined for {result.dtype.name} and the value {value}; use x.to(gt.float32)")
    return result


def _in_float32(run: Callable[..., Any]) -> Callable[..., Any]:
    """torch computes these in float32 where the operands are float16."""
    return wraps(run)(lambda np, *operands: run(np, *wide(np, *operands)))


def _with_product(xp: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    return x + value * a * b


def _with_quotient(xp: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    return x + value * a / b


def _scaled(x: Any, value: Any) -> Any:
    return x if isinstance(value, int | float) and value == 1 else x * value


op(
    "addcmul",
    complex="holomorphic",
    varying=FORMULA_IN_COMMON_DTYPE,
    autocast="widest",
    operands=f"ttt{NUMBER}",
    infer=_added,
    **linear((0, 1), (0, 2)),
    common=lambda x, a, b, value: result_dtype(x, a, b),
    vjp=(
        lambda g, _y, _x, _a, _b, _value: g,
        lambda g, _y, _x, _a, b, value: g * _scaled(b, value),
        lambda g, _y, _x, a, _b, value: g * _scaled(a, value),
        None,
    ),
    torch=lambda torch, x, a, b, value: torch.addcmul(x, a, b, value=value),
    numpy=_in_float32(_with_product),
    kernel=_with_product,
    inplace=lambda torch, x, a, b, value: x.addcmul_(a, b, value=value),
)


def _divided_and_added(x: TensorType, a: TensorType, b: TensorType, value: OperandType) -> TensorType:
    return ONLY_FLOATING["infer"](x, a, b)  # type: ignore[no-any-return]


op(
    "addcdiv",
    complex="holomorphic",
    varying=FORMULA_IN_COMMON_DTYPE,
    autocast="widest",
    operands=f"ttt{NUMBER}",
    **linear((0, 1)),
    infer=_divided_and_added,
    common=lambda x, a, b, value: result_dtype(x, a, b),
    vjp=(
        lambda g, _y, _x, _a, _b, _value: g,
        lambda g, _y, _x, _a, b, value: g * (value / b),
        lambda g, _y, _x, a, b, value: -g * _scaled(a / (b * b), value),
        None,
    ),
    torch=lambda torch, x, a, b, value: torch.addcdiv(x, a, b, value=value),
    numpy=_in_float32(_with_quotient),
    kernel=_with_quotient,
    inplace=lambda torch, x, a, b, value: x.addcdiv_(a, b, value=value),
)


def _between(start: TensorType, end: TensorType, weight: OperandType) -> TensorType:
    tensors = [t for t in (start, end, weight) if isinstance(t, TensorType)]
    if start.dtype.kind not in "fc":
        raise DTypeError(f"not defined for {start.dtype.name}; use x.to(gt.float32)")
    return _alike(*tensors)


def _lerp_numpy(np: Any, start: Any, end: Any, weight: Any) -> Any:
    """From the nearer end, as torch does: the order matters for infinities."""
    return np.where(abs(weight) < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


op(
    "lerp",
    complex="holomorphic",
    autocast="widest",
    operands=f"tt{EITHER}",
    infer=_between,
    **linear((0, 1)),
    common=lambda start, end, weight: start.dtype,
    vjp=(
        lambda g, _y, _start, _end, weight: g * (1 - weight),
        lambda g, _y, _start, _end, weight: g * weight,
        lambda g, _y, start, end, _weight: g * (end - start),
    ),
    torch=lambda torch, start, end, weight: torch.lerp(start, end, weight),
    kernel=_in_float32(_lerp_numpy),
    inplace=lambda torch, start, end, weight: start.lerp_(end, weight),
)
