"""Ops that sort, and that select by order. NaN counts as the greatest."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import check_dim, require_bools, require_ints, shown, without
from gt.ops.op import NUMBER, Types, op
from gt.ops.split import Split, along, folding, letters
from gt.types import OperandType, TensorType, bfloat16, bool_, float16, float32, float64, int32, int64


def _sorted(x: TensorType, *, dim: int, descending: bool, stable: bool) -> Types:
    check_dim(dim, x.ndim)
    require_bools(descending=descending, stable=stable)
    return x, TensorType(x.shape, int64)


def _order(np: Any, x: Any, dim: int, descending: bool) -> Any:
    """Positions in sorted order; equal elements keep their order. Descending, NaN is first."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    mirrored = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(mirrored, dim)


def _sort_numpy(np: Any, x: Any, *, dim: int, descending: bool, stable: bool) -> Any:
    row = x.reshape(x.shape or (1,))
    order = _order(np, row, dim, descending)
    return np.take_along_axis(row, order, axis=dim).reshape(x.shape), order.reshape(x.shape)


def _ordered_back(g: Any, y1: Any, _x: Any, *, dim: int, **how: Any) -> Any:
    return g[0].new_zeros(_x.shape)._op_("scatter_add", y1[1], g[0], dim=dim)


op(
    "sort",
    operands="t",
    infer=_sorted,
    split=partial(along, results=2),
    vjp=(_ordered_back,),
    torch=lambda torch, x, *, dim, descending, stable: torch.sort(x, dim=dim, descending=descending, stable=stable),
    kernel=_sort_numpy,
)


