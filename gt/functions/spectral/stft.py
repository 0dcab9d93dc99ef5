"""The short-time Fourier transform: the spectrum of each piece of a signal, and its inverse."""

from __future__ import annotations

from gt.client.tensor.arguments import refuse, require_tensor
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, views
from gt.functions.spectral import fft
from gt.functions.spectral.complex import view_as_real
from gt.functions.windows import pad
from gt.ops import OPS
from gt.types import real_of

__all__ = ["istft", "stft"]

UNFOLD_BACKWARD = OPS["unfold_backward"]


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The Fourier transform of overlapping pieces of a signal, each multiplied by a window. See `torch.stft`."""
    x = require_tensor("stft", input)
    given = [t for t in (x, window) if t is not None]
    is_complex = any(t._type.dtype.kind == "c" for t in given)
    onesided = not is_complex if onesided is None else onesided
    if return_complex is None:
        if not is_complex:
            raise refuse(DTypeError, "real signals need return_complex=True (or False)", "stft", *given)
        return_complex = True
    if align_to_window:
        raise refuse(ShapeError, "align_to_window is not supported", "stft", *given)
    if onesided and is_complex:
        raise refuse(DTypeError, "the spectrum of complex numbers has two sides: onesided=False", "stft", *given)
    if x._type.dtype.kind not in "fc" or x._type.ndim not in (1, 2):
        raise refuse(ShapeError, "takes one or two dims of floating or complex numbers", "stft", *given)
    single = x._type.ndim == 1
    x = views.unsqueeze(x, 0) if single else x
    x = pad(x, (n_fft // 2, n_fft // 2), pad_mode) if center else x
    weights = _weights("stft", x, window, n_fft, win_length)
    pieces = _pieces(x, n_fft, n_fft // 4 if hop_length is None else hop_length)
    pieces = pieces if weights is None else pieces * weights
    transform = fft.rfft if onesided else fft.fft
    result = views.transpose(transform(pieces, norm="ortho" if normalized else None), 1, 2)
    result = views.squeeze(result, 0) if single else result
    return result if return_complex else view_as_real(result)


def _pieces(x: Tensor, n_fft: int, hop_length: int) -> Tensor:
    if not 0 < n_fft <= x.size(1) or hop_length < 1:
        text = f"n_fft is from 1 to {x.size(1)} and hop_length at least 1, not {n_fft} and {hop_length}"
        raise refuse(ShapeError, text, "stft", x)
    pieces: Tensor = x.unfold(1, n_fft, hop_length)
    return pieces


def _weights(name: str, x: Tensor, window: Tensor | None, n_fft: int, win_length: int | None) -> Tensor | None:
    """The window in the middle of ``n_fft`` elements, with zeros around it; None if all weights are 1."""
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise refuse(ShapeError, f"win_length is from 1 to {n_fft}, not {length}", name, x)
    if window is None:
        if length == n_fft:
            return None
        window = creation.ones(length, dtype=real_of(x._type.dtype))
    if window._type.shape != (length,):
        raise refuse(ShapeError, f"the window needs {length} elements", name, x, window)
    before = (n_fft - length) // 2
    return pad(window, (before, n_fft - length - before)) if length < n_fft else window


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` this is, by least squares. See `torch.istft`.

    Where the windows do not overlap enough, the result is not finite; torch raises an error there.
    """
    x = require_tensor("istft", input)
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    _check_spectrum(x, n_fft, hop_length, win_length, window, onesided, return_complex)
    x = views.unsqueeze(x, 0) if x._type.ndim == 2 else x
    pieces, norm = views.transpose(x, 1, 2), "ortho" if normalized else None
    if return_complex:
        pieces = fft.ifft(pieces, norm=norm)
    else:
        pieces = fft.irfft(views.narrow(pieces, 2, 0, n_fft // 2 + 1), n_fft, norm=norm)
    weights = _weights("istft", x, window, n_fft, win_length)
    weights = creation.ones(n_fft, dtype=real_of(x._type.dtype)) if weights is None else weights
    whole = n_fft + hop_length * (x.size(2) - 1)
    total = _overlapped(pieces * weights, (x.size(0), whole), 1, n_fft, hop_length)
    squares = views.expand(weights * weights, (x.size(2), n_fft))
    envelope = _overlapped(squares, (whole,), 0, n_fft, hop_length)
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    if end <= start:
        raise refuse(ShapeError, "the signal has no elements", "istft", x, n_fft=n_fft, length=length)
    kept = min(end, whole) - start
    signal = views.narrow(total, 1, start, kept) / views.narrow(envelope, 0, start, kept)
    signal = pad(signal, (0, end - start - kept)) if end - start > kept else signal
    return views.squeeze(signal, 0) if input.ndim == 2 else signal


def _overlapped(pieces: Tensor, shape: tuple[int, ...], dim: int, size: int, step: int) -> Tensor:
    """Each piece added at its position."""
    return call(UNFOLD_BACKWARD, (pieces,), (("shape", shape), ("dim", dim), ("size", size), ("step", step)))


def _check_spectrum(
    x: Tensor,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Tensor | None,
    onesided: bool | None,
    return_complex: bool,
) -> None:
    if x._type.dtype.kind != "c" or x._type.ndim not in (2, 3) or not x._type.numel:
        raise refuse(DTypeError, "takes two or three dims of complex numbers", "istft", x)
    size = x.size(-2)
    onesided = size != n_fft if onesided is None else onesided
    if size != (n_fft // 2 + 1 if onesided else n_fft):
        raise refuse(ShapeError, f"dim {x._type.ndim - 2} of size {size} does not fit n_fft={n_fft}", "istft", x)
    if not 0 < hop_length <= win_length:
        raise refuse(ShapeError, f"hop_length is from 1 to {win_length}, not {hop_length}", "istft", x)
    window_is_complex = window is not None and window._type.dtype.kind == "c"
    if return_complex and onesided:
        raise refuse(DTypeError, "a complex signal needs a spectrum with two sides", "istft", x)
    if window_is_complex and not return_complex:
        raise refuse(DTypeError, "a complex window needs return_complex=True", "istft", x)
