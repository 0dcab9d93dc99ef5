"""Ops that read and write along one dim, at the positions in a tensor."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.elements import element
from gt.ops.infer import check_dim, require_bools, shown
from gt.ops.op import EITHER, op
from gt.ops.positions import in_dim
from gt.ops.shape.indexing import positions
from gt.ops.splits_index import gathering, scattering, scattering_sums
from gt.types import OperandType, Scalar, TensorType, bool_


def _gathered(x: TensorType, index: OperandType, *, dim: int) -> TensorType:
    check_dim(dim, x.ndim)
    shape = index.shape if isinstance(index, TensorType) and not index.numel else positions((index,))
    x_shape, index_shape = x.shape or (1,), shape or (1,)
    if 0 in shape:  # nothing is selected: torch checks no more
        return TensorType(shape, x.dtype)
    if len(x_shape) != len(index_shape):
        raise ShapeError(f"an index of {len(index_shape)} dims for a tensor of {len(x_shape)}")
    if any(m > n for d, (n, m) in enumerate(zip(x_shape, index_shape, strict=True)) if d != dim):
        raise ShapeError(f"the index {shown(shape)} is larger than {shown(x.shape)} outside dim {dim}")
    return TensorType(shape, x.dtype)


def _along(np: Any, x: Any, index: Any, dim: int) -> tuple[Any, Any]:
    """The part of x that the index covers, and the index, in the form of numpy's …_along_axis functions."""
    x, index = np.atleast_1d(x), np.atleast_1d(index)
    if index.size and (index.min() < 0 or index.max() >= x.shape[dim]):
        raise IndexError(f"an index is outside dim {dim} of size {x.shape[dim]}")
    return x[tuple(slice(None if d == dim else n) for d, n in enumerate(index.shape))], index


def _gather_numpy(np: Any, x: Any, index: Any, *, dim: int) -> Any:
    if not index.size:
        return np.zeros(index.shape, dtype=x.dtype)
    return np.take_along_axis(*_along(np, x, index, dim), axis=dim).reshape(index.shape)


op(
    "gather",
    complex="rule",
    operands="tt",
    infer=_gathered,
    positions=in_dim,
    split=gathering,
    vjp=(lambda g, _y, _x, index, *, dim: g.new_zeros(_x.shape)._op_("scatter_add", index, g, dim=dim), None),
    torch=lambda torch, x, index, *, dim: torch.gather(x, dim, index),
    kernel=_gather_numpy,
)


def _scattered(x: TensorType, index: OperandType, source: OperandType, *, dim: int) -> TensorType:
    into = _gathered(x, index, dim=dim)
    if isinstance(source, Scalar):
        return x
    if source.dtype is not x.dtype:
        raise DTypeError(f"the source is a tensor of {x.dtype.name}, not {source}")
    if not into.numel:
        return x
    index_shape, source_shape = into.shape or (1,), source.shape or (1,)
    if len(source_shape) != len(index_shape) or any(m > n for n, m in zip(source_shape, index_shape, strict=True)):
        raise ShapeError(f"the index {shown(into.shape)} is larger than the source {shown(source.shape)}")
    return x


def _added(x: TensorType, index: OperandType, source: OperandType, *, dim: int) -> TensorType:
    return _scattered(x, index, source, dim=dim)


def _places(np: Any, result: Any, index: Any, source: Any, dim: int) -> tuple[Any, Any, Any]:
    """The target, the positions and the values."""
    part, at = _along(np, result, index, dim)
    where = list(np.indices(at.shape, sparse=True))
    where[dim] = at
    source = source.astype(result.dtype) if isinstance(source, np.ndarray) else element(np, source, result.dtype)
    return part, tuple(where), np.atleast_1d(source)[tuple(map(slice, at.shape))] if source.ndim else source


