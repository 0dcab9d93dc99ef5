"""Which parts of workers belong to one move.

An event is one worker's part in a move. All members start their moves in one order, the dispatcher's, so the n-th part
of one member belongs to the n-th part of another. But recording does not begin everywhere at the same moment: a member
may lack the first parts. All parts of a move end at nearly the same time, which shows how many are missing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gt.events.table import Event

#: The most parts that a member may lack.
MAX_MISSING = 32


def matched_moves(events: Iterable[Event]) -> list[list[Event]]:
    """The parts of each move, at most one of each worker; of one worker alone where the others are not recorded."""
    by_group: dict[tuple[object, ...], dict[int, list[Event]]] = {}
    for event in events:
        if event.name.kind == "move":
            parts = by_group.setdefault((event.client, event.name.op, event.name.members), {})
            parts.setdefault(event.worker, []).append(event)
    return [move for parts in by_group.values() for move in _aligned(list(parts.values()))]


def _aligned(members: list[list[Event]]) -> list[list[Event]]:
    for parts in members:
        parts.sort(key=lambda event: event.started)
    members.sort(key=len, reverse=True)
    moves: dict[int, list[Event]] = {}
    for parts in members:
        first = _offset(members[0], parts)
        for number, event in enumerate(parts, first):
            moves.setdefault(number, []).append(event)
    return list(moves.values())


def _offset(reference: list[Event], parts: list[Event]) -> int:
    """The number, among the moves of the reference, of the first of these parts."""
    ours, theirs = (np.array([event.ended for event in member], dtype=np.int64) for member in (parts, reference))
    costs: dict[int, float] = {}
    for first in sorted(range(-MAX_MISSING, MAX_MISSING + 1), key=abs):
        begin, end = max(0, first), min(len(theirs), first + len(ours))
        if begin < end:
            costs[first] = float(np.abs(theirs[begin:end] - ours[begin - first : end - first]).mean())
    return min(costs, key=lambda first: costs[first])
