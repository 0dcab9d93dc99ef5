"""A trace as lanes of a picture: who did what when, in the resolution that can be seen.

A lane is divided into columns. An event of at least `MIN_BOX` columns is a box of its own. Shorter ones are added up:
for each column, the share of its time that each family took. Moves that are close to each other become one arrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gt.events.breakdown import Breakdown, break_down
from gt.events.intervals import union
from gt.events.moves import matched_moves
from gt.events.table import Event, EventTable
from gt.wire.event_messages import DISPATCHER, DISPATCHING, WAITING

#: The fewest columns of an event that is shown by itself, and the columns in which similar moves become one arrow.
MIN_BOX, ARROW_COLUMNS = 4, 24
#: The family of the client's program.
PYTHON = "client Python"

#: family, label, begin and end
Work = tuple[str, str, int, int]


class Box(NamedTuple):
    """An event that is long enough to be seen."""

    family: str
    label: str
    begun: int
    ended: int


class MoveArrow(NamedTuple):
    """A move, or similar moves that are close to each other."""

    #: the workers that send and those that receive; the same for a collective
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    begun: int
    ended: int
    nbytes: int
    moves: int


@dataclass(slots=True)
class Lane:
    boxes: list[Box] = field(default_factory=list)
    #: family -> for each column the share of its time
    shares: dict[str, Any] = field(default_factory=dict)
    #: for each column the share of its time in which moves of the worker were under way
    moving: Any = None


@dataclass(slots=True)
class Timeline:
    """All lanes of an interval. Times are nanoseconds on the server's clock."""

    begun: int
    ended: int
    columns: int
    breakdown: Breakdown
    clients: dict[int, Lane] = field(default_factory=dict)
    #: client -> when its submissions arrived at the dispatcher
    submissions: dict[int, Any] = field(default_factory=dict)
    dispatcher: Lane = field(default_factory=Lane)
    workers: dict[int, Lane] = field(default_factory=dict)
    arrows: list[MoveArrow] = field(default_factory=list)
    #: how many events of workers
    events: int = 0


def timeline(table: EventTable, begun: int, ended: int, columns: int) -> Timeline:
    """The lanes from ``begun`` to ``ended``, in this many columns."""
    result = Timeline(begun, ended, columns, break_down(table, begun, ended))
    clip = _Clip(begun, ended, columns)
    handled: list[Work] = []
    for source, client in table.sources():
        if source == DISPATCHER:
            rows = table.rows(source, client)
            rows = rows[(rows[:, 0] == DISPATCHER) & (rows[:, 5] > begun) & (rows[:, 4] < ended)]
            handled += [(DISPATCHING, "", start, end) for start, end in rows[:, 4:6].tolist()]
            result.submissions[client] = np.sort(rows[rows[:, 2] > 0][:, 3])
    result.dispatcher = clip.lane(handled)
    events = [event for event in table.events() if event.ended > begun and event.started < ended]
    result.events = len(events)
    _add_workers(result, clip, events)
    _add_clients(result, clip)
    return result


def _add_workers(result: Timeline, clip: _Clip, events: list[Event]) -> None:
    work: dict[int, list[Work]] = {worker: [] for worker in result.breakdown.computing}
    moving: dict[int, list[tuple[int, int]]] = {worker: [] for worker in work}
    for event in events:
        if event.name.kind == "move":
            moving[event.worker].append((event.started, event.ended))
        elif event.name.kind != "wait":
            label = event.name.op if event.name.kind == "op" else event.name.text
            work[event.worker].append((event.name.family, label, event.started, event.ended))
    for worker, spans in moving.items():
        waits = [(WAITING, "", start, end) for start, end in result.breakdown.waiting[worker].tolist()]
        lane = result.workers[worker] = clip.lane(work[worker] + waits)
        lane.moving = clip.shares(spans)
    result.arrows = clip.arrows([_arrow(parts) for parts in matched_moves(events) if len(parts) > 1])


class _Clip:
    """Divides the interval into columns."""

    def __init__(self, begun: int, ended: int, columns: int) -> None:
        self.begun, self.ended = begun, ended
        self.edges = np.linspace(begun, ended, columns + 1)
        self.column = (ended - begun) / columns

    def lane(self, events: list[Work]) -> Lane:
        lane = Lane()
        short: dict[str, list[tuple[int, int]]] = {}
        for family, label, start, end in events:
            start, end = max(start, self.begun), min(end, self.ended)
            if end - start >= MIN_BOX * self.column:
                lane.boxes.append(Box(family, label, start, end))
            elif end > start:
                short.setdefault(family, []).append((start, end))
        lane.shares = {family: self.shares(spans) for family, spans in short.items()}
        return lane

    def shares(self, spans: list[tuple[int, int]]) -> Any:
        """For each column, the share of its time that is in the spans."""
        joined = union(np.array(spans, dtype=np.int64).reshape(-1, 2))
        if not len(joined):
            return np.zeros(len(self.edges) - 1)
        passed = np.cumsum(joined[:, 1] - joined[:, 0])
        times = joined.reshape(-1)
        totals = np.stack([np.concatenate([[0], passed[:-1]]), passed], axis=1).reshape(-1)
        return np.diff(np.interp(self.edges, times, totals)) / self.column

    def arrows(self, arrows: list[MoveArrow]) -> list[MoveArrow]:
        """Arrows between the same workers that end close to each other become one, at the place of the largest."""
        near: dict[tuple[Any, ...], list[MoveArrow]] = {}
        for arrow in arrows:
            place = int((arrow.ended - self.begun) / (ARROW_COLUMNS * self.column))
            near.setdefault((arrow.senders, arrow.receivers, place), []).append(arrow)
        joined = []
        for group in near.values():
            largest = max(group, key=lambda arrow: arrow.nbytes)
            joined.append(largest._replace(nbytes=sum(a.nbytes for a in group), moves=sum(a.moves for a in group)))
        return sorted(joined, key=lambda arrow: arrow.nbytes)


def _arrow(parts: list[Event]) -> MoveArrow:
    members = parts[0].name.members
    senders = tuple(sorted(event.worker for event in parts if event.name.text.endswith(", sends")))
    receivers = tuple(sorted(event.worker for event in parts if event.name.text.endswith(", receives")))
    begun, ended = max(event.started for event in parts), max(event.ended for event in parts)
    nbytes = max(event.name.nbytes for event in parts)
    return MoveArrow(senders or members, receivers or members, begun, ended, nbytes, 1)


def _add_clients(result: Timeline, clip: _Clip) -> None:
    """Time in which only a program ran belongs to the client whose submission ended it."""
    spans: dict[int, list[Work]] = {client: [] for client in result.submissions}
    moments = sorted((t, client) for client, times in result.submissions.items() for t in times.tolist())
    times = [t for t, _ in moments]
    for start, end in result.breakdown.gaps[PYTHON].tolist():
        if moments:
            _, client = moments[min(int(np.searchsorted(times, end)), len(moments) - 1)]
            spans[client].append((PYTHON, "", start, end))
    result.clients = {client: clip.lane(events) for client, events in spans.items()}
