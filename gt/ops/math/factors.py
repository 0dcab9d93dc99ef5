"""LU factors of matrices, and eigenvalues of matrices that are not symmetric."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import require_ints
from gt.ops.math.linalg import differences, matrix, square, unless_empty
from gt.ops.op import Types, dtype_named, op
from gt.ops.split import leading
from gt.types import TensorType, complex_of, int32

# -- LU ------------------------------------------------------------------------------------


def _lu_factored(x: TensorType) -> Types:
    *batch, m, n = matrix(x).shape
    return x, TensorType((*batch, min(m, n)), int32)


def _lu_numpy(np: Any, x: Any) -> Any:
    """Column by column, for all matrices at once; the pivot is the largest element, measured as LAPACK does it."""
    lu = np.array(x).reshape(-1, *x.shape[-2:])
    every = np.arange(len(lu))
    rows, columns = x.shape[-2:]
    pivots = np.zeros((len(lu), min(rows, columns)), np.int32)
    for j in range(min(rows, columns)):
        column = lu[:, j:, j]
        at = j + (np.abs(column.real) + np.abs(column.imag)).argmax(1)
        pivots[:, j] = at + 1
        pivot_row = lu[every, at]
        lu[every, at] = lu[:, j]
        lu[:, j] = pivot_row
        pivot = np.where(lu[:, j, j] == 0, 1, lu[:, j, j])
        lu[:, j + 1 :, j] /= pivot[:, None]
        lu[:, j + 1 :, j + 1 :] -= lu[:, j + 1 :, j, None] * lu[:, j, None, j + 1 :]
    return lu.reshape(x.shape), pivots.reshape(*x.shape[:-2], pivots.shape[1])


def _lu_back(g: Any, y: Any, _x: Any) -> Any:
    """For A = P L U, with ``inner`` the gradient of L⁻¹ dL for wide matrices, and of dU U⁻¹ for tall ones."""
    if g[0] is None:
        return None
    lu, pivots = y
    m, n = lu.shape[-2:]
    k, last = min(m, n), lu.ndim - 1
    lower, upper = lu[..., :k].tril(-1), lu[..., :k, :].triu()
    of_lower, of_upper = g[0][..., :k].tril(-1), g[0][..., :k, :].triu()
    if m <= n:
        inner = (lower.mH @ of_lower + of_lower - of_upper @ upper.mH).tril(-1)
        first = upper[..., :k]._op("solve_triangular", inner.mH, upper=True, unitriangular=False).mH
        both = (of_upper[..., :k] + first)._op("cat", of_upper[..., k:], dim=last)
        result = lower.mH._op("solve_triangular", both, upper=True, unitriangular=True)
    else:
        inner = (of_upper @ upper.mH - lower.mH @ of_lower).triu()
        first = lower[..., :k, :].mH._op("solve_triangular", inner, upper=True, unitriangular=True)
        both = (of_lower[..., :k, :] + first)._op("cat", of_lower[..., k:, :], dim=last - 1)
        result = upper._op("solve_triangular", both.mH, upper=True, unitriangular=False).mH
    return pivots._op("lu_permutation", rows=m, dtype=lu.dtype.name) @ result


op(
    "lu_factor",
    complex="rule",
    operands="t",
    infer=_lu_factored,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2, 1)),
    vjp=(_lu_back,),
    torch=unless_empty(lambda torch, x: torch.linalg.lu_factor_ex(x)[:2]),
    kernel=unless_empty(_lu_numpy),
)


def _permutation(pivots: TensorType, *, rows: int, dtype: str) -> TensorType:
    require_ints(rows=rows)
    if pivots.dtype is not int32:
        raise DTypeError(f"pivots are int32, not {pivots.dtype.name}")
    if not pivots.ndim or pivots.shape[-1] > rows:
        raise ShapeError(f"needs at most {rows} pivots for each matrix of {rows} rows")
    return matrix(TensorType((*pivots.shape[:-1], rows, rows), dtype_named(dtype)))


_OUTSIDE = "a pivot is no row of the matrix: pivots come from lu_factor"


def _permutation_torch(torch: Any, pivots: Any, *, rows: int, dtype: str) -> Any:
    if pivots.is_cuda:
        pivots = pivots.clamp(1, rows)  # torch's kernel does not check them there
    elif ((pivots < 1) | (pivots > rows)).any():
        raise IndexError(_OUTSIDE)
    kind = getattr(torch, dtype)
    shape_only = torch.empty((*pivots.shape[:-1], rows, pivots.shape[-1]), dtype=torch.float32, device=pivots.device)
    return torch.lu_unpack(shape_only, pivots, unpack_data=False)[0].to(kind)


def _permutation_numpy(np: Any, pivots: Any, *, rows: int, dtype: str) -> Any:
    if ((pivots < 1) | (pivots > rows)).any():
        raise IndexError(_OUTSIDE)
    flat = pivots.reshape(prod(pivots.shape[:-1]), pivots.shape[-1])
    every, order = np.arange(len(flat)), np.tile(np.arange(rows), (len(flat), 1))
    for j in range(flat.shape[1]):
        at = flat[:, j] - 1
        moved = order[every, at]
        order[every, at] = order[:, j]
        order[:, j] = moved
    return np.swapaxes(np.eye(rows, dtype=dtype)[order], -1, -2).reshape(*pivots.shape[:-1], rows, rows)


op(
    "lu_permutation",
    complex="rule",
    reads_values="cpu",
    operands="t",
    infer=_permutation,
    wants_out=True,
    split=partial(leading, inner=(1,), outer=(2,)),
    no_gradient="pivots are integers",
    torch=unless_empty(_permutation_torch),
    kernel=unless_empty(_permutation_numpy),
)

# -- eigenvalues ---------------------------------------------------------------------------


def _with_eigenvectors(x: TensorType) -> Types:
    kind = complex_of(square(x).dtype)
    return TensorType(x.shape[:-1], kind), TensorType(x.shape, kind)


def _eig_torch(torch: Any, x: Any) -> Any:
    """On the CPU: few builds of torch have the library that it needs on a GPU."""
    return [y.to(x.device) for y in torch.linalg.eig(x.cpu())]


def _eig_numpy(np: Any, x: Any) -> Any:
    kind = np.result_type(x.dtype, np.complex64)
    return [y.astype(kind) for y in np.linalg.eig(x)]


def _eig_back(g: Any, y: Any, _x: Any) -> Any:
    """An eigenvector may be multiplied by any number of size 1; what does not depend on that number has a gradient."""
    w, v = y
    inner = v.new_zeros(v.shape) if g[0] is None else g[0].diag_embed()
    if g[1] is not None:
        turned = v.mH @ g[1]
        turned = turned - (v.mH @ v) * turned.diagonal(0, -2, -1).real.unsqueeze(-2)
        turned = turned / differences(w).conj()
        inner = inner + turned - turned.diagonal(0, -2, -1).diag_embed()
    result = v.mH._op("solve", inner @ v.mH)
    return result if _x.dtype.is_complex else result.real


op(
    "eig",
    complex="rule",
    reads_values="always",
    operands="t",
    infer=_with_eigenvectors,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(1, 2)),
    vjp=(_eig_back,),
    torch=unless_empty(_eig_torch),
    kernel=unless_empty(_eig_numpy),
)
