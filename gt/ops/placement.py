"""The placement of a tensor along one axis of a mesh: R replicated, S(d) split along a dim, P(sum) to be combined.

The dispatcher plans with placements. `bounds` says how a dim is split: into blocks as equal as possible, the longer
ones first, and empty ones where there are more workers than rows.
"""

from __future__ import annotations

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


def bounds(size: int, workers: int, rank: int) -> tuple[int, int]:
    """(start, length) of a worker's block of a dim of this size."""
    base, longer = divmod(size, workers)
    return base * rank + min(rank, longer), base + (rank < longer)


def aligned(a: int, b: int, workers: int) -> bool:
    """True if dims of these two sizes, one a multiple of the other, are split at the same places."""
    return all(bounds(a, workers, r)[0] * b == bounds(b, workers, r)[0] * a for r in range(1, workers))
