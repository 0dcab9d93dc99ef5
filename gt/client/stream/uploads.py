"""Large values that the client sends to a worker in chunks (see `gt.wire.transfers`).

Most values are sent before `Uploads.send` returns. The values of a loader's next batch are sent by threads in the
background, while the program emits the instructions of a step. Chunks of several values may alternate; each is sent
in the order in which it entered the channel.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

from gt.client.stream.server_connection import ServerConnection
from gt.errors import GtError
from gt.wire import interrupts
from gt.wire.codec import encode
from gt.wire.messages import Chunk, ChunkTaken
from gt.wire.shared import host_identity
from gt.wire.transfers import Channel, Outgoing
from gt.wire.words import BACKGROUND_CHUNK_BYTES, DROPPED, MAX_SHARED_RING_BYTES


@interrupts.deferred
class Uploads:
    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        #: its holder puts a chunk into the channel and sends it
        self._lock = threading.RLock()
        self._channel = Channel(MAX_SHARED_RING_BYTES)
        self._next_transfer = itertools.count(1).__next__
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
        outgoing = self._outgoing(data)
        self._send(outgoing, bool)
        return outgoing.value

    @property
    def may_use_background(self) -> bool:
        """Not with a quota: the server may take the value only after the instructions of others, which are not
        submitted while the program waits for it. Nor without sockets, where all of a system runs in one thread."""
        return self.limit == 0 and bool(self._connection.address)

    def send_in_background(self, data: memoryview) -> BackgroundUpload:
        """Send the value in a thread of its own. The bytes must not change until they are sent."""
        return BackgroundUpload(self._outgoing(data, BACKGROUND_CHUNK_BYTES), self._send, self._drop)

    def _outgoing(self, data: memoryview, chunk_bytes: int = 0) -> Outgoing:
        return Outgoing(self._next_transfer(), data, self._channel, self._shares_memory(), chunk_bytes)

    def _send(self, outgoing: Outgoing, give_up: Callable[[], bool]) -> None:
        """Send all chunks, or drop the transfer as soon as ``give_up()``."""
        channel = outgoing.channel
        try:
            while not (outgoing.all_sent or give_up()):
                before = channel.acknowledged
                if not self._send_chunk(outgoing):
                    self._wait_for_room(channel, before, give_up)
        except BaseException:
            self._drop(outgoing.value)
            raise

    def _wait_for_room(self, channel: Channel, before: int, give_up: Callable[[], bool]) -> None:
        self._connection.wait_for_progress(lambda: channel.acknowledged_more_than(before) or give_up())

    def _send_chunk(self, outgoing: Outgoing) -> bool:
        """Send the next chunk. False if there is no room for it."""
        with self._lock:
            ready = next(outgoing.ready(), None)
            if ready is None:
                return False
            chunk = Chunk(outgoing.value, ready.offset, ready.nbytes, outgoing.total, ready.memory)
            # a copy: the caller may change its array as soon as this returns
            self._connection.send([encode(chunk)] if ready.data is None else [encode(chunk), bytes(ready.data)])
        return True

    def _drop(self, transfer: int) -> None:
        """No instruction will use the transfer. Does not raise, so that destructors may call it."""
        link = self._connection.link
        if link is not None and self._connection.ended is None:  # in a forked process it has ended
            with contextlib.suppress(GtError):
                link.send([encode(Chunk(transfer, DROPPED, 0, 0)), b""])

    def _shares_memory(self) -> bool:
        host = "" if self._connection.recovery is not None else host_identity()
        return bool(host) and all(worker.host == host for worker in self._connection.workers)

    def taken(self, m: ChunkTaken, frames: object) -> None:
        self._channel.acknowledge(m.transfer)

    def close(self) -> None:
        """Drop the channel. An upload in progress keeps its memory until it ends."""
        self._channel = Channel(MAX_SHARED_RING_BYTES)


class _UploadState:
    """What a thread that sends and the program's thread tell each other."""

    def __init__(self) -> None:
        self.ended, self.given_up = threading.Event(), False
        self.error: BaseException | None = None


@interrupts.deferred
class BackgroundUpload:
    """A value that a thread of its own sends. If `take` has not returned, the end of this object drops the transfer."""

    def __init__(
        self, outgoing: Outgoing, send: Callable[[Outgoing, Callable[[], bool]], None], drop: Callable[[int], None]
    ) -> None:
        self._state = state = _UploadState()
        self._transfer, self._drop = outgoing.value, drop
        thread = threading.Thread(target=_run, args=(outgoing, send, drop, state), name="gt-upload", daemon=True)
        thread.start()

    def take(self) -> int:
        """Wait until the value is sent, and return the number of its transfer. Raises what kept it from being sent."""
        interrupts.install()
        self._wait()
        error, self._state.error = self._state.error, None
        self._transfer, transfer = 0, self._transfer
        if error is not None:
            raise error.with_traceback(None)
        return transfer

    @interrupts.interruptible
    def _wait(self) -> None:
        self._state.ended.wait()

    def __del__(self) -> None:
        if transfer := self._transfer:
            state = self._state
            state.given_up = True
            if state.ended.is_set():
                self._drop(transfer)


def _run(
    outgoing: Outgoing,
    send: Callable[[Outgoing, Callable[[], bool]], None],
    drop: Callable[[int], None],
    state: _UploadState,
) -> None:
    try:
        send(outgoing, lambda: state.given_up)
    except BaseException as error:  # the program's thread raises it
        state.error = error.with_traceback(None)
    state.ended.set()
    if state.given_up:  # perhaps for the second time, which changes nothing
        drop(outgoing.value)
