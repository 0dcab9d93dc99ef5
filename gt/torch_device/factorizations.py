"""Fourier transforms and factorizations of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt import linalg
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.functions import creation
from gt.ops import OPS
from gt.types import complex64, complex128, float64

C2C, R2C, C2R = OPS["fft_c2c"], OPS["fft_r2c"], OPS["fft_c2r"]
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


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_fft_c2c": _c2c,
    "_fft_c2r": _c2r,
    "_fft_r2c": _r2c,
    "_linalg_eigh": _eigh,
    "_linalg_svd": _svd,
}
