"""Where random numbers start from.

Each random op is given the seed and the number of random ops since it was set: (seed, stream). That pair and an
element's position make the element, so the numbers do not depend on how many workers make them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from operator import index

from gt.errors import DTypeError

__all__ = ["initial_seed", "manual_seed", "seed"]


def _signed(seed: int) -> int:
    """Numbers on the wire are signed."""
    return (seed + 2**63) % 2**64 - 2**63


def _fresh() -> int:
    return _signed(int.from_bytes(os.urandom(8)))


_seed = _fresh()
_streams = itertools.count()


def key() -> tuple[int, int]:
    """The operands a random op starts with; no other op gets the same."""
    return _seed, next(_streams)


def manual_seed(seed: int) -> None:
    """Start the random numbers anew: the same seed and the same program give the same numbers."""
    global _seed, _streams
    seed = index(seed)
    if not -(2**63) <= seed < 2**64:
        raise DTypeError(f"manual_seed({seed}): a seed has at most 64 bits")
    _seed, _streams = _signed(seed), itertools.count()


def seed() -> int:
    """Start from a seed nobody knows, and tell it."""
    manual_seed(_fresh())
    return initial_seed()


def initial_seed() -> int:
    return _seed % 2**64


def state() -> tuple[int, int]:
    """Where the random numbers are: what `replayed` starts from again."""
    return _seed, int(repr(_streams)[len("count(") : -1])  # the only way to look without taking one


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