def _scatter_numpy(np: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    result = x.copy()
    if index.size:
        part, at, values = _places(np, result, index, source, dim)
        part[at] = values
    return result


def _scatter_add_numpy(np: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    result = x.copy()
    if index.size:
        part, at, values = _places(np, result, index, source, dim)
        np.add.at(part, at, values)
    return result


def _picked(g: Any, index: Any, source: Any, dim: int) -> Any:
    """The gradient of a source, of which the index may use only a part."""
    return _grown(g.gather(dim, index), source)


def _grown(back: Any, source: Any) -> Any:
    """Padded with zeros for the part that was not used."""
    if tuple(back.shape) == tuple(source.shape):
        return back
    if back.ndim != source.ndim:
        return back.reshape(source.shape) if back.numel() else back.new_zeros(source.shape)
    pads = tuple((0, m - n) for n, m in zip(back.shape, source.shape, strict=True))
    return back._op("pad", 0, pads=pads)


op(
    "scatter",
    complex="rule",
    operands=f"tt{EITHER}",
    infer=_scattered,
    positions=in_dim,
    split=scattering,
    vjp=(
        lambda g, _y, _x, index, _source, *, dim: g._op("scatter", index, 0, dim=dim),
        None,
        lambda g, _y, _x, index, _source, *, dim: _picked(g, index, _source, dim),
    ),
    torch=lambda torch, x, index, source, *, dim: torch.scatter(x, dim, index, source),
    kernel=_scatter_numpy,
    inplace=lambda torch, x, index, source, *, dim: x.scatter_(dim, index, source),
)

op(
    "scatter_add",
    complex="rule",
    autocast="widest",
    operands="ttt",
    infer=_added,
    positions=in_dim,
    split=scattering_sums,
    vjp=(
        lambda g, _y, _x, _index, _source, *, dim: g,
        None,
        lambda g, _y, _x, index, _source, *, dim: _picked(g, index, _source, dim),
    ),
    torch=lambda torch, x, index, source, *, dim: torch.scatter_add(x, dim, index, source),
    kernel=_scatter_add_numpy,
    inplace=lambda torch, x, index, source, *, dim: x.scatter_add_(dim, index, source),
)

# -- combining what is written to one position ---------------------------------------------

_FOLDS = {"sum": "add", "prod": "multiply", "mean": "add", "amax": "maximum", "amin": "minimum"}


def _folded(
    x: TensorType, index: OperandType, source: OperandType, *, dim: int, reduce: str, include_self: bool
) -> TensorType:
    if reduce not in _FOLDS:
        raise ShapeError(f"reduce is one of {', '.join(_FOLDS)}, not {reduce!r}")
    require_bools(include_self=include_self)
    if reduce == "mean" and x.dtype is bool_:
        raise DTypeError("there is no mean of bools; use x.to(gt.float32)")
    return _added(x, index, source, dim=dim)


def _start(np: Any, dtype: Any, reduce: str) -> Any:
    if reduce in ("amax", "amin"):
        sign = -1 if reduce == "amax" else 1
        if dtype.kind == "f":
            return sign * np.inf
        if dtype.kind == "b":
            return reduce == "amin"
        return np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max
    return int(reduce == "prod")


def _fold_numpy(np: Any, x: Any, index: Any, source: Any, *, dim: int, reduce: str, include_self: bool) -> Any:
    result = x.copy()
    if not index.size:
        return result
    part, at, values = _places(np, result, index, source, dim)
    if not include_self:
        part[at] = np.asarray(_start(np, x.dtype, reduce)).astype(x.dtype)
    getattr(np, _FOLDS[reduce]).at(part, at, values)
    if reduce == "mean":
        count = np.full(x.shape, int(include_self), dtype=np.int64)
        places, at, ones = _places(np, count, index, np.ones(source.shape, dtype=np.int64), dim)
        np.add.at(places, at, ones)
        count = np.maximum(count, 1)
        result = result / count if x.dtype.kind == "f" else result // count
    return result


def _fold_back(
    needs: Any, g: Any, y: Any, x: Any, index: Any, source: Any, *, dim: int, reduce: str, include_self: bool
) -> list[Any]:
    part = source
    if tuple(index.shape) != tuple(source.shape):
        part = source[tuple(map(slice, index.shape))] if index.ndim else source.reshape(())
    for_x, for_source = _FOLD_BACKS[reduce](g, y, x, index, part, dim, include_self)
    if not include_self:
        for_x = for_x._op("scatter", index, 0, dim=dim)
    return [for_x, None, _grown(for_source, source)]


def _sum_back(g: Any, y: Any, x: Any, index: Any, source: Any, dim: int, include_self: bool) -> tuple[Any, Any]:
    return g, g.gather(dim, index)


def _mean_back(g: Any, y: Any, x: Any, index: Any, source: Any, dim: int, include_self: bool) -> tuple[Any, Any]:
    start = x.new_ones(x.shape) if include_self else x.new_zeros(x.shape)
    count = start.scatter_add(dim, index, source.new_ones(source.shape)).clamp(min=1)
    return g / count, (g / count).gather(dim, index)


def _prod_back(g: Any, y: Any, x: Any, index: Any, source: Any, dim: int, include_self: bool) -> tuple[Any, Any]:
    """Where one factor is 0, only its gradient is not 0: it is the product of the others."""
    apart = x.where(x != 0, 1)
    for_x = (g * y / apart).where(
        x != 0, g * apart._op("scatter_reduce", index, source, **_how(dim, include_self)) / apart
    )
    zeros = (source == 0).to(source.dtype)
    counts = x.new_zeros(x.shape).scatter_add(dim, index, zeros)
    lone = (source == 0).logical_and(counts.gather(dim, index) == 1)
    factors = source.where(source != 0, 1)
    rest = x._op("scatter_reduce", index, source.where(lone.logical_not(), 1), **_how(dim, include_self)).gather(
        dim, index
    )
    whole = (g * y).gather(dim, index) / factors
    for_source = whole.where(source != 0, (g.gather(dim, index) * rest).where(lone, 0))
    return for_x, for_source


def _how(dim: int, include_self: bool) -> dict[str, Any]:
    return {"dim": dim, "reduce": "prod", "include_self": include_self}


def _extreme_back(g: Any, y: Any, x: Any, index: Any, source: Any, dim: int, include_self: bool) -> tuple[Any, Any]:
    """Shared evenly among all elements that equal the extreme."""
    for_x = (x == y).to(g.dtype)
    for_source = (source == y.gather(dim, index)).to(g.dtype)
    share = g / for_x.scatter_add(dim, index, for_source).clamp(min=1)
    return share * for_x, share.gather(dim, index) * for_source


_FOLD_BACKS = {
    "sum": _sum_back,
    "mean": _mean_back,
    "prod": _prod_back,
    "amax": _extreme_back,
    "amin": _extreme_back,
}


op(
    "scatter_reduce",
    operands="ttt",
    infer=_folded,
    positions=in_dim,
    split=scattering,
    vjp=_fold_back,
    torch=lambda torch, x, index, source, *, dim, reduce, include_self: torch.scatter_reduce(
        x, dim, index, source, reduce, include_self=include_self
    ),
    kernel=_fold_numpy,
)
