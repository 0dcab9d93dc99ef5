"""Where random numbers start from.

Each random op is given the seed and the number of random ops since it was set: (seed, stream). That pair and an
element's position make the element, so the numbers do not depend on how many workers make them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator
from operator import index
from typing import Any

from gt.client.stream import recorder
from gt.client.tensor.arguments import uploaded
from gt.errors import DTypeError, ShapeError

__all__ = ["get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def _signed(seed: int) -> int:
    """Numbers on the wire are signed."""
    return (seed + 2**63) % 2**64 - 2**63


def _fresh() -> int:
    return _signed(int.from_bytes(os.urandom(8)))


_seed = _fresh()
_streams = itertools.count()


def key() -> tuple[int, int]:
    """The operands a random op starts with; no other op gets the same."""
    if recorder.active is not None:
        recorder.active.draws += 1
    return _seed, next(_streams)


def manual_seed(seed: int) -> None:
    """Start the random numbers anew: the same seed and the same program give the same numbers."""
    global _seed, _streams
    seed = index(seed)
    if not -(2**63) <= seed < 2**64:
        raise DTypeError(f"manual_seed({seed}): a seed has at most 64 bits")
    if recorder.active is not None:
        recorder.active.refuse("it sets the seed of random numbers")
    _seed, _streams = _signed(seed), itertools.count()


def seed() -> int:
    """Start from a seed nobody knows, and tell it."""
    manual_seed(_fresh())
    return initial_seed()


def initial_seed() -> int:
    """The seed that was set last, or the one chosen at the start."""
    return _seed % 2**64


def state() -> tuple[int, int]:
    """Where the random numbers are: what `replayed` starts from again."""
    return _seed, int(repr(_streams)[len("count(") : -1])  # the only way to look without taking one


def get_rng_state() -> Any:
    """A tensor of 16 bytes, to keep with a model's state."""
    import numpy as np

    return uploaded(np.frombuffer(struct.pack("<qq", *state()), dtype=np.uint8))


def set_rng_state(new_state: Any) -> None:
    """Go on from there; reads the tensor."""
    global _seed, _streams
    given = bytes(new_state.tolist())
    if len(given) != 16:
        raise ShapeError(f"set_rng_state(): a state of GT's has 16 bytes, not {len(given)}")
    _seed, start = struct.unpack("<qq", given)
    _streams = itertools.count(start)


@contextlib.contextmanager
def replayed(from_: tuple[int, int] | None) -> Iterator[None]:
    """Draw the numbers from there on once more, and then go on as if nothing had been drawn."""
    global _seed, _streams
    before = _seed, _streams
    if from_ is not None:
        _seed, _streams = from_[0], itertools.count(from_[1])
    try:
        yield
    finally:
        _seed, _streams = before
