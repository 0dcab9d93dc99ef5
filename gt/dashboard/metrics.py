"""What /metrics tells Prometheus: workers and totals, nothing that belongs to a user."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest

from gt.version import PROTOCOL, VERSION
from gt.wire.event_messages import DISPATCHER, TRANSFERS, EventBatch, Listening

#: the kinds of bytes of a worker's memory that the metrics show
MEMORY_KINDS = ("used", "peak", "total")


class Metrics:
    """Counters begin with the first scrape, because nothing is recorded before."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        common: Any = {"namespace": "gt", "registry": registry}
        Info("build", "the version of GT", **common).info({"version": VERSION, "protocol": str(PROTOCOL)})
        self.up = Gauge("up", "1 if the server answers", **common)
        self.workers = Gauge("workers", "connected workers", **common)
        self.clients = Gauge("clients", "connected clients", **common)
        self.busy = Counter("worker_seconds", "time by family of ops", ["worker", "family"], **common)
        self.instructions = Counter("worker_instructions", "instructions that a worker has run", ["worker"], **common)
        self.hot = Counter("worker_hot_instructions", "those in repeated fragments", ["worker"], **common)
        self.moved = Counter("worker_moved_bytes", "bytes exchanged with other workers", ["worker"], **common)
        self.memory = Gauge("worker_memory_bytes", "memory of a worker", ["worker", "kind"], **common)
        self.queue = Gauge("worker_queue_seconds", "estimated work that a worker has ahead", ["worker"], **common)
        self.dispatching = Counter("dispatcher_seconds", "time in which the dispatcher handled messages", **common)
        self.missed = Gauge("missed_batches", "batches of events that the dashboard was too slow to read", **common)
        self.dropped = Counter(
            "worker_dropped_events", "events dropped because the GPU was too far behind", ["worker"], **common
        )
        self._known: set[int] = set()

    def add(self, batch: EventBatch) -> None:
        """Count what a batch tells."""
        self.missed.set(batch.dropped)
        if batch.source == DISPATCHER:
            self.dispatching.inc(sum(spent for _, _, spent, _ in batch.shares) / 1e9)
            return
        worker = str(batch.source)
        self.queue.labels(worker).set(batch.ahead / 1e6)
        self.hot.labels(worker).inc(batch.hot)
        self.dropped.labels(worker).inc(batch.dropped_events)
        for family, events, spent, nbytes in batch.shares:
            if family in TRANSFERS:
                self.moved.labels(worker).inc(nbytes)
            else:
                self.busy.labels(worker, family).inc(spent / 1e9)
                self.instructions.labels(worker).inc(events)
        if not batch.client:
            for kind in MEMORY_KINDS:
                if kind in batch.memory:
                    self.memory.labels(worker, kind).set(batch.memory[kind])

    def show(self, listening: Listening | None) -> None:
        """How many workers and clients there are. The values of workers that have gone are removed."""
        present = set() if listening is None else {worker.id for worker in listening.workers}
        self.workers.set(len(present))
        self.clients.set(0 if listening is None else len(listening.clients))
        for worker in self._known - present:
            of_workers = self.memory, self.queue, self.busy, self.instructions, self.hot, self.moved, self.dropped
            for metric in of_workers:
                metric.remove_by_labels({"worker": str(worker)})
        for worker in present - self._known:
            self.instructions.labels(str(worker))
        self._known = present

    def text(self) -> bytes:
        return generate_latest(self.registry)
