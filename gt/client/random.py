"""Where random numbers start from.

Each random op is given the seed and the number of random ops since it was set: (seed, stream). That pair and an
element's position make the element, so the numbers do not depend on how many workers make them.
"""

from __future__ import annotations

import itertools
import os
from operator import index

from gt.errors import DTypeError

__all__ = ["initial_seed", "manual_seed", "seed"]


def _signed(seed: int) -> int:
    """Numbers on the wire are signed."""
    return (seed + 2**63) % 2**64 - 2**63


def _fresh() -> int:
    return _signed(int.from_bytes(os.urandom(8)))


_seed = _fresh()
_next_stream = itertools.count().__next__


def key() -> tuple[int, int]:
    """The operands a random op starts with; no other op gets the same."""
    return _seed, _next_stream()


def manual_seed(seed: int) -> None:
    """Start the random numbers anew: the same seed and the same program give the same numbers."""
    global _seed, _next_stream
    seed = index(seed)
    if not -(2**63) <= seed < 2**64:
        raise DTypeError(f"manual_seed({seed}): a seed has at most 64 bits")
    _seed, _next_stream = _signed(seed), itertools.count().__next__


def seed() -> int:
    """Start from a seed nobody knows, and tell it."""
    manual_seed(_fresh())
    return initial_seed()


def initial_seed() -> int:
    return _seed % 2**64
