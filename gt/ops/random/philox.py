"""Random numbers that depend on (seed, stream, position) and on nothing else.

The source is numpy's Philox4x64-10 keyed by (seed, stream): a function from a position to a 64-bit word, so any
range of a tensor can be made alone, on any worker, and is the same as that range of the whole. From words to values:

- float64: element i is the upper 53 bits of word i;
- other floating dtypes: element i is the upper 24 bits (float16 11, bfloat16 8: what the dtype holds without rounding
  up to 1) of half i, where word w holds the halves 2w (lower) and 2w + 1 (upper);
- normals: elements 2j and 2j + 1 are the two values Box-Muller makes of the uniforms 2j and 2j + 1;
- integers: low + word i modulo (high - low).

On a CPU numpy does it all, for both engines. On a GPU a Triton kernel makes the same words (`philox_gpu`); without
Triton they are made on the CPU and sent. In compiled code the key is no constant: there it is 0-d tensors of int64, and
(for `integers`) so are the least value and how many there are; `philox_op` and `philox_gpu.words` read them when they
run.
"""

from __future__ import annotations

from math import pi, prod
from typing import TYPE_CHECKING, Any

from gt.errors import ShapeError
from gt.ops.infer import shown, sizes
from gt.types import Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MASK = 2**64 - 1

#: the bits of a uniform number below float64: as many as the dtype has, so that none rounds up to 1
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def words(seed: int, stream: int, start: int, count: int) -> Array:
    """The words at positions start … start + count - 1, as uint64."""
    import numpy as np

    key = np.array([seed & MASK, stream & MASK], np.uint64)
    block, skip = divmod(start, 4)  # numpy counts blocks of four words
    source = np.random.Philox(key=key, counter=np.array([block, 0, 0, 0], np.uint64))
    made: Array = source.random_raw(skip + count)
    return made[skip:]


def uniform(seed: int, stream: int, start: int, count: int, dtype: str) -> Array:
    """Values in [0, 1): float64 for float64, and float32, which holds them exactly, for the others."""
    import numpy as np

    if dtype == "float64":
        return (words(seed, stream, start, count) >> np.uint64(11)) * 2.0**-53
    first, skip = divmod(start, 2)
    halves = words(seed, stream, first, (skip + count + 1) // 2).view(np.uint32)[skip : skip + count]
    bits = BITS[dtype]
    return (halves >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)


def normal(seed: int, stream: int, start: int, count: int, dtype: str) -> Array:
    """Standard normal values, in float64 for float64 and in float32 for the others."""
    import numpy as np

    skip = start % 2
    precise = "float64" if dtype == "float64" else "float32"
    pairs = uniform(seed, stream, start - skip, (skip + count + 1) // 2 * 2, precise).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(1 - pairs[:, 0]))
    angle = pairs[:, 1] * pairs.dtype.type(2 * pi)
    pairs[:, 0], pairs[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    return pairs.reshape(-1)[skip : skip + count]


def integers(seed: int, stream: int, low: int, high: int, start: int, count: int) -> Array:
    """Values in [low, high), as int64."""
    import numpy as np

    made = words(seed, stream, start, count) % np.uint64(span(low, high)) + np.uint64(low & MASK)
    return made.view(np.int64)


def span(low: int, high: int) -> int:
    if high <= low:
        raise ValueError(f"no integer is at least {low} and less than {high}")
    return high - low


# -- whole tensors, for the engines --------------------------------------------------------


#: a share of a drawing: where it begins, and the shape of the whole
Block = tuple[Shape, Shape] | None


def on_numpy(draw: Any, *key: int, shape: Shape, dtype: str, block: Block = None) -> Array:
    start, rows, part = _range(shape, block)
    made: Array = draw(*key, start, prod(rows), *_precision(draw, dtype))
    return made.reshape(rows)[part].astype(dtype, copy=False)


def on_torch(draw: Any, *key: Any, shape: Shape, dtype: str, device: Any, block: Block = None) -> Any:
    import torch

    start, rows, part = _range(shape, block)
    if device.type == "cuda" and (gpu := _gpu()) is not None:
        made = getattr(gpu, draw.__name__)(*key, start, prod(rows), *_precision(draw, dtype), device)
    elif isinstance(key[0], torch.Tensor):
        from gt.ops.random.philox_compiled import drawn

        made = drawn(list(key), draw.__name__, start, prod(rows), dtype)
    else:
        made = torch.from_numpy(draw(*key, start, prod(rows), *_precision(draw, dtype)))
    return made.view(rows)[part].contiguous().to(device=device, dtype=getattr(torch, dtype))


def _range(shape: Shape, block: Block) -> tuple[int, Shape, tuple[slice, ...]]:
    """Where to start drawing, the shape of what is drawn, and which part of it is the block.

    Of a tensor cut along its first dim only the block is drawn; cut along another, the rows it is a part of.
    """
    if block is None or not shape:
        return 0, shape, ()
    at, whole = block
    part = (slice(None), *(slice(i, i + n) for i, n in zip(at[1:], shape[1:], strict=True)))
    return at[0] * prod(whole[1:]), (shape[0], *whole[1:]), part


def within(block: Block, shape: Shape) -> None:
    """Refuses what is no block of a whole."""
    assert block is not None
    at, whole = (sizes(part) for part in block)
    spans = zip(at, shape, whole, strict=False)
    if not len(at) == len(whole) == len(shape) or any(not 0 <= i <= i + n <= m for i, n, m in spans):
        raise ShapeError(f"{shown(shape)} from {shown(at)} on is no block of {shown(whole)}")


def _precision(draw: Any, dtype: str) -> tuple[str, ...]:
    return () if draw is integers else (dtype,)


def _gpu() -> Any:
    try:
        from gt.ops.random import philox_gpu
    except ImportError:  # torch without Triton
        return None
    return philox_gpu
