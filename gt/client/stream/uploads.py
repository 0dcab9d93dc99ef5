"""Large values that the client sends to a worker, one after the other, in chunks (see `gt.wire.transfers`)."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

from gt.client.stream.server_connection import ServerConnection
from gt.errors import GtError
from gt.wire import interrupts
from gt.wire.codec import encode
from gt.wire.messages import Chunk, ChunkTaken
from gt.wire.shared import host_identity
from gt.wire.transfers import Channel, Outgoing


@interrupts.deferred
class Uploads:
    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._channel = Channel()
        self._count = 0
        #: the user's quota: values whose instructions are not submitted yet; 0: there is none
        self.limit = 0
        #: the number of submissions at the last upload, and the uploads since then
        self._serial = self._since_submission = 0

    def quota_is_used(self, serial: int) -> bool:
        """Whether there were as many uploads as the quota allows since the last submission, ``serial``."""
        return serial == self._serial and 0 < self.limit <= self._since_submission

    def send(self, data: memoryview, serial: int) -> int:
        """Send the value and return the number of the transfer. Waits until the last chunk is sent."""
        interrupts.install()
        with self._lock:
            if serial != self._serial:
                self._serial, self._since_submission = serial, 0
            self._since_submission += 1
            self._count += 1
            outgoing = Outgoing(self._count, data, self._channel, self._shares_memory())
            try:
                while not outgoing.all_sent:
                    before = self._channel.acknowledged
                    if not self._send_chunks(outgoing):
                        self._connection.wait_for_progress(partial(self._channel.acknowledged_more_than, before))
            except BaseException:
                with contextlib.suppress(GtError):  # a chunk out of order makes the worker drop the transfer
                    self._connection.send([encode(Chunk(outgoing.value, -1, 0, 0)), b""])
                raise
        return outgoing.value

    def _send_chunks(self, outgoing: Outgoing) -> bool:
        """Send the chunks that there is room for. False if there was none."""
        sent = False
        for ready in outgoing.ready():
            chunk = Chunk(outgoing.value, ready.offset, ready.nbytes, outgoing.total, ready.memory)
            # a copy: the caller may change its array as soon as this returns
            self._connection.send([encode(chunk)] if ready.data is None else [encode(chunk), bytes(ready.data)])
            sent = True
        return sent

    def _shares_memory(self) -> bool:
        host = "" if self._connection.recovery is not None else host_identity()
        return bool(host) and all(worker.host == host for worker in self._connection.workers)

    def taken(self, m: ChunkTaken, frames: object) -> None:
        self._channel.acknowledge(m.transfer)

    def close(self) -> None:
        """Drop the channel. An upload in progress keeps its memory until it ends."""
        self._channel = Channel()
