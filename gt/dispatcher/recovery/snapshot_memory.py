"""Shared memory of workers that the server keeps open, so that it outlives them."""

from __future__ import annotations

import os

from msgspec.structs import replace

from gt.wire.recovery_messages import SavedPart
from gt.wire.shared import open_memory


class SnapshotMemory:
    """``host``: the identity of this process (see `gt.wire.shared.host_identity`). It can open the memory of processes
    with the same identity, and they can open what it holds."""

    def __init__(self, host: str) -> None:
        self.host = host
        #: name -> descriptor
        self._descriptors: dict[str, int] = {}

    def is_reached_from(self, host: str) -> bool:
        return host == self.host

    def new_file(self, client: int, number: int, worker: int) -> str:
        return ""

    def hold(self, part: SavedPart) -> SavedPart:
        """Open the memory; returns where other processes find it. Raises OSError or ValueError."""
        if part.memory is None:
            raise ValueError("the worker has written no memory")
        fd = self._descriptors[part.memory.name] = open_memory(part.memory)
        return replace(part, memory=replace(part.memory, pid=os.getpid(), fd=fd))

    def release(self, part: SavedPart) -> None:
        if part.memory is not None:
            os.close(self._descriptors.pop(part.memory.name))

    def __len__(self) -> int:
        return len(self._descriptors)
