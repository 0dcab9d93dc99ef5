"""The functions of the array API standard that torch does not have. The tests of the standard call them on `gt`."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.tensor.arguments import cast, check_device, dtype_of, refuse, require_tensor
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import linalg, pointwise, scan, sort, views
from gt.functions.derived import bitwise_not as bitwise_invert
from gt.functions.joining import broadcast_tensors
from gt.types import promote

__all__ = [
    "astype", "bitwise_invert", "broadcast_arrays", "expand_dims", "matrix_transpose", "permute_dims", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "vecdot",
]  # fmt: skip


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The tensor in another dtype; a copy also if it has that dtype, unless ``copy`` is False."""
    check_device(device)
    result = cast(require_tensor("astype", x), dtype_of(dtype))
    return pointwise.clone(result) if copy and result is x else result


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The tensors, expanded to a common shape."""
    return list(broadcast_tensors(*arrays))


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """A view with a new dim of size 1."""
    return views.unsqueeze(x, axis)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """A view with the last two dims exchanged."""
    return views.matrix_transpose(require_tensor("matrix_transpose", x))


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """A view with the dims in another order."""
    return views.permute(x, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sums of products along a dim, which has the same size in both, in their common dtype."""
    if x1.shape[axis] != x2.shape[axis]:
        raise refuse(ShapeError, "sizes differ along the axis", "vecdot", x1, x2, axis=axis)
    dtype = promote(x1.dtype, x2.dtype)
    return cast(linalg.vecdot(cast(x1, dtype), cast(x2, dtype), dim=axis), dtype)


class UniqueAll(NamedTuple):
    """The different values, where each occurs first, which value each element is, and how often each occurs."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The different values, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The different values, and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different values, sorted, with their first indices, inverse indices and counts. Waits for the workers."""
    values, inverse, counts = sort.unique(x, return_inverse=True, return_counts=True)
    order = sort.argsort(views.flatten(inverse), stable=True)
    first = order[scan.cumsum(counts, 0) - counts]
    return UniqueAll(values, first, inverse, counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different values, sorted, and how often each occurs. Waits for the workers."""
    return UniqueCounts(*sort.unique(x, return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different values, sorted, and which of them each element is. Waits for the workers."""
    return UniqueInverse(*sort.unique(x, return_inverse=True))


def unique_values(x: Tensor, /) -> Tensor:
    """The different values, sorted. Waits for the workers."""
    values: Tensor = sort.unique(x)
    return values
