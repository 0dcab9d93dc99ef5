"""Tensors of random numbers, for the engines: numpy, torch on a CPU or a GPU, and compiled code.

``draw`` is one of the functions of `gt.ops.random.philox`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from gt.errors import ShapeError
from gt.ops.infer import shown, sizes
from gt.ops.random import philox
from gt.types import Shape

if TYPE_CHECKING:
    from gt.ops.random.philox import Array

#: one worker's block of a random tensor: where it begins, and the shape of the whole tensor
Block = tuple[Shape, Shape] | None


def on_numpy(draw: Any, *key: int, shape: Shape, dtype: str, block: Block = None) -> Array:
    start, rows, part = _range(shape, block)
    values: Array = draw(*key, start, prod(rows), *_precision(draw, dtype))
    return values.reshape(rows)[part].astype(dtype, copy=False)


def on_torch(draw: Any, *key: Any, shape: Shape, dtype: str, device: Any, block: Block = None) -> Any:
    import torch

    start, rows, part = _range(shape, block)
    if device.type == "cuda" and (gpu := _gpu()) is not None:
        values = getattr(gpu, draw.__name__)(*key, start, prod(rows), *_precision(draw, dtype), device)
    elif isinstance(key[0], torch.Tensor):
        from gt.ops.random.philox_compiled import drawn

        values = drawn(list(key), draw.__name__, start, prod(rows), dtype)
    else:
        values = torch.from_numpy(draw(*key, start, prod(rows), *_precision(draw, dtype)))
    return values.view(rows)[part].contiguous().to(device=device, dtype=getattr(torch, dtype))


def _range(shape: Shape, block: Block) -> tuple[int, Shape, tuple[slice, ...]]:
    """Where to start drawing, the shape to draw, and which part of it is the block.

    Of a tensor sharded along its first dim only the block is drawn. Sharded along another dim, whole rows are drawn.
    """
    if block is None or not shape:
        return 0, shape, ()
    at, whole = block
    part = (slice(None), *(slice(i, i + n) for i, n in zip(at[1:], shape[1:], strict=True)))
    return at[0] * prod(whole[1:]), (shape[0], *whole[1:]), part


def within(block: Block, shape: Shape) -> None:
    """Raise ShapeError unless this is a block of the whole."""
    assert block is not None
    at, whole = (sizes(part) for part in block)
    spans = zip(at, shape, whole, strict=False)
    if not len(at) == len(whole) == len(shape) or any(not 0 <= i <= i + n <= m for i, n, m in spans):
        raise ShapeError(f"{shown(shape)} from {shown(at)} on is not a block of {shown(whole)}")


def _precision(draw: Any, dtype: str) -> tuple[str, ...]:
    return () if draw is philox.integers else (dtype,)


def _gpu() -> Any:
    try:
        from gt.ops.random import philox_gpu
    except ImportError:  # torch without Triton
        return None
    return philox_gpu
