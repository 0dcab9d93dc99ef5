"""The exponential of a matrix, and the Householder vectors of its QR factors."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.ops.math.linalg import matrix, square, unless_empty
from gt.ops.op import Types, op
from gt.ops.split import leading
from gt.types import TensorType

#: terms of the series: enough for double precision where no row sums up to more than 1/2
TERMS = 18


def _matrix_exp_numpy(np: Any, x: Any) -> Any:
    """Scaled to a small norm, the series of the exponential, and squared as often as the norm was halved."""
    largest = np.abs(x).sum(-1).max()
    halvings = int(max(0, np.ceil(np.log2(largest)) + 1)) if np.isfinite(largest) and largest else 0
    small = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) / 2.0**halvings
    term = result = np.zeros_like(small) + np.eye(x.shape[-1])
    for k in range(1, TERMS + 1):
        term = term @ small / k
        result = result + term
    for _ in range(halvings):
        result = result @ result
    return result.astype(x.dtype)


def _matrix_exp_back(g: Any, _y: Any, x: Any) -> Any:
    """The upper right block of the exponential of [[x.mT, g], [0, x.mT]] (Al-Mohy and Higham)."""
    n, last = x.shape[-1], x.ndim - 1
    upper, lower = x.mT._op("cat", g, dim=last), x.new_zeros(x.shape)._op("cat", x.mT, dim=last)
    return upper._op("cat", lower, dim=last - 1)._op("matrix_exp")[..., :n, n:]


op(
    "matrix_exp",
    complex="holomorphic",
    function="t",
    doc="The exponential of square matrices.",
    operands="t",
    infer=square,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2,)),
    vjp=(_matrix_exp_back,),
    torch=unless_empty(lambda torch, x: torch.linalg.matrix_exp(x)),
    kernel=unless_empty(_matrix_exp_numpy),
)


def _reflected(x: TensorType) -> Types:
    *batch, m, n = matrix(x).shape
    return x, TensorType((*batch, min(m, n)), x.dtype)


def _geqrf_numpy(np: Any, x: Any) -> Any:
    h, tau = np.linalg.qr(x, mode="raw")
    return np.ascontiguousarray(np.swapaxes(h, -1, -2)), tau


op(
    "geqrf",
    operands="t",
    infer=_reflected,
    wants_out=True,
    split=partial(leading, inner=(2,), outer=(2, 1)),
    no_gradient="torch has none either; use qr",
    torch=unless_empty(lambda torch, x: torch.geqrf(x)),
    kernel=unless_empty(_geqrf_numpy),
)
