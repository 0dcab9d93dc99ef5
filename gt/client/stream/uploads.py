"""Large values on their way to a worker, one after the other, in parts (see `gt.wire.transfers`)."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from gt.errors import GtError
from gt.wire.codec import encode
from gt.wire.messages import Chunk, ChunkTaken
from gt.wire.shared import host_identity
from gt.wire.transfers import Channel, Outgoing

if TYPE_CHECKING:
    from gt.client.stream.session import Session


class Uploads:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.RLock()
        self._channel = Channel()
        self._count = 0

    def send(self, data: memoryview) -> int:
        """The number of the transfer. Waits until the last part is on its way."""
        with self._lock:
            self._count += 1
            outgoing = Outgoing(self._count, data, self._channel, self._shared())
            try:
                while not outgoing.all_sent:
                    before = self._channel.confirmed
                    if not self._send_parts(outgoing):
                        self._session.await_(partial(self._channel.more_confirmed_than, before))
            except BaseException:
                with contextlib.suppress(GtError):  # a part that follows nothing: what arrived is thrown away
                    self._session.send([encode(Chunk(outgoing.value, -1, 0, 0)), b""])
                raise
        return outgoing.value

    def _send_parts(self, outgoing: Outgoing) -> bool:
        """Send what there is room for. Was there any?"""
        sent = False
        for piece in outgoing.ready():
            part = Chunk(outgoing.value, piece.offset, piece.nbytes, outgoing.total, piece.place)
            # a copy: the caller may change its array as soon as it has it back
            self._session.send([encode(part)] if piece.data is None else [encode(part), bytes(piece.data)])
            sent = True
        return sent

    def _shared(self) -> bool:
        mine = host_identity()
        return bool(mine) and all(w.host == mine for w in self._session.workers)

    def taken(self, m: ChunkTaken) -> None:
        self._channel.taken(m.transfer)

    def close(self) -> None:
        """Who is in the middle of it keeps the memory until it is done."""
        self._channel = Channel()
