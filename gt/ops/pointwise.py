"""Ops that work element by element: arithmetic, functions, comparisons, logic, casts.

Operands broadcast and meet in a common dtype as torch has it; either side of a binary op may be a Python number.
Where torch's own function refuses numbers, `_tensors` makes 0-d tensors of them in the dtype the op computes in: a
0-d tensor of another dtype would outrank what a number does not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.core import Types, dtype_named, op
from gt.ops.infer import (
    broadcast_shapes,
    common,
    common_floating,
    expandable,
    pointwise,
    pointwise_bool,
    pointwise_floating,
    refusing,
    refusing_bool,
    same,
    shapes_of,
)
from gt.types import DType, OperandType, Scalar, TensorType, bool_, int64, result_dtype

CAST = "integers: x.to(gt.int64)"

#: operands meet in torch's common dtype, and so is the result
MEETING: dict[str, Any] = {"infer": pointwise, "common": common}
#: the same for all but bool
NUMERIC: dict[str, Any] = {"infer": refusing("b", pointwise, CAST), "common": common}
#: integers become float32
FLOATING: dict[str, Any] = {"infer": pointwise_floating, "common": common_floating}
#: integers are refused, as torch does for these few
ONLY_FLOATING: dict[str, Any] = {"infer": refusing("bui", pointwise, "x.to(gt.float32)"), "common": common}
INTEGRAL: dict[str, Any] = {"infer": refusing("f", pointwise, "integers or bools"), "common": common}
COMPARING: dict[str, Any] = {"infer": pointwise_bool, "common": common}
TESTING: dict[str, Any] = {"infer": pointwise_bool}


def _tensors(torch: Any, out: Types, *operands: Any) -> list[Any]:
    dtype, device = getattr(torch, out[0].dtype.name), _device(torch, operands)
    return [x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device) for x in operands]


def _device(torch: Any, operands: tuple[Any, ...]) -> Any:
    return next((x.device for x in operands if isinstance(x, torch.Tensor)), None)


def _on_tensors(name: str) -> Callable[..., Any]:
    """torch's function of that name, for numbers too."""

    def call(torch: Any, a: Any, b: Any, *, out: Types, **attrs: Any) -> Any:
        return getattr(torch, name)(*_tensors(torch, out, a, b), **attrs)

    return call


# -- arithmetic ----------------------------------------------------------------------------

op(
    "add",
    **MEETING,
    vjp=(lambda g, _y, _a, _b: g, lambda g, _y, _a, _b: g),
    kernel=lambda xp, a, b: a + b,
    inplace=lambda torch, a, b: a.add_(b),
)

op(
    "sub",
    infer=refusing_bool(pointwise, "logical_xor, or logical_not to invert a mask"),
    common=common,
    kernel=lambda xp, a, b: a - b,
    inplace=lambda torch, a, b: a.sub_(b),
)

op(
    "mul",
    **MEETING,
    vjp=(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a),
    kernel=lambda xp, a, b: a * b,
    inplace=lambda torch, a, b: a.mul_(b),
)


