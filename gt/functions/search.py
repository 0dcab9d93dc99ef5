"""torch's functions that find, count and tell apart. Those whose result's size depends on values wait for it."""

from __future__ import annotations

from math import inf
from typing import Any

from gt.client.tensor.arguments import a_tensor, cast, operands, refuse, whole
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, draw, pointwise, reduce, views
from gt.functions.rearrange import cat, count, gather, sort, topk
from gt.functions.reduce import ValuesAndIndices
from gt.ops import OPS
from gt.types import NUMBER_OF, bool_, float32, float64, int64, promote, result_dtype

__all__ = [
    "bincount", "bucketize", "histc", "isin", "kthvalue", "msort", "multinomial", "searchsorted", "unique",
    "unique_consecutive",
]  # fmt: skip

SEARCHSORTED, UNIQUE_RANKS, HISTC, KTHVALUE = (OPS[n] for n in ("searchsorted", "unique_ranks", "histc", "kthvalue"))
SCATTER_ADD, INDEX_PUT, MASKED_SELECT = (OPS[n] for n in ("scatter_add", "index_put", "masked_select"))

# -- in sorted rows ------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    row = a_tensor("searchsorted", sorted_sequence)
    if side not in (None, "left", "right"):
        raise refuse(ShapeError, "side is 'left' or 'right'", "searchsorted", row, side=side)
    if side == "left" and right:
        raise refuse(ShapeError, "side='left' and right=True contradict each other", "searchsorted", row)
    if sorter is not None:
        row = gather(row, -1, sorter)
    values = operands("searchsorted", row, input)[1]
    if not isinstance(values, Tensor):
        values = creation.tensor(values, dtype=row._type.dtype)
    dtype = promote(row._type.dtype, values._type.dtype)
    row, values = cast(row, dtype), cast(values, dtype)
    attrs = (("right", right or side == "right"), ("out_int32", out_int32))
    return call(SEARCHSORTED, (row, values), attrs)


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    if boundaries._type.ndim != 1:
        raise refuse(ShapeError, "the boundaries have one dim", "bucketize", input, boundaries)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    values, row = operands("isin", elements, test_elements)
    types = [x._type if isinstance(x, Tensor) else NUMBER_OF[type(x)] for x in (values, row)]
    dtype = result_dtype(*types)
    values, row = (cast(x, dtype) if isinstance(x, Tensor) else creation.tensor(x, dtype) for x in (values, row))
    row = views.reshape(row, (row._type.numel,))
    if not row._type.numel:
        found = creation.full(values._type.shape, False)
    else:
        some = None
        if row._type.dtype.kind == "f":
            # NaN equals nothing, and has no place in an order: something else that is there takes its place
            real = pointwise.logical_not(pointwise.isnan(row))
            some = reduce.any(real)
            row = pointwise.where(real, row, reduce.amin(pointwise.where(real, row, inf)))
        ordered = sort(row).values
        at = pointwise.clamp(searchsorted(ordered, values), max=row._type.numel - 1)
        found = pointwise.eq(call(OPS["index"], (ordered, at), (("dims", (0,)),)), values)
        found = found if some is None else pointwise.logical_and(found, some)
    return pointwise.logical_not(found) if invert else found


