"""The feed: a thread that is a viewer of the server, and makes messages for the pages.

It is connected all the time, and listens only while a page is open or somebody scrapes the metrics: workers record only
while somebody listens. Messages are JSON, made once for all pages:

    hello        everything that a new page needs, first of all
    tick         the new bars of the task stream, and texts that they name
    load         what workers and clients do: each second
    inspection   repeated fragments, large tensors, the log: each two seconds
    lost         the server cannot be reached, and why
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO
from typing import Any

from msgspec.json import encode
from msgspec.structs import asdict as fields

from gt.dashboard.metrics import Metrics
from gt.dashboard.recent import Bar, RecentEvents
from gt.errors import GtError
from gt.events.load import LoadMeter
from gt.events.perfetto import write_perfetto
from gt.events.viewer import Viewer
from gt.wire.event_messages import EventBatch, Listening

TICK_S, LOAD_S, INSPECT_S = 0.25, 1.0, 2.0
#: The resolution of the live task stream.
RESOLUTION_NS = 4_000_000
#: How many bars a page gets of a stretch that it looks at closely, for each worker.
CLOSE_BARS = 1500
#: How long the metrics are kept up to date after a scrape.
SCRAPED_S = 300.0
#: A server that has sent nothing for this long is lost; it sends something each second.
SILENT_S = 10.0
RETRY_S = 1.0
#: How long the first scrape waits for the server's answer.
FIRST_SCRAPE_S = 3.0
#: How much the server's clock may go slower than ours, in nanoseconds for each tick.
MAX_DRIFT_NS = 100_000
#: How much of the past a new page gets: messages of each kind.
KEPT_TICKS, KEPT_LOADS = 240, 600


class Feed(threading.Thread):
    """``publish`` gets each message, in this thread."""

    def __init__(self, address: str, publish: Callable[[bytes], None], metrics: Metrics) -> None:
        super().__init__(name="gt-feed", daemon=True)
        self.address, self._publish, self.metrics = address, publish, metrics
        #: how many pages are open
        self.pages = 0
        self._scraped = float("-inf")
        #: set while what was last shown is the present
        self._current = threading.Event()
        self._lock = threading.Lock()
        #: why the server cannot be reached; empty if it can
        self.lost = "not connected yet"
        self._listening: Listening | None = None
        self._number = 0
        #: nanoseconds to add to this process's clock, to get the server's
        self._offset = 0
        self._next_load = self._next_inspection = 0.0
        self._reset(0)

    def _reset(self, base: int) -> None:
        """Forget what was recorded: listening begins."""
        with self._lock:
            self._recent = RecentEvents(base)
            self._bars: list[Bar] = []
            self._sent_labels = 0
            self._sent_sites: dict[int, int] = {}
            self._ticks: deque[dict[str, Any]] = deque(maxlen=KEPT_TICKS)
            self._loads: deque[dict[str, Any]] = deque(maxlen=KEPT_LOADS)
            self._inspection: dict[str, Any] = {}
        self._meter = LoadMeter()

    # -- the thread ----------------------------------------------------------------------

    def run(self) -> None:
        while True:
            try:
                with Viewer(self.address, listens=False) as viewer:
                    self.lost = ""
                    self._current.clear()
                    self._watch(viewer)
            except (GtError, OSError) as error:
                self._give_up(str(error))
            except Exception as error:  # a page must not stand still without a word
                traceback.print_exc()
                self._give_up(f"the dashboard failed: {error!r}")
            time.sleep(RETRY_S)

    def _give_up(self, reason: str) -> None:
        self.lost, self._listening = reason, None
        self._current.set()  # there is nothing to wait for
        self._send("lost", {"reason": reason})

    @property
    def wanted(self) -> bool:
        return self.pages > 0 or time.monotonic() - self._scraped < SCRAPED_S

    def _watch(self, viewer: Viewer) -> None:
        """Follow the server until it is lost."""
        listens = False
        while time.monotonic() - viewer.last_message < SILENT_S:
            wanted = self.wanted
            if wanted and not listens:
                self._begin(viewer)
            elif listens and not wanted:
                self._current.clear()
                for batch in viewer.rest():
                    self.metrics.add(batch)
            listens = wanted
            for received in viewer.batches(TICK_S):
                if received is not None and listens:
                    self._add(received)
            if listens:
                self._show(viewer)
        raise GtError(f"{viewer.address} has sent nothing for {SILENT_S:g} s")

    def _begin(self, viewer: Viewer) -> None:
        """Listen."""
        viewer.listen()
        assert viewer.listening is not None
        self._reset(viewer.listening.now)
        self._offset = viewer.listening.now - time.perf_counter_ns()
        self._next_load = self._next_inspection = 0.0
        self._send("hello", self._hello())

    def _add(self, batch: EventBatch) -> None:
        self.metrics.add(batch)
        self._meter.add(batch)
        with self._lock:
            rows = self._recent.add(batch)
            if self.pages:
                self._bars += self._recent.bars(batch.source, batch.client, rows, RESOLUTION_NS)

    def _show(self, viewer: Viewer) -> None:
        """Send what is new."""
        listening, now = viewer.listening, time.monotonic()
        assert listening is not None
        # a message tells a time that is already past: the latest guess is the best; clocks may drift by this much
        self._offset = max(listening.now - time.perf_counter_ns(), self._offset - MAX_DRIFT_NS)
        self._listening = listening
        self.metrics.show(listening)
        self._current.set()
        if self.pages:
            self._send("tick", self._tick(), self._ticks)
        if now >= self._next_load:
            seconds = LOAD_S + now - self._next_load if self._next_load else TICK_S
            self._next_load = now + LOAD_S
            self._send("load", self._load(listening, seconds), self._loads)
        if self.pages and now >= self._next_inspection:
            self._next_inspection = now + INSPECT_S
            viewer.inspect()
        if viewer.inspection is not None:
            answer, viewer.inspection = viewer.inspection, None
            self._inspection = {
                "hot": [fields(section) for section in answer.hot],
                "tensors": [fields(tensor) for tensor in answer.tensors],
                "log": answer.log,
            }
            self._send("inspection", self._inspection)

    def _send(self, kind: str, content: dict[str, Any], kept: deque[dict[str, Any]] | None = None) -> None:
        with self._lock:
            self._number += 1
            message = {"kind": kind, "number": self._number, **content}
            if kept is not None:
                kept.append(message)
        if self.pages:
            self._publish(encode(message))

    # -- messages ------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        recent = self._recent
        with self._lock:
            sites = [(c, number, text) for c, texts in recent.sites.items() for number, text in texts.items()]
            return {
                "server": self.address,
                "lost": self.lost,
                "last": self._number,
                "labels": list(enumerate(recent.labels)),
                "sites": sites,
                "past": [*self._loads, *self._ticks],
                "inspection": self._inspection,
            }

    def hello(self) -> bytes:
        """The first message of a page."""
        return encode({"kind": "hello", "number": 0, **self._hello()})

    def _tick(self) -> dict[str, Any]:
        with self._lock:
            recent, bars = self._recent, self._bars
            self._bars = []
            labels = list(enumerate(recent.labels))[self._sent_labels :]
            self._sent_labels = len(recent.labels)
            sites = []
            for client, texts in recent.sites.items():
                new = list(texts.items())[self._sent_sites.get(client, 0) :]
                sites += [(client, *item) for item in new]
                self._sent_sites[client] = len(texts)
        now = time.perf_counter_ns() + self._offset - recent.base
        return {
            "now": now // 1000,
            "bars": bars,
            "labels": labels,
            "sites": sites,
            "families": recent.families,
            "missed": recent.dropped,
            "dropped": recent.dropped_events,
        }

    def _load(self, listening: Listening, seconds: float) -> dict[str, Any]:
        workers, clients = self._meter.read(listening, seconds)
        return {
            "time": time.time(),
            "operator": listening.operator,
            "workers": [asdict(load) | {"worker": id, "busy": load.busy} for id, load in sorted(workers.items())],
            "clients": [asdict(load) | {"client": id} for id, load in sorted(clients.items())],
        }

    # -- requests of pages, in other threads ---------------------------------------------

    def close_view(self, begun: int, ended: int) -> bytes:
        """The bars between two times in microseconds, as exactly as a screen can show them."""
        with self._lock:
            bars = self._recent.window(begun, ended, CLOSE_BARS)
        return encode({"kind": "close", "number": 0, "begun": begun, "ended": ended, "bars": bars})

    def perfetto(self, seconds: float) -> str:
        """The last seconds as a file for ui.perfetto.dev."""
        with self._lock:
            table = self._recent.table(seconds)
        file = StringIO()
        write_perfetto(file, table, self._listening)
        return file.getvalue()

    def scrape(self) -> bytes:
        """The text of /metrics. The first scrape waits until somebody has counted."""
        self._scraped = time.monotonic()
        self._current.wait(FIRST_SCRAPE_S)
        self.metrics.up.set(not self.lost)
        return self.metrics.text()
