"""The functions of ``gt.linalg``, as in `torch.linalg`."""

# ruff: noqa: N803 (torch names its matrices so)

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from gt.client.grad.function import Function, FunctionCtx
from gt.client.tensor.arguments import accept_numpy_names, cast, refuse, require_real, require_tensor
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, reduce, views
from gt.functions import matmul as products
from gt.functions.derived import matrix_exp
from gt.functions.matmul import matmul, matrix_power, multi_dot
from gt.functions.norm import matrix_norm, singular_values, vector_norm
from gt.ops import OPS, Op
from gt.types import int32, int64, real_of

__all__ = [
    "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "lstsq", "matmul", "matrix_exp", "matrix_norm", "matrix_power",
    "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd",
    "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip

INV, DET, SLOGDET, SOLVE, TRIANGULAR = OPS["inv"], OPS["det"], OPS["slogdet"], OPS["solve"], OPS["solve_triangular"]
CHOLESKY, QR, EIG, EIGH, SVD = OPS["cholesky"], OPS["qr"], OPS["eig"], OPS["eigh"], OPS["svd"]


class SlogdetResult(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class QRResult(NamedTuple):
    Q: Tensor
    R: Tensor


class EigResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class EighResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class LstsqResult(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _one(op: Op, A: Tensor) -> Tensor:
    return call(op, (require_tensor(op.name, A),))


# -- solving -------------------------------------------------------------------------------


def inv(A: Tensor) -> Tensor:
    """The inverse of a matrix."""
    return _one(INV, A)


def det(A: Tensor) -> Tensor:
    """The determinant of a matrix."""
    return _one(DET, A)


def slogdet(A: Tensor) -> SlogdetResult:
    """The sign and the logarithm of the determinant of a matrix."""
    return SlogdetResult(*call_many(SLOGDET, (require_tensor("slogdet", A),)))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution X of ``A @ X = B``, or of ``X @ A = B``; B may hold a vector for each matrix."""
    A, B = require_tensor("solve", A), require_tensor("solve", B)
    vector = B._type.ndim == 1 or (A._type.ndim - 1 == B._type.ndim and B._type.shape == A._type.shape[:-1])
    if vector:
        return views.squeeze(solve(A, views.unsqueeze(B, -1), left=left), -1)
    if left:
        return call(SOLVE, (A, B))
    return call(SOLVE, (views.matrix_transpose(A), views.matrix_transpose(B))).mT


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The solution of a linear system with a triangular matrix."""
    if not left:
        turned = solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT
    arguments = (require_tensor("solve_triangular", A), require_tensor("solve_triangular", B))
    return call(TRIANGULAR, arguments, (("upper", upper), ("unitriangular", unitriangular)))


class InverseResult(NamedTuple):
    inverse: Tensor
    info: Tensor


class SolveResult(NamedTuple):
    result: Tensor
    info: Tensor


def _success(A: Tensor) -> Tensor:
    """``info`` is 0, for success. A failure is an error when the result is read."""
    return creation.zeros(A._type.shape[:-2], dtype=int32)


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseResult:
    """The inverse of a matrix, and 0 as an error code."""
    return InverseResult(inv(A), _success(A))


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolveResult:
    """The solution of a linear system, and 0 as an error code."""
    return SolveResult(solve(A, B, left=left), _success(A))


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse for `tensordot`: the first ``ind`` dims are rows, the others columns."""
    shape = A._type.shape
    rows = prod(shape[:ind])
    if ind < 1 or rows * rows != A._type.numel:
        raise refuse(ShapeError, "the first and the last dims must make a square", "tensorinv", A, ind=ind)
    return views.reshape(inv(views.reshape(A, (rows, rows))), (*shape[ind:], *shape[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The solution x of tensordot(A, x) = B."""
    if dims is not None:
        A = views.movedim(A, tuple(dims), tuple(range(A._type.ndim - len(dims), A._type.ndim)))
    rest = A._type.shape[B._type.ndim :]
    if prod(rest) ** 2 != A._type.numel or prod(rest) != B._type.numel:
        raise refuse(ShapeError, "the first and the last dims must make a square", "tensorsolve", A, B, dims=dims)
    square = views.reshape(A, (prod(rest), prod(rest)))
    return views.reshape(solve(square, views.reshape(B, (B._type.numel,))), rest)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers of each number as a row, from the power 0 on."""
    x = require_tensor("vander", x)
    x = x if x._type.ndim else views.reshape(x, 1)
    n = x._type.shape[-1] if N is None else N
    powers = creation.arange(n, dtype=x._type.dtype if x._type.dtype.kind == "f" else int64)
    return pointwise.pow(views.unsqueeze(x, -1), powers)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The Cholesky factor of a positive definite matrix."""
    if upper:
        return _one(CHOLESKY, views.adjoint(A)).mH
    return _one(CHOLESKY, A)


class CholeskyResult(NamedTuple):
    L: Tensor
    info: Tensor


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyResult:
    """The Cholesky factor, and 0 as an error code: a matrix without a factor fails when the result is read."""
    return CholeskyResult(cholesky(A, upper=upper), _success(A))


def _squares(x: Tensor) -> Tensor:
    return (x * x.conj()).real if x._type.dtype.kind == "c" else pointwise.square(x)


def _empty_like(A: Tensor) -> Tensor:
    """An empty real tensor with a gradient history, as in torch."""
    return views.narrow(views.reshape(A, (A._type.numel,)), 0, 0, 0).real


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LstsqResult:
    """The least-squares solution of a linear system, by the pseudo-inverse.

    Residuals are computed for tall matrices with the drivers gels, gelsd and gelss; else they are empty, as in torch.
    """
    vector = B._type.ndim == A._type.ndim - 1
    right = views.unsqueeze(B, -1) if vector else B
    solution = matmul(pinv(A, rcond), right)
    empty = creation.zeros(0, dtype=real_of(A._type.dtype))
    tall = A._type.shape[-2] > A._type.shape[-1] and driver not in (None, "gelsy")
    residuals = reduce.sum(_squares(matmul(A, solution) - right), -2) if tall else _empty_like(A)
    rank = cast(empty, int64) if driver == "gels" else matrix_rank(A.detach(), rtol=rcond)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else empty
    return LstsqResult(views.squeeze(solution, -1) if vector else solution, residuals, rank, values)


# -- factors -------------------------------------------------------------------------------


def qr(A: Tensor, mode: str = "reduced") -> QRResult:
    """The QR factorisation of a matrix."""
    A = require_tensor("qr", A)
    if mode == "r":
        return QRResult(A.new_empty(0), qr(A).R)
    return QRResult(*call_many(QR, (A,), (("mode", mode),)))


def eig(A: Tensor) -> EigResult:
    """The eigenvalues and eigenvectors of a square matrix, as complex numbers. They are computed on a CPU."""
    return EigResult(*call_many(EIG, (require_tensor("eig", A),)))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of a square matrix, as complex numbers."""
    return eig(A).eigenvalues


def eigh(A: Tensor, UPLO: str = "L") -> EighResult:
    """The eigenvalues and eigenvectors of a symmetric matrix."""
    A = require_tensor("eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise refuse(ShapeError, "UPLO is 'L' or 'U'", "eigh", A, UPLO=UPLO)
    return EighResult(*call_many(EIGH, (A if UPLO.upper() == "L" else views.adjoint(A),)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of a symmetric matrix."""
    return eigh(A, UPLO).eigenvalues


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVDResult:
    """The singular value decomposition of a matrix."""
    return SVDResult(*call_many(SVD, (require_tensor("svd", A),), (("full_matrices", full_matrices),)))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of a matrix."""
    return singular_values(require_tensor("svdvals", A))


def pinv(
    A: Tensor, rcond: float | None = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    """The pseudo-inverse of a matrix."""
    A = require_tensor("pinv", A)
    if not A._type.numel:
        return pointwise.clone(views.matrix_transpose(A))
    result: Tensor = _PseudoInverse.apply(A, hermitian, atol, rcond if rtol is None else rtol)
    return result


class _PseudoInverse(Function):
    """A gradient rule for `pinv`: the gradient of the factors does not exist where singular values are equal."""

    @staticmethod
    def forward(ctx: FunctionCtx, A: Tensor, hermitian: bool, atol: Any, rtol: Any) -> Tensor:
        if hermitian:
            L, U = eigh(A)
            S, Vh = pointwise.abs(L), views.adjoint(U * views.unsqueeze(pointwise.sign(L), -2))
        else:
            U, S, Vh = svd(A, full_matrices=False)
        keep = _threshold(A, S, atol, rtol) < S
        inverse = pointwise.where(keep, pointwise.reciprocal(pointwise.where(keep, S, 1)), 0)
        result: Tensor = matmul(Vh.mH * views.unsqueeze(inverse, -2), U.mH)
        ctx.save_for_backward(A, result)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Any, ...]:
        """-Pᴴ g Pᴴ, and terms for the parts of the row and column spaces that A does not span."""
        A, P = ctx.saved_tensors
        assert A is not None
        assert P is not None
        g, across = grads[0].mH, P.mH
        left, right = matmul(matmul(g, P), across), matmul(across, matmul(P, g))
        inside = matmul(across, matmul(grads[0], across))
        return left - matmul(matmul(A, P), left) + right - matmul(right, matmul(P, A)) - inside, None, None, None


_EPS = {"float64": 2.0**-52, "float32": 2.0**-23}


def _threshold(A: Tensor, S: Tensor, atol: Any, rtol: Any) -> Any:
    largest = reduce.amax(S.detach(), -1, keepdim=True)
    if rtol is None:
        rtol = 0.0 if atol is not None else max(A._type.shape[-2:]) * _EPS[S._type.dtype.name]
    rtol, atol = (views.unsqueeze(t, -1) if isinstance(t, Tensor) else t for t in (rtol, atol))
    least = largest * rtol
    return least if atol is None else pointwise.clamp(least, min=atol)


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The rank of a matrix."""
    A = require_tensor("matrix_rank", A)
    if not A._type.numel:
        return creation.zeros(A._type.shape[:-2], dtype=int64)
    S = svdvals(A)
    return reduce.sum(_threshold(A, S, atol if tol is None else tol, 0.0 if tol is not None else rtol) < S, -1)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number of a matrix."""
    A = require_tensor("cond", A)
    if p in (None, 2, -2):
        S = svdvals(A)
        first, last = S[..., 0], S[..., -1]
        return last / first if p == -2 else first / last
    return pointwise.mul(matrix_norm(A, p), matrix_norm(inv(A), p))


# -- norms ---------------------------------------------------------------------------------


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of vectors, or of matrices if ``ord`` is given with two dims."""
    A = require_tensor("norm", A)
    two = len(dim) == 2 if isinstance(dim, list | tuple) else dim is None and A._type.ndim == 2
    if isinstance(ord, str) or (ord is not None and two):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


# -- products ------------------------------------------------------------------------------


@accept_numpy_names
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements."""
    if input._type.ndim != other._type.ndim:
        raise refuse(ShapeError, "both need equally many dims", "cross", input, other, dim=dim)
    for x in (input, other):
        if x._type.ndim and -x._type.ndim <= dim < x._type.ndim and x._type.shape[dim] != 3:
            raise refuse(ShapeError, f"dim {dim} must have size 3", "cross", input, other, dim=dim)
    return products.cross(input, other, dim)


@accept_numpy_names
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along a dim."""
    if x._type.dtype is not y._type.dtype:
        raise refuse(DTypeError, f"dtypes differ: {x._type.dtype.name} and {y._type.dtype.name}", "vecdot", x, y)
    return reduce.sum(pointwise.mul(x.conj(), y), dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices."""
    return views.diagonal(A, offset, dim1, dim2)


def trace(A: Tensor, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sums of the diagonals of matrices. The array API has this function, torch does not."""
    return reduce.sum(views.diagonal(A, offset, -2, -1), -1, dtype=dtype)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of Householder reflections, given as `geqrf` returns them."""
    A, tau = (require_real("householder_product", require_tensor("householder_product", x)) for x in (A, tau))
    m, n = A._type.shape[-2:]
    if m < n or tau._type.shape[-1] > n or tau._type.dtype is not A._type.dtype:
        problem = "needs at least as many rows as columns and reflections, and one dtype"
        raise refuse(ShapeError, problem, "householder_product", A, tau)
    k = tau._type.shape[-1]
    unit = creation.eye(m, n, dtype=A._type.dtype)
    v = (A.tril(-1) + unit)[..., :k]
    # the product of I - tau_i v_i v_i^T is I - V T V^T with a triangular T
    scale = tau.unsqueeze(-1)
    system = creation.eye(k, dtype=A._type.dtype) + scale * (v.mT @ v).triu(1)
    return unit - v @ solve_triangular(system, scale * v[..., :n, :].mT, upper=True)
