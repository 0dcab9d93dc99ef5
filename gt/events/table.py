"""All events that a listener got, on the server's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gt.wire.event_messages import DISPATCHER, DISPATCHER_COLUMNS, EVENT_FIELDS, LEVELS, STRETCH_COLUMNS, EventBatch
from gt.wire.structures import EventName

#: the columns of a worker's rows; `Event` describes them
COLUMNS = ("what", "execute", "site", "queued", "started", "ended", "fragment", "level")
WHAT, EXECUTE, SITE, QUEUED, STARTED, ENDED, FRAGMENT, LEVEL = range(len(COLUMNS))
_STRETCH = {name: index for index, name in enumerate(STRETCH_COLUMNS)}


class Event(NamedTuple):
    """Something that a worker did. Times are nanoseconds on the server's clock."""

    worker: int
    client: int
    name: EventName
    #: the number of the `Execute` message it was part of; 0: that arrived before recording began
    execute: int
    #: the client's source line, "train.py:17: y = x @ w"; empty if it is not known
    site: str
    #: when the worker got it, began it and ended it
    queued: int
    started: int
    ended: int
    #: the number of the fragment that it is part of; 0: of none
    fragment: int
    #: "eager", "template", "graph" or "compiled"
    level: str


class WorkShare(NamedTuple):
    """How much of an interval a worker, or the dispatcher (-1), spent for one client in one family of ops."""

    worker: int
    client: int
    begun: int
    ended: int
    family: str
    events: int
    nanoseconds: int
    nbytes: int


class Memory(NamedTuple):
    """Bytes at one moment: of the device ("used", "total", "peak"; client 0), or held by a client ("held")."""

    worker: int
    client: int
    time: int
    sizes: dict[str, int]


class Queue(NamedTuple):
    """The estimated microseconds of work that a worker had ahead."""

    worker: int
    time: int
    microseconds: int


