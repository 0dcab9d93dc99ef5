"""torch's windows: weights for a piece of a signal that fade towards both ends."""

from __future__ import annotations

import math
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, pointwise
from gt.types import float64

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


def _cosines(window_length: int, periodic: bool, dtype: Any, *weights: float) -> Tensor:
    """A window that is a sum of cosines."""
    turns = creation.arange(window_length, dtype=float64) * (2 * math.pi / _length(window_length, periodic))
    window = creation.full_like(turns, weights[0])
    for k, weight in enumerate(weights[1:], 1):
        window = window + pointwise.cos(turns * k) * ((-1) ** k * weight)
    return _window(window, window_length, dtype)


def _window(window: Tensor, window_length: int, dtype: Any) -> Tensor:
    """A window, computed in float64, in its dtype. One of a single element is 1."""
    window = window if window_length > 1 else creation.ones(window_length)
    return cast(window, creation.default_dtype(dtype))


def _length(window_length: int, periodic: bool) -> int:
    return max(window_length if periodic else window_length - 1, 1)


@creation.with_options
def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """A Hann window: (1 - cos) / 2."""
    return _cosines(window_length, periodic, dtype, 0.5, 0.5)


@creation.with_options
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None
) -> Tensor:
    """A Hamming window: alpha - beta * cos."""
    return _cosines(window_length, periodic, dtype, alpha, beta)


@creation.with_options
def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """A Blackman window: a sum of two cosines."""
    return _cosines(window_length, periodic, dtype, 0.42, 0.5, 0.08)


@creation.with_options
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """A triangular window."""
    at = creation.arange(window_length, dtype=float64) * (2 / _length(window_length, periodic))
    return _window(1 - pointwise.abs(at - 1), window_length, dtype)


@creation.with_options
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None) -> Tensor:
    """A Kaiser window; a larger beta makes it narrower."""
    at = creation.arange(window_length, dtype=float64) * (2 / _length(window_length, periodic)) - 1
    rise = pointwise.sqrt(pointwise.clamp(1 - at * at, 0)) * beta
    return _window(pointwise.i0(rise) / pointwise.i0(creation.full_like(rise, beta)), window_length, dtype)