def _divided(*types: OperandType, rounding_mode: str | None) -> TensorType:
    if rounding_mode not in _ROUNDED:
        raise ShapeError(f"rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    return _ROUNDED[rounding_mode](*types)


_ROUNDED: dict[str | None, Callable[..., TensorType]] = {
    None: pointwise_floating,
    "floor": NUMERIC["infer"],
    "trunc": NUMERIC["infer"],
}


def _checked(np: Any, divisor: Any) -> Any:
    """numpy makes 0 of an integer divided by zero, and a warning; torch stops."""
    if divisor.dtype.kind in "iu" and not np.all(divisor):
        raise ZeroDivisionError("an integer divided by zero")
    return divisor


def _truncated(np: Any, a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    return abs(a) // abs(_checked(np, b)) * np.sign(a) * np.sign(b)


_DIVIDE = {
    None: lambda np, a, b: a / b,
    "floor": lambda np, a, b: a // _checked(np, b),
    "trunc": _truncated,
}


def _div_torch(torch: Any, a: Any, b: Any, *, rounding_mode: str | None, out: Types) -> Any:
    if rounding_mode is None:
        return a / b
    return torch.div(*_tensors(torch, out, a, b), rounding_mode=rounding_mode)


op(
    "div",
    infer=_divided,
    common=lambda *types, rounding_mode: result_dtype(*types) if rounding_mode else common_floating(*types),
    wants_out=True,
    torch=_div_torch,
    kernel=lambda np, a, b, *, rounding_mode, out: _DIVIDE[rounding_mode](np, a, b),
    inplace=lambda torch, a, b, *, rounding_mode: a.div_(b, rounding_mode=rounding_mode),
)

op(
    "floor_divide",
    **NUMERIC,
    torch=lambda torch, a, b: a // b,
    kernel=lambda np, a, b: a // _checked(np, b),
    inplace=lambda torch, a, b: a.floor_divide_(b),
)

op(
    "remainder",
    **NUMERIC,
    torch=lambda torch, a, b: a % b,
    kernel=lambda np, a, b: np.remainder(a, _checked(np, b)),
    inplace=lambda torch, a, b: a.remainder_(b),
)

op(
    "fmod",
    **NUMERIC,
    wants_out=True,
    torch=_on_tensors("fmod"),
    kernel=lambda np, a, b, *, out: np.fmod(a, _checked(np, b)),
)

op("pow", **NUMERIC, kernel=lambda xp, a, b: a**b, inplace=lambda torch, a, b: a.pow_(b))

op("maximum", **MEETING, wants_out=True, torch=_on_tensors("maximum"), kernel=lambda np, a, b, *, out: np.maximum(a, b))

op("minimum", **MEETING, wants_out=True, torch=_on_tensors("minimum"), kernel=lambda np, a, b, *, out: np.minimum(a, b))

op("atan2", **FLOATING, wants_out=True, torch=_on_tensors("atan2"), kernel=lambda np, a, b, *, out: np.arctan2(a, b))

# -- functions -----------------------------------------------------------------------------

op(
    "neg",
    infer=refusing("b", pointwise, "logical_not"),
    kernel=lambda xp, x: -x,
    inplace=lambda torch, x: x.neg_(),
)

op("abs", **NUMERIC, kernel=lambda xp, x: xp.abs(x))

op(
    "sign",
    **MEETING,
    torch=lambda torch, x: torch.sign(x),
    # by comparison: torch calls the sign of NaN 0
    kernel=lambda np, x: (x > 0).astype(np.int8) - (x < 0).astype(np.int8),
)

op("exp", **FLOATING, kernel=lambda xp, x: xp.exp(x), inplace=lambda torch, x: x.exp_())

op("log", **FLOATING, kernel=lambda xp, x: xp.log(x))

op("log2", **FLOATING, kernel=lambda xp, x: xp.log2(x))

op("log1p", **FLOATING, kernel=lambda xp, x: xp.log1p(x))

op("expm1", **FLOATING, kernel=lambda xp, x: xp.expm1(x))

op("sqrt", **FLOATING, kernel=lambda xp, x: xp.sqrt(x), inplace=lambda torch, x: x.sqrt_())

op("rsqrt", **FLOATING, torch=lambda torch, x: torch.rsqrt(x), kernel=lambda np, x: 1 / np.sqrt(x))


def _squaring(x: TensorType) -> DType:
    return int64 if x.dtype is bool_ else x.dtype  # torch squares a bool as x ** 2, with an integer 2


op(
    "square",
    infer=lambda x: TensorType(x.shape, _squaring(x)),
    common=_squaring,
    torch=lambda torch, x: torch.square(x),
    kernel=lambda np, x: x * x,
)

op("reciprocal", **FLOATING, torch=lambda torch, x: torch.reciprocal(x), kernel=lambda np, x: 1 / x)

op("sin", **FLOATING, kernel=lambda xp, x: xp.sin(x))

op("cos", **FLOATING, kernel=lambda xp, x: xp.cos(x))

op("tan", **FLOATING, kernel=lambda xp, x: xp.tan(x))

op("tanh", **FLOATING, kernel=lambda xp, x: xp.tanh(x))


def _sigmoid(np: Any, x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


op("sigmoid", **FLOATING, torch=lambda torch, x: torch.sigmoid(x), kernel=_sigmoid)

op(
    "relu",
    **NUMERIC,
    torch=lambda torch, x: torch.relu(x),
    kernel=lambda np, x: np.maximum(x, 0),
    inplace=lambda torch, x: x.relu_(),
)

op(
    "silu",
    **ONLY_FLOATING,
    torch=lambda torch, x: torch.nn.functional.silu(x),
    kernel=lambda np, x: x * _sigmoid(np, x),
)


def _erf(np: Any, x: Any) -> Any:
    return np.vectorize(erf, otypes=[np.float64])(x)  # numpy has no erf


op("erf", **FLOATING, torch=lambda torch, x: torch.erf(x), kernel=_erf)

_GELU = {
    "none": lambda np, x: 0.5 * x * (1 + _erf(np, x / sqrt(2))),
    "tanh": lambda np, x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
}


def _gelu(x: TensorType, *, approximate: str) -> TensorType:
    if approximate not in _GELU:
        raise ShapeError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    made: TensorType = ONLY_FLOATING["infer"](x)
    return made


op(
    "gelu",
    infer=_gelu,
    common=common,
    torch=lambda torch, x, *, approximate: torch.nn.functional.gelu(x, approximate=approximate),
    kernel=lambda np, x, *, approximate: _GELU[approximate](np, x),
)

# the array API's floor, ceil and trunc give an integer tensor back as it is; GT's results are fresh memory

op("floor", **NUMERIC, torch=lambda torch, x: torch.floor(x), kernel=lambda np, x: np.floor(+x))

op("ceil", **NUMERIC, torch=lambda torch, x: torch.ceil(x), kernel=lambda np, x: np.ceil(+x))

op("trunc", **NUMERIC, torch=lambda torch, x: torch.trunc(x), kernel=lambda np, x: np.trunc(+x))

op("round", **NUMERIC, torch=lambda torch, x: torch.round(x), kernel=lambda np, x: np.round(+x))


def _clamped(x: TensorType, *limits: OperandType, has_min: bool, has_max: bool) -> TensorType:
    if not limits or len(limits) != has_min + has_max:
        raise ShapeError("needs min, max or both")
    made: TensorType = NUMERIC["infer"](x, *limits)
    return made


def _clamp_torch(torch: Any, x: Any, *limits: Any, has_min: bool, has_max: bool, out: Types) -> Any:
    if any(isinstance(limit, torch.Tensor) for limit in limits):
        limits = tuple(_tensors(torch, out, *limits))
    return torch.clamp(x, limits[0] if has_min else None, limits[-1] if has_max else None)


def _clamp_numpy(np: Any, x: Any, *limits: Any, has_min: bool, has_max: bool, out: Types) -> Any:
    x = np.maximum(x, limits[0]) if has_min else x
    return np.minimum(x, limits[-1]) if has_max else x


op("clamp", infer=_clamped, common=common, wants_out=True, torch=_clamp_torch, kernel=_clamp_numpy)

# -- comparisons and logic -----------------------------------------------------------------

op("eq", **COMPARING, kernel=lambda xp, a, b: a == b)

op("ne", **COMPARING, kernel=lambda xp, a, b: a != b)

op("lt", **COMPARING, kernel=lambda xp, a, b: a < b)

op("le", **COMPARING, kernel=lambda xp, a, b: a <= b)

op("gt", **COMPARING, kernel=lambda xp, a, b: a > b)

op("ge", **COMPARING, kernel=lambda xp, a, b: a >= b)

op("isnan", **TESTING, kernel=lambda xp, x: xp.isnan(x))

op("isinf", **TESTING, kernel=lambda xp, x: xp.isinf(x))

op("isfinite", **TESTING, kernel=lambda xp, x: xp.isfinite(x))


def _truths(name: str) -> Callable[..., Any]:
    """torch's logical function, for numbers too: only whether a number is zero counts."""

    def call(torch: Any, a: Any, b: Any) -> Any:
        at = _device(torch, (a, b))
        a, b = (x if isinstance(x, torch.Tensor) else torch.full((), bool(x), device=at) for x in (a, b))
        return getattr(torch, name)(a, b)

    return call


op("logical_and", **TESTING, torch=_truths("logical_and"), kernel=lambda np, a, b: np.logical_and(a, b))

op("logical_or", **TESTING, torch=_truths("logical_or"), kernel=lambda np, a, b: np.logical_or(a, b))

op("logical_xor", **TESTING, torch=_truths("logical_xor"), kernel=lambda np, a, b: np.logical_xor(a, b))

op("logical_not", **TESTING, torch=lambda torch, x: torch.logical_not(x), kernel=lambda np, x: np.logical_not(x))

op("bitwise_and", **INTEGRAL, kernel=lambda xp, a, b: a & b)

op("bitwise_or", **INTEGRAL, kernel=lambda xp, a, b: a | b)

op("bitwise_xor", **INTEGRAL, kernel=lambda xp, a, b: a ^ b)

op("bitwise_not", **INTEGRAL, kernel=lambda xp, x: ~x)


def _chosen(condition: OperandType, a: OperandType, b: OperandType) -> TensorType:
    if isinstance(condition, Scalar) or condition.dtype is not bool_:
        raise DTypeError(f"the condition must be a bool tensor, not {condition}; compare first: x != 0")
    return TensorType(broadcast_shapes(*shapes_of((condition, a, b))), result_dtype(a, b))


def _where_numpy(np: Any, condition: Any, a: Any, b: Any, *, out: Types) -> Any:
    a, b = (np.asarray(x).astype(out[0].dtype.name) for x in (a, b))
    return np.where(condition, a, b)


op(
    "where",
    infer=_chosen,
    wants_out=True,
    torch=lambda torch, condition, a, b, *, out: torch.where(condition, a, b),
    kernel=_where_numpy,
)

# -- the same values, elsewhere or otherwise -----------------------------------------------

op(
    "to",
    infer=lambda x, *, dtype: TensorType(x.shape, dtype_named(dtype)),
    torch=lambda torch, x, *, dtype: x.to(getattr(torch, dtype), copy=True),
    kernel=lambda np, x, *, dtype: x.astype(dtype),
)

op("clone", infer=same, torch=lambda torch, x: x.clone(), kernel=lambda np, x: x.copy())


def _overwritten(target: TensorType, source: OperandType) -> TensorType:
    expandable(*shapes_of((source, target)))
    return target


def _overwrite_torch(torch: Any, target: Any, source: Any) -> Any:
    return target.copy_(source) if isinstance(source, torch.Tensor) else target.fill_(source)


def _overwrite_numpy(np: Any, target: Any, source: Any) -> Any:
    return np.broadcast_to(np.asarray(source).astype(target.dtype), target.shape).copy()


op(
    "copy",
    infer=_overwritten,
    torch=lambda torch, target, source: _overwrite_torch(torch, torch.empty_like(target), source),
    kernel=_overwrite_numpy,
    inplace=_overwrite_torch,
)