class EventTable:
    """Collects batches. ``since``: events that began earlier are left out. ``arrived``: those of messages that arrived
    earlier at their worker, too."""

    def __init__(self, since: int = 0, arrived: bool = True) -> None:
        self._since, self._since_column = since, "queued" if arrived else "started"
        #: (worker or -1, client) -> arrays of rows, and batches (stretches, events, offset) that are not rows yet
        self._rows: dict[tuple[int, int], list[Any]] = {}
        self._packed: dict[tuple[int, int], list[tuple[Any, bytes, int]]] = {}
        self.names: dict[tuple[int, int], list[EventName]] = {}
        #: client -> number of a source line -> its text
        self.sites: dict[int, dict[int, str]] = {}
        self.shares: list[WorkShare] = []
        self.memory: list[Memory] = []
        self.queues: list[Queue] = []
        #: events in fragments: (worker, client) -> how many
        self.hot: dict[tuple[int, int], int] = {}
        #: batches that this listener missed, because it was too slow
        self.dropped = 0
        #: events that workers have dropped, because their GPU was too far behind
        self.dropped_events = 0
        #: the largest error of a time, in nanoseconds
        self.error = 0
        self.count = 0

    def add(self, batch: EventBatch) -> None:
        key, offset = (batch.source, batch.client), batch.offset
        self.dropped, self.error = max(self.dropped, batch.dropped), max(self.error, batch.error)
        self.dropped_events += batch.dropped_events
        self.names.setdefault(key, []).extend(batch.names)
        self.sites.setdefault(batch.client, {}).update(batch.sites)
        interval = batch.begun + offset, batch.ended + offset
        self.shares += [
            WorkShare(*key, *interval, family, events, spent, nbytes) for family, events, spent, nbytes in batch.shares
        ]
        if batch.memory:
            self.memory.append(Memory(*key, interval[1], batch.memory))
        if batch.source != DISPATCHER:
            self.queues.append(Queue(batch.source, interval[1], batch.ahead))
            self.hot[key] = self.hot.get(key, 0) + batch.hot
        if batch.rows and batch.source == DISPATCHER:
            self.add_rows(key, np.frombuffer(batch.rows, dtype=np.int64).reshape(-1, len(DISPATCHER_COLUMNS)))
        elif batch.rows:
            stretches = _stretches(batch)
            self._packed.setdefault(key, []).append((stretches, batch.rows, offset))
            times, count = stretches[:, _STRETCH[self._since_column]] + offset, stretches[:, _STRETCH["count"]]
            self.count += int(count[times >= self._since].sum())

    def add_rows(
        self, key: tuple[int, int], rows: Any, names: Iterable[EventName] = (), sites: dict[int, str] | None = None
    ) -> None:
        """Add events of a worker or the dispatcher for a client, on the server's clock, as `rows` returns them."""
        rows = rows[rows[:, COLUMNS.index(self._since_column)] >= self._since]
        self._rows.setdefault(key, []).append(rows)
        self.names.setdefault(key, []).extend(names)
        self.sites.setdefault(key[1], {}).update(sites or {})
        self.count += 0 if key[0] == DISPATCHER else len(rows)

    def sources(self) -> list[tuple[int, int]]:
        """(worker, client) of all events; worker -1 is the dispatcher."""
        return sorted(self._rows.keys() | self._packed.keys())

    def rows(self, worker: int, client: int) -> Any:
        """The events of a worker for a client as an array with `COLUMNS`; of the dispatcher with its columns."""
        key, column = (worker, client), COLUMNS.index(self._since_column)
        parts = self._rows.get(key, [])
        for packed in self._packed.pop(key, []):
            rows = _unpack(*packed)
            parts.append(rows[rows[:, column] >= self._since])
        if len(parts) > 1:
            parts = [np.concatenate(parts)]
        if parts:
            self._rows[key] = parts
            return parts[0]
        return np.empty((0, len(DISPATCHER_COLUMNS if worker == DISPATCHER else COLUMNS)), dtype=np.int64)

    def events(self) -> Iterator[Event]:
        """All events of workers, in the order in which they ended on each worker."""
        for worker, client in self.sources():
            if worker == DISPATCHER:
                continue
            rows, names, sites = self.rows(worker, client), self.names[worker, client], self.sites.get(client, {})
            for row in rows[np.argsort(rows[:, ENDED], kind="stable")].tolist():
                what, execute, site, queued, started, ended, fragment, level = row
                times = queued, started, ended, fragment, LEVELS[level]
                yield Event(worker, client, names[what], execute, sites.get(site, ""), *times)

    def span(self) -> tuple[int, int]:
        """The first and the last time of any event; (0, 0) if there is none."""
        parts = [rows for rows in (self.rows(*key) for key in self.sources()) if len(rows)]
        if not parts:
            return 0, 0
        return min(int(rows[:, STARTED].min()) for rows in parts), max(int(rows[:, ENDED].max()) for rows in parts)


def batch_rows(batch: EventBatch) -> Any:
    """The events of a worker's batch as rows with `COLUMNS`, on the server's clock."""
    return _unpack(_stretches(batch), batch.rows, batch.offset)


def _stretches(batch: EventBatch) -> Any:
    return np.frombuffer(batch.stretches, dtype=np.int64).reshape(-1, len(STRETCH_COLUMNS))


def _unpack(stretches: Any, data: bytes, offset: int) -> Any:
    """The rows of a batch, with ``offset`` added to all times."""
    first, counts, began = (stretches[:, _STRETCH[name]] for name in ("first", "count", "started"))
    begin = np.cumsum(counts) - counts
    events = np.frombuffer(data, dtype=EVENT_FIELDS)[np.arange(counts.sum()) + np.repeat(first - begin, counts)]
    rows = np.empty((len(events), len(COLUMNS)), dtype=np.int64)
    for name in ("execute", "queued", "started", "fragment", "level"):
        rows[:, COLUMNS.index(name)] = np.repeat(stretches[:, _STRETCH[name]], counts)
    rows[:, WHAT], rows[:, SITE] = events["what"], events["site"]
    spent = np.repeat(stretches[:, _STRETCH["ended"]] - began, counts)
    rows[:, ENDED] = rows[:, STARTED] + np.rint(events["ended"] * spent).astype(np.int64)
    # an event begins where the one before it in its stretch ended
    rows[1:, STARTED] = rows[:-1, ENDED]
    rows[begin, STARTED] = began
    rows[:, QUEUED : ENDED + 1] += offset
    return rows
