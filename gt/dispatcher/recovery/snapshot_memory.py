"""Shared memory of workers that the server keeps open, so that it outlives them."""

from __future__ import annotations

import os

from msgspec.structs import replace

from gt.wire.shared import open_memory
from gt.wire.structures import SharedRange


class SnapshotMemory:
    """``host``: the identity of this process (see `gt.wire.shared.host_identity`). It can open the memory of processes
    with the same identity, and they can open what it holds."""

    def __init__(self, host: str) -> None:
        self.host = host
        #: name -> descriptor
        self._descriptors: dict[str, int] = {}

    def hold(self, memory: SharedRange) -> SharedRange:
        """Open it; returns where other processes find it. Raises OSError or ValueError."""
        fd = self._descriptors[memory.name] = open_memory(memory)
        return replace(memory, pid=os.getpid(), fd=fd)

    def release(self, memory: SharedRange) -> None:
        os.close(self._descriptors.pop(memory.name))

    def __len__(self) -> int:
        return len(self._descriptors)
