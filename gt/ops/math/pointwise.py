"""Fields that pointwise ops share, and the ops that choose, clamp, cast and copy.

Operands broadcast and are cast to torch's common dtype; either side of a binary op may be a Python number. Where
torch's own function refuses numbers, `as_tensors` turns them into 0-d tensors of the dtype the op computes in: unlike a
number, a 0-d tensor of another dtype may change the result's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.elements import apart
from gt.ops.infer import (
    broadcast_shapes,
    check_imaginary,
    common,
    common_floating,
    expandable,
    pointwise,
    pointwise_bool,
    pointwise_floating,
    refusing,
    same,
    shapes_of,
)
from gt.ops.op import EITHER, Types, dtype_named, op
from gt.ops.split import Split, elementwise, linear, summable
from gt.ops.varying import CAST_TO_RESULT
from gt.types import OperandType, Scalar, TensorType, bool_, result_dtype

#: the way out in an error about bool operands
CAST = "integers: x.to(gt.int64)"

#: operands are cast to torch's common dtype, which is the result's
PROMOTING: dict[str, Any] = {"infer": pointwise, "common": common, "split": elementwise}
#: the same; bool is refused
NUMERIC: dict[str, Any] = {"infer": refusing("b", pointwise, CAST), "common": common, "split": elementwise}
#: integers become float32
FLOATING: dict[str, Any] = {"infer": pointwise_floating, "common": common_floating, "split": elementwise}
#: the same; complex numbers are taken, and the gradient of real numbers is right for them
HOLOMORPHIC: dict[str, Any] = FLOATING | {"complex": "holomorphic"}
#: integers are refused, as torch does for these few
ONLY_FLOATING: dict[str, Any] = {
    "infer": refusing("bui", pointwise, "x.to(gt.float32)"), "common": common, "split": elementwise,
}  # fmt: skip
#: for integers and bools only
INTEGRAL: dict[str, Any] = {
    "infer": refusing("f", pointwise, "integers or bools"), "common": common, "split": elementwise,
}  # fmt: skip
#: the result is bool; operands are compared in their common dtype
COMPARING: dict[str, Any] = {"infer": pointwise_bool, "common": common, "split": elementwise}
#: the result is bool; operands stay as they are
TESTING: dict[str, Any] = {"infer": pointwise_bool, "split": elementwise}


def as_tensors(torch: Any, out: Types, *operands: Any) -> list[Any]:
    dtype, device = getattr(torch, out[0].dtype.name), device_of(torch, operands)
    return [x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device) for x in operands]


def device_of(torch: Any, operands: tuple[Any, ...]) -> Any:
    return next((x.device for x in operands if isinstance(x, torch.Tensor)), None)


def on_tensors(name: str) -> Callable[..., Any]:
    """torch's function of that name, for numbers too."""

    def call(torch: Any, a: Any, b: Any, *, out: Types, **attrs: Any) -> Any:
        return getattr(torch, name)(*as_tensors(torch, out, a, b), **attrs)

    return call


def zero(g: Any, *_: Any, **_attrs: Any) -> Any:
    """The gradient of a result that does not depend on its operand: zeros, as in torch, and not None."""
    return g.new_zeros(g.shape)


# -- choosing ------------------------------------------------------------------------------


def _chosen(condition: OperandType, a: OperandType, b: OperandType) -> TensorType:
    if isinstance(condition, Scalar) or condition.dtype is not bool_:
        raise DTypeError(f"the condition must be a bool tensor, not {condition}; compare first: x != 0")
    return TensorType(broadcast_shapes(*shapes_of((condition, a, b))), result_dtype(a, b))


def _where_numpy(np: Any, condition: Any, a: Any, b: Any, *, out: Types) -> Any:
    a, b = (np.asarray(x).astype(out[0].dtype.name) for x in (a, b))
    return np.where(condition, a, b)


op(
    "where",
    complex="rule",
    varying=CAST_TO_RESULT,
    operands=f"t{EITHER}{{2}}",
    infer=_chosen,
    **linear((1, 2)),
    vjp=(
        None,
        lambda g, _y, condition, _a, _b: g.where(condition, 0),
        lambda g, _y, condition, _a, _b: g.masked_fill(condition, 0),
    ),
    wants_out=True,
    torch=lambda torch, condition, a, b, *, out: torch.where(condition, a, b),
    kernel=_where_numpy,
)


def _filled(x: TensorType, mask: OperandType, value: OperandType) -> TensorType:
    if isinstance(mask, Scalar) or mask.dtype is not bool_:
        raise DTypeError(f"the mask is a bool tensor, not {mask}")
    if not isinstance(value, Scalar) and value.ndim:
        raise ShapeError(f"the value is a number or a tensor without dims, not {value}")
    if (value.dtype.kind == "f" and x.dtype.kind not in "fc") or (value.dtype.kind == "c" != x.dtype.kind):
        raise DTypeError(f"the value {value} does not fit into {x.dtype.name}")
    return TensorType(broadcast_shapes(x.shape, mask.shape), x.dtype)


def _fill_numpy(np: Any, x: Any, mask: Any, value: Any) -> Any:
    return np.where(mask, np.asarray(value).astype(x.dtype), x)


