"""How a worker sends values: small ones at once, large ones in parts, as fast as their client takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gt.wire.messages import INLINE, Message, NoValue, Reply, ValueChunk, ValueInline
from gt.wire.transfers import Outgoing
from gt.worker.engines import Engine
from gt.worker.space import DeviceBroken, Failure, Space, first_line


@dataclass(frozen=True, slots=True)
class Send:
    """One message to the dispatcher; for a `Reply`, ``inner`` is what the client gets, ``data`` the bytes behind it."""

    message: Message
    inner: Message | None = None
    data: memoryview | None = None


class Answering:
    """The part of a worker that values go out by."""

    id: int
    engine: Engine
    out: list[Send]

    def _fetch(self, space: Space, client: int, request: int, value: Any) -> None:
        if type(value) is Failure:
            self._reply(client, NoValue(request, value.kind, value.text, value.cause, value.site, value.elsewhere))
            return
        try:
            data = self.engine.to_host(value)
        except Exception as error:
            if self.engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            text = f"reading a value failed on worker {self.id} ({self.engine.device}): {error}"
            self._reply(client, NoValue(request, "RemoteError", text))
            return
        self._value(space, client, request, data)

    def _value(self, space: Space, client: int, request: int, data: memoryview) -> None:
        if data.nbytes <= INLINE:
            self._reply(client, ValueInline(request, bytes(data), self.id))
            return
        space.outgoing = Outgoing(request, data, space.channel, space.shares_memory)
        self._send_parts(client, space)

    def _reply(self, client: int, value: Any, data: memoryview | None = None, last: bool = True) -> None:
        self.out.append(Send(Reply(client, value.request, last), value, data))

    def _send_parts(self, client: int, space: Space) -> None:
        outgoing = space.outgoing
        assert outgoing is not None
        for piece in outgoing.ready():
            part = ValueChunk(outgoing.value, piece.offset, piece.nbytes, outgoing.total, piece.place, self.id)
            self._reply(client, part, piece.data, last=outgoing.all_sent)
        if outgoing.all_sent:
            space.outgoing = None
