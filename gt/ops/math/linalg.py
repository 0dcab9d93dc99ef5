"""Ops of `torch.linalg`: solving, and factors of matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gt.errors import DTypeError, GradError, ShapeError
from gt.ops.infer import broadcast_shapes, require_bools
from gt.ops.op import Types, op
from gt.ops.split import Split, leading
from gt.types import TensorType, complex64, complex128, float32, float64, real_of


def matrix(x: TensorType) -> TensorType:
    if x.ndim < 2:
        raise ShapeError(f"needs matrices, a tensor of at least two dims, not {x.ndim}")
    if x.dtype not in (float32, float64, complex64, complex128):
        raise DTypeError(f"not defined for {x.dtype.name}; use float32 or float64")
    return x


def square(x: TensorType) -> TensorType:
    matrix(x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"needs square matrices, not {x.shape[-2]} by {x.shape[-1]}")
    return x


def _numbers(x: TensorType) -> TensorType:
    return TensorType(square(x).shape[:-2], x.dtype)


def _as_matrix(g: Any) -> Any:
    """One number per matrix, as a 1 × 1 matrix."""
    return g.unsqueeze(-1).unsqueeze(-1)


def unless_empty(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same kernel, except for empty results: libraries loop over a billion empty matrices."""

    def kernel(xp: Any, *operands: Any, out: Types, **attrs: Any) -> Any:
        if any(t.numel for t in out):
            return run(xp, *operands, **attrs)
        x = operands[0]
        result = [xp.zeros(t.shape, dtype=getattr(xp, t.dtype.name), device=x.device) for t in out]
        return result[0] if len(result) == 1 else tuple(result)

    return kernel


op(
    "inv",
    complex="holomorphic",
    operands="t",
    infer=square,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2,)),
    vjp=(lambda g, y, _x: -(y.mT @ g @ y.mT),),
    torch=unless_empty(lambda torch, x: torch.linalg.inv(x)),
    kernel=unless_empty(lambda np, x: np.linalg.inv(x)),
)

op(
    "det",
    complex="holomorphic",
    operands="t",
    infer=_numbers,
    split=partial(leading, inner=(2,), outer=(0,)),
    vjp=(lambda g, y, x: _as_matrix(g * y) * x._op("inv").mT,),
    torch=lambda torch, x: torch.linalg.det(x),
    kernel=lambda np, x: np.linalg.det(x),
)


def _slogdet_back(g: Any, y0: Any, x: Any) -> Any:
    of_sign, of_log = g
    if of_sign is not None and x.dtype.is_complex:  # a real sign is constant
        turned = (of_sign.conj() * y0[0]).imag * -1j
        of_log = turned if of_log is None else of_log + turned
    return None if of_log is None else _as_matrix(of_log) * x._op("inv").mH


op(
    "slogdet",
    complex="rule",
    operands="t",
    infer=lambda x: (_numbers(x), TensorType(_numbers(x).shape, real_of(x.dtype))),
    split=partial(leading, inner=(2,), outer=(0, 0)),
    vjp=(_slogdet_back,),
    torch=lambda torch, x: torch.linalg.slogdet(x),
    kernel=lambda np, x: np.linalg.slogdet(x),
)

# -- equations -----------------------------------------------------------------------------


def _solved(a: TensorType, b: TensorType) -> TensorType:
    square(a)
    matrix(b)
    if a.dtype is not b.dtype:
        raise DTypeError(f"dtypes differ: {a.dtype.name} and {b.dtype.name}")
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"{a.shape[-1]} unknowns, but {b.shape[-2]} rows on the right")
    return TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)


def _solve_back(needs: Any, g: Any, y: Any, a: Any, _b: Any) -> list[Any]:
    right = a.mT._op("solve", g)
    return [-(right @ y.mT) if needs[0] else None, right]


def _solving(a: TensorType, b: TensorType, **how: bool) -> Split:
    """Batches, and columns of the right side."""
    left, result = leading(a, b, inner=(2, 2), outer=(2,)).indices.split("->")
    return Split(f"{left[:-1]}Z->{result[:-1]}Z", linear=((1,),))


op(
    "solve",
    complex="holomorphic",
    operands="tt",
    infer=_solved,
    wants_out=True,
    split=_solving,
    vjp=_solve_back,
    # where the sizes allow it, torch would treat a matrix as a batch of vectors
    torch=unless_empty(
        lambda torch, a, b: torch.linalg.solve(a, b.expand(*a.shape[:-2], *b.shape[-2:]) if b.ndim < a.ndim else b)
    ),
    kernel=unless_empty(lambda np, a, b: np.linalg.solve(*_stretched(np, a, b))),
)


