"""Images at other positions: `affine_grid` and `grid_sample`."""

from __future__ import annotations

from collections.abc import Sequence

from gt.client.tensor.arguments import refuse, require_tensor
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions.creation import linspace, ones
from gt.functions.joining import stack
from gt.ops import OPS

__all__ = ["affine_grid", "grid_sample"]

GRID_SAMPLE = OPS["grid_sample"]


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The values of images at positions from -1 to 1 along each dim. See `torch.nn.functional.grid_sample`.

    ``grid`` has the coordinates in its last dim, that of the last dim of the image first.
    """
    operands = require_tensor("grid_sample", input), require_tensor("grid_sample", grid)
    attrs = (("mode", mode), ("padding_mode", padding_mode), ("align_corners", bool(align_corners)))
    return call(GRID_SAMPLE, operands, attrs)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The positions of a grid after an affine map, for `grid_sample`. See `torch.nn.functional.affine_grid`.

    ``theta`` has one matrix per image, 2 by 3 or 3 by 4; ``size`` is that of the images to make.
    """
    x, sizes = require_tensor("affine_grid", theta), list(size)
    rank = len(sizes) - 2
    if x._type.dtype.kind != "f":
        raise refuse(DTypeError, "needs a floating theta", "affine_grid", x)
    if rank not in (2, 3) or x._type.shape != (sizes[0], rank, rank + 1):
        raise refuse(ShapeError, f"an image of size {sizes} needs one matrix per image", "affine_grid", x)
    if min(sizes) <= 0:
        raise refuse(ShapeError, f"Expected non-zero, positive output size. Got {sizes}", "affine_grid", x)
    shape = sizes[2:]
    axes = [_positions(n, bool(align_corners), x) for n in shape]
    # the coordinate of the last dim comes first
    views = [axes[d].reshape([-1 if k == d else 1 for k in range(rank)]).expand(shape) for d in reversed(range(rank))]
    base = stack([*views, ones(shape, dtype=x._type.dtype)], -1).reshape(-1, rank + 1)
    return (base @ x.mT).reshape(sizes[0], *shape, rank)


def _positions(n: int, align_corners: bool, like: Tensor) -> Tensor:
    """The centres of n elements between -1 and 1, or, with ``align_corners``, n points from -1 to 1."""
    if n == 1:
        return like.new_zeros(1)
    end = 1.0 if align_corners else (n - 1) / n
    return linspace(-end, end, n, dtype=like._type.dtype)
