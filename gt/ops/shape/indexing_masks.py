"""Ops that select elements by a mask, write where a mask is true, or find what is not zero.

Only the workers know how many elements a mask selects. The client states the count, because the result's type depends
on it; a kernel raises if the data disagree.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.elements import single_element
from gt.ops.infer import assignable, require_ints, shown, sizes
from gt.ops.op import EITHER, op
from gt.ops.shape.indexing import castable
from gt.ops.shape.slicing import assigned, fitting
from gt.ops.splits_index import masking, selecting
from gt.types import OperandType, Scalar, Shape, TensorType, bool_, int64


def _rows(x: TensorType, mask: OperandType) -> Shape:
    """The shape of the dims that a mask over the leading dims does not cover."""
    if isinstance(mask, Scalar) or mask.dtype is not bool_:
        raise DTypeError(f"the mask is a bool tensor, not {mask}")
    if mask.shape != x.shape[: mask.ndim]:
        raise DimError(f"a mask of shape {shown(mask.shape)} does not cover the first dims of {shown(x.shape)}")
    return x.shape[mask.ndim :]


def _selected(x: TensorType, mask: TensorType, *, n: int) -> TensorType:
    rows = _rows(x, mask)
    require_ints(n=n)
    if not 0 <= n <= mask.numel:
        raise ShapeError(f"a mask of {mask.numel} elements cannot choose {n}")
    return TensorType((n, *rows), x.dtype)


def _select(xp: Any, x: Any, mask: Any, *, n: int) -> Any:
    selected = x[mask]
    if selected.shape[0] != n:
        raise ValueError(f"the mask chooses {selected.shape[0]} elements, not {n}")
    return selected


op(
    "masked_select",
    complex="rule",
    reads_values="always",
    operands="tt",
    infer=_selected,
    split=selecting,
    vjp=(lambda g, _y, _x, mask, *, n: g.new_zeros(_x.shape)._op_("masked_put", mask, g), None),
    kernel=_select,
)


def _masked(x: TensorType, mask: TensorType, value: OperandType) -> TensorType:
    rows = _rows(x, mask)
    shape = () if isinstance(value, Scalar) else value.shape
    # the number of rows that the mask selects is unknown here; the kernel checks it
    assignable(value, (shape[-len(rows) - 1] if len(shape) > len(rows) else 1, *rows))
    castable(x, value)
    return x


def _masked_torch(torch: Any, x: Any, mask: Any, value: Any) -> Any:
    number = not isinstance(value, torch.Tensor)
    x[mask] = x.new_full((), value) if number else fitting(value, x.ndim - mask.ndim + 1).to(x.dtype)
    return x


def _masked_numpy(np: Any, x: Any, mask: Any, value: Any) -> Any:
    result = x.copy()
    if isinstance(value, np.ndarray):
        result[mask] = fitting(value, x.ndim - mask.ndim + 1).astype(x.dtype)
    else:
        result[mask] = single_element(np, value, x.dtype)
    return result


def _masked_back(g: Any, _y: Any, _x: Any, mask: Any, _value: Any) -> Any:
    """The value gives the number of selected rows; where it broadcasts, its gradient is a sum."""
    rows = g.ndim - mask.ndim
    n = _value.shape[-rows - 1] if _value.ndim > rows else 1
    if n != 1:
        return assigned(g._op("masked_select", mask, n=n), _value)
    chosen = g.where(mask.reshape((*mask.shape, *(1,) * rows)), 0)
    return assigned(chosen.sum(tuple(range(mask.ndim))) if mask.ndim else chosen, _value)


op(
    "masked_put",
    complex="rule",
    reads_values="always",
    operands=f"tt{EITHER}",
    infer=_masked,
    split=masking,
    vjp=(lambda g, _y, _x, mask, _value: g._op("masked_put", mask, 0), None, _masked_back),
    torch=lambda torch, x, *rest: _masked_torch(torch, x.clone(), *rest),
    kernel=_masked_numpy,
    inplace=_masked_torch,
)


def _nonzero(x: TensorType, *, n: int) -> TensorType:
    require_ints(n=n)
    if not 0 <= n <= x.numel:
        raise ShapeError(f"{x.numel} elements cannot hold {n} that are not zero")
    return TensorType(sizes((n, x.ndim)), int64)


def _as_many(places: Any, n: int) -> Any:
    if places.shape[0] != n:
        raise ValueError(f"{places.shape[0]} elements are not zero, not {n}")
    return places


op(
    "nonzero",
    complex="rule",
    no_gradient="its result is positions",
    whole="the place of a result depends on all results before it",
    reads_values="always",
    operands="t",
    infer=_nonzero,
    torch=lambda torch, x, *, n: _as_many(torch.nonzero(x), n),
    kernel=lambda np, x, *, n: _as_many(np.argwhere(x), n),
)

# -- filling a mask in order ---------------------------------------------------------------


def _filled(x: TensorType, mask: OperandType, source: OperandType) -> TensorType:
    if isinstance(mask, Scalar) or mask.dtype is not bool_ or mask.shape != x.shape:
        raise DTypeError(f"the mask is a bool tensor of shape {shown(x.shape)}, not {mask}")
    if isinstance(source, Scalar) or source.dtype is not x.dtype:
        raise DTypeError(f"the source is a tensor of {x.dtype.name}, not {source}")
    return x


def _fill_numpy(np: Any, x: Any, mask: Any, source: Any) -> Any:
    result, count = x.copy(), int(mask.sum())
    if count > source.size:
        raise ValueError(f"the mask chooses {count} elements, and the source has {source.size}")
    result[mask] = source.reshape(-1)[:count]
    return result


op(
    "masked_scatter",
    complex="rule",
    whole="the place of an element depends on the whole mask before it",
    operands="ttt",
    infer=_filled,
    vjp=(
        lambda g, _y, _x, mask, _source: g.where(mask.logical_not(), 0),
        None,
        lambda g, _y, _x, mask, _source: g._op("masked_scatter_backward", mask, shape=tuple(_source.shape)),
    ),
    torch=lambda torch, x, mask, source: x.masked_scatter(mask, source),
    kernel=_fill_numpy,
    inplace=lambda torch, x, mask, source: x.masked_scatter_(mask, source),
)


def _emptied(g: TensorType, mask: TensorType, *, shape: Shape) -> TensorType:
    """The gradient of the source: the elements of g where the mask is true, then zeros."""
    return TensorType(sizes(shape), _filled(g, mask, g).dtype)


def _drained(xp: Any, g: Any, mask: Any, *, shape: Shape) -> Any:
    result = xp.zeros(shape, dtype=g.dtype, device=g.device).reshape(-1)
    chosen = g[mask]
    if chosen.shape[0] > result.shape[0]:
        raise ValueError(f"the mask chooses {chosen.shape[0]} elements, and {shown(shape)} has {result.shape[0]}")
    result[: chosen.shape[0]] = chosen
    return result.reshape(shape)


op(
    "masked_scatter_backward",
    complex="rule",
    whole="as for masked_scatter",
    reads_values="always",
    operands="tt",
    infer=_emptied,
    vjp=(lambda g, _y, _x, mask, *, shape: g.new_zeros(_x.shape)._op("masked_scatter", mask, g), None),
    kernel=_drained,
)
