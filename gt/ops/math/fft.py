"""Discrete Fourier transforms, over one or more dims.

``norm`` is torch's: "backward" scales the inverse transform by 1/n, "forward" the forward one, and "ortho" both by the
square root of that. A transform may be split along the dims that it does not transform.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import check_dims, require_bools, require_ints
from gt.ops.op import op
from gt.ops.split import Split, letters, without
from gt.types import TensorType, complex64, complex128, complex_of, float32, float64, real_of

Dims = tuple[int, ...]

#: norm -> the norm with which the transform in the other direction has the same scale
OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _check(x: TensorType, dim: Dims, norm: str) -> None:
    if norm not in OPPOSITE:
        raise ShapeError(f"norm is 'backward', 'ortho' or 'forward', not {norm!r}")
    if not x.ndim or not dim:
        raise ShapeError("needs at least one dim to transform")
    for d in check_dims(dim, x.ndim):
        if not x.shape[d]:
            raise ShapeError(f"dim {d} has size 0, and there is no transform of nothing")


def _resized(x: TensorType, d: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:d], size, *x.shape[d + 1 :])


def _splitting(x: TensorType, *, dim: Dims, **how: Any) -> Split:
    names = without(letters(x.ndim), dim)
    return Split(f"{names}->{names}", linear=((0,),))


def _run(torch: Any, transform: Any, x: Any, **options: Any) -> Any:
    """MKL, which torch uses on x86-64, refuses some strides, and batches without elements."""
    if x.numel():
        return transform(x.contiguous(), **options)
    return torch.empty_like(transform(x.to("meta"), **options), device=x.device)


# -- complex to complex --------------------------------------------------------------------


def _transformed(x: TensorType, *, dim: Dims, inverse: bool, norm: str) -> TensorType:
    require_bools(inverse=inverse)
    if x.dtype not in (complex64, complex128):
        raise DTypeError(f"takes complex numbers, not {x.dtype.name}")
    _check(x, dim, norm)
    return x


def _c2c_back(g: Any, _y: Any, _x: Any, *, dim: Dims, inverse: bool, norm: str) -> Any:
    return g._op("fft_c2c", dim=dim, inverse=not inverse, norm=OPPOSITE[norm])


op(
    "fft_c2c",
    complex="rule",
    operands="t",
    infer=_transformed,
    split=_splitting,
    vjp=(_c2c_back,),
    torch=lambda torch, x, *, dim, inverse, norm: _run(
        torch, torch.fft.ifftn if inverse else torch.fft.fftn, x, dim=dim, norm=norm
    ),
    kernel=lambda np, x, *, dim, inverse, norm: (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=dim, norm=norm),
)

# -- real to complex, and back -------------------------------------------------------------
# Of the last dim that is transformed, only the first half is kept: the other half is its conjugate.


def _halved(x: TensorType, *, dim: Dims, norm: str) -> TensorType:
    if x.dtype not in (float32, float64):
        raise DTypeError(f"takes float32 or float64, not {x.dtype.name}")
    _check(x, dim, norm)
    return TensorType(_resized(x, dim[-1], x.shape[dim[-1]] // 2 + 1), complex_of(x.dtype))


def _r2c_back(g: Any, _y: Any, _x: Any, *, dim: Dims, norm: str) -> Any:
    """The adjoint: zeros in place of the half that was dropped, the inverse transform, and its real part."""
    last = dim[-1]
    missing = _x.shape[last] - g.shape[last]
    pads = tuple((0, missing if d == last else 0) for d in range(g.ndim))
    return g._op("pad", 0, pads=pads)._op("fft_c2c", dim=dim, inverse=True, norm=OPPOSITE[norm]).real


op(
    "fft_r2c",
    complex="rule",
    operands="t",
    infer=_halved,
    split=_splitting,
    vjp=(_r2c_back,),
    torch=lambda torch, x, *, dim, norm: _run(torch, torch.fft.rfftn, x, dim=dim, norm=norm),
    kernel=lambda np, x, *, dim, norm: np.fft.rfftn(x, axes=dim, norm=norm),
)


def _doubled(x: TensorType, *, dim: Dims, size: int, norm: str) -> TensorType:
    require_ints(size=size)
    if x.dtype not in (complex64, complex128):
        raise DTypeError(f"takes complex numbers, not {x.dtype.name}")
    _check(x, dim, norm)
    if size < 1 or x.shape[dim[-1]] != size // 2 + 1:
        raise ShapeError(f"a result of size {size} needs {size // 2 + 1} elements along dim {dim[-1]}")
    return TensorType(_resized(x, dim[-1], size), real_of(x.dtype))


def _c2r_back(g: Any, _y: Any, _x: Any, *, dim: Dims, size: int, norm: str) -> Any:
    """Elements that stand for two, themselves and their conjugates, get twice the gradient."""
    last = dim[-1]
    half = g._op("fft_r2c", dim=dim, norm=OPPOSITE[norm])
    twice = size - _x.shape[last]
    if not twice:
        return half
    parts = half._ops("split", sizes=(1, twice, _x.shape[last] - 1 - twice), dim=last)
    return parts[0]._op("cat", parts[1] * 2, parts[2], dim=last)


def _sizes(x: Any, dim: Dims, size: int) -> list[int]:
    return [*(x.shape[d] for d in dim[:-1]), size]


op(
    "fft_c2r",
    complex="rule",
    operands="t",
    infer=_doubled,
    split=_splitting,
    vjp=(_c2r_back,),
    torch=lambda torch, x, *, dim, size, norm: _run(
        torch, torch.fft.irfftn, x, s=_sizes(x, dim, size), dim=dim, norm=norm
    ),
    kernel=lambda np, x, *, dim, size, norm: np.fft.irfftn(x, s=_sizes(x, dim, size), axes=dim, norm=norm),
)