# -- counting ------------------------------------------------------------------------------


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    x = a_tensor("histc", input)
    if max < min:
        raise refuse(ShapeError, "max must not be less than min", "histc", x, bins, min, max)
    return call(HISTC, operands("histc", x, min, max), (("bins", whole(bins, "histc(): bins is an int")),))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Reads the largest value: the result is as long."""
    x = a_tensor("bincount", input)
    if x._type.ndim != 1 or x._type.dtype.kind not in "iu":
        raise refuse(ShapeError, "needs a tensor of one dim, of integers of 0 or more", "bincount", x)
    if weights is not None and weights._type.shape != x._type.shape:
        raise refuse(ShapeError, "there is a weight for each element", "bincount", x, weights)
    least = int(reduce.amin(x).item()) if x._type.numel else 0
    if least < 0 or minlength < 0:
        raise refuse(ShapeError, "needs integers of 0 or more", "bincount", x, minlength=minlength)
    n = int(reduce.amax(x).item()) + 1 if x._type.numel else 0
    dtype = int64 if weights is None else float32 if weights._type.dtype is float32 else float64
    added = creation.ones(x._type.shape, dtype=int64) if weights is None else cast(weights, dtype)
    if not x._type.numel:
        return creation.zeros(minlength, dtype=int64)
    zeros = creation.zeros(max(n, minlength), dtype=dtype)
    return call(SCATTER_ADD, (zeros, cast(x, int64), added), (("dim", 0),))


# -- telling apart -------------------------------------------------------------------------


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Always sorted. Reads how many there are."""
    x = a_tensor("unique", input)
    rows, along = _rows("unique", x, dim)
    flat = _flat(rows)
    ranks = call(UNIQUE_RANKS, (flat,)) if flat._type.shape[0] else creation.zeros(0, dtype=int64)
    n = int(reduce.amax(ranks).item()) + 1 if ranks._type.numel else 0
    empty = rows.detach().new_zeros((n, *rows._type.shape[1:]))
    found = call(INDEX_PUT, (empty, rows.detach(), ranks), (("dims", (0,)), ("accumulate", False)))
    counts = _tally(ranks, n) if return_counts else None
    return _answer(found, ranks, counts, x, along, return_inverse)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Of equals next to each other, the first. Reads how many there are."""
    x = a_tensor("unique_consecutive", input)
    rows, along = _rows("unique_consecutive", x, dim)
    flat = _flat(rows)
    if not flat._type.shape[0]:
        ranks, n = creation.zeros(0, dtype=int64), 0
        found = rows
    else:
        new = pointwise.ne(flat[1:], flat[:-1])
        new = reduce.any(new, 1) if new._type.ndim > 1 else new
        first = cat([creation.ones(1, dtype=bool_), new])
        ranks = reduce.cumsum(first, 0) - 1
        n = count(first)
        found = call(MASKED_SELECT, (rows.detach(), first), (("n", n),))
    counts = _tally(ranks, n) if return_counts else None
    return _answer(found, ranks, counts, x, along, return_inverse)


def _rows(name: str, x: Tensor, dim: int | None) -> tuple[Tensor, int | None]:
    """What is told apart, along the first dim."""
    if dim is None:
        return views.reshape(x, (x._type.numel,)), None
    along = views.dim_of(name, x, dim)
    return (views.movedim(x, along, 0) if x._type.ndim else views.reshape(x, 1)), along


def _flat(rows: Tensor) -> Tensor:
    n = rows._type.shape[0]
    return rows if rows._type.ndim == 1 else views.reshape(rows, (n, rows._type.numel // n if n else 0))


def _tally(ranks: Tensor, n: int) -> Tensor:
    ones = creation.ones(ranks._type.shape, dtype=int64)
    return call(SCATTER_ADD, (creation.zeros(n, dtype=int64), ranks, ones), (("dim", 0),))


def _answer(
    found: Tensor, ranks: Tensor, counts: Tensor | None, x: Tensor, along: int | None, return_inverse: bool
) -> Any:
    if along is not None and x._type.ndim:
        found = views.movedim(found, 0, along)
    elif along is None:
        ranks = views.reshape(ranks, x._type.shape)
    made = (found, *((ranks,) if return_inverse else ()), *(() if counts is None else (counts,)))
    return made if len(made) > 1 else found


# -- order ---------------------------------------------------------------------------------


def msort(input: Tensor) -> Tensor:
    return sort(input, 0).values


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The k-th smallest, counted from 1."""
    x = a_tensor("kthvalue", input)
    if x._type.dtype is bool_:
        raise refuse(DTypeError, "not defined for bool; use x.to(gt.uint8)", "kthvalue", x, k)
    dim = views.dim_of("kthvalue", x, dim)
    size = x._type.shape[dim] if x._type.ndim else 1
    if not 1 <= k <= size:
        raise refuse(ShapeError, f"k is not within the {size} elements of dim {dim}", "kthvalue", x, k, dim=dim)
    return ValuesAndIndices(*call_many(KTHVALUE, (x,), (("k", k), ("dim", dim), ("keepdim", keepdim))))


# -- drawing -------------------------------------------------------------------------------


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: None = None) -> Tensor:
    """Positions drawn in proportion to the weights. Weights must be of 0 or more, which is not looked at."""
    x = a_tensor("multinomial", input)
    if x._type.ndim not in (1, 2) or x._type.dtype.kind != "f":
        raise refuse(ShapeError, "needs floating weights, of one or two dims", "multinomial", x, num_samples)
    n = x._type.shape[-1]
    if num_samples < 1 or (num_samples > n and not replacement):
        text = f"cannot draw {num_samples} of {n} {'with' if replacement else 'without'} replacement"
        raise refuse(ShapeError, text, "multinomial", x, num_samples)
    weights = cast(x.detach(), float64)
    if replacement:
        ends = reduce.cumsum(weights, -1)
        total = views.narrow(ends, x._type.ndim - 1, n - 1, 1)
        drawn = draw.rand((*x._type.shape[:-1], num_samples), dtype=float64) * total
        return pointwise.clamp(searchsorted(ends, drawn, right=True), max=n - 1)
    # the first to arrive, if each waits a random time with its weight as the rate
    waits = pointwise.neg(pointwise.log1p(pointwise.neg(draw.rand_like(weights))))
    return topk(weights / pointwise.clamp(waits, min=1e-300), num_samples, -1).indices
