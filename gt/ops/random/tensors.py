"""Draws whole tensors, or one worker's block of them, on each engine.

On a CPU numpy draws, for both engines. On a GPU a Triton kernel computes the same words (`philox_gpu`); without Triton
they are computed on the CPU and sent. In compiled code the key is not a constant but 0-d tensors of int64, and so are
the least value and the number of values of `integers`; `philox_compiled` and `philox_gpu` read them when they run.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.infer import shown, sizes
from gt.ops.random import philox
from gt.types import Shape

#: one worker's block of a draw: where it starts, and the shape of the whole
Block = tuple[Shape, Shape] | None
#: the positions of one section: an op that needs several numbers for an element takes each from another section
SECTION = 1 << 48


def on_numpy(draw: Any, *key: int, shape: Shape, dtype: str, block: Block = None, section: int = 0) -> Any:
    start, rows, part = _range(shape, block, section)
    result = draw(*key, start, prod(rows), *_precision(draw, dtype))
    return result.reshape(rows)[part].astype(dtype, copy=False)


def on_torch(draw: Any, *key: Any, shape: Shape, dtype: str, device: Any, block: Block = None, section: int = 0) -> Any:
    import torch

    start, rows, part = _range(shape, block, section)
    if device.type == "cuda" and (gpu := _gpu()) is not None:
        result = getattr(gpu, draw.__name__)(*key, start, prod(rows), *_precision(draw, dtype), device)
    elif isinstance(key[0], torch.Tensor):
        from gt.ops.random.philox_compiled import drawn

        result = drawn(list(key), draw.__name__, start, prod(rows), dtype)
    else:
        result = torch.from_numpy(draw(*key, start, prod(rows), *_precision(draw, dtype)))
    result = result.view(rows)
    return (result[part].contiguous() if part else result).to(device=device, dtype=getattr(torch, dtype))


def mask_on_numpy(seed: int, stream: int, bound: float, shape: Shape, block: Block = None) -> Any:
    """Which of the uniform float32 numbers of a tensor are at least ``bound``."""
    start, rows, part = _range(shape, block, 0)
    result = philox.at_least(seed, stream, start, prod(rows), bound).reshape(rows)
    return result[part].copy() if part else result


def mask_on_torch(seed: Any, stream: Any, bound: float, shape: Shape, device: Any, block: Block = None) -> Any:
    import torch

    if device.type == "cpu" and not isinstance(seed, torch.Tensor):
        return torch.from_numpy(mask_on_numpy(seed, stream, bound, shape, block))
    how: dict[str, Any] = {"shape": shape, "dtype": "float32", "device": device, "block": block}
    return on_torch(philox.uniform, seed, stream, **how) >= bound


def _range(shape: Shape, block: Block, section: int) -> tuple[int, Shape, tuple[slice, ...]]:
    """Where to start, the shape to draw, and which part of it is the block.

    If a tensor is split along its first dim, only the block is drawn; if along another, the rows that contain it.
    """
    if block is None or not shape:
        return section * SECTION, shape, ()
    at, whole = block
    part = (slice(None), *(slice(i, i + n) for i, n in zip(at[1:], shape[1:], strict=True)))
    return section * SECTION + at[0] * prod(whole[1:]), (shape[0], *whole[1:]), part


def within(block: Block, shape: Shape) -> None:
    """Refuses a block that is not inside the whole."""
    assert block is not None
    at, whole = (sizes(part) for part in block)
    spans = zip(at, shape, whole, strict=False)
    if not len(at) == len(whole) == len(shape) or any(not 0 <= i <= i + n <= m for i, n, m in spans):
        raise ShapeError(f"{shown(shape)} from {shown(at)} on is no block of {shown(whole)}")


def _precision(draw: Any, dtype: str) -> tuple[str, ...]:
    return () if draw is philox.integers else (dtype,)


def _gpu() -> Any:
    try:
        from gt.ops.random import philox_gpu
    except ImportError:  # torch without Triton
        return None
    return philox_gpu
