"""Sending a large value in parts, and putting it together again. Pure but for the memory it copies.

A sender has only so much under way: the receiver confirms each part it has taken, and more follows. So the parts of
one value never pile up in anybody's queue, and control messages pass between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gt.wire.messages import LANE, PART, PARTS_AHEAD, SHARED_PART, Place
from gt.wire.shared import Lane


class Piece(NamedTuple):
    """The next part to send: in shared memory at ``place``, or as ``data`` in a frame of its own."""

    offset: int
    nbytes: int
    place: Place | None
    data: memoryview | None


class Outgoing:
    """One value on its way out."""

    def __init__(self, data: memoryview, lane: Lane | None) -> None:
        self.data, self.lane = data, lane
        self.total = data.nbytes
        self._offset = 0
        #: bytes sent and not yet taken
        self.under_way = 0

    @property
    def all_sent(self) -> bool:
        return self._offset == self.total

    @property
    def all_taken(self) -> bool:
        return self.all_sent and not self.under_way

    def ready(self) -> Iterator[Piece]:
        """The parts that may go now."""
        while not self.all_sent:
            piece = self._cut()
            if piece is None:
                return
            self._offset += piece.nbytes
            self.under_way += piece.nbytes
            yield piece

    def _cut(self) -> Piece | None:
        if self.lane is None:
            if self.under_way >= PARTS_AHEAD:
                return None
            data = self.data[self._offset : self._offset + PART]
            return Piece(self._offset, data.nbytes, None, data)
        data = self.data[self._offset : self._offset + SHARED_PART]
        place = self.lane.put(data)
        return None if place is None else Piece(self._offset, data.nbytes, place, None)

    def taken(self, nbytes: int) -> None:
        self.under_way -= nbytes
        if self.lane is not None:
            self.lane.release()


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


def new_lane() -> Lane:
    return Lane(LANE)
