"""The state of the random numbers: a seed and a count.

Each random op gets a pair (seed, stream). The stream is the number of random ops since the seed was set. An element's
value depends only on this pair and on its position, so it does not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from operator import index
from typing import Any

from gt.client.stream import recorder
from gt.client.tensor.arguments import upload_array
from gt.errors import DTypeError, ShapeError

__all__ = ["get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]

#: the length of the tensor that `get_rng_state` returns
STATE_BYTES = 16


def _signed(seed: int) -> int:
    """The seed as the wire carries it: as a signed 64-bit number."""
    return (seed + 2**63) % 2**64 - 2**63


def _random_seed() -> int:
    return _signed(int.from_bytes(os.urandom(8)))


_seed = _random_seed()
#: functions that get each new seed: other sources of random numbers that a program uses with GT
followers: list[Callable[[int], object]] = []
_streams = itertools.count()


def key() -> tuple[int, int]:
    """The first two operands of a random op. Every call returns another pair."""
    if recorder.active is not None:
        recorder.active.draws += 1
    return _seed, next(_streams)


def manual_seed(seed: int) -> None:
    """Set the seed of random numbers: the same seed and the same program give the same numbers."""
    global _seed, _streams
    seed = index(seed)
    if not -(2**63) <= seed < 2**64:
        raise DTypeError(f"manual_seed({seed}): a seed has at most 64 bits")
    if recorder.active is not None:
        recorder.active.refuse("it sets the seed of random numbers")
    _seed, _streams = _signed(seed), itertools.count()
    for follow in followers:
        follow(initial_seed())


def seed() -> int:
    """Set a random seed and return it."""
    manual_seed(_random_seed())
    return initial_seed()


def initial_seed() -> int:
    """The seed that was set last, or the random one of this process."""
    return _seed % 2**64


def state() -> tuple[int, int]:
    """The seed and the next stream; see `restored`."""
    return _seed, int(repr(_streams)[len("count(") : -1])  # its text is the only access that does not advance it


def get_rng_state() -> Any:
    """The state of the random numbers as a tensor of 16 bytes, which can be saved with a model."""
    import numpy as np

    return upload_array(np.frombuffer(struct.pack("<qq", *state()), dtype=np.uint8))


def set_rng_state(new_state: Any) -> None:
    """Continue from a state that `get_rng_state` returned. Reads the tensor."""
    global _seed, _streams
    data = bytes(new_state.tolist())
    if len(data) != STATE_BYTES:
        raise ShapeError(f"set_rng_state(): the state has {STATE_BYTES} bytes, not {len(data)}")
    _seed, start = struct.unpack("<qq", data)
    _streams = itertools.count(start)


@contextlib.contextmanager
def restored(earlier: tuple[int, int] | None) -> Iterator[None]:
    """Inside the block, draw from an earlier state again. Afterwards, continue as if the block had drawn nothing."""
    global _seed, _streams
    before = _seed, _streams
    if earlier is not None:
        _seed, _streams = earlier[0], itertools.count(earlier[1])
    try:
        yield
    finally:
        _seed, _streams = before
