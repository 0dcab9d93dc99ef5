"""The weights of the workers along an axis of a mesh, from their measured speeds.

A measurement varies, and weights decide where a dim is cut, and with that the order of sums. So few weights are
possible, and those of workers of one kind differ by one at most: speeds that are within `CLEARLY_FASTER` of the fastest
one of a level count as the slowest one of that level. If there is one level, there are no weights.

The weights add up to a power of two. So a dim that is a multiple of it is cut at whole elements, and stays cut at the
same places when it is merged with another dim, as in a reshape from (batch, time) to (batch * time).

Of a mesh with several axes, only the first one gets weights: the workers along the others work in step, at the speed of
the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import isfinite, prod

from gt.ops.placement import Parts

#: A worker is faster than another one if its speed is more than this many times the other's.
CLEARLY_FASTER = 1.2
#: The sum of the weights, for each worker.
UNITS_PER_WORKER = 8


def weights_by_speed(speeds: Sequence[float]) -> Parts:
    """The weights of workers with these speeds; their number if the speeds are alike, or one of them is unknown."""
    if not all(isfinite(speed) and speed > 0 for speed in speeds):
        return len(speeds)
    levels = _levels(speeds)
    if len(set(levels)) == 1:
        return len(speeds)
    units = UNITS_PER_WORKER << (len(speeds) - 1).bit_length()
    weights = [1] * len(speeds)
    # one unit after the other to the worker that needs the least time for what it has then
    times = [(2 / level, rank) for rank, level in enumerate(levels)]
    heapify(times)
    for _ in range(units - len(speeds)):
        rank = times[0][1]
        weights[rank] += 1
        heapreplace(times, ((weights[rank] + 1) / levels[rank], rank))
    return tuple(weights)


def _levels(speeds: Sequence[float]) -> list[float]:
    """The speeds, each replaced by the slowest one of its level."""
    level_of: dict[float, float] = {}
    members: list[float] = []
    for speed in sorted(set(speeds), reverse=True):
        if members and speed * CLEARLY_FASTER < members[0]:
            members = []
        members.append(speed)
        level_of.update(dict.fromkeys(members, speed))
    return [level_of[speed] for speed in speeds]


def parts_by_speed(sizes: Sequence[int], speeds: Sequence[float]) -> tuple[Parts, ...]:
    """The parts of a mesh with axes of these sizes; ``speeds`` are those of its workers in their order."""
    axis = next((axis for axis, size in enumerate(sizes) if size > 1), None)
    if axis is None:
        return tuple(sizes)
    stride = prod(sizes[axis + 1 :])
    slowest = [min(speeds[at * stride : (at + 1) * stride]) for at in range(sizes[axis])]
    return (*sizes[:axis], weights_by_speed(slowest), *sizes[axis + 1 :])
