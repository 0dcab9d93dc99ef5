"""Which workers take the places of lost ones, for clients whose program runs again."""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod

#: lost worker -> the worker that takes its place
Substitutes = dict[int, int]


def substituted(
    chosen: Sequence[int], workers: Sequence[int], named: Container[int], substitutes: Substitutes
) -> tuple[int, ...]:
    """The chosen workers, with connected ones in the places of lost ones; fewer if there are not enough.

    Workers that no signal names come first. A choice is kept in ``substitutes``, so that all signals make the same one.
    """
    present = set(workers)
    result = [worker for worker in chosen if worker in present]
    for at, worker in enumerate(chosen):
        if worker in present:
            continue
        before, taken = substitutes.get(worker), set(substitutes.values())
        spare = sorted(
            (w for w in workers if w not in result),
            key=lambda w, before=before, taken=taken: (w != before, w in named or w in taken),  # type: ignore[misc]
        )
        if spare:
            substitutes[worker] = spare[0]
            result.insert(at, spare[0])
    return tuple(result)


def shrunk(axes: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """The axes of a mesh, the first ones made shorter until it has at most ``count`` workers."""
    sizes = [size for _, size in axes]
    for axis in range(len(sizes)):
        while prod(sizes) > count and sizes[axis] > 1:
            sizes[axis] -= 1
    return [(name, size) for (name, _), size in zip(axes, sizes, strict=True)]
