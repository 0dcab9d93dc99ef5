"""What the worker's core needs of `gt.worker.recovery.snapshots`, which has a thread and touches memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gt.wire.recovery_messages import Restore, Saved, SaveTo
from gt.worker.space import ClientSpace, Failure


class SnapshotStore(Protocol):
    def expect(self, m: SaveTo) -> None:
        """Where the client's next snapshot is to be written."""

    def take(self, space: ClientSpace, client: int, number: int) -> None:
        """Copy all tensors of the client, and write them."""

    def finished(self) -> list[Saved]:
        """The snapshots that were written since the last call, and not dropped meanwhile."""

    def release(self, client: int, number: int) -> None:
        """The server has opened the memory of a snapshot, or does not need it."""

    def forget(self, client: int) -> None:
        """The client's space is dropped."""

    def restore(self, space: ClientSpace, m: Restore, lost: Callable[[str], Failure]) -> None:
        """Put the tensors of a snapshot into the client's space; ``lost`` makes a failure for those that cannot be."""


class NoSnapshots:
    """For a worker that takes none: it reports so, and has nothing to restore."""

    def __init__(self) -> None:
        self._refused: list[Saved] = []

    def expect(self, m: SaveTo) -> None:
        pass

    def take(self, space: ClientSpace, client: int, number: int) -> None:
        self._refused.append(Saved(client, number, None, 0, [], [], "a worker takes no snapshots"))

    def finished(self) -> list[Saved]:
        refused, self._refused = self._refused, []
        return refused

    def release(self, client: int, number: int) -> None:
        pass

    def forget(self, client: int) -> None:
        pass

    def restore(self, space: ClientSpace, m: Restore, lost: Callable[[str], Failure]) -> None:
        for tensor in m.tensors:
            space.put(tensor.id, lost("this worker restores no snapshots"))
