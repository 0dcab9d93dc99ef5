"""`embedding_bag`: sums, means and maxima of rows of a table, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, joining, pointwise, reduce, scatter, sort, views
from gt.nn._functional.embeddings import embedding_bag
from gt.types import int64

MODES = ("sum", "mean", "max")


def _bags(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """(result, the bag of each index, the number of indices in each bag, the row of each maximum)"""
    padding = None if padding_idx < 0 else padding_idx
    result = embedding_bag(
        indices, weight, offsets, mode=MODES[mode], per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset, padding_idx=padding,
    )  # fmt: skip
    bags, dtype = result._type.shape[0], indices._type.dtype
    at = sort.searchsorted(offsets[:bags], creation.arange(indices._type.numel), right=True) - 1
    counted = creation.ones_like(at) if padding is None else cast(pointwise.ne(indices, padding), int64)
    sizes = scatter.index_add(creation.zeros(bags, dtype=int64), 0, at, counted)
    largest = _rows_of_maxima(weight, indices, at, counted, result) if MODES[mode] == "max" else creation.zeros(0)
    return result, cast(at, dtype), cast(sizes, dtype), cast(largest, dtype)


def _rows_of_maxima(weight: Tensor, indices: Tensor, at: Tensor, counted: Tensor, result: Tensor) -> Tensor:
    """The number of the row that each maximum is from; -1 for an empty bag."""
    rows = scatter.index_select(weight, 0, indices)
    is_largest = pointwise.eq(rows, scatter.index_select(result, 0, at)) & views.unsqueeze(counted > 0, 1)
    n = indices._type.numel
    # of rows with the same maximum, the first one has it
    places = pointwise.where(is_largest, views.unsqueeze(creation.arange(n), 1), n)
    target = views.expand(views.unsqueeze(at, 1), rows._type.shape)
    nowhere = creation.full(result._type.shape, n, dtype=int64)
    first = scatter.scatter_reduce(nowhere, 0, target, places, "amin")
    with_end = joining.cat([cast(indices, int64), creation.full((1,), -1, dtype=int64)])
    return views.reshape(scatter.index_select(with_end, 0, views.reshape(first, (-1,))), result._type.shape)


def _bags_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, at: Tensor, sizes: Tensor, largest: Tensor, rows: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of the table. It does not depend on the table's values, except for which rows are the maxima."""
    table = creation.zeros(rows, grad._type.shape[1], dtype=grad._type.dtype)
    if MODES[mode] == "max":
        kept = pointwise.masked_fill(grad, largest < 0, 0)
        return scatter.scatter_add(table, 0, pointwise.clamp(cast(largest, int64), min=0), kept)
    factors = scatter.index_select(_shares(grad, sizes, mode), 0, at)
    if per_sample_weights is not None:
        factors = factors * views.unsqueeze(per_sample_weights, 1)
    if padding_idx >= 0:
        factors = pointwise.masked_fill(factors, views.unsqueeze(pointwise.eq(indices, padding_idx), 1), 0)
    if scale_grad_by_freq:
        counts = scatter.index_add(
            creation.zeros(rows, dtype=int64), 0, indices, creation.ones_like(indices, dtype=int64)
        )
        factors = factors / views.unsqueeze(scatter.index_select(counts, 0, indices), 1)
    return scatter.index_add(table, 0, indices, factors)


def _shares(grad: Tensor, sizes: Tensor, mode: int) -> Tensor:
    return grad if MODES[mode] == "sum" else grad / views.unsqueeze(pointwise.clamp(sizes, min=1), 1)


def _sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, at: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    products = scatter.index_select(grad, 0, at) * scatter.index_select(weight, 0, indices)
    result = reduce.sum(products, 1)
    return result if padding_idx < 0 else pointwise.masked_fill(result, pointwise.eq(indices, padding_idx), 0)


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_embedding_bag": _bags,
    "_embedding_bag_backward": _bags_backward,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_per_sample_weights_backward": _sample_weights_backward,
}
