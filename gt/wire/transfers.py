"""Sending a large value in parts, and putting it together again. Pure but for the memory it copies.

A sender has only so much under way to one receiver, who confirms each part it has taken, and more follows. So parts
never pile up in anybody's queue, and control messages pass between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from gt.wire.messages import CHUNK, CHUNKS_AHEAD, LANE, SHARED_CHUNK, SharedRange
from gt.wire.shared import Lane


class NextChunk(NamedTuple):
    """The next part to send: in shared memory at ``place``, or as ``data`` in a frame of its own."""

    offset: int
    nbytes: int
    place: SharedRange | None
    data: memoryview | None


class Channel:
    """The way to one receiver, for all the values that go there, one after the other.

    One thread may send while another hears of what was taken: neither trusts a count that both would change.
    """

    def __init__(self) -> None:
        #: (value, bytes, in the lane or in a frame) of the parts under way, oldest first: confirmed in this order
        self._sent: deque[tuple[int, int, bool]] = deque()
        self._lane: Lane | None = None
        #: how many parts were confirmed so far
        self.confirmed = 0

    def put(self, value: int, data: memoryview, offset: int, shared: bool) -> NextChunk | None:
        """The part that begins there; None if there is no room before something is confirmed."""
        place, part = None, data[offset : offset + (SHARED_CHUNK if shared else CHUNK)]
        if shared:
            self._lane = self._lane or Lane(LANE)
            place = self._lane.put(part)
            if place is None:
                return None
        elif sum(nbytes for _, nbytes, in_lane in list(self._sent) if not in_lane) >= CHUNKS_AHEAD:
            return None
        self._sent.append((value, part.nbytes, shared))
        return NextChunk(offset, part.nbytes, place, None if shared else part)

    def taken(self, value: int) -> None:
        """A part of that value was confirmed: the oldest. One before it was, in truth, never sent: an interrupt came.

        Who confirms what is not under way (it may have been, to a worker that is gone) changes nothing.
        """
        values = [v for v, _, _ in list(self._sent)]
        for _ in range(values.index(value) + 1 if value in values else 0):
            _, _, shared = self._sent.popleft()
            if shared and self._lane is not None:
                self._lane.release()
            self.confirmed += 1

    def more_confirmed_than(self, count: int) -> bool:
        return self.confirmed > count

    def close(self) -> None:
        """Nothing goes this way any more."""
        if self._lane is not None:
            self._lane.close()


class Outgoing:
    """One value on its way out."""

    def __init__(self, value: int, data: memoryview, channel: Channel, shared: bool) -> None:
        #: the number of its transfer, or of the request for it
        self.value = value
        self.data, self.channel, self.shared = data, channel, shared
        self.total = data.nbytes
        self._offset = 0

    @property
    def all_sent(self) -> bool:
        return self._offset == self.total

    def ready(self) -> Iterator[NextChunk]:
        """The parts that may go now."""
        while not self.all_sent:
            piece = self.channel.put(self.value, self.data, self._offset, self.shared)
            if piece is None:
                return
            self._offset += piece.nbytes
            yield piece


class Incoming:
    """One value on its way in; parts come in order."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._filled = 0

    def add(self, offset: int, data: memoryview) -> None:
        """Raises ValueError if this is not the next part."""
        if offset != self._filled or offset + data.nbytes > self._buffer.nbytes:
            raise ValueError(f"part {offset}+{data.nbytes} does not follow {self._filled} of {self._buffer.nbytes}")
        self._buffer[offset : offset + data.nbytes] = data
        self._filled += data.nbytes

    @property
    def complete(self) -> bool:
        return self._filled == self._buffer.nbytes
