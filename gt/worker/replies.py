"""How a worker sends values: small ones at once, large ones in chunks, as fast as the client acknowledges them."""

from __future__ import annotations

from typing import Any

from gt.wire.messages import NoValue, Reply, ValueChunk, ValueInline
from gt.wire.transfers import Outgoing
from gt.wire.words import MAX_INLINE_BYTES
from gt.worker.engines import Engine
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.outbox import WorkerOutbox
from gt.worker.space import ClientSpace, Failure


class ValueReplies:
    """Sends values and other replies to clients, through the dispatcher."""

    def __init__(self, engine: Engine, outbox: WorkerOutbox) -> None:
        self._engine, self._outbox = engine, outbox

    def send(self, client: int, message: Any, data: memoryview | None = None, last: bool = True) -> None:
        """Send the reply to a request. ``last``: no more messages of this reply follow."""
        self._outbox.send(Reply(client, message.request, last), message, data)

    def send_value(self, space: ClientSpace, client: int, request: int, value: Any) -> None:
        """Send a tensor, or why there is none."""
        if type(value) is Failure:
            failed = NoValue(request, value.kind, value.text, value.cause, value.site, value.elsewhere)
            self._outbox.send(Reply(client, request, lost=value.kind == "WorkerLost"), failed)
            return
        try:
            data = self._engine.to_host(value)
        except Exception as error:  # no memory on the host, or a broken device: the client must not wait
            if self._engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            text = f"reading a value failed on worker {self._outbox.worker} ({self._engine.device}): {error}"
            self.send(client, NoValue(request, "RemoteError", text))
            return
        self.send_bytes(space, client, request, data)

    def send_bytes(self, space: ClientSpace, client: int, request: int, data: memoryview) -> None:
        """Send bytes: in one message, or in chunks, which the stream waits for."""
        if data.nbytes <= MAX_INLINE_BYTES:
            self.send(client, ValueInline(request, bytes(data), self._outbox.worker))
            return
        space.outgoing = Outgoing(request, data, space.channel, space.shares_memory)
        self.send_chunks(client, space)

    def send_chunks(self, client: int, space: ClientSpace) -> None:
        """Send as many chunks of the outgoing value as the channel allows. Called again after each acknowledgement."""
        outgoing, worker = space.outgoing, self._outbox.worker
        assert outgoing is not None
        for chunk in outgoing.ready():
            message = ValueChunk(outgoing.value, chunk.offset, chunk.nbytes, outgoing.total, chunk.memory, worker)
            self.send(client, message, chunk.data, last=outgoing.all_sent)
        if outgoing.all_sent:
            space.outgoing = None
