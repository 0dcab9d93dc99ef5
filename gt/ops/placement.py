"""Where the parts of a tensor lie along one axis of a mesh: R everywhere, S(d) cut along a dim, P(sum) to be combined.

``Placement``s are what the dispatcher plans with and people read; `bounds` is how a dim is cut: blocks as equal as can
be, the longer ones first, and empty ones where there are more workers than rows.
"""

from __future__ import annotations

import msgspec


class Replicate(msgspec.Struct, frozen=True):
    """The same on every worker."""

    def __str__(self) -> str:
        return "R"


class Shard(msgspec.Struct, frozen=True):
    """Each worker has a block of the tensor, cut along one dim."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


class Partial(msgspec.Struct, frozen=True):
    """Each worker has a term: combined by ``op`` (sum, max, min or prod), they are the tensor."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"P({self.op})"


Placement = Replicate | Shard | Partial
R, P = Replicate(), Partial()


def bounds(size: int, workers: int, rank: int) -> tuple[int, int]:
    """(start, length) of a worker's block of a dim of this size."""
    base, longer = divmod(size, workers)
    return base * rank + min(rank, longer), base + (rank < longer)


def aligned(a: int, b: int, workers: int) -> bool:
    """Are dims of these two sizes, of which one is a multiple of the other, cut at the same places?"""
    return all(bounds(a, workers, r)[0] * b == bounds(b, workers, r)[0] * a for r in range(1, workers))
