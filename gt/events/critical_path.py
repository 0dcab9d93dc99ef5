"""The critical path: the chain of work, over all workers, that decided when the last instruction ended.

It is followed backwards from the last instruction. Where a worker waited for a move, the path goes on at the member of
the move that started its part last: the others waited for that one. What they waited before its start is not the time
of the move: `late_members` returns it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from gt.events.moves import matched_moves
from gt.events.table import Event, EventTable

#: A thread of the data plane may note the end of a move this many nanoseconds after the wait for it has ended.
LATE_NOTE_NS = 200_000


class PathPart(NamedTuple):
    """Consecutive work on one worker, or a move between workers."""

    where: str
    begun: int
    ended: int

    @property
    def nanoseconds(self) -> int:
        return self.ended - self.begun


class Work:
    """The work and the waits of each worker, and what decided the moves, in the order of time."""

    def __init__(self, table: EventTable, keys: list[tuple[int, int]], begun: int, ended: int) -> None:
        #: what each worker did besides moves
        self.steps: dict[int, list[Event]] = {worker: [] for worker, _ in keys}
        #: the parts of each worker in moves, each with the part of the same move that started last
        self._moves: dict[int, list[tuple[Event, Event]]] = {worker: [] for worker, _ in keys}
        events = [event for event in table.events() if (event.worker, event.client) in keys]
        for event in events:
            if event.name.kind != "move" and event.ended > begun and event.started < ended:
                self.steps[event.worker].append(event)
        #: whether a move ended on devices: then nobody saw the waits for it
        self.has_device_moves = any(
            event.name.ends_on_device and event.ended > begun and event.started < ended for event in events
        )
        for parts in matched_moves(events):
            last = max(parts, key=_start)
            for part in parts:
                self._moves[part.worker].append((part, last))
        for steps in self.steps.values():
            steps.sort(key=_end)
        for moves in self._moves.values():
            moves.sort(key=_end_of_move)

    def before(self, worker: int, time: int) -> Event | None:
        """The step of a worker that ended last, at this time or before."""
        steps = self.steps[worker]
        at = bisect_right(steps, time, key=_end)
        return steps[at - 1] if at else None

    def cause(self, wait: Event) -> Event | None:
        """What a worker waited for: the part that started last, of the move that ended last."""
        moves = self._moves[wait.worker]
        at = bisect_right(moves, wait.ended + LATE_NOTE_NS, key=_end_of_move)
        if not at or moves[at - 1][0].ended <= wait.started:
            return None
        return moves[at - 1][1]


def late_members(work: Work) -> dict[int, Any]:
    """Worker -> when it waited for a move that another member had not started yet."""
    late: dict[int, list[tuple[int, int]]] = {worker: [] for worker in work.steps}
    for worker, steps in work.steps.items():
        for step in steps:
            if step.name.kind == "wait" and (cause := work.cause(step)) is not None and cause.worker != worker:
                late[worker].append((step.started, min(step.ended, max(step.started, cause.started))))
    return {worker: np.array(spans, dtype=np.int64).reshape(-1, 2) for worker, spans in late.items()}


def critical_path(work: Work) -> list[PathPart]:
    """The parts of the path, in order."""
    last = max((steps[-1] for steps in work.steps.values() if steps), key=_end, default=None)
    parts: list[PathPart] = []
    for _ in range(sum(map(len, work.steps.values()))):
        if last is None:
            break
        cause = work.cause(last) if last.name.kind == "wait" else None
        if cause is None:
            if last.name.kind != "wait":
                parts.append(PathPart(f"worker {last.worker}", last.started, last.ended))
            last = work.before(last.worker, last.started)
        else:
            parts.append(PathPart(f"move to worker {last.worker}", cause.started, last.ended))
            last = work.before(cause.worker, cause.started)
    return _joined(parts[::-1])


def _start(event: Event) -> int:
    return event.started


def _end(event: Event) -> int:
    return event.ended


def _end_of_move(move: tuple[Event, Event]) -> int:
    return move[0].ended


def _joined(parts: list[PathPart]) -> list[PathPart]:
    """Consecutive parts in one place become one."""
    joined: list[PathPart] = []
    for part in parts:
        if joined and joined[-1].where == part.where:
            joined[-1] = PathPart(part.where, joined[-1].begun, part.ended)
        else:
            joined.append(part)
    return joined
