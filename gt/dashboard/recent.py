"""The events of the last minute: as bars for the page's task stream, or as a table for a Perfetto file.

A bar is one event, or all events of a worker that are shorter than the resolution and began in the same stretch of it:

    (worker, lane, start, end, family, busy, count, label, site, client)

Times are microseconds since listening began. ``lane`` is 1 for moves, which run beside the instructions. ``busy`` is
the time of all its events. ``label`` and ``site`` are numbers of texts, -1 for a bar of several events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from gt.events.table import COLUMNS, ENDED, SITE, STARTED, WHAT, EventTable, batch_rows
from gt.wire.event_messages import DISPATCHER, EventBatch
from gt.wire.structures import EventName

#: How much is kept: seconds, and bytes of events.
KEPT_NS, KEPT_BYTES = 60_000_000_000, 100_000_000
#: The most different texts of instructions that are kept.
MAX_LABELS = 50_000

Bar = tuple[int, ...]


class RecentEvents:
    """Add every batch of one listening; ``base`` is the server's clock when it began, in nanoseconds."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._batches: deque[EventBatch] = deque()
        self._nbytes = 0
        self._names: dict[tuple[int, int], list[EventName]] = {}
        #: (worker, client) -> arrays with an entry for each name: family, lane, label
        self._columns: dict[tuple[int, int], Any] = {}
        self.sites: dict[int, dict[int, str]] = {}
        self.families: list[str] = []
        #: text -> its number
        self.labels: dict[str, int] = {}
        self.dropped = self.dropped_events = 0

    def add(self, batch: EventBatch) -> Any:
        """Keep a batch. Returns its events on the server's clock, with `COLUMNS`."""
        key = batch.source, batch.client
        self.dropped = max(self.dropped, batch.dropped)
        self.dropped_events += batch.dropped_events
        self.sites.setdefault(batch.client, {}).update(batch.sites)
        if batch.names:
            names = self._names.setdefault(key, [])
            names += batch.names
            self._columns[key] = np.array([self._numbers(name) for name in names], dtype=np.int64).T
        batch = replace(batch, names=[], sites=[])
        self._batches.append(batch)
        self._nbytes += len(batch.stretches) + len(batch.rows)
        oldest = batch.ended + batch.offset - KEPT_NS
        while self._nbytes > KEPT_BYTES or self._batches[0].ended + self._batches[0].offset < oldest:
            gone = self._batches.popleft()
            self._nbytes -= len(gone.stretches) + len(gone.rows)
        if batch.source == DISPATCHER or not batch.rows:
            return np.empty((0, len(COLUMNS)), dtype=np.int64)
        return batch_rows(batch)

    def _numbers(self, name: EventName) -> tuple[int, int, int]:
        if name.family not in self.families:
            self.families.append(name.family)
        if name.text not in self.labels and len(self.labels) < MAX_LABELS:
            self.labels[name.text] = len(self.labels)
        return self.families.index(name.family), int(name.kind == "move"), self.labels.get(name.text, -1)

    def bars(self, worker: int, client: int, rows: Any, resolution: int) -> Iterator[Bar]:
        """Events as bars; ``resolution`` in nanoseconds."""
        columns = self._columns.get((worker, client))
        if columns is None or not len(rows):
            return
        what, started, ended = rows[:, WHAT], rows[:, STARTED], rows[:, ENDED]
        families, lanes, labels = columns
        long = ended - started >= resolution
        if long.any():
            start, end = (started[long] - self.base) // 1000, (ended[long] - self.base) // 1000
            of_long, sites = what[long], rows[long, SITE]
            fields = (
                *(lanes[of_long], start, end, families[of_long], end - start),
                *(np.ones_like(start), labels[of_long], sites),
            )
            for row in np.stack(fields, axis=1).tolist():
                yield (worker, *row, client)
            short = ~long
            what, started, ended = what[short], started[short], ended[short]
        if len(what):
            times = started - self.base, ended - self.base
            for row in _merged(*times, families[what], lanes[what], resolution, len(self.families)):
                yield (worker, *row, -1, -1, client)

    def window(self, begun: int, ended: int, count: int) -> list[Bar]:
        """The bars between two times in microseconds, with at most about ``count`` for each worker."""
        first, last = (self.base + time * 1000 for time in (begun, ended))
        bars: list[Bar] = []
        for batch in self._batches:
            if batch.source == DISPATCHER or not batch.rows or batch.ended + batch.offset < first:
                continue
            rows = batch_rows(batch)
            rows = rows[(rows[:, ENDED] >= first) & (rows[:, STARTED] <= last)]
            bars += self.bars(batch.source, batch.client, rows, max(1, (last - first) // count))
        return bars

    def table(self, seconds: float) -> EventTable:
        """The events of the last seconds."""
        table = EventTable()
        table.names, table.sites = dict(self._names), dict(self.sites)
        batches = list(self._batches)
        since = batches[-1].ended + batches[-1].offset - int(seconds * 1e9) if batches else 0
        for batch in batches:
            if batch.ended + batch.offset >= since:
                table.add(batch)
        return table


def _merged(
    started: Any, ended: Any, families: Any, lanes: Any, resolution: int, family_count: int
) -> Iterator[list[int]]:
    """One bar for the events of a lane that began in the same stretch, with the family that took most of the time."""
    stretches = started // resolution * 2 + lanes
    steps = np.diff(stretches)
    if (steps < 0).any():
        order = np.argsort(stretches, kind="stable")
        started, ended, families, stretches = started[order], ended[order], families[order], stretches[order]
        steps = np.diff(stretches)
    first = np.concatenate(([0], np.flatnonzero(steps) + 1))
    count = np.diff(first, append=len(stretches))
    group = np.repeat(np.arange(len(first)), count)
    spent = np.bincount(group * family_count + families, ended - started, len(first) * family_count)
    spent = spent.reshape(-1, family_count)
    bars = (
        *(stretches[first] % 2, np.minimum.reduceat(started, first) // 1000),
        *(np.maximum.reduceat(ended, first) // 1000 + 1, spent.argmax(axis=1)),
        *((spent.sum(axis=1) / 1000).round().astype(np.int64), count),
    )
    yield from np.stack(bars, axis=1).tolist()
