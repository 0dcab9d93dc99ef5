"""What is passed on between clients and workers: chunks of large values, their acknowledgements, and reports.

Chunks go to the worker at once, beside the client's queue. They go through the queue while the program of a client runs
again, behind the chunks that were sent before, and while the user's quota of transfers is used up, behind the
instructions that use the values. Until then they are not acknowledged, and the client waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gt.dispatcher.admission import admit_chunk, admit_queued_chunk, chunk_must_wait, queued_bytes
from gt.dispatcher.delivery import Delivery
from gt.dispatcher.recovery.program_log import QueuedChunk
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.messages import Chunk, ChunkTaken, FailureReport, Notice
from gt.wire.words import DROPPED

#: The most notices from workers that are passed on to one client.
MAX_WORKER_NOTICES = 3
#: In `Client.chunks`, the size of a chunk that was acknowledged to the client before.
ALREADY_ACKNOWLEDGED = -1


class Relay:
    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        log: Callable[[str], object],
    ) -> None:
        self._clients, self._workers, self._delivery, self._log = clients, workers, delivery, log

    def client_of(self, worker: WorkerState, id: int) -> Client | None:
        """The client of a worker's message; None if it has ended, or its program began again after the message."""
        return None if id in worker.dropping else self._clients.get(id)

    # -- reports of workers --------------------------------------------------------------

    def failure(self, worker: WorkerState, m: FailureReport, rest: object) -> None:
        """Pass on a failure. A program that can run again needs no report of a lost worker."""
        client = self.client_of(worker, m.client)
        if client is not None and not (m.kind == "WorkerLost" and client.recovers):
            self._delivery.send(client, m)
            self._log(f"client {m.client}, worker {worker.id}: {m.kind}: {m.text}")

    def notice(self, worker: WorkerState, m: Notice, rest: object) -> None:
        """Pass on each text once, because several workers report the same, and only the first few texts."""
        client = self.client_of(worker, m.client)
        if client is not None and m.text not in client.notices and client.worker_notices < MAX_WORKER_NOTICES:
            client.notices.add(m.text)
            client.worker_notices += 1
            self._delivery.send(client, m)
            self._log(f"client {m.client}, worker {worker.id}: {m.text}")

    # -- chunks --------------------------------------------------------------------------

    def chunk(self, client: Client, m: Chunk, rest: tuple[Any, ...]) -> None:
        """A client sends a chunk."""
        home = self._delivery.home(client)
        if client.log is not None:
            if m.memory is not None:
                raise Violation("with recovery, chunks are sent in frames")
            client.log.add_chunk(m, rest)
        if (client.log is not None and home is None) or chunk_must_wait(client, m.transfer):
            admit_queued_chunk(client, rest)
            client.queue.append([QueuedChunk(m, rest, replayed=False), 0])
        else:
            self._send(client, home, m, rest)

    def forward_chunk(self, client: Client, home: WorkerState, queued: QueuedChunk) -> None:
        """It is the turn of a chunk that waited in the queue."""
        client.queued_chunks -= 1
        if not queued.replayed:
            client.queued_chunk_bytes = max(0, client.queued_chunk_bytes - queued_bytes(queued.frames))
        self._send(client, home, queued.message, queued.frames)
        if queued.replayed:
            transfer, _, in_frame = client.chunks.pop()
            client.chunks.append((transfer, ALREADY_ACKNOWLEDGED, in_frame))

    def _send(self, client: Client, home: WorkerState | None, m: Chunk, rest: tuple[Any, ...]) -> None:
        layout = None if home is None else home.layout
        if admit_chunk(client, layout, m, rest) and home is not None:
            self._delivery.send(home, replace(m, client=client.id), rest)
        else:
            self._delivery.send(client, ChunkTaken(m.transfer, m.nbytes))
        if m.offset == DROPPED:
            client.transfers.pop(m.transfer, None)

    def chunk_taken_by_worker(self, worker: WorkerState, m: ChunkTaken, rest: object) -> None:
        """A worker has taken a chunk. Others may wait in the queue for that."""
        client = self.client_of(worker, m.client)
        if client is None or not client.chunks:
            return
        _, nbytes, in_frame = client.chunks.popleft()
        client.chunk_bytes -= in_frame
        if nbytes != ALREADY_ACKNOWLEDGED:
            if client.log is not None and client.log.unacknowledged:
                client.log.unacknowledged.popleft()
            self._delivery.send(client, m)

    def chunk_taken_by_client(self, client: Client, m: ChunkTaken, rest: object) -> None:
        """A client has taken a chunk of a value. It is an old one until the client has seen a restart."""
        worker = self._workers.get(m.worker)
        if worker is not None and client.id in worker.admitted and not client.unseen_restarts:
            self._delivery.send(worker, replace(m, client=client.id))
