"""torch's functions that sort, search, count and find distinct values.

Where the size of a result depends on values, the function reads it.
"""

from __future__ import annotations

from math import inf
from typing import Any

from gt.client.tensor.arguments import (
    accept_numpy_names,
    cast,
    normalize_dim,
    operands,
    refuse,
    require_real,
    require_tensor,
    to_int,
)
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, reduce, scan, views
from gt.functions.indexing import count
from gt.functions.joining import cat
from gt.functions.reduce import ValuesAndIndices
from gt.functions.scatter import gather
from gt.ops import OPS
from gt.types import NUMBER_OF, bool_, float32, float64, int64, promote, result_dtype

__all__ = [
    "argsort", "bincount", "bucketize", "histc", "isin", "kthvalue", "msort", "searchsorted", "sort", "topk", "unique",
    "unique_consecutive",
]  # fmt: skip

SORT, TOPK, KTHVALUE, SEARCHSORTED = OPS["sort"], OPS["topk"], OPS["kthvalue"], OPS["searchsorted"]
UNIQUE_RANKS, HISTC, SCATTER_ADD = OPS["unique_ranks"], OPS["histc"], OPS["scatter_add"]
INDEX_PUT, MASKED_SELECT = OPS["index_put"], OPS["masked_select"]

# -- order ---------------------------------------------------------------------------------


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False) -> ValuesAndIndices:
    """The elements sorted along a dim, with their indices."""
    x = require_tensor("sort", input)
    attrs = (("dim", normalize_dim(dim, x._type.ndim)), ("descending", descending), ("stable", bool(stable)))
    return ValuesAndIndices(*call_many(SORT, (x,), attrs))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort a dim."""
    return sort(input, dim, descending, stable).indices


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The k greatest or least elements along a dim, with their indices."""
    x = require_tensor("topk", input)
    attrs = (
        ("k", to_int(k, "topk(): k is an int")),
        ("dim", normalize_dim(dim, x._type.ndim)),
        ("largest", largest),
        ("sorted", sorted),
    )
    return ValuesAndIndices(*call_many(TOPK, (x,), attrs))


sort, argsort = accept_numpy_names(sort), accept_numpy_names(argsort)


def msort(input: Tensor) -> Tensor:
    """The elements sorted along the first dim."""
    return sort(input, 0).values


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The k-th least element along a dim, counted from 1, with its index."""
    x = require_tensor("kthvalue", input)
    if x._type.dtype is bool_:
        raise refuse(DTypeError, "not defined for bool; use x.to(gt.uint8)", "kthvalue", x, k)
    dim = views.dim_of("kthvalue", x, dim)
    size = x._type.shape[dim] if x._type.ndim else 1
    if not 1 <= k <= size:
        raise refuse(ShapeError, f"k is not within the {size} elements of dim {dim}", "kthvalue", x, k, dim=dim)
    return ValuesAndIndices(*call_many(KTHVALUE, (x,), (("k", k), ("dim", dim), ("keepdim", keepdim))))


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
    """The positions at which values would be inserted into sorted sequences."""
    row = require_tensor("searchsorted", sorted_sequence)
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
    """The interval between boundaries into which each element falls."""
    if boundaries._type.ndim != 1:
        raise refuse(ShapeError, "the boundaries have one dim", "bucketize", input, boundaries)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among the test elements."""
    values, row = operands("isin", elements, test_elements)
    types = [x._type if isinstance(x, Tensor) else NUMBER_OF[type(x)] for x in (values, row)]
    dtype = result_dtype(*types)
    values, row = (cast(x, dtype) if isinstance(x, Tensor) else creation.tensor(x, dtype) for x in (values, row))
    row = views.reshape(row, (row._type.numel,))
    if not row._type.numel:
        is_member = creation.full(values._type.shape, False)
    else:
        some = None
        if row._type.dtype.kind == "f":
            # NaN equals nothing and cannot be ordered: it is replaced by another element of the row
            real = pointwise.logical_not(pointwise.isnan(row))
            some = reduce.any(real)
            row = pointwise.where(real, row, reduce.amin(pointwise.where(real, row, inf)))
        ordered = sort(row).values
        at = pointwise.clamp(searchsorted(ordered, values), max=row._type.numel - 1)
        is_member = pointwise.eq(call(OPS["index"], (ordered, at), (("dims", (0,)),)), values)
        is_member = is_member if some is None else pointwise.logical_and(is_member, some)
    return pointwise.logical_not(is_member) if invert else is_member


