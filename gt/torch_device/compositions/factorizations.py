"""Fourier transforms, factorizations of matrices, equations, and distances between rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt import linalg
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, factorizations, joining, views
from gt.functions.composite import pdist
from gt.nn._distances import cdist
from gt.ops import OPS
from gt.torch_device.gradients import pulled
from gt.types import complex64, complex128, float64, int32, int64

C2C, R2C, C2R, SOLVE = OPS["fft_c2c"], OPS["fft_r2c"], OPS["fft_c2r"], OPS["solve"]
#: ATen's number of a scale (none, 1/sqrt(n), 1/n) -> the norm of a transform forward, and of one backward
FORWARD, BACKWARD = ("backward", "ortho", "forward"), ("forward", "ortho", "backward")


def _dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    return tuple(d % x._type.ndim for d in dim)


def _c2c(x: Tensor, dim: Any, normalization: int, forward: bool) -> Tensor:
    if not dim:
        return x.clone()
    norm = (FORWARD if forward else BACKWARD)[normalization]
    return call(C2C, (x,), (("dim", _dims(x, dim)), ("inverse", not forward), ("norm", norm)))


def _r2c(x: Tensor, dim: Any, normalization: int, onesided: bool) -> Tensor:
    if not onesided:
        return _c2c(cast(x, complex128 if x._type.dtype is float64 else complex64), dim, normalization, True)
    return call(R2C, (x,), (("dim", _dims(x, dim)), ("norm", FORWARD[normalization])))


def _c2r(x: Tensor, dim: Any, normalization: int, last_dim_size: int) -> Tensor:
    return call(C2R, (x,), (("dim", _dims(x, dim)), ("size", last_dim_size), ("norm", BACKWARD[normalization])))


def _svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    if compute_uv:
        return tuple(linalg.svd(a, full_matrices))
    empty = creation.zeros(0, dtype=a._type.dtype)
    return empty, linalg.svdvals(a), empty


def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> Any:
    if compute_v:
        return tuple(linalg.eigh(a, uplo))
    return linalg.eigvalsh(a, uplo), creation.zeros(0, dtype=a._type.dtype)


# -- equations and determinants ------------------------------------------------------------
#
# torch wants the LU factors too, for the gradient, where it passes them on to `linalg_lu_solve`. Here the matrix itself
# stands for them, and the equations of the gradient are solved from it. Its pivots are int64; those of factors int32.


def _unfactored(a: Tensor) -> tuple[Tensor, Tensor]:
    return a, creation.zeros(a._type.shape[:-1], dtype=int64)


def _turned(a: Tensor) -> Tensor:
    """The matrix whose factors torch keeps for a determinant: the transposed one, if it is contiguous and real."""
    return a.mT if views.is_contiguous(a) and a._type.dtype.kind != "c" else a


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    result = linalg.solve(a, b, left=left)
    return result, *_unfactored(a), creation.zeros(a._type.shape[:-2], dtype=int32)


def _det(a: Tensor) -> Any:
    return linalg.det(a), *_unfactored(_turned(a))


def _slogdet(a: Tensor) -> Any:
    return *linalg.slogdet(a), *_unfactored(_turned(a))


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if pivots._type.dtype is int32:
        return linalg.lu_solve(lu, pivots, b, left=left, adjoint=adjoint)
    a = lu.mH if adjoint else lu
    return call(SOLVE, (a, b)) if left else call(SOLVE, (a.mT, b.mT)).mT


def _lu_unpack(lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    return tuple(factorizations.lu_unpack(lu, pivots, unpack_data, unpack_pivots))


def _lu(a: Tensor, *, pivot: bool = True) -> Any:
    return tuple(linalg.lu(a, pivot=pivot))


def _lu_factor(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    return tuple(linalg.lu_factor_ex(a, pivot=pivot))


def _eig(a: Tensor) -> Any:
    return tuple(linalg.eig(a))


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix = a.mT if transpose else a
    return linalg.solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular), a.clone()


def _ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """A product with the whole Q: further columns of the reflectors are zeros."""
    *lead, rows, columns = a._type.shape
    zeros = creation.zeros((*lead, rows, rows - columns), dtype=a._type.dtype)
    q = linalg.householder_product(joining.cat([a, zeros], -1), tau)
    q = q.mH if transpose else q
    return q @ other if left else other @ q


# -- distances between rows ----------------------------------------------------------------


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return cdist(x1, x2, p)


def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    return pulled(cdist)(grad, x1, x2, p)


def _pdist_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    return pulled(pdist)(grad, x, p)


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_cdist_backward": _cdist_backward,
    "_cdist_forward": _cdist,
    "_pdist_backward": _pdist_backward,
    "_pdist_forward": pdist,
    "_fft_c2c": _c2c,
    "_fft_c2r": _c2r,
    "_fft_r2c": _r2c,
    "_linalg_det": _det,
    "_linalg_eigh": _eigh,
    "_linalg_eigvals": linalg.eigvals,
    "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve,
    "_linalg_svd": _svd,
    "linalg_eig": _eig,
    "linalg_eigvals": linalg.eigvals,
    "linalg_lu": _lu,
    "linalg_lu_factor_ex": _lu_factor,
    "linalg_lu_solve": _lu_solve,
    "lu_unpack": _lu_unpack,
    "ormqr": _ormqr,
    "triangular_solve": _triangular_solve,
}
