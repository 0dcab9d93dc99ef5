"""How busy a system is: what `gt.scripts.top` shows, from the shares of the last moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.wire.event_messages import DEVICE_TRANSFER, DISPATCHER, TRANSFERS, WAITING, EventBatch, Listening


@dataclass(slots=True)
class WorkerLoad:
    device: str = ""
    #: family -> share of the time
    families: dict[str, float] = field(default_factory=dict)
    #: bytes: used, peak, total
    memory: dict[str, int] = field(default_factory=dict)
    #: microseconds of work that it had ahead
    queue_us: int = 0
    #: bytes that it sent or received in moves, each second
    link_bytes_per_s: float = 0.0
    #: False: moves ended on its GPU, so a wait for them is part of the time in which it computed
    waits_known: bool = True

    @property
    def busy(self) -> float:
        """The share of time in which it computed. Waiting for data of other workers does not count."""
        return min(1.0, sum(self.families.values()) - self.families.get(WAITING, 0.0))

    @property
    def idle(self) -> float:
        """The share of time in which it neither computed nor waited for data."""
        return max(0.0, 1.0 - sum(self.families.values()))


@dataclass(slots=True)
class ClientLoad:
    instructions_per_s: float = 0.0
    #: of the time of all workers
    share: float = 0.0
    #: bytes that it holds on all workers
    memory: int = 0
    #: share of its instructions in repeated fragments
    hot: float = 0.0
    #: milliseconds in which its work ran on a worker while other clients waited for that worker
    blocked_ms: float = 0.0
    #: the longest instruction, and the call; "" if it may not be shown
    longest_ms: float = 0.0
    longest: str = ""


class LoadMeter:
    """Adds up batches; `read` says what they were in the time since it was called before."""

    def __init__(self) -> None:
        self._batches: list[EventBatch] = []
        self._memory: dict[int, dict[str, int]] = {}
        self._held: dict[tuple[int, int], int] = {}
        #: (worker, client) -> microseconds for which it blocked others, when they were read last
        self._blocked_us: dict[tuple[int, int], int] = {}

    def add(self, batch: EventBatch) -> None:
        self._batches.append(batch)
        if batch.client and "held" in batch.memory:
            self._held[batch.source, batch.client] = batch.memory["held"]
        elif batch.memory:
            self._memory[batch.source] = batch.memory

    def read(self, listening: Listening, seconds: float) -> tuple[dict[int, WorkerLoad], dict[int, ClientLoad]]:
        """Worker -> load, client -> load, over the last ``seconds``."""
        batches, self._batches = self._batches, []
        workers = {w.id: WorkerLoad(w.device, memory=self._memory.get(w.id, {})) for w in listening.workers}
        clients = {id: ClientLoad() for id in listening.clients}
        for client, load in clients.items():
            load.memory = sum(size for (_, owner), size in self._held.items() if owner == client)
        hot: dict[int, int] = {}
        events: dict[int, int] = {}
        for batch in batches:
            if batch.source == DISPATCHER or batch.source not in workers:
                continue
            # an instruction that took longer than the interval is reported at its end
            window = max(seconds * 1e9, batch.ended - batch.begun)
            _add_shares(batch, window, workers[batch.source], clients.get(batch.client), len(workers), events)
            hot[batch.client] = hot.get(batch.client, 0) + batch.hot
            if batch.client in clients:
                self._add_blocking(batch, clients[batch.client])
        for client, load in clients.items():
            count = events.get(client, 0)
            load.instructions_per_s = count / seconds
            load.hot = min(1.0, hot.get(client, 0) / count) if count else 0.0
        return workers, clients

    def _add_blocking(self, batch: EventBatch, client: ClientLoad) -> None:
        key = batch.source, batch.client
        client.blocked_ms += (batch.blocked_us - self._blocked_us.get(key, batch.blocked_us)) / 1e3
        self._blocked_us[key] = batch.blocked_us
        if batch.longest[0] / 1e6 > client.longest_ms:
            client.longest_ms, client.longest = batch.longest[0] / 1e6, batch.longest[1]


def _add_shares(
    batch: EventBatch, window: float, worker: WorkerLoad, client: ClientLoad | None, workers: int, events: Any
) -> None:
    worker.queue_us = batch.ahead
    for family, count, spent, nbytes in batch.shares:
        if family in TRANSFERS:
            worker.waits_known &= family != DEVICE_TRANSFER
            worker.link_bytes_per_s += nbytes * 1e9 / window
            continue
        worker.families[family] = worker.families.get(family, 0.0) + spent / window
        if client is not None:
            client.share += spent / window / workers
            events[batch.client] = events.get(batch.client, 0) + count