def _stretched(np: Any, a: Any, b: Any) -> tuple[Any, Any]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))


def _triangle(x: Any, upper: bool, unitriangular: bool) -> Any:
    return x.triu(int(unitriangular)) if upper else x.tril(-int(unitriangular))


def _triangular_back(needs: Any, g: Any, y: Any, a: Any, _b: Any, *, upper: bool, unitriangular: bool) -> list[Any]:
    right = a.mT._op("solve_triangular", g, upper=not upper, unitriangular=unitriangular)
    return [-_triangle(right @ y.mT, upper, unitriangular) if needs[0] else None, right]


def _triangular_numpy(np: Any, a: Any, b: Any, *, upper: bool, unitriangular: bool) -> Any:
    """Row by row. It divides by a zero on the diagonal, as torch does; `numpy.linalg.solve` would refuse it."""
    a, b = _stretched(np, a, b)
    result, n = np.zeros_like(b), a.shape[-1]
    for i in reversed(range(n)) if upper else range(n):
        solved = slice(i + 1, n) if upper else slice(i)
        rest = b[..., i, :] - (a[..., i : i + 1, solved] @ result[..., solved, :])[..., 0, :]
        result[..., i, :] = rest if unitriangular else rest / a[..., i, i, None]
    return result


def _solved_triangle(a: TensorType, b: TensorType, *, upper: bool, unitriangular: bool) -> TensorType:
    require_bools(upper=upper, unitriangular=unitriangular)
    return _solved(a, b)


op(
    "solve_triangular",
    complex="holomorphic",
    operands="tt",
    infer=_solved_triangle,
    wants_out=True,
    split=_solving,
    vjp=_triangular_back,
    torch=unless_empty(
        lambda torch, a, b, *, upper, unitriangular: torch.linalg.solve_triangular(
            a, b, upper=upper, unitriangular=unitriangular
        )
    ),
    kernel=unless_empty(_triangular_numpy),
)


def _times_inverse(a: Any, x: Any) -> Any:
    """``x @ inv(a)`` for a lower triangular a."""
    return a.mT._op("solve_triangular", x.mT, upper=True, unitriangular=False).mT


def _cholesky_back(g: Any, y: Any, _x: Any) -> Any:
    product = (y.mH @ g).tril()
    half = (product + product.tril(-1).mH) * 0.5
    return _times_inverse(y, y.mH._op("solve_triangular", half, upper=True, unitriangular=False))


op(
    "cholesky",
    complex="rule",
    operands="t",
    infer=square,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2,)),
    vjp=(_cholesky_back,),
    torch=unless_empty(lambda torch, x: torch.linalg.cholesky(x)),
    kernel=unless_empty(lambda np, x: np.linalg.cholesky(x)),
)

# -- factors -------------------------------------------------------------------------------


def _factored(x: TensorType, *, mode: str) -> Types:
    *batch, m, n = matrix(x).shape
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"mode is 'reduced' or 'complete', not {mode!r}")
    k = min(m, n) if mode == "reduced" else m
    return TensorType((*batch, m, k), x.dtype), TensorType((*batch, k, n), x.dtype)


def _check_differentiable(mode: str, m: int, n: int) -> None:
    if mode == "complete" and m > n:
        raise GradError("qr: mode='complete' has no gradient for more rows than columns; use 'reduced'")


def _qr_back(g: Any, y: Any, x: Any, *, mode: str) -> Any:
    q, r = y
    m, n = x.shape[-2:]
    _check_differentiable(mode, m, n)
    gq = q.new_zeros(q.shape) if g[0] is None else g[0]
    gr = r.new_zeros(r.shape) if g[1] is None else g[1]
    if m >= n:
        return _tall_back(gq, gr, q, r)
    # q depends on the first columns only; the others are q @ r
    left = _tall_back(gq + x[..., m:] @ gr[..., m:].mH, gr[..., :m], q, r[..., :m])
    return left._op("cat", q @ gr[..., m:], dim=left.ndim - 1)


def _tall_back(gq: Any, gr: Any, q: Any, r: Any) -> Any:
    m = r @ gr.mH - gq.mH @ q
    lower = m.tril(-1)
    mirrored = lower + lower.mH + m.diagonal(0, -2, -1).real.diag_embed()
    return r._op("solve_triangular", (gq + q @ mirrored).mH, upper=True, unitriangular=False).mH


