"""Ops that reduce dims: sums, means, tests and extremes.

``dim`` is a tuple of all the dims to reduce, never empty unless the tensor is 0-d: torch's functions disagree on what
an empty one means. A 0-d tensor takes ``dim=(0,)`` too, as torch's does; numpy's has no axis 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.infer import check_dim, check_dims, check_imaginary, require_bools, require_ints, shown, without
from gt.ops.op import Types, dtype_named, op
from gt.ops.positions import Positions
from gt.ops.split import Share, Split, folding, summable
from gt.types import DType, Shape, TensorType, bool_, int64, real_of, uint8

Dims = tuple[int, ...]


def folded(x: TensorType, dim: Dims, keepdim: bool) -> Shape:
    if x.ndim and not dim:
        raise DimError("dim is empty; name the dims to fold, or leave it out for all")
    require_bools(keepdim=keepdim)
    return without(x.shape, check_dims(dim, x.ndim), keepdim)


def _filled(x: TensorType, dim: Dims) -> None:
    """Refuses a dim without elements: it has no extreme."""
    for d in check_dims(dim, x.ndim):
        if x.ndim and not x.shape[d]:
            raise DimError(f"dim {d} has size 0, and there is no extreme of nothing")


def axes(x: Any, dim: Dims) -> Dims:
    return dim if x.ndim else ()


def in_(torch: Any, dtype: str | None) -> Any:
    return None if dtype is None else getattr(torch, dtype)


def cast(x: Any, dtype: str | None) -> Any:
    return x if dtype is None else x.astype(dtype)


# -- sums ----------------------------------------------------------------------------------


def total(dtype: DType) -> DType:
    return dtype if dtype.kind in "fc" else int64


def summed(x: TensorType, *, dim: Dims, keepdim: bool, dtype: str | None) -> TensorType:
    result = TensorType(folded(x, dim, keepdim), total(x.dtype) if dtype is None else dtype_named(dtype))
    check_imaginary(x, result)
    return result


def restored(g: Any, x: Any, dim: Dims, keepdim: bool) -> Any:
    """The result of a reduction with its dims as dims of size 1; a 0-d result broadcasts as it is."""
    return g if keepdim or not g.ndim else g.reshape(tuple(1 if d in dim else n for d, n in enumerate(x.shape)))


def _passing(x: TensorType, *, dtype: str | None, **how: Any) -> Split:
    result = total(x.dtype) if dtype is None else dtype_named(dtype)
    return folding(x, **how, how="sum", passes=summable(x, result))


op(
    "sum",
    complex="rule",
    autocast="float32_result",
    operands="t",
    infer=summed,
    split=_passing,
    vjp=(lambda g, _y, _x, *, dim, keepdim, dtype: restored(g, _x, dim, keepdim).expand(_x.shape),),
    torch=lambda torch, x, *, dim, keepdim, dtype: torch.sum(x, dim, keepdim, dtype=in_(torch, dtype)),
    kernel=lambda np, x, *, dim, keepdim, dtype: np.sum(
        cast(x, dtype), axis=axes(x, dim), keepdims=keepdim, dtype=dtype
    ),
)


def averaging(x: DType, dtype: str | None) -> DType:
    result = x if dtype is None else dtype_named(dtype)
    if result.kind not in "fc":
        raise DTypeError(f"not defined for {result.name}; give a floating dtype: dtype=gt.float32")
    return result


def _averaged(x: TensorType, *, dim: Dims, keepdim: bool, dtype: str | None, whole: int | None = None) -> TensorType:
    """``whole``: the number of elements on all workers that are averaged."""
    require_ints(whole=0 if whole is None else whole)
    result = TensorType(folded(x, dim, keepdim), averaging(x.dtype, dtype))
    check_imaginary(x, result)
    return result


def count(x: Any, dim: Dims) -> int:
    result = 1
    for d in axes(x, dim):
        result *= x.shape[d]
    return result


def _mean_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool, dtype: str | None, whole: int | None = None) -> Any:
    # by hand: numpy's own warns about empty tensors
    result = x.dtype if dtype is None else np.dtype(dtype)
    precise = np.float32 if result == np.float16 else result  # half precision is summed in float32, as in torch
    total = np.sum(x.astype(precise), axis=axes(x, dim), keepdims=keepdim)
    return np.true_divide(total, np.asarray(count(x, dim) if whole is None else whole, dtype=total.dtype))


def _mean_back(g: Any, x: Any, dim: Dims, keepdim: bool) -> Any:
    # divided before it is expanded: torch divides every element
    n, g = count(x, dim), restored(g, x, dim, keepdim)
    return (g / n if n else g).expand(x.shape)


def _mean_torch(torch: Any, x: Any, *, dim: Dims, keepdim: bool, dtype: str | None, whole: int | None = None) -> Any:
    if whole is None:
        return torch.mean(x, dim, keepdim, dtype=in_(torch, dtype))
    result = x.dtype if dtype is None else in_(torch, dtype)
    precise = torch.promote_types(result, torch.float32)  # half precision is summed in float32, as in torch
    return (torch.sum(x, dim, keepdim, dtype=precise) / whole).to(result)


def _share(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    return {**attrs, "whole": count(share.whole_ins[0], attrs["dim"])}


op(
    "mean",
    complex="rule",
    operands="t",
    infer=_averaged,
    split=lambda x, *, dim, keepdim, dtype: folding(
        x, dim=dim, keepdim=keepdim, how="sum", passes=x.dtype.kind in "fc"
    ),
    local=_share,
    vjp=(lambda g, _y, _x, *, dim, keepdim, dtype: _mean_back(g, _x, dim, keepdim),),
    torch=_mean_torch,
    kernel=_mean_numpy,
)


def _varied(x: TensorType, *, dim: Dims, keepdim: bool, correction: float) -> TensorType:
    if type(correction) not in (int, float):
        raise DTypeError(f"correction is a number, not {correction!r}")
    return TensorType(folded(x, dim, keepdim), real_of(averaging(x.dtype, None)))


def _var_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    apart = x - _mean_numpy(np, x, dim=dim, keepdim=True, dtype=None)
    total = np.sum((apart * apart.conj()).real, axis=axes(x, dim), keepdims=keepdim)
    n = count(x, dim)
    return np.true_divide(total, np.asarray(max(n - correction, 0) if n else 0, dtype=total.dtype))


def _var_back(g: Any, _y: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    free = count(x, dim) - correction
    scale = 2 / free if free else float("inf")
    return restored(g, x, dim, keepdim) * scale * (x - x.mean(dim, keepdim=True))


def _std_back(g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    flat = (g / (y * 2)).masked_fill(y == 0, 0)
    return _var_back(flat, y, x, dim=dim, keepdim=keepdim, correction=correction)


op(
    "var",
    complex="rule",
    operands="t",
    infer=_varied,
    split=folding,
    vjp=(_var_back,),
    torch=lambda torch, x, *, dim, keepdim, correction: torch.var(x, dim, correction=correction, keepdim=keepdim),
    kernel=_var_numpy,
)

op(
    "std",
    complex="rule",
    operands="t",
    infer=_varied,
    split=folding,
    vjp=(_std_back,),
    torch=lambda torch, x, *, dim, keepdim, correction: torch.std(x, dim, correction=correction, keepdim=keepdim),
    kernel=lambda np, x, **attrs: np.sqrt(_var_numpy(np, x, **attrs)),
)

# -- truths --------------------------------------------------------------------------------


def _judged(x: TensorType, *, dim: Dims, keepdim: bool) -> TensorType:
    # in torch, all and any of uint8 give uint8
    return TensorType(folded(x, dim, keepdim), uint8 if x.dtype is uint8 else bool_)


op(
    "all",
    complex="rule",
    no_gradient="its result is bool",
    operands="t",
    infer=_judged,
    split=partial(folding, how="min"),
    torch=lambda torch, x, *, dim, keepdim: torch.all(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.all(x, axis=axes(x, dim), keepdims=keepdim),
)

op(
    "any",
    complex="rule",
    no_gradient="its result is bool",
    operands="t",
    infer=_judged,
    split=partial(folding, how="max"),
    torch=lambda torch, x, *, dim, keepdim: torch.any(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.any(x, axis=axes(x, dim), keepdims=keepdim),
)

# -- extremes ------------------------------------------------------------------------------


def _extreme(x: TensorType, *, dim: Dims, keepdim: bool) -> TensorType:
    shape = folded(x, dim, keepdim)
    _filled(x, dim)
    return TensorType(shape, x.dtype)


def _evenly(g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    """Shared by all elements that equal the extreme."""
    those = x == restored(y, x, dim, keepdim)
    return restored(g, x, dim, keepdim) * those / those.sum(dim, keepdim=True)


op(
    "amax",
    operands="t",
    infer=_extreme,
    split=partial(folding, how="max", fills=True),
    vjp=(_evenly,),
    torch=lambda torch, x, *, dim, keepdim: torch.amax(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.max(x, axis=axes(x, dim), keepdims=keepdim),
)

op(
    "amin",
    operands="t",
    infer=_extreme,
    split=partial(folding, how="min", fills=True),
    vjp=(_evenly,),
    torch=lambda torch, x, *, dim, keepdim: torch.amin(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.min(x, axis=axes(x, dim), keepdims=keepdim),
)


def _located(x: TensorType, *, dim: int | None, keepdim: bool) -> TensorType:
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    require_bools(keepdim=keepdim)
    dims = tuple(range(x.ndim)) if dim is None else (check_dim(dim, x.ndim),)
    _filled(x, dims)
    return TensorType(without(x.shape, dims, keepdim), int64)


def _position(np: Any, find: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    return find(x, axis=dim if x.ndim else None, keepdims=keepdim)


op(
    "argmax",
    no_gradient="its result is positions",
    operands="t",
    infer=_located,
    split=folding,
    torch=lambda torch, x, *, dim, keepdim: torch.argmax(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _position(np, np.argmax, x, dim, keepdim),
)

op(
    "argmin",
    no_gradient="its result is positions",
    operands="t",
    infer=_located,
    split=folding,
    torch=lambda torch, x, *, dim, keepdim: torch.argmin(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _position(np, np.argmin, x, dim, keepdim),
)


def _extreme_and_place(x: TensorType, *, dim: int, keepdim: bool) -> Types:
    values = _extreme(x, dim=(dim,), keepdim=keepdim)
    return values, TensorType(values.shape, int64)


def _value_and_place(np: Any, find: Any, x: Any, dim: int, keepdim: bool) -> Any:
    row = x if x.ndim else x.reshape(1)
    places = find(row, axis=dim, keepdims=True)
    shape = without(x.shape, (dim,), keepdim)
    return np.take_along_axis(row, places, axis=dim).reshape(shape), places.reshape(shape)


def _spread(g: TensorType, index: TensorType, *, dim: int, size: int, keepdim: bool) -> TensorType:
    require_bools(keepdim=keepdim)
    require_ints(size=size)
    if index.shape != g.shape or index.dtype is not int64:
        raise ShapeError(f"the index is an int64 tensor of shape {shown(g.shape)}, not {index}")
    check_dim(dim, g.ndim + (not keepdim) if size else 0)
    before = () if not size else g.shape if keepdim else (*g.shape[:dim], 1, *g.shape[dim:])
    if without(before, (dim,), keepdim) != g.shape:
        raise ShapeError(f"{shown(g.shape)} is not what a reduction of dim {dim} of size {size} leaves")
    return TensorType((*before[:dim], size, *before[dim + 1 :]) if size else (), g.dtype)


def _spread_torch(torch: Any, g: Any, index: Any, *, dim: int, size: int, keepdim: bool, out: Types) -> Any:
    if not out[0].ndim:
        return g.clone()
    g, index = (g, index) if keepdim else (g.unsqueeze(dim), index.unsqueeze(dim))
    return g.new_zeros(out[0].shape).scatter_(dim, index, g)


def _spread_numpy(np: Any, g: Any, index: Any, *, dim: int, size: int, keepdim: bool, out: Types) -> Any:
    if not out[0].ndim:
        return g.copy()
    g, index = (g, index) if keepdim else (np.expand_dims(g, dim), np.expand_dims(index, dim))
    if index.size and (index.min() < 0 or index.max() >= size):
        raise IndexError(f"an index is outside dim {dim} of size {size}")
    result = np.zeros(out[0].shape, dtype=g.dtype)
    np.put_along_axis(result, index, g, axis=dim)
    return result


def _collect(c: Any, _y: Any, _g: Any, index: Any, *, dim: int, size: int, keepdim: bool) -> Any:
    if not c.ndim:
        return c
    return c.gather(dim, index) if keepdim else c.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def _unfolding(g: TensorType, index: TensorType, *, dim: int, size: int, keepdim: bool) -> Split:
    result = _spread(g, index, dim=dim, size=size, keepdim=keepdim)
    back = folding(result, dim=dim, keepdim=keepdim).indices.split("->")
    return Split(f"{back[1]},{back[1]}->{back[0]}", linear=((0,),))


#: the gradient goes to the position of the selected value, zeros elsewhere. ``size`` is 0 for a 0-d tensor
op(
    "value_selecting_reduction_backward",
    operands="tt",
    infer=_spread,
    positions=lambda g, at, *, dim, size, keepdim: (Positions(1, size),) if size else (),
    split=_unfolding,
    vjp=(_collect, None),
    wants_out=True,
    torch=_spread_torch,
    kernel=_spread_numpy,
)


def selected(g: Any, y1: Any, _x: Any, *, dim: int, keepdim: bool) -> Any:
    size = _x.shape[dim] if _x.ndim else 0
    return g[0]._op("value_selecting_reduction_backward", y1[1], dim=dim, size=size, keepdim=keepdim)


SELECTING = (selected,)

op(
    "max_dim",
    operands="t",
    infer=_extreme_and_place,
    split=partial(folding, results=2),
    vjp=SELECTING,
    torch=lambda torch, x, *, dim, keepdim: torch.max(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _value_and_place(np, np.argmax, x, dim, keepdim),
)

op(
    "min_dim",
    operands="t",
    infer=_extreme_and_place,
    split=partial(folding, results=2),
    vjp=SELECTING,
    torch=lambda torch, x, *, dim, keepdim: torch.min(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _value_and_place(np, np.argmin, x, dim, keepdim),
)
