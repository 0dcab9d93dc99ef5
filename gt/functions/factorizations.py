"""Functions of matrices that torch has at its top, many of them in `gt.linalg` too."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.grad.function import Function, FunctionCtx
from gt.client.tensor.arguments import cast, refuse, require_tensor
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, linalg, pointwise, reduce, views
from gt.functions.linalg import det, slogdet
from gt.functions.matmul import matmul
from gt.functions.spectral.complex import complex, imag, real
from gt.ops import OPS
from gt.types import int32

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "corrcoef", "cov", "det", "geqrf", "inverse", "logdet",
    "lu_unpack", "orgqr", "pinverse", "qr", "slogdet", "svd",
]  # fmt: skip

GEQRF, LU_FACTOR, LU_PERMUTATION = OPS["geqrf"], OPS["lu_factor"], OPS["lu_permutation"]


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor of a positive definite matrix."""
    return linalg.cholesky(input, upper=upper)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803, torch's names
    """The solution of ``A @ X = B``, from the Cholesky factor of A."""
    result: Tensor = _FromFactor.apply(require_tensor("cholesky_solve", B), require_tensor("cholesky_solve", L), upper)
    return result


class _FromFactor(Function):
    """`cholesky_solve` with torch's gradient: that of a full matrix, although only a triangle is read."""

    @staticmethod
    def forward(ctx: FunctionCtx, B: Tensor, L: Tensor, upper: bool) -> Tensor:  # noqa: N803
        lower = views.adjoint(L) if upper else L
        half = linalg.solve_triangular(lower, B, upper=False)
        result = linalg.solve_triangular(views.adjoint(lower), half, upper=True)
        ctx.save_for_backward(L, result)
        ctx.upper = upper  # type: ignore[attr-defined]
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Any, ...]:
        L, X = ctx.saved_tensors
        assert L is not None
        assert X is not None
        upper: bool = ctx.upper  # type: ignore[attr-defined]
        dB = cholesky_solve(grads[0], L, upper)
        part = matmul(dB, X.mH)
        both = part + part.mH
        return dB, -(matmul(L, both) if upper else matmul(both, L)), None


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803, torch's name
    """The inverse of a matrix, from its Cholesky factor."""
    return cholesky_solve(creation.eye(L._type.shape[-1], dtype=L._type.dtype), L, upper)


def inverse(input: Tensor) -> Tensor:
    """The inverse of a matrix."""
    return linalg.inv(input)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse of a matrix."""
    return linalg.pinv(input, rcond)


def qr(input: Tensor, some: bool = True) -> linalg.QRResult:
    """The QR factorisation of a matrix."""
    return linalg.qr(input, "reduced" if some else "complete")


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    V: Tensor


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVD:
    """The singular value decomposition, in torch's older form: V is not transposed."""
    result = linalg.svd(input, full_matrices=not some)
    V = views.adjoint(result.Vh)
    if compute_uv:
        return SVD(result.U, result.S, V)
    *batch, m, n = input._type.shape
    U, V = (creation.zeros((*batch, k, k), dtype=input._type.dtype) for k in (m, n))
    return SVD(U, result.S, V)


def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant of a matrix; NaN where a real one is negative."""
    sign, logabsdet = slogdet(input)
    return logabsdet + pointwise.log(sign if sign._type.dtype.kind == "c" else sign.detach())


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariance matrix of variables (rows), from observations (columns)."""
    x = require_tensor("cov", input)
    if x._type.ndim > 2:
        raise refuse(ShapeError, "needs a tensor of at most two dims", "cov", x)
    x = views.reshape(x, (1, x._type.numel)) if x._type.ndim < 2 else x
    x = x if x._type.dtype.kind in "fc" else x.float()
    weights = _weights(x, fweights, aweights)
    if weights is None:
        centred = x - reduce.mean(x, 1, keepdim=True)
        return views.squeeze(matmul(centred, centred.mH) / max(x._type.shape[1] - correction, 0))
    total = reduce.sum(weights)
    centred = x - views.unsqueeze(reduce.sum(x * weights, 1), 1) / total
    if aweights is None or not correction:
        divisor = total - correction
    else:
        divisor = total - correction * reduce.sum(weights * aweights) / total
    result = matmul(centred * weights, centred.mH) / pointwise.clamp(divisor, min=0)
    return views.squeeze(result)


