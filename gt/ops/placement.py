"""The placement of a tensor along one axis of a mesh: R replicated, S(d) split along a dim, P(sum) to be combined.

The dispatcher plans with placements. `bounds` says how a dim is split: into blocks as equal as possible, the longer
ones first, and empty ones where there are more workers than rows. An axis with weights is split in proportion to them:
each block begins at the nearest whole element.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import gcd

import msgspec


class Replicate(msgspec.Struct, frozen=True):
    """The same on every worker."""

    def __str__(self) -> str:
        return "R"


class Shard(msgspec.Struct, frozen=True):
    """Each worker has a block of the tensor, split along one dim."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


class Partial(msgspec.Struct, frozen=True):
    """Each worker has a term: combined by ``op`` (sum, max, min or prod), they are the tensor."""

    op: str = "sum"

    @property
    def rounds(self) -> bool:
        """Whether a combination of two terms is rounded: a sum and a product are, the larger one of two is not."""
        return self.op in ("sum", "prod")

    def __str__(self) -> str:
        return f"P({self.op})"


Placement = Replicate | Shard | Partial
R, P = Replicate(), Partial()


#: How an axis of a mesh splits a dim: among this many workers evenly, or among workers with these weights.
Parts = int | tuple[int, ...]


def normalized(parts: Parts) -> Parts:
    """The same parts in one form: without weights if all are equal, otherwise with the smallest weights."""
    if isinstance(parts, int):
        return parts
    if len(set(parts)) == 1:
        return len(parts)
    divisor = gcd(*parts)
    return tuple(weight // divisor for weight in parts)


def count(parts: Parts) -> int:
    """The number of workers."""
    return parts if isinstance(parts, int) else len(parts)


def largest_rank(parts: Parts) -> int:
    """The first worker that has no shorter block than the others."""
    return 0 if isinstance(parts, int) else parts.index(max(parts))


def bounds(size: int, parts: Parts, rank: int) -> tuple[int, int]:
    """(start, length) of a worker's block of a dim of this size."""
    if isinstance(parts, int):
        base, longer = divmod(size, parts)
        return base * rank + min(rank, longer), base + (rank < longer)
    starts = _weighted_starts(size, parts)
    return starts[rank], starts[rank + 1] - starts[rank]


@lru_cache(1 << 12)
def _weighted_starts(size: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Where the blocks begin, and the end of the last one."""
    total = sum(weights)
    return tuple((2 * size * before + total) // (2 * total) for before in accumulate(weights, initial=0))


@lru_cache(1 << 12)
def block_lengths(size: int, parts: Parts) -> tuple[int, ...]:
    """The lengths of all workers' blocks."""
    return tuple(bounds(size, parts, rank)[1] for rank in range(count(parts)))


def aligned(a: int, b: int, parts: Parts) -> bool:
    """True if dims of these two sizes, one a multiple of the other, are split at the same places."""
    return all(bounds(a, parts, r)[0] * b == bounds(b, parts, r)[0] * a for r in range(1, count(parts)))
