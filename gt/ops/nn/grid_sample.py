"""Values of images at positions between their elements: torch's `grid_sample`.

A position is sampled by a few elements per dim, the *taps*: one (nearest), two (bilinear) or four (bicubic), each with
a weight. numpy computes with these; torch has kernels.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from gt.errors import DTypeError, GradError, ShapeError
from gt.ops.attributes import check_flags, check_mask
from gt.ops.elements import wide
from gt.ops.gradient_rules import chosen, one
from gt.ops.nn.layer_norm import floating_input
from gt.ops.op import Types, op
from gt.ops.split import Split
from gt.types import TensorType

#: in the order of torch's numbers for them
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
#: the parameter of torch's cubic interpolation
CUBIC = -0.75

Mask = tuple[bool, ...]


def _sampled(x: TensorType, grid: TensorType, *, mode: str, padding_mode: str, align_corners: bool) -> TensorType:
    floating_input(x)
    check_flags(align_corners=align_corners)
    if mode not in MODES or padding_mode not in PADDINGS:
        raise ShapeError(
            f"mode is one of {MODES} and padding_mode one of {PADDINGS}, not {mode!r} and {padding_mode!r}"
        )
    if x.ndim not in (4, 5) or grid.ndim != x.ndim:
        raise ShapeError("needs an input and a grid of both 4 or both 5 dims")
    if mode == "bicubic" and x.ndim != 4:
        raise ShapeError("bicubic interpolation is only there for inputs of 4 dims")
    if grid.dtype is not x.dtype:
        raise DTypeError(f"dtypes differ: {x.dtype.name} and {grid.dtype.name}")
    if grid.shape[0] != x.shape[0] or grid.shape[-1] != x.ndim - 2:
        raise ShapeError(f"a grid for this input has {x.shape[0]} images and {x.ndim - 2} coordinates in its last dim")
    if not prod(x.shape[2:]):
        raise ShapeError("there are no elements in an image")
    return TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)


def _numbers(mode: str, padding_mode: str, align_corners: bool) -> tuple[int, int, bool]:
    return MODES.index(mode), PADDINGS.index(padding_mode), align_corners


def _in_float32(torch: Any, *xs: Any) -> Any:
    """A CPU has no kernels for half precision."""
    return (x if x.is_cuda or x.itemsize > 2 else x.float() for x in xs)


def _sample_torch(torch: Any, x: Any, grid: Any, **how: Any) -> Any:
    if not x.numel() or not grid.numel():
        return x.new_zeros((*x.shape[:2], *grid.shape[1:-1]))
    return torch.grid_sampler(*_in_float32(torch, x, grid), *_numbers(**how)).to(x.dtype)


# -- with numpy ----------------------------------------------------------------------------


def _padded(np: Any, at: Any, size: int, padding_mode: str, align_corners: bool) -> tuple[Any, Any]:
    """Positions outside moved inside, and the derivative of that."""
    slope = np.ones_like(at)
    if padding_mode == "zeros":
        return at, slope
    if padding_mode == "reflection":
        first, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if not span:
            return np.zeros_like(at), np.zeros_like(at)
        away = np.abs(at - first)
        flips = np.floor(away / span)
        back = flips % 2 == 1
        extra = away - flips * span
        slope = np.where(at < first, -1.0, 1.0) * np.where(back, -1.0, 1.0)
        at = np.where(back, span - extra, extra) + first
    return np.clip(at, 0, size - 1), np.where((at > 0) & (at < size - 1), slope, 0)


def _cubic(np: Any, x: Any) -> tuple[Any, Any]:
    """The weight of an element at a distance, and its derivative."""
    near, far = abs(x) <= 1, abs(x) < 2
    d, sign = abs(x), np.sign(x)
    inner = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1, (3 * (CUBIC + 2) * d - 2 * (CUBIC + 3)) * d
    outer = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC, (3 * CUBIC * d - 10 * CUBIC) * d + 8 * CUBIC
    value, slope = (np.where(near, a, np.where(far, b, 0)) for a, b in zip(inner, outer, strict=True))
    return value, slope * sign


def _taps(np: Any, at: Any, size: int, mode: str, padding_mode: str, align_corners: bool) -> list[tuple[Any, ...]]:
    """(element, weight, derivative of the weight by the coordinate) for each tap along one dim."""
    scale = (size - 1) / 2 if align_corners else size / 2
    at = (at + 1) * scale - (0 if align_corners else 0.5)
    rule = (size, padding_mode, align_corners)
    if mode == "bicubic":
        first = np.floor(at)
        taps = [(_padded(np, first + k, *rule)[0], *_cubic(np, at - first - k)) for k in (-1, 0, 1, 2)]
    else:
        at, slope = _padded(np, at, *rule)
        first = np.floor(at)
        taps = [(first, 1 - (at - first), -slope), (first + 1, at - first, slope)]
        if mode == "nearest":
            taps = [(np.rint(at), np.ones_like(at), np.zeros_like(at))]
    result = []
    for element, weight, slope in taps:
        inside = (element >= 0) & (element < size)
        at_element = np.where(inside, element, 0).astype(np.int64)
        result.append((at_element, np.where(inside, weight, 0), np.where(inside, slope * scale, 0)))
    return result


def _choices(np: Any, x: Any, grid: Any, how: dict[str, Any]) -> Any:
    """All combinations of a tap in each dim: (index of the elements, their taps)."""
    rank = x.ndim - 2
    images = np.arange(x.shape[0]).reshape(-1, *(1,) * rank)
    # the last coordinate belongs to the first spatial dim
    taps = [_taps(np, grid[..., rank - 1 - d], x.shape[2 + d], **how) for d in range(rank)]
    for choice in product(*taps):
        yield (images, *(element for element, _, _ in choice)), choice


def _weight(choice: Any, by: int = -1) -> Any:
    """The product of the weights, or its derivative by the coordinate of a dim."""
    return prod(tap[2 if d == by else 1] for d, tap in enumerate(choice))[..., None]


def _sample_numpy(np: Any, x: Any, grid: Any, **how: Any) -> Any:
    x, grid = wide(np, x, grid)
    channels_last, result = np.moveaxis(x, 1, -1), np.zeros((*grid.shape[:-1], x.shape[1]), x.dtype)
    for at, choice in _choices(np, x, grid, how):
        result += (channels_last[at] * _weight(choice)).astype(x.dtype)
    return np.ascontiguousarray(np.moveaxis(result, -1, 1))


def _vjp(needs: Any, g: Any, _y: Any, x: Any, grid: Any, **how: Any) -> list[Any]:
    return chosen("grid_sample_backward", (needs[0], needs[1]), g, x, grid, **how)


op(
    "grid_sample",
    autocast="widest",
    operands="tt",
    infer=_sampled,
    split=lambda x, grid, **how: Split("nc..,nhw.->nchw" if x.ndim == 4 else "nc...,ndhw.->ncdhw", linear=((0,),)),
    vjp=_vjp,
    torch=_sample_torch,
    kernel=_sample_numpy,
)


# -- the gradient --------------------------------------------------------------------------


def _unsampled(g: TensorType, x: TensorType, grid: TensorType, *, mask: Mask, **how: Any) -> Types:
    if g is not _sampled(x, grid, **how):
        raise ShapeError(f"{g} is not the gradient of this result")
    check_mask(mask, 2)
    return tuple(t for t, wanted in zip((x, grid), mask, strict=True) if wanted)


def _unsample_torch(torch: Any, g: Any, x: Any, grid: Any, *, mask: Mask, **how: Any) -> Any:
    aten = torch.ops.aten
    back = aten.grid_sampler_2d_backward if x.ndim == 4 else aten.grid_sampler_3d_backward
    if g.numel():
        results = back(*_in_float32(torch, g.contiguous(), x, grid), *_numbers(**how), list(mask))
    else:
        results = torch.zeros_like(x), torch.zeros_like(grid)
    kept = tuple(r.to(x.dtype) for r, wanted in zip(results, mask, strict=True) if wanted)
    return kept if len(kept) > 1 else kept[0]


def _unsample_numpy(np: Any, g: Any, x: Any, grid: Any, *, mask: Mask, **how: Any) -> Any:
    g, x, grid = wide(np, g, x, grid)
    g, channels_last = np.moveaxis(g, 1, -1), np.moveaxis(x, 1, -1)
    for_x, for_grid = np.zeros_like(channels_last), np.zeros_like(grid)
    rank = x.ndim - 2
    for at, choice in _choices(np, x, grid, how):
        np.add.at(for_x, at, (g * _weight(choice)).astype(x.dtype))
        if how["mode"] == "nearest":  # its weights are constants
            continue
        along = (g * channels_last[at]).sum(-1)
        for d in range(rank):
            for_grid[..., rank - 1 - d] += (along * _weight(choice, d)[..., 0]).astype(grid.dtype)
    results = np.ascontiguousarray(np.moveaxis(for_x, -1, 1)), for_grid
    kept = tuple(r for r, wanted in zip(results, mask, strict=True) if wanted)
    return kept if len(kept) > 1 else kept[0]


def _splitting_back(g: TensorType, x: TensorType, grid: TensorType, *, mask: Mask, **how: Any) -> Split:
    image, places = ("nc..", "nhw.") if x.ndim == 4 else ("nc...", "ndhw.")
    result = "nchw" if x.ndim == 4 else "ncdhw"
    kept = [t for t, wanted in zip((image, places), mask, strict=True) if wanted]
    # the gradient of the grid alone is linear in the image too
    return Split(f"{result},{image},{places}->{','.join(kept)}", linear=((0,),) if mask[0] else ((0,), (1,)))


def _back_vjp(needs: Any, d: Any, _y: Any, _g: Any, _x: Any, grid: Any, *, mask: Mask, **how: Any) -> list[Any]:
    if needs[2] or mask[1]:
        raise GradError("grid_sample has no second gradient by the grid; detach the grid")
    return [one("grid_sample", d[0] if isinstance(d, tuple) else d, grid, **how), None, None]


op(
    "grid_sample_backward",
    operands="ttt",
    infer=_unsampled,
    split=_splitting_back,
    vjp=_back_vjp,
    torch=_unsample_torch,
    kernel=_unsample_numpy,
)
