"""A requested value that has not arrived yet: whole from one worker, or in blocks from several."""

from __future__ import annotations

from typing import Any

from gt.errors import GtError
from gt.wire.messages import Blocks, NoValue, ValueChunk, ValueInline
from gt.wire.transfers import Incoming


class PendingValue:
    __slots__ = (
        "_blocks", "_incoming", "_missing", "buffer", "done", "error", "likely_error", "nbytes", "received", "refusals",
    )  # fmt: skip

    def __init__(self, nbytes: int = 0) -> None:
        self.buffer: Any = None
        #: the bytes of the whole value, and those that have arrived in chunks
        self.nbytes, self.received = nbytes, 0
        self.done = False
        self.error: GtError | None = None
        #: an error that another worker will describe better
        self.likely_error: GtError | None = None
        #: why there is no value, as long as the program does not wait for it; None: it does
        self.refusals: list[NoValue] | None = None
        #: worker -> the value it sends in chunks, and the memory for it
        self._incoming: dict[int, tuple[Incoming, Any]] = {}
        #: worker -> (starts, sizes) of the block it sends, if there are several
        self._blocks: dict[int, tuple[Any, Any]] | None = None
        #: the workers that have not answered
        self._missing: set[int] = set()

    def restart(self) -> None:
        """Forget what has arrived: the value is sent again, perhaps by other workers."""
        self.buffer, self.received, self.likely_error = None, 0, None
        self.refusals = None if self.refusals is None else []
        self._incoming.clear()
        self._blocks = None
        self._missing = set()

    def expect(self, m: Blocks) -> None:
        """The dispatcher announces which workers send the value, and which block each of them sends."""
        self._missing = set(m.workers)
        if len(m.blocks) > 1:
            import numpy as np

            self._blocks = {worker: (starts, sizes) for worker, starts, sizes in m.blocks}
            self.buffer = np.empty(m.shape, dtype=f"V{m.itemsize}")

    def add_inline(self, m: ValueInline) -> None:
        self._take(m.worker, bytearray(m.data))

    def add_chunk(self, m: ValueChunk, data: memoryview) -> None:
        if m.worker not in self._incoming:
            memory = _allocate(m.total)
            self._incoming[m.worker] = Incoming(memoryview(memory)), memory
        incoming, memory = self._incoming[m.worker]
        incoming.add(m.offset, data)
        self.received += data.nbytes
        if incoming.complete:
            del self._incoming[m.worker]
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
        """The worker has sent everything that was expected of it."""
        self._missing.discard(worker)
        self.done = self.done or not self._missing

    def fail(self, error: GtError) -> None:
        """The first error is kept."""
        self.error = self.error or error
        self.done = True


class PendingFromEach(PendingValue):
    """One value from each worker, instead of one value."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, bytes] = {}

    def _take(self, worker: int, value: Any) -> None:
        self.values[worker] = bytes(value)
        self.answered(worker)


def _allocate(nbytes: int) -> Any:
    """Memory to assemble a value in. numpy allocates it with large pages."""
    import numpy as np

    return np.empty(nbytes, dtype=np.uint8)
