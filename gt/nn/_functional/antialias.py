"""Resizing with a filter as wide as the pixels of the result, so that no pixel of the image is left out.

The filter is applied to one dim after the other. Each is a product with a small matrix, which the client computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.tensor.arguments import cast, refuse
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import creation
from gt.functions.matmul import matmul
from gt.ops import OPS
from gt.types import float32, float64

Array = np.ndarray[Any, Any]
#: what torch's filter for cubic curves takes with antialiasing; -0.75 without
CUBIC = -0.5


def _linear(x: Array) -> Array:
    y: Array = np.maximum(0.0, 1 - np.abs(x))
    return y


def _cubic(x: Array) -> Array:
    x = np.abs(x)
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * CUBIC - 4 * CUBIC
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


#: mode -> the filter, and how far it reaches
FILTERS: dict[str, tuple[Callable[[Array], Array], float]] = {"bilinear": (_linear, 1.0), "bicubic": (_cubic, 2.0)}


def filter_matrix(mode: str, old: int, new: int, aligned: bool, factor: float | None) -> Array:
    """[new, old]: how much of each pixel of the image is in each pixel of the result."""
    scale = 1 / factor if factor else old / new
    if aligned:
        scale = (old - 1) / (new - 1) if new > 1 else 0.0
    curve, reach = FILTERS[mode]
    width = max(scale, 1.0)
    centers = scale * (np.arange(new) + 0.5)[:, None]
    begins = np.maximum(np.trunc(centers - reach * width + 0.5), 0)
    ends = np.minimum(np.trunc(centers + reach * width + 0.5), old)
    places = np.arange(old)[None, :]
    weights = np.where((places >= begins) & (places < ends), curve((places - centers + 0.5) / width), 0.0)
    sums = weights.sum(1, keepdims=True)
    result: Array = np.divide(weights, sums, out=np.zeros_like(weights), where=sums != 0)
    return result


def filtered(x: Tensor, rows: Array, columns: Array) -> Tensor:
    """Each image of a batch as ``rows @ image @ columns.T``."""
    dtype = x._type.dtype
    precise = dtype if dtype is float64 else float32
    left, right = (creation.tensor(matrix, dtype=precise) for matrix in (rows, columns.T))
    return cast(matmul(left, matmul(cast(x, precise), right)), dtype)


def resized(x: Tensor, mode: str, size: Any, aligned: bool, factors: Any) -> Tensor:
    if x._type.ndim != 4 or mode not in FILTERS or x._type.dtype.kind != "f":
        text = "antialias is for bilinear and bicubic, and for four dims of a floating dtype"
        raise refuse(ShapeError, text, OPS["interpolate"].name, x, mode=mode)
    rows, columns = matrices(mode, x._type.shape[-2:], size, aligned, factors)
    return filtered(x, rows, columns)


def matrices(mode: str, old: Any, new: Any, aligned: bool, factors: Any) -> tuple[Array, Array]:
    """The matrices of the rows and of the columns."""
    rows, columns = (filter_matrix(mode, old[d], new[d], aligned, factors[d]) for d in range(2))
    return rows, columns