def _weights(x: Tensor, fweights: Tensor | None, aweights: Tensor | None) -> Tensor | None:
    for name, w, kinds in (("fweights", fweights, "iu"), ("aweights", aweights, "f")):
        if w is None:
            continue
        if w._type.dtype.kind not in kinds:
            raise refuse(DTypeError, f"{name} are {'floating' if kinds == 'f' else 'integers'}", "cov", x, w)
        if w._type.ndim > 1 or w._type.numel != x._type.shape[1]:
            raise refuse(ShapeError, f"{name} are one number for each observation", "cov", x, w)
    if fweights is None or aweights is None:
        return aweights if fweights is None else fweights
    return fweights * aweights


def corrcoef(input: Tensor) -> Tensor:
    """The correlation coefficients of the rows of a matrix."""
    result = cov(input)
    if not result._type.ndim:
        return result / result
    scale = pointwise.sqrt(real(views.diagonal(result)))
    result = result / views.unsqueeze(scale, 1) / scale
    if result._type.dtype.kind == "c":
        return complex(*(pointwise.clamp(part, -1, 1) for part in (real(result), imag(result))))
    return pointwise.clamp(result, -1, 1)


class GeqrfResult(NamedTuple):
    a: Tensor
    tau: Tensor


def geqrf(input: Tensor) -> GeqrfResult:
    """The QR factors of matrices as LAPACK stores them: R above the Householder vectors, and their factors."""
    return GeqrfResult(*call_many(GEQRF, (require_tensor("geqrf", input),)))


def orgqr(input: Tensor, input2: Tensor) -> Tensor:
    """The same as `gt.linalg.householder_product`."""
    return linalg.householder_product(input, input2)


# -- LU: torch has `lu_unpack` at its top, the others in `torch.linalg` ------------------------


class LUFactorResult(NamedTuple):
    LU: Tensor
    pivots: Tensor


class LUFactorExResult(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


class LUResult(NamedTuple):
    P: Tensor
    L: Tensor
    U: Tensor


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactorResult:  # noqa: N803, torch's name
    """The factors L and U in one matrix, and the row that each row was exchanged with, counted from 1."""
    A = require_tensor("lu_factor", A)
    if not pivot:
        raise refuse(ShapeError, "has no factors without an exchange of rows, as torch on a CPU", "lu_factor", A)
    return LUFactorResult(*call_many(LU_FACTOR, (A,)))


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorExResult:  # noqa: N803
    """The same, and the column of the first zero on the diagonal of U, counted from 1; 0 if there is none."""
    LU, pivots = lu_factor(A, pivot=pivot)
    zero = views.diagonal(LU.detach(), 0, -2, -1) == 0
    count = creation.arange(1, zero._type.shape[-1] + 1, dtype=int32)
    last = zero._type.shape[-1] + 1
    first = reduce.amin(pointwise.where(zero, count, last), -1) if zero._type.shape[-1] else zero.sum(-1)
    return LUFactorExResult(LU, pivots, cast(first % last, int32))


def lu_unpack(
    LU_data: Tensor,  # noqa: N803
    LU_pivots: Tensor,  # noqa: N803
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> LUResult:
    """The permutation P and the factors L and U, from what `gt.linalg.lu_factor` returns: ``A = P @ L @ U``."""
    x, pivots = require_tensor("lu_unpack", LU_data), require_tensor("lu_unpack", LU_pivots)
    rows, columns = x._type.shape[-2:]
    k, dtype = min(rows, columns), x._type.dtype
    P = L = U = creation.zeros(0, dtype=dtype)
    if unpack_pivots:
        P = call(LU_PERMUTATION, (pivots,), (("rows", rows), ("dtype", dtype.name)))
    if unpack_data:
        L = x[..., :k].tril(-1) + creation.eye(rows, k, dtype=dtype)
        U = x[..., :k, :].triu()
    return LUResult(P, L, U)


def lu(A: Tensor, *, pivot: bool = True) -> LUResult:  # noqa: N803
    """A permutation P, a lower triangular L with ones on its diagonal and an upper triangular U: ``A = P @ L @ U``."""
    return lu_unpack(*lu_factor(A, pivot=pivot))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:  # noqa: N803
    """The solution of ``A @ X = B`` (or ``X @ A = B``, or with the adjoint of A), from the LU factors of A."""
    if not left:
        return views.adjoint(lu_solve(LU, pivots, views.adjoint(B), adjoint=not adjoint))
    LU, B = require_tensor("lu_solve", LU), require_tensor("lu_solve", B)
    P = lu_unpack(LU, pivots, unpack_data=False).P
    if not adjoint:
        inner = linalg.solve_triangular(LU, matmul(P.mT, B), upper=False, unitriangular=True)
        return linalg.solve_triangular(LU, inner, upper=True)
    inner = linalg.solve_triangular(views.adjoint(LU), B, upper=False)
    return matmul(P, linalg.solve_triangular(views.adjoint(LU), inner, upper=True, unitriangular=True))
