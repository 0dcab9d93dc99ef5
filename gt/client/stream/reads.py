"""A value on its way to the client: whole from one worker, or in blocks from several."""

from __future__ import annotations

from typing import Any

from gt.errors import GtError
from gt.wire.messages import Blocks, ValueChunk, ValueInline
from gt.wire.transfers import Incoming


class Pending:
    """A value that was asked for."""

    __slots__ = ("_blocks", "_missing", "_parts", "buffer", "done", "error", "guess")

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.done = False
        self.error: GtError | None = None
        #: what is known of its failure so far, if more should come
        self.guess: GtError | None = None
        #: worker -> what it sends in parts, and the memory for it
        self._parts: dict[int, tuple[Incoming, Any]] = {}
        self._blocks: dict[int, tuple[Any, Any]] | None = None
        #: the workers that have not answered
        self._missing: set[int] = set()

    def expect(self, m: Blocks) -> None:
        """It will come from these workers."""
        self._missing = set(m.workers)
        if len(m.pieces) > 1:
            import numpy as np

            self._blocks = {worker: (starts, sizes) for worker, starts, sizes in m.pieces}
            self.buffer = np.empty(m.shape, dtype=f"V{m.itemsize}")

    def whole(self, m: ValueInline) -> None:
        self._take(m.worker, bytearray(m.data))

    def part(self, m: ValueChunk, data: memoryview) -> None:
        if m.worker not in self._parts:
            memory = _fresh(m.total)
            self._parts[m.worker] = Incoming(memoryview(memory)), memory
        incoming, memory = self._parts[m.worker]
        incoming.add(m.offset, data)
        if incoming.complete:
            del self._parts[m.worker]
            self._take(m.worker, memory)

    def _take(self, worker: int, value: Any) -> None:
        if self._blocks is None:
            self.buffer = value
        elif worker in self._blocks:
            import numpy as np

            starts, sizes = self._blocks.pop(worker)
            where = tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
            self.buffer[where] = np.frombuffer(value, self.buffer.dtype).reshape(sizes)
            if not self._blocks:
                self.buffer = self.buffer.reshape(-1).view(np.uint8)
        self.answered(worker)

    def answered(self, worker: int) -> None:
        """It has sent what it had to."""
        self._missing.discard(worker)
        self.done = self.done or not self._missing

    def fail(self, error: GtError) -> None:
        """The first reason is the one that is told."""
        self.error = self.error or error
        self.done = True


class Collected(Pending):
    """Not one value but one from each worker."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        super().__init__(None)
        self.values: dict[int, bytes] = {}

    def _take(self, worker: int, value: Any) -> None:
        self.values[worker] = bytes(value)
        self.answered(worker)


def _fresh(nbytes: int) -> Any:
    """Memory to put a value together in; numpy's comes in large pages."""
    import numpy as np

    return np.empty(nbytes, dtype=np.uint8)