# -- counting ------------------------------------------------------------------------------


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of several equal intervals."""
    x = require_tensor("histc", input)
    if max < min:
        raise refuse(ShapeError, "max must not be less than min", "histc", x, bins, min, max)
    return call(HISTC, operands("histc", x, min, max), (("bins", to_int(bins, "histc(): bins is an int")),))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of times each non-negative integer occurs. Waits for the least and the greatest one."""
    x = require_tensor("bincount", input)
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


# -- distinct values -----------------------------------------------------------------------


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements, sorted. Waits for their number."""
    x = require_tensor("unique", input)
    rows, along = _rows("unique", x, dim)
    flat = _flat(rows)
    ranks = call(UNIQUE_RANKS, (flat,)) if flat._type.shape[0] else creation.zeros(0, dtype=int64)
    n = int(reduce.amax(ranks).item()) + 1 if ranks._type.numel else 0
    empty = rows.detach().new_zeros((n, *rows._type.shape[1:]))
    distinct = call(INDEX_PUT, (empty, rows.detach(), ranks), (("dims", (0,)), ("accumulate", False)))
    counts = _counts(ranks, n) if return_counts else None
    return _results(distinct, ranks, counts, x, along, return_inverse)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements without repetitions next to each other. Waits for their number."""
    x = require_real("unique_consecutive", require_tensor("unique_consecutive", input))
    rows, along = _rows("unique_consecutive", x, dim)
    flat = _flat(rows)
    if not flat._type.shape[0]:
        ranks, n = creation.zeros(0, dtype=int64), 0
        distinct = rows
    else:
        new = pointwise.ne(flat[1:], flat[:-1])
        new = reduce.any(new, 1) if new._type.ndim > 1 else new
        first = cat([creation.ones(1, dtype=bool_), new])
        ranks = scan.cumsum(first, 0) - 1
        n = count(first)
        distinct = call(MASKED_SELECT, (rows.detach(), first), (("n", n),))
    counts = _counts(ranks, n) if return_counts else None
    return _results(distinct, ranks, counts, x, along, return_inverse)


def _rows(name: str, x: Tensor, dim: int | None) -> tuple[Tensor, int | None]:
    """The rows to compare, along the first dim."""
    if dim is None:
        return views.reshape(x, (x._type.numel,)), None
    along = views.dim_of(name, x, dim)
    return (views.movedim(x, along, 0) if x._type.ndim else views.reshape(x, 1)), along


def _flat(rows: Tensor) -> Tensor:
    n = rows._type.shape[0]
    return rows if rows._type.ndim == 1 else views.reshape(rows, (n, rows._type.numel // n if n else 0))


def _counts(ranks: Tensor, n: int) -> Tensor:
    ones = creation.ones(ranks._type.shape, dtype=int64)
    return call(SCATTER_ADD, (creation.zeros(n, dtype=int64), ranks, ones), (("dim", 0),))


def _results(
    distinct: Tensor, ranks: Tensor, counts: Tensor | None, x: Tensor, along: int | None, return_inverse: bool
) -> Any:
    if along is not None and x._type.ndim:
        distinct = views.movedim(distinct, 0, along)
    elif along is None:
        ranks = views.reshape(ranks, x._type.shape)
    result = (distinct, *((ranks,) if return_inverse else ()), *(() if counts is None else (counts,)))
    return result if len(result) > 1 else distinct