op(
    "qr",
    complex="rule",
    operands="t",
    infer=_factored,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2, 2)),
    vjp=(_qr_back,),
    torch=unless_empty(lambda torch, x, *, mode: torch.linalg.qr(x, mode)),
    kernel=unless_empty(lambda np, x, *, mode: np.linalg.qr(x, mode=mode)),
)


def _spectral(x: TensorType) -> Types:
    return TensorType(square(x).shape[:-1], real_of(x.dtype)), x


def differences(w: Any) -> Any:
    """``w[j] - w[i]``, and on the diagonal 1."""
    apart = w.unsqueeze(-2) - w.unsqueeze(-1)
    return apart + w.new_ones(w.shape).diag_embed()


def _eigh_back(g: Any, y: Any, _x: Any) -> Any:
    w, v = y
    inner = v.new_zeros(v.shape) if g[0] is None else g[0].diag_embed().to(v.dtype)
    if g[1] is not None:
        turned = v.mH @ g[1]
        inner = inner + (turned - turned.diagonal(0, -2, -1).diag_embed()) / differences(w)
    result = v @ inner @ v.mH
    return (result + result.mH) * 0.5


op(
    "eigh",
    complex="rule",
    operands="t",
    infer=_spectral,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(1, 2)),
    vjp=(_eigh_back,),
    torch=unless_empty(lambda torch, x: torch.linalg.eigh(x)),
    kernel=unless_empty(lambda np, x: np.linalg.eigh(x)),
)


def _singular(x: TensorType, *, full_matrices: bool) -> Types:
    *batch, m, n = matrix(x).shape
    require_bools(full_matrices=full_matrices)
    k = min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    result = ((*batch, m, rows), (*batch, k), (*batch, columns, n))
    first, second, third = (TensorType(shape, x.dtype) for shape in result)
    return first, TensorType(second.shape, real_of(x.dtype)), third


def _check_finite(xp: Any, x: Any) -> None:
    """MKL's svd loops forever on infinities."""
    if not xp.isfinite(x).all():
        raise ValueError("svd: the matrix contains NaN or infinite values")


def _svd_torch(torch: Any, x: Any, *, full_matrices: bool) -> Any:
    if not x.is_cuda:
        _check_finite(torch, x)
    return torch.linalg.svd(x, full_matrices)


def _svd_numpy(np: Any, x: Any, *, full_matrices: bool) -> Any:
    _check_finite(np, x)
    return np.linalg.svd(x, full_matrices=full_matrices)


def _svd_back(g: Any, y: Any, _x: Any, *, full_matrices: bool) -> Any:
    u, s, vh = y
    gu, gs, gvh = g
    m, n = _x.shape[-2:]
    k = min(m, n)
    if full_matrices:
        u, vh = u[..., :k], vh[..., :k, :]
        gu, gvh = gu if gu is None else gu[..., :k], gvh if gvh is None else gvh[..., :k, :]
    inner = u.new_zeros((*s.shape, k)) if gs is None else gs.diag_embed().to(u.dtype)
    apart = differences(s * s)
    if gu is not None:
        turned = _skew(u.mH @ gu)
        inner = inner + turned / apart * s.unsqueeze(-2)
        if u.dtype.is_complex:  # on the diagonal, turned is imaginary
            inner = inner + (turned.diagonal(0, -2, -1) * (0.5 / s - s)).diag_embed()
    if gvh is not None:
        turned = _skew(vh @ gvh.mH)
        if u.dtype.is_complex:  # what the diagonal has is in the gradient of u already
            turned = turned - turned.diagonal(0, -2, -1).diag_embed()
        inner = inner + s.unsqueeze(-1) * (turned / apart)
    result = u @ inner @ vh
    if gu is not None and m > k:
        over = gu / s.unsqueeze(-2)
        result = result + (over - u @ (u.mH @ over)) @ vh
    if gvh is not None and n > k:
        over = gvh / s.unsqueeze(-1)
        result = result + u @ (over - (over @ vh.mH) @ vh)
    return result


def _skew(x: Any) -> Any:
    return x - x.mH


op(
    "svd",
    complex="rule",
    reads_values="cpu",
    operands="t",
    infer=_singular,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2, 1, 2)),
    vjp=(_svd_back,),
    torch=unless_empty(_svd_torch),
    kernel=unless_empty(_svd_numpy),
)
