"""Sending a large value in chunks, and assembling it again. Pure except for the memory it copies.

A sender has a limited number of unacknowledged bytes for each receiver. The receiver acknowledges each chunk, and then
more chunks follow. So no queue fills with chunks, and control messages pass between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from gt.wire.copying import copy_bytes
from gt.wire.shared import SharedRing
from gt.wire.structures import SharedRange
from gt.wire.words import CHUNK_BYTES, MAX_UNACKNOWLEDGED_BYTES, SHARED_CHUNK_BYTES, SHARED_RING_BYTES


class NextChunk(NamedTuple):
    """The next chunk to send: in shared memory at ``memory``, or as ``data`` in a frame."""

    offset: int
    nbytes: int
    memory: SharedRange | None
    data: memoryview | None


class Channel:
    """The unacknowledged chunks of all values that are sent to one receiver.

    ``value`` is the number of a transfer, or of the request for a value.

    One thread may send while another acknowledges. They change no counter that both use.

    ``max_ring_bytes``: the shared memory grows up to this size, so that two values fit, wherever the first begins.
    """

    def __init__(self, max_ring_bytes: int = 0) -> None:
        self._max_ring_bytes = max_ring_bytes
        #: (value, bytes, whether it is in shared memory) of each unacknowledged chunk, oldest first
        self._unacknowledged: deque[tuple[int, int, bool]] = deque()
        self._ring: SharedRing | None = None
        #: how many chunks were acknowledged so far
        self.acknowledged = 0

    def put(self, value: int, data: memoryview, offset: int, nbytes: int, shared: bool) -> NextChunk | None:
        """At most ``nbytes`` from ``offset`` on; None if there is no room until a chunk is acknowledged."""
        memory, chunk = None, data[offset : offset + nbytes]
        if shared:
            ring = self._ring
            if ring is None:
                ring = SharedRing(max(SHARED_RING_BYTES, self._max_ring_bytes), SHARED_RING_BYTES)
                self._ring = ring
            if self._max_ring_bytes:
                ring.grow(3 * data.nbytes)
            memory = ring.put(chunk)
            if memory is None:
                return None
        elif self._bytes_in_frames() >= MAX_UNACKNOWLEDGED_BYTES:
            return None
        self._unacknowledged.append((value, chunk.nbytes, shared))
        return NextChunk(offset, chunk.nbytes, memory, None if shared else chunk)

    def _bytes_in_frames(self) -> int:
        return sum(nbytes for _, nbytes, shared in list(self._unacknowledged) if not shared)

    def acknowledge(self, value: int) -> None:
        """The oldest chunk of that value was acknowledged.

        A chunk before it was never sent: an interrupt came between `put` and the sending. An acknowledgement of an
        unknown chunk changes nothing; its receiver may be a lost worker.
        """
        values = [v for v, _, _ in list(self._unacknowledged)]
        for _ in range(values.index(value) + 1 if value in values else 0):
            _, _, shared = self._unacknowledged.popleft()
            if shared and self._ring is not None:
                self._ring.release()
            self.acknowledged += 1

    def acknowledged_more_than(self, count: int) -> bool:
        """Whether more than ``count`` chunks were acknowledged."""
        return self.acknowledged > count

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()


class Outgoing:
    """One value that is being sent. ``chunk_bytes``: the size of chunks in shared memory."""

    def __init__(self, value: int, data: memoryview, channel: Channel, shared: bool, chunk_bytes: int = 0) -> None:
        #: a number: its transfer, or the request for it
        self.value = value
        self.data, self.channel, self.shared = data, channel, shared
        self.total = data.nbytes
        self._chunk_bytes = (chunk_bytes or SHARED_CHUNK_BYTES) if shared else CHUNK_BYTES
        self._offset = 0

    @property
    def all_sent(self) -> bool:
        return self._offset == self.total

    def ready(self) -> Iterator[NextChunk]:
        """Yield chunks until all are sent, or until the receiver must acknowledge some first."""
        while not self.all_sent:
            chunk = self.channel.put(self.value, self.data, self._offset, self._chunk_bytes, self.shared)
            if chunk is None:
                return
            self._offset += chunk.nbytes
            yield chunk


class Incoming:
    """One value that is being received. Its chunks arrive in order."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._filled = 0

    def add(self, offset: int, data: memoryview) -> None:
        """Raises ValueError if this is not the next chunk."""
        if offset != self._filled or offset + data.nbytes > self._buffer.nbytes:
            raise ValueError(f"chunk {offset}+{data.nbytes} does not follow {self._filled} of {self._buffer.nbytes}")
        copy_bytes(self._buffer[offset : offset + data.nbytes], data)
        self._filled += data.nbytes

    @property
    def complete(self) -> bool:
        return self._filled == self._buffer.nbytes
