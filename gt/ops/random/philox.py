"""Random numbers that depend on (seed, stream, position) and on nothing else.

The source is numpy's Philox4x64-10 keyed by (seed, stream): a function from a position to a 64-bit word, so any
range of a tensor can be drawn alone, on any worker, with the same values as in the whole. From words to values:

- float64: element i is the upper 53 bits of word i;
- other floating dtypes: element i is the upper 24 bits (float16 11, bfloat16 8: what the dtype holds without rounding
  up to 1) of half i, where word w holds the halves 2w (lower) and 2w + 1 (upper);
- normals: elements 2j and 2j + 1 are the two values that Box-Muller gives for the uniforms 2j and 2j + 1;
- integers: low + word i modulo (high - low).

This file computes with numpy. `gt.ops.random.tensors` draws whole tensors, on each engine.
"""

from __future__ import annotations

from math import ceil, pi
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MASK = 2**64 - 1

#: the bits of a uniform number below float64: as many as the dtype has, so that none rounds up to 1
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def words(seed: int, stream: int, start: int, count: int) -> Array:
    """The words at positions start … start + count - 1, as uint64."""
    source = (None if _source is None else _source.__dict__) or _new_source()
    block, skip = divmod(start, 4)  # numpy counts blocks of four words
    source["key"][:] = seed & MASK, stream & MASK
    source["counter"][0] = block
    source["philox"].state = source["state"]  # a copy
    result: Array = source["philox"].random_raw(skip + count)
    return result[skip:] if skip else result


#: a `threading.local`: numpy's Philox, and its state before a draw. To create one takes longer than to draw 100 words.
_source: Any = None


def _new_source() -> dict[str, Any]:
    global _source
    import threading

    import numpy as np

    source = _source = _source or threading.local()
    source.philox = np.random.Philox(key=0)
    source.state = source.philox.state
    source.key, source.counter = source.state["state"]["key"], source.state["state"]["counter"]
    result: dict[str, Any] = source.__dict__
    return result


def uniform(seed: int, stream: int, start: int, count: int, dtype: str) -> Array:
    """Values in [0, 1): float64 for float64, and float32, which holds them exactly, for the others."""
    import numpy as np

    if dtype == "float64":
        return (words(seed, stream, start, count) >> np.uint64(11)) * 2.0**-53
    first, skip = divmod(start, 2)
    halves = words(seed, stream, first, (skip + count + 1) // 2).view(np.uint32)[skip : skip + count]
    bits = BITS[dtype]
    return (halves >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)


def at_least(seed: int, stream: int, start: int, count: int, bound: float) -> Array:
    """Which of the uniform float32 numbers are at least ``bound``, a number from 0 to 1."""
    import numpy as np

    first, skip = divmod(start, 2)
    halves = words(seed, stream, first, (skip + count + 1) // 2).view(np.uint32)[skip : skip + count]
    # the numbers are the upper 24 bits, as integers; so is the bound, rounded up
    steps = ceil(float(np.float32(bound)) * 2.0 ** BITS["float32"])
    if steps == 1 << BITS["float32"]:
        return np.zeros(count, bool)
    result: Array = halves >= np.uint32(steps << (32 - BITS["float32"]))
    return result


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

    result = words(seed, stream, start, count) % np.uint64(span(low, high)) + np.uint64(low & MASK)
    return result.view(np.int64)


def span(low: int, high: int) -> int:
    if high <= low:
        raise ValueError(f"no integer is at least {low} and less than {high}")
    return high - low