op(
    "masked_fill",
    complex="rule",
    varying=CAST_TO_RESULT,
    operands=f"tt{EITHER}",
    infer=_filled,
    **linear((0, 2)),
    vjp=(
        lambda g, _y, _x, mask, _value: g.masked_fill(mask, 0),
        None,
        lambda g, _y, _x, mask, _value: g.where(mask, 0).sum(),
    ),
    torch=lambda torch, x, mask, value: torch.masked_fill(x, mask, value),
    kernel=_fill_numpy,
    inplace=lambda torch, x, mask, value: x.masked_fill_(mask, value),
)


def _clamped(x: TensorType, *limits: OperandType, has_min: bool, has_max: bool) -> TensorType:
    if not limits or len(limits) != has_min + has_max:
        raise ShapeError("needs min, max or both")
    result: TensorType = NUMERIC["infer"](x, *limits)
    return result


def _clamp_torch(torch: Any, x: Any, *limits: Any, has_min: bool, has_max: bool, out: Types) -> Any:
    if any(isinstance(limit, torch.Tensor) for limit in limits):
        limits = tuple(as_tensors(torch, out, *limits))
    return torch.clamp(x, limits[0] if has_min else None, limits[-1] if has_max else None)


def _clamp_numpy(np: Any, x: Any, *limits: Any, has_min: bool, has_max: bool, out: Types) -> Any:
    x = np.maximum(x, limits[0]) if has_min else x
    return np.minimum(x, limits[-1]) if has_max else x


def _clamp_back(needs: Any, g: Any, _y: Any, x: Any, *limits: Any, has_min: bool, has_max: bool) -> list[Any]:
    """The gradient goes to elements within the limits, else to the limit that applies: ``max`` where they cross."""
    low, high = limits[0], limits[-1]  # the same if there is only one
    kept = [x >= low] if has_min else []
    kept += [x <= high] if has_max else []
    result = [g.where(kept[0] & kept[-1] if len(kept) > 1 else kept[0], 0) if needs[0] else None]
    if has_min and needs[1]:
        result.append(g.where((x < low) & (low < high) if has_max else x < low, 0))
    elif has_min:
        result.append(None)
    if has_max and needs[-1]:
        result.append(g.where((x > high) | (high < low) if has_min else x > high, 0))
    elif has_max:
        result.append(None)
    return result


op(
    "clamp",
    operands=f"t{EITHER}{{0,2}}",
    infer=_clamped,
    common=common,
    split=elementwise,
    vjp=_clamp_back,
    wants_out=True,
    torch=_clamp_torch,
    kernel=_clamp_numpy,
)

# -- the same values, elsewhere or otherwise -----------------------------------------------


def _casted(x: TensorType, *, dtype: str) -> TensorType:
    result = dtype_named(dtype)
    if x.dtype.kind == "c" and result.kind not in "cb":
        raise DTypeError(f"{result.name} has no imaginary part; use x.real first")
    return TensorType(x.shape, result)


def _cast(x: TensorType, *, dtype: str) -> Split:
    """Between floating dtypes a sum passes, except for rounding."""
    return elementwise(x, linear=((0,),) if summable(x, dtype_named(dtype)) else ())


op(
    "to",
    complex="rule",
    infer=_casted,
    split=_cast,
    vjp=(lambda g, _y, _x, *, dtype: g,),
    torch=lambda torch, x, *, dtype: x.to(getattr(torch, dtype), copy=True),
    kernel=lambda np, x, *, dtype: x.astype(dtype),
)

op(
    "clone",
    complex="rule",
    infer=same,
    **linear((0,)),
    vjp=(lambda g, _y, _x: g,),
    torch=lambda torch, x: x.clone(),
    kernel=lambda np, x: x.copy(),
)


def _overwritten(target: TensorType, source: OperandType) -> TensorType:
    expandable(*shapes_of((source, target)))
    check_imaginary(source, target)
    return target


def _overwrite_torch(torch: Any, target: Any, source: Any) -> Any:
    return target.copy_(apart(source, target)) if isinstance(source, torch.Tensor) else target.fill_(source)


def _overwrite_numpy(np: Any, target: Any, source: Any) -> Any:
    return np.broadcast_to(np.asarray(source).astype(target.dtype), target.shape).copy()


def _copied(target: TensorType, source: OperandType) -> Split:
    return elementwise(target, source, linear=((1,),) if summable(source, target.dtype) else ())


op(
    "copy",
    complex="rule",
    operands=f"t{EITHER}",
    infer=_overwritten,
    split=_copied,
    vjp=(zero, lambda g, _y, _target, _source: g),
    torch=lambda torch, target, source: _overwrite_torch(torch, torch.empty_like(target), source),
    kernel=_overwrite_numpy,
    inplace=_overwrite_torch,
)


def _without_nan(x: TensorType, *, nan: float, posinf: float | None, neginf: float | None) -> TensorType:
    for value in (nan, posinf, neginf):
        if value is not None and not isinstance(value, int | float):
            raise DTypeError(f"nan, posinf and neginf are numbers, and {value!r} is not")
    return x


def _nan_to_num_numpy(np: Any, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
    return np.nan_to_num(x, copy=True, nan=nan, posinf=posinf, neginf=neginf)


op(
    "nan_to_num",
    infer=_without_nan,
    split=elementwise,
    vjp=(lambda g, _y, x, *, nan, posinf, neginf: g.where(x.isfinite(), 0),),
    torch=lambda torch, x, *, nan, posinf, neginf: torch.nan_to_num(x, nan, posinf, neginf),
    kernel=_nan_to_num_numpy,
)
