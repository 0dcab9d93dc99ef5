"""How a worker receives large tensors from its clients: in chunks, assembled in host memory."""

from __future__ import annotations

from gt.wire.messages import Chunk, ChunkTaken
from gt.wire.shared import SharedRings
from gt.wire.transfers import Incoming
from gt.wire.words import DROPPED
from gt.worker.engines import Engine
from gt.worker.outbox import WorkerOutbox
from gt.worker.space import ClientSpace


class UploadReceiver:
    def __init__(self, engine: Engine, outbox: WorkerOutbox) -> None:
        self._engine, self._outbox = engine, outbox
        self.rings = SharedRings()

    def receive(self, space: ClientSpace, m: Chunk, data: memoryview | None) -> None:
        """Take a chunk and acknowledge it. An error is kept for the instruction that uses the value."""
        try:
            if m.offset == DROPPED:
                space.transfers.pop(m.transfer, None)
            else:
                self._add(space, m, data)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            # the traceback would keep the memory alive
            space.transfers[m.transfer] = error.with_traceback(None)
        self._outbox.send(ChunkTaken(m.transfer, m.nbytes, m.client))

    def _add(self, space: ClientSpace, m: Chunk, data: memoryview | None) -> None:
        if m.transfer not in space.transfers:
            if space.account is not None:
                pending = [t[1].nbytes for t in space.transfers.values() if not isinstance(t, Exception)]
                space.account.check(sum(pending, m.total))
            buffer = memoryview(self._engine.allocate(m.total))
            space.transfers[m.transfer] = Incoming(buffer), buffer
        transfer = space.transfers[m.transfer]
        if isinstance(transfer, Exception):  # after an error the other chunks are ignored
            return
        if m.memory is not None and space.shares_memory:
            if space.ring != m.memory.name:  # a client has one ring at a time
                self.rings.forget(space.ring)
                space.ring = m.memory.name
            data = self.rings.read(m.memory, m.nbytes)
        if data is None or data.nbytes != m.nbytes:
            raise ValueError("a chunk without its bytes")
        transfer[0].add(m.offset, data)

    def forget(self, space: ClientSpace) -> None:
        """The client disconnected: close its shared memory."""
        self.rings.forget(space.ring)
