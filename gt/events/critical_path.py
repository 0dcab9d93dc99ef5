"""The critical path: the chain of work, over all workers, that decided when the last instruction ended.

It is followed backwards from the last instruction. Where a worker waited for a move, the path goes on at the member of
the move that started its part last: the others waited for that one. What they waited before its start is not the time
of the move: `late_members` returns it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from gt.events.table import ENDED, STARTED, WHAT, EventTable


class PathPart(NamedTuple):
    """Consecutive work on one worker, or a move between workers."""

    where: str
    begun: int
    ended: int

    @property
    def nanoseconds(self) -> int:
        return self.ended - self.begun


class _Step(NamedTuple):
    worker: int
    kind: str
    started: int
    ended: int
    #: for a move: client, kind, members, bytes
    move: tuple[Any, ...]


class Work:
    """The work and the waits of each worker, and the parts of moves, in the order of time."""

    def __init__(self, table: EventTable, keys: list[tuple[int, int]], begun: int, ended: int) -> None:
        self.steps: dict[int, list[_Step]] = {worker: [] for worker, _ in keys}
        self._moves_of: dict[int, list[_Step]] = {worker: [] for worker, _ in keys}
        self._parts: dict[tuple[Any, ...], list[_Step]] = {}
        for worker, client in keys:
            rows, names = table.rows(worker, client), table.names[worker, client]
            for what, start, end in rows[:, (WHAT, STARTED, ENDED)].tolist():
                name = names[what]
                if end > begun and start < ended:
                    move = client, name.op, name.members, name.nbytes
                    self._add(_Step(worker, name.kind, start, end, move))
        for steps in (*self.steps.values(), *self._moves_of.values()):
            steps.sort(key=_end)
        for parts in self._parts.values():
            parts.sort(key=_start)

    def _add(self, step: _Step) -> None:
        if step.kind == "move":
            self._moves_of[step.worker].append(step)
            self._parts.setdefault(step.move, []).append(step)
        else:
            self.steps[step.worker].append(step)

    def before(self, worker: int, time: int) -> _Step | None:
        """The step of a worker that ended last, at this time or before."""
        steps = self.steps[worker]
        at = bisect_right(steps, time, key=_end)
        return steps[at - 1] if at else None

    def cause(self, wait: _Step) -> _Step | None:
        """What a worker waited for: the part of the move that started last. All parts of a move overlap in time."""
        moves = self._moves_of[wait.worker]
        at = bisect_right(moves, wait.ended, key=_end)
        if not at or moves[at - 1].ended <= wait.started:
            return None
        arrived = moves[at - 1]
        parts = self._parts[arrived.move]
        until = bisect_right(parts, arrived.ended, key=_start)
        return next((part for part in reversed(parts[:until]) if part.ended >= arrived.started), arrived)


def late_members(work: Work) -> dict[int, Any]:
    """Worker -> when it waited for a move that another member had not started yet."""
    late: dict[int, list[tuple[int, int]]] = {worker: [] for worker in work.steps}
    for worker, steps in work.steps.items():
        for step in steps:
            if step.kind == "wait" and (cause := work.cause(step)) is not None and cause.worker != worker:
                late[worker].append((step.started, min(step.ended, max(step.started, cause.started))))
    return {worker: np.array(spans, dtype=np.int64).reshape(-1, 2) for worker, spans in late.items()}


def critical_path(work: Work) -> list[PathPart]:
    """The parts of the path, in order."""
    last = max((steps[-1] for steps in work.steps.values() if steps), key=_end, default=None)
    parts: list[PathPart] = []
    for _ in range(sum(map(len, work.steps.values()))):
        if last is None:
            break
        cause = work.cause(last) if last.kind == "wait" else None
        if cause is None:
            if last.kind != "wait":
                parts.append(PathPart(f"worker {last.worker}", last.started, last.ended))
            last = work.before(last.worker, last.started)
        else:
            parts.append(PathPart(f"move to worker {last.worker}", cause.started, last.ended))
            last = work.before(cause.worker, cause.started)
    return _joined(parts[::-1])


def _start(step: _Step) -> int:
    return step.started


def _end(step: _Step) -> int:
    return step.ended


def _joined(parts: list[PathPart]) -> list[PathPart]:
    """Consecutive parts in one place become one."""
    joined: list[PathPart] = []
    for part in parts:
        if joined and joined[-1].where == part.where:
            joined[-1] = PathPart(part.where, joined[-1].begun, part.ended)
        else:
            joined.append(part)
    return joined
