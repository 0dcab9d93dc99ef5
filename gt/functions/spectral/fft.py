"""``gt.fft``: discrete Fourier transforms, as in `torch.fft`.

All of them are one of three ops, after the operand was cast, and padded or cut to the requested sizes:

    fft, ifft      complex to complex
    rfft, irfft    real to the half of a symmetric spectrum, and back
    hfft, ihfft    half of a symmetric signal to its real spectrum, and back: irfft and rfft of conjugates
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.tensor.arguments import cast, normalize_dim, refuse, require_tensor, to_int
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, joining, views
from gt.functions.derive import documented
from gt.functions.spectral.complex import conj
from gt.functions.windows import pad
from gt.ops import OPS
from gt.ops.math.fft import OPPOSITE
from gt.types import complex_of, float32

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

C2C, R2C, C2R = OPS["fft_c2c"], OPS["fft_r2c"], OPS["fft_c2r"]

#: a dim and its size after the transform's operand was padded or cut; None: as it is
Sizes = dict[int, int | None]
#: (name of the function, operand, sizes, norm) -> the transform
Transform = Callable[[str, Tensor, Sizes, str], Tensor]


# -- operands ------------------------------------------------------------------------------


def _operand(name: str, x: Tensor, complex: bool) -> Tensor:
    """The operand as complex or as real numbers. Integers become float32."""
    dtype = x._type.dtype
    if dtype.kind in "fc" and dtype.itemsize < 4:
        raise refuse(DTypeError, f"not defined for {dtype.name}; use x.to(gt.float32)", name, x)
    if dtype.kind == "c" and not complex:
        raise refuse(DTypeError, f"takes real numbers, not {dtype.name}", name, x)
    dtype = dtype if dtype.kind in "fc" else float32
    return cast(x, complex_of(dtype) if complex else dtype)


def _resized(name: str, x: Tensor, sizes: Sizes) -> Tensor:
    """Each dim cut, or padded with zeros, to its size."""
    for dim, size in sizes.items():
        if size is None or size == x.size(dim):
            continue
        if size < 1:
            raise refuse(ShapeError, f"a transform needs at least one element, not {size}", name, x)
        if size < x.size(dim):
            x = views.narrow(x, dim, 0, size)
        else:
            x = pad(x, (*(0, 0) * (x._type.ndim - dim - 1), 0, size - x.size(dim)))
    return x


# -- the three transforms, and the two of conjugates -----------------------------------------


def _complex_transform(inverse: bool) -> Transform:
    def transform(name: str, x: Tensor, sizes: Sizes, norm: str) -> Tensor:
        x = _resized(name, _operand(name, x, complex=True), sizes)
        attrs = (("dim", tuple(sizes)), ("inverse", inverse), ("norm", norm))
        return call(C2C, (x,), attrs) if sizes else x

    return transform


def _real_transform(name: str, x: Tensor, sizes: Sizes, norm: str) -> Tensor:
    x = _resized(name, _operand(name, x, complex=False), sizes)
    return call(R2C, (x,), (("dim", tuple(sizes)), ("norm", norm)))


def _real_inverse(name: str, x: Tensor, sizes: Sizes, norm: str) -> Tensor:
    x = _operand(name, x, complex=True)
    if not sizes:
        raise refuse(ShapeError, "needs at least one dim to transform", name, x)
    last = tuple(sizes)[-1]
    size = 2 * (x.size(last) - 1) if sizes[last] is None else sizes[last]
    assert size is not None
    if size < 1:
        raise refuse(ShapeError, f"a transform needs at least one element, not {size}", name, x)
    x = _resized(name, x, {**sizes, last: size // 2 + 1})
    return call(C2R, (x,), (("dim", tuple(sizes)), ("size", size), ("norm", norm)))


def _hermitian(name: str, x: Tensor, sizes: Sizes, norm: str) -> Tensor:
    return _real_inverse(name, conj(x), sizes, OPPOSITE.get(norm, norm))


def _hermitian_inverse(name: str, x: Tensor, sizes: Sizes, norm: str) -> Tensor:
    return conj(_real_transform(name, x, sizes, OPPOSITE.get(norm, norm)))


# -- over one dim, two, or any -------------------------------------------------------------


def _sizes(name: str, x: Tensor, s: Any, dim: Any) -> Sizes:
    ndim = x._type.ndim
    if dim is None:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise refuse(ShapeError, f"{count} sizes for {ndim} dims", name, x, s=s)
        dims = list(range(ndim - count, ndim))
    else:
        dims = [normalize_dim(d, ndim) for d in ((dim,) if isinstance(dim, int) else dim)]
    sizes = [None] * len(dims) if s is None else [to_int(n, f"{name}(): sizes are ints") for n in s]
    if len(sizes) != len(dims) or len(set(dims)) < len(dims):
        raise refuse(ShapeError, "needs one size for each dim, and each dim once", name, x, s=s, dim=dim)
    return {d: None if n == -1 else n for d, n in zip(dims, sizes, strict=True)}


def _over_one(name: str, doc: str, transform: Transform) -> Callable[..., Tensor]:
    def function(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        x = require_tensor(name, input)
        sizes = _sizes(name, x, None if n is None else (n,), (dim,))
        if n == -1:
            raise refuse(ShapeError, "a transform needs at least one element, not -1", name, x)
        return transform(name, x, sizes, "backward" if norm is None else norm)

    return documented(function, name, f"{doc} along one dim.\n\nSee `torch.fft.{name}`.")


def _over_two(name: str, doc: str, transform: Transform) -> Callable[..., Tensor]:
    def function(
        input: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
    ) -> Tensor:
        x = require_tensor(name, input)
        return transform(name, x, _sizes(name, x, s, dim), "backward" if norm is None else norm)

    return documented(function, name, f"{doc} along two dims.\n\nSee `torch.fft.{name}`.")


def _over_any(name: str, doc: str, transform: Transform) -> Callable[..., Tensor]:
    def function(
        input: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
    ) -> Tensor:
        x = require_tensor(name, input)
        return transform(name, x, _sizes(name, x, s, dim), "backward" if norm is None else norm)

    return documented(function, name, f"{doc} along any dims; all if neither ``dim`` nor ``s`` is given.")


def _family(name: str, doc: str, transform: Transform) -> tuple[Callable[..., Tensor], ...]:
    """The functions over one dim, two dims, and any dims."""
    return (
        _over_one(name, doc, transform),
        _over_two(f"{name}2", doc, transform),
        _over_any(f"{name}n", doc, transform),
    )


fft, fft2, fftn = _family("fft", "The Fourier transform", _complex_transform(inverse=False))
ifft, ifft2, ifftn = _family("ifft", "The inverse Fourier transform", _complex_transform(inverse=True))
rfft, rfft2, rfftn = _family("rfft", "The first half of the Fourier transform of real numbers", _real_transform)
irfft, irfft2, irfftn = _family("irfft", "The inverse of `rfft`: real numbers", _real_inverse)
hfft, hfft2, hfftn = _family("hfft", "The real Fourier transform of one half of a symmetric signal", _hermitian)
ihfft, ihfft2, ihfftn = _family("ihfft", "The inverse of `hfft`: one half of a symmetric signal", _hermitian_inverse)


# -- frequencies ---------------------------------------------------------------------------


@creation.with_options
def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Tensor:
    """The frequency of each element of a transform of n elements that are ``d`` apart."""
    halves = (creation.arange(0, (n + 1) // 2), creation.arange(-(n // 2), 0))
    return _scaled(joining.cat(halves), n, d, dtype)


@creation.with_options
def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Tensor:
    """The frequency of each element of `rfft` of n elements that are ``d`` apart."""
    return _scaled(creation.arange(n // 2 + 1), n, d, dtype)


def _scaled(steps: Tensor, n: int, d: float, dtype: Any) -> Tensor:
    return cast(steps, creation.default_dtype(dtype)) * (1.0 / (n * d))


def _shifted(name: str, input: Tensor, dim: Any, sign: int) -> Tensor:
    x = require_tensor(name, input)
    dims = tuple(range(x._type.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    halves = [x.size(d) // 2 for d in dims]
    return views.roll(x, tuple(n if sign > 0 else -n for n in halves), dims) if dims else x


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Move the zero frequency from the first position to the middle, in each dim."""
    return _shifted("fftshift", input, dim, 1)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", input, dim, -1)
