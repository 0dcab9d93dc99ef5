"""torch's norms of vectors and matrices, and functions that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from gt.client.tensor.arguments import (
    accept_numpy_names,
    cast,
    dtype_name,
    dtype_of,
    normalize_dim,
    normalize_dims,
    refuse,
    require_tensor,
)
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, reduce, views
from gt.functions.reduce import Dims
from gt.ops import OPS

__all__ = ["dist", "norm", "norm_except_dim", "renorm"]

VECTOR_NORM, SVD = OPS["vector_norm"], OPS["svd"]


# -- of vectors ----------------------------------------------------------------------------


def _floating(name: str, x: Any, dtype: Any) -> Tensor:
    tensor = require_tensor(name, x)
    if tensor._type.dtype.kind not in "fc" or (dtype is not None and dtype_of(dtype).kind not in "fc"):
        raise refuse(DTypeError, "needs a floating tensor; use x.float()", name, tensor)
    return tensor


def _vector_norm(x: Tensor, ord: float, dim: Dims, keepdim: bool, dtype: Any) -> Tensor:
    if not isinstance(ord, int | float | Tensor):
        raise refuse(DTypeError, "ord is a number", "vector_norm", x, ord=ord)
    dims = normalize_dims(dim, x._type.ndim)
    attrs = (("ord", float(ord)), ("dim", dims), ("keepdim", keepdim), ("dtype", dtype_name(dtype)))
    return call(VECTOR_NORM, (x,), attrs)


@accept_numpy_names
def vector_norm(x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm over dims as one vector; over all dims if ``dim`` is None."""
    return _vector_norm(_floating("vector_norm", x, dtype), ord, dim, keepdim, dtype)


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The norm over dims as one vector; with ``p="nuc"``, the nuclear norm of matrices."""
    x = _floating("norm", input, dtype)
    if p == "nuc":
        return matrix_norm(x, p, (0, 1) if dim is None and x._type.ndim == 2 else dim, keepdim, dtype=dtype)  # type: ignore[arg-type]
    p = 2 if p in (None, "fro") else p
    if not isinstance(p, int | float):
        raise refuse(DTypeError, "p is a number, 'fro' or 'nuc'", "norm", x, p=p)
    return _vector_norm(x, p, dim, keepdim, dtype)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference of two tensors."""
    return vector_norm(pointwise.sub(input, other), p)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """A copy in which each slice along a dim has a norm of at most ``maxnorm``."""
    x = require_tensor("renorm", input)
    others = [d for d in range(x._type.ndim) if d != normalize_dim(dim, x._type.ndim)]
    if x._type.ndim < 2:
        raise refuse(ShapeError, "at least two dims are needed", "renorm", x, p, dim, maxnorm)
    lengths = norm(x, p, others, keepdim=True)
    scale: Tensor = pointwise.where(lengths > maxnorm, maxnorm / (lengths + 1e-7), 1.0)
    return x * scale


norm = accept_numpy_names(norm)

# -- of matrices ---------------------------------------------------------------------------


def singular_values(A: Tensor) -> Tensor:  # noqa: N803, torch's name
    return call_many(SVD, (A,), (("full_matrices", False),))[1]


def _greatest(x: Tensor) -> Tensor:
    """The greatest of numbers that are not negative; 0 if there are none."""
    return reduce.amax(x, -1) if x._type.shape[-1] else reduce.sum(x, -1)


_MATRIX_NORMS: dict[Any, Callable[[Tensor], Tensor]] = {
    "fro": lambda x: vector_norm(x, 2, (-2, -1)),
    "nuc": lambda x: reduce.sum(singular_values(x), -1),
    2: lambda x: _greatest(singular_values(x)),
    -2: lambda x: reduce.amin(singular_values(x), -1),
    1: lambda x: _greatest(reduce.sum(pointwise.abs(x), -2)),
    -1: lambda x: reduce.amin(reduce.sum(pointwise.abs(x), -2), -1),
    inf: lambda x: _greatest(reduce.sum(pointwise.abs(x), -1)),
    -inf: lambda x: reduce.amin(reduce.sum(pointwise.abs(x), -1), -1),
}


@accept_numpy_names
def matrix_norm(
    A: Tensor,  # noqa: N803, torch's name
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """The norm of the matrices in two dims."""
    A = _floating("matrix_norm", A, dtype)
    A = A if dtype is None else cast(A, dtype_of(dtype))
    if A._type.ndim < 2 or len(dim) != 2 or ord not in _MATRIX_NORMS:
        raise refuse(ShapeError, f"needs matrices, and ord one of {list(_MATRIX_NORMS)}", "matrix_norm", A, ord)
    rows, columns = views.dims_of("matrix_norm", A, dim)
    result = _MATRIX_NORMS[ord](views.movedim(A, (rows, columns), (-2, -1)))
    for d in sorted((rows, columns)) if keepdim else ():
        result = views.unsqueeze(result, d)
    return result


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The norms of the slices along a dim, with size 1 in the other dims; ``dim`` -1 is one norm of all elements."""
    if dim == -1:
        return _vector_norm(_floating("norm_except_dim", v, None), pow, None, False, None)
    kept = normalize_dim(dim, _floating("norm_except_dim", v, None)._type.ndim)
    others = [d for d in range(v._type.ndim) if d != kept]
    return _vector_norm(v, pow, others, True, None) if others else pointwise.abs(v)