def _topped(x: TensorType, *, k: int, dim: int, largest: bool, sorted: bool) -> Types:
    check_dim(dim, x.ndim)
    require_ints(k=k)
    require_bools(largest=largest, sorted=sorted)
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    available = x.shape[dim] if x.ndim else 1
    if not 0 <= k <= available:
        raise ShapeError(f"k={k} is not within the {available} elements of dim {dim}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.ndim else ()
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _topk_numpy(np: Any, x: Any, *, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    values, order = _sort_numpy(np, x, dim=dim, descending=largest, stable=True)
    first = (slice(None),) * dim + (slice(k),) if x.ndim else ()
    return values[first].copy(), order[first].copy()


op(
    "topk",
    operands="t",
    infer=_topped,
    split=partial(along, results=2),
    vjp=(_ordered_back,),
    torch=lambda torch, x, **attrs: torch.topk(x, **attrs),
    kernel=_topk_numpy,
)


def _kth(x: TensorType, *, k: int, dim: int, keepdim: bool) -> Types:
    check_dim(dim, x.ndim)
    require_ints(k=k)
    require_bools(keepdim=keepdim)
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    size = x.shape[dim] if x.ndim else 1
    if not 1 <= k <= size:
        raise ShapeError(f"k={k} is not within the {size} elements of dim {dim}")
    shape = without(x.shape, (dim,), keepdim) if x.ndim else ()
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _kth_numpy(np: Any, x: Any, *, k: int, dim: int, keepdim: bool) -> Any:
    if not x.ndim:
        return x.copy(), np.zeros((), dtype=np.int64)
    order = np.take(np.argsort(x, axis=dim, kind="stable"), np.asarray([k - 1]), axis=dim)
    values = np.take_along_axis(x, order, axis=dim)
    return (values, order) if keepdim else (np.squeeze(values, dim), np.squeeze(order, dim))


def _kth_back(g: Any, y1: Any, _x: Any, *, k: int, dim: int, keepdim: bool) -> Any:
    grad, at = g[0], y1[1]
    if _x.ndim and not keepdim:
        grad, at = grad.unsqueeze(dim), at.unsqueeze(dim)
    return grad.new_zeros(_x.shape)._op_("scatter_add", at, grad, dim=dim)


op(
    "kthvalue",
    operands="t",
    infer=_kth,
    split=partial(folding, results=2),
    vjp=(_kth_back,),
    torch=lambda torch, x, *, k, dim, keepdim: torch.kthvalue(x, k, dim, keepdim),
    kernel=_kth_numpy,
)

# -- positions in a sorted row -------------------------------------------------------------


def _positions(row: TensorType, values: TensorType, *, right: bool, out_int32: bool) -> TensorType:
    require_bools(right=right, out_int32=out_int32)
    shape = values.shape
    if not row.ndim:
        raise ShapeError("the sorted sequence has at least one dim")
    if row.ndim > 1 and (len(shape) != row.ndim or shape[:-1] != row.shape[:-1]):
        raise ShapeError(f"{shown(shape)} and {shown(row.shape)} differ before the last dim")
    if values.dtype is not row.dtype:
        raise DTypeError(f"dtypes differ: {row.dtype.name} and {values.dtype.name}")
    if row.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    return TensorType(shape, int32 if out_int32 else int64)


def find_numpy(np: Any, row: Any, values: Any, *, right: bool, out_int32: bool) -> Any:
    side = "right" if right else "left"
    if row.ndim == 1:
        return np.searchsorted(row, values, side)
    result = np.zeros(values.shape, dtype=np.int64)
    if not values.size:
        return result
    for at in np.ndindex(row.shape[:-1]):
        result[at] = np.searchsorted(row[at], values[at], side)
    return result


def _finding(row: TensorType, values: TensorType, **how: bool) -> Split:
    """Values are independent; a value's position in a row is the sum of its positions in the row's blocks."""
    names = letters(values.ndim)
    return Split(f"{names[:-1] if row.ndim > 1 else ''}Z,{names}->{names}")


op(
    "searchsorted",
    no_gradient="its result is positions",
    operands="tt",
    infer=_positions,
    split=_finding,
    torch=lambda torch, row, values, *, right, out_int32: torch.searchsorted(
        row.contiguous(), values.contiguous(), right=right, out_int32=out_int32
    ),
    kernel=find_numpy,
)


def _ranked(x: TensorType) -> TensorType:
    if not x.ndim:
        raise ShapeError("needs rows")
    if 0 in x.shape[1:]:
        raise ShapeError(f"the rows of {shown(x.shape)} have no elements to compare")
    return TensorType(x.shape[:1], int64)


def _comparable(xp: Any, x: Any) -> Any:
    """Rows without NaN that have the same order: NaN is the greatest, and a row with NaN equals no other.

    torch compares NaN as equal to everything, which may give a wrong order.
    """
    if not xp.isdtype(x.dtype, "real floating") or not xp.any(bad := xp.isnan(x)):
        return x
    rows = xp.reshape(xp.astype(xp.where(bad, xp.zeros_like(x), x), xp.float64), (x.shape[0], -1))
    bad = xp.astype(xp.reshape(bad, rows.shape), xp.float64)
    place = xp.arange(x.shape[0], dtype=xp.float64, device=x.device)[:, None] * xp.any(bad != 0, axis=1, keepdims=True)
    pairs = xp.reshape(xp.stack([bad, rows], axis=-1), (x.shape[0], -1))
    return xp.concat([pairs, place], axis=1)


def _rank(xp: Any, x: Any, ranks: Any) -> Any:
    rows = _comparable(xp, x)
    return xp.reshape(ranks(rows, None if rows.ndim == 1 else 0), (-1,))


#: for each row, its rank among the distinct rows
op(
    "unique_ranks",
    no_gradient="its result is positions",
    whole="a rank is among all rows",
    reads_values="always",
    operands="t",
    infer=_ranked,
    numpy=lambda np, x: _rank(np, x, lambda rows, dim: np.unique(rows, return_inverse=True, axis=dim)[1]),
    kernel=lambda xp, x: _rank(xp, x, lambda rows, dim: rows.unique(return_inverse=True, dim=dim)[1]),
)


def _binned(x: TensorType, low: OperandType, high: OperandType, *, bins: int) -> TensorType:
    if x.dtype not in _MOST_BINS:
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")
    require_ints(bins=bins)
    if not 1 <= bins <= _MOST_BINS[x.dtype]:
        raise ShapeError(f"takes 1 to {_MOST_BINS[x.dtype]} bins in {x.dtype.name}, not {bins}")
    return TensorType((bins,), x.dtype)


#: Up to here, neighbouring numbers of a dtype differ by less than 1. torch computes the position of a bin in the dtype
#: of the elements and does not check it: rounded up by 1, it would be behind the last bin.
_MOST_BINS = {float64: 1 << 52, float32: 1 << 23, float16: 1 << 10, bfloat16: 1 << 7}


def _edges(low: float, high: float, bins: int, rounded: Any, limit: float) -> tuple[float, float]:
    """The first and the last edge; raises where a bin's number could not be computed from them."""
    if low == high:
        low, high = low - 1, high + 1
    low, high = rounded(low), rounded(high)
    if not low < high or not (high - low) * bins <= limit:
        raise ValueError(f"{bins} bins from {low} to {high} are not finite, or none")
    return low, high


def _histc_torch(torch: Any, x: Any, low: Any, high: Any, *, bins: int) -> Any:
    low, high = float(low), float(high)
    if low == high and x.numel():
        low, high = torch.stack(torch.aminmax(x)).tolist()
    low, high = _edges(low, high, bins, lambda n: torch.tensor(n, dtype=x.dtype).item(), torch.finfo(x.dtype).max)
    return torch.histc(x, bins, low, high)


def _histc_numpy(np: Any, x: Any, low: Any, high: Any, *, bins: int) -> Any:
    low, high = float(low), float(high)
    if low == high and x.size:
        low, high = float(x.min()), float(x.max())
    low, high = _edges(low, high, bins, lambda n: float(x.dtype.type(n)), float(np.finfo(x.dtype).max))
    inside = x[(x >= low) & (x <= high)]
    first, last, count = (x.dtype.type(n) for n in (low, high, bins))
    at = ((inside - first) * count / (last - first)).astype(np.int64)
    return np.bincount(np.minimum(at, bins - 1), minlength=bins)


op(
    "histc",
    no_gradient="torch has no gradient for it either",
    whole="with equal bounds, the bounds are those of all elements",
    operands=f"t{NUMBER}{{2}}",
    infer=_binned,
    torch=_histc_torch,
    kernel=_histc_numpy,
)
