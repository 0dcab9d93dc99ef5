"""Rows of tables by their numbers: `embedding`, `embedding_bag`, `one_hot`."""

from __future__ import annotations

from gt.client.grad.backward import no_grad
from gt.client.tensor.arguments import cast, refuse, require_tensor, to_int
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, reduce, scatter, sort, views
from gt.functions.creation import arange
from gt.functions.joining import cat
from gt.functions.norm import norm
from gt.ops import OPS
from gt.types import bool_

__all__ = ["embedding", "embedding_bag", "one_hot"]

INFINITY = float("inf")


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table by their numbers. Gradients are dense, also with ``sparse``.

    See `torch.nn.functional.embedding`.
    """
    index, w = require_tensor("embedding", input), require_tensor("embedding", weight)
    if max_norm is not None:
        renormalise(w, index, float(max_norm), norm_type)
    rows = w._type.shape[0] if w._type.ndim else 0
    row = -1 if padding_idx is None else padding_idx
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise refuse(ShapeError, f"padding_idx must be within the {rows} rows", "embedding", index, w, padding_idx)
    row = row % rows if padding_idx is not None and row < 0 else row
    return call(OPS["embedding"], (w, index), (("padding_idx", row), ("by_freq", scale_grad_by_freq)))


def renormalise(w: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Shorten the rows in use to ``max_norm``, in place, as torch does."""
    with no_grad():
        in_use = w.new_zeros(w._type.shape[0], dtype=bool_).index_fill(0, views.reshape(index, -1), True)
        lengths = norm(w, norm_type, 1)
        scale = pointwise.where(in_use & (lengths > max_norm), max_norm / (lengths + 1e-7), 1.0)
        call_into(OPS["mul"], w, (views.unsqueeze(scale, 1),))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A 1 at the position of each class, and 0 elsewhere. Without ``num_classes`` the greatest class is read."""
    x = require_tensor("one_hot", tensor)
    if x._type.dtype.name != "int64":
        raise refuse(DTypeError, "one_hot is only applicable to index tensor of int64", "one_hot", x)
    if num_classes == -1:
        if not x._type.numel:
            raise refuse(
                ShapeError, "the number of classes of an empty tensor is unknown; give num_classes", "one_hot", x
            )
        num_classes = int(reduce.amax(x).item()) + 1
    count = to_int(num_classes, "one_hot(): num_classes is an int")
    return cast(pointwise.eq(views.unsqueeze(x, -1), arange(count)), x._type.dtype)


# -- bags ----------------------------------------------------------------------------------


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of each bag of row numbers. Gradients are dense, also with ``sparse``.

    A bag is a row of a 2-d input, or a stretch of a 1-d input from one offset to the next.
    See `torch.nn.functional.embedding_bag`.
    """
    index, w = require_tensor("embedding_bag", input), require_tensor("embedding_bag", weight)
    _check_bags(index, w, offsets, mode, per_sample_weights, scale_grad_by_freq or sparse)
    rows = embedding(index, w, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * views.unsqueeze(per_sample_weights, -1)
    counted = None if padding_idx is None else pointwise.ne(index, padding_idx % w._type.shape[0])
    if offsets is None:
        return _reduce_rows(rows, counted, mode)
    bags = offsets._type.shape[0]
    at = sort.searchsorted(offsets, arange(index._type.numel), right=True) - 1
    # a position before the first offset is in no bag: an index out of range raises an error
    at = pointwise.masked_fill(at, at < 0, bags)
    result = _reduce_stretches(rows, counted, at, bags, mode)
    # the last offset is where the last bag ends: what follows is a bag of its own, which is dropped
    return result[:-1] if include_last_offset else result


def _check_bags(
    index: Tensor, w: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None, extra: bool
) -> None:
    dims = index._type.ndim
    problems = {
        "weight has to be a 2D Tensor": w._type.ndim != 2,
        "input has to be a 1D or 2D Tensor": dims not in (1, 2),
        "if input is 2D, then offsets has to be None": dims == 2 and offsets is not None,
        "offsets has to be a 1D Tensor": dims == 1 and (offsets is None or offsets._type.ndim != 1),
        "mode has to be one of sum, mean or max": mode not in ("sum", "mean", "max"),
        "max mode does not support scale_grad_by_freq or sparse": mode == "max" and extra,
        "per_sample_weights must have the shape of the input and the dtype of the weight": weights is not None
        and (weights._type.shape, weights._type.dtype) != (index._type.shape, w._type.dtype),
    }
    for text, wrong in problems.items():
        if wrong:
            raise refuse(ShapeError, text, "embedding_bag", index, w, *([] if offsets is None else [offsets]))
    if weights is not None and mode != "sum":
        raise NotImplementedError(f"embedding_bag: per_sample_weights needs mode='sum' (got mode='{mode}')")


def _reduce_rows(rows: Tensor, counted: Tensor | None, mode: str) -> Tensor:
    """Bags of one length: [bags, length, width] to [bags, width]. Rows that do not count are left out."""
    left_out = None if counted is None else views.unsqueeze(pointwise.logical_not(counted), -1)
    length = rows._type.shape[1]
    if mode == "max" and length:
        rows = rows if left_out is None else pointwise.masked_fill(rows, left_out, -INFINITY)
        greatest: Tensor = reduce.max(rows, 1)[0]
        if counted is None:
            return greatest
        return pointwise.masked_fill(greatest, pointwise.logical_not(reduce.any(counted, 1, True)), 0)
    total = reduce.sum(rows if left_out is None else pointwise.masked_fill(rows, left_out, 0), 1)
    if mode != "mean":
        return total
    if counted is None:
        return total / max(length, 1)
    return total / cast(pointwise.clamp(reduce.sum(counted, 1, True), min=1), rows._type.dtype)


def _reduce_stretches(rows: Tensor, counted: Tensor | None, at: Tensor, bags: int, mode: str) -> Tensor:
    """Bags of any length: row i belongs to bag ``at[i]``. Rows that do not count are left out."""
    if counted is not None:
        rows = pointwise.masked_fill(
            rows, views.unsqueeze(pointwise.logical_not(counted), -1), -INFINITY if mode == "max" else 0
        )
    if mode == "max":
        return _greatest(rows, counted, at, bags)
    total = scatter.index_add(rows.detach().new_zeros((bags, rows._type.shape[1])), 0, at, rows)
    if mode == "sum":
        return total
    ones = rows.detach().new_ones(at._type.shape) if counted is None else cast(counted, rows._type.dtype)
    counts = scatter.index_add(ones.new_zeros(bags), 0, at, ones)
    return total / views.unsqueeze(pointwise.clamp(counts, min=1), -1)


def _greatest(rows: Tensor, counted: Tensor | None, at: Tensor, bags: int) -> Tensor:
    """The maximum of each bag and column. Of equal elements the first one gets the gradient, as in torch."""
    n, width = rows._type.shape
    values, index = rows.detach(), views.expand(views.unsqueeze(at, -1), (n, width))
    zeros = values.new_zeros((bags, width))
    greatest = scatter.scatter_reduce(zeros, 0, index, values, reduce.amax.__name__, include_self=False)
    candidate = pointwise.eq(values, scatter.gather(greatest, 0, index)) | pointwise.isnan(values)
    if counted is not None:
        candidate = candidate & views.unsqueeze(counted, -1)
    # n stands for an added row of zeros: the maximum of an empty bag
    position = pointwise.where(candidate, views.unsqueeze(arange(n), -1), n)
    first = scatter.scatter_reduce(
        zeros.new_full((bags, width), n, dtype=position.dtype), 0, index, position, reduce.amin.__name__
    )
    return scatter.gather(cat([rows, values.new_zeros((1, width))]), 0, first)
