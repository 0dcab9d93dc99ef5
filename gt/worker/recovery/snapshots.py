"""A worker's part in snapshots: it copies the tensors of a client, and puts them back.

The copies are made on the device, in order with the client's stream. A thread writes them into shared memory while the
stream goes on. The server opens that memory, so it outlives this process.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from gt.types import DTYPES, TensorType
from gt.wire.recovery_messages import Restore, RestoredTensor, Saved, SavedBlock, SavedFailure, SavedPiece
from gt.wire.shared import SharedRing, SharedRings
from gt.wire.structures import SharedRange
from gt.wire.words import FIRST_DISPATCHER_ID
from gt.worker.collectives.local import combine
from gt.worker.engines import Engine
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.space import ClientSpace, Failure


@dataclass(slots=True)
class _Copies:
    """What a client has on this worker at one point."""

    #: a number that identifies a storage -> a copy of it
    storages: dict[int, Any] = field(default_factory=dict)
    #: (tensor, its storage, offset and strides in bytes)
    views: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)
    failures: list[SavedFailure] = field(default_factory=list)


class WorkerSnapshots:
    """The snapshots that are being written, and those that the server has not opened yet.

    ``threaded``: write in a thread, and call ``wake`` afterwards; otherwise at once.
    """

    def __init__(self, engine: Engine, threaded: bool = False, wake: Callable[[], object] = bool) -> None:
        self._engine, self._wake = engine, wake
        self._threads = ThreadPoolExecutor(1, "snapshots") if threaded else None
        #: (client, snapshot) -> its memory
        self._memories: dict[tuple[int, int], SharedRing | None] = {}
        self._finished: deque[tuple[Saved, SharedRing | None]] = deque()

    def take(self, space: ClientSpace, client: int, number: int) -> None:
        """Copy all tensors of the client, and write them. Raises DeviceBroken."""
        self._memories[client, number] = None
        try:
            copies = self._copies(space)
        except Exception as error:  # no room for the copies: the client goes on without a snapshot
            if self._engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            problem = f"a worker could not copy the tensors: {first_line(error)}"
            self._finished.append((Saved(client, number, None, [], [], problem), None))
            return
        if self._threads is None:
            self._write(client, number, copies)
        else:
            self._threads.submit(self._write, client, number, copies)

    def _copies(self, space: ClientSpace) -> _Copies:
        copies = _Copies()
        for id, value in sorted(space.store.items()):
            if id >= FIRST_DISPATCHER_ID:
                continue
            if type(value) is Failure:
                saved = SavedFailure(id, value.cause, value.kind, value.text, value.site, value.elsewhere)
                copies.failures.append(saved)
                continue
            view = self._engine.raw_storage(value)
            if view.key not in copies.storages:
                if space.account is not None:
                    space.account.check(self._engine.nbytes(view.array))
                copies.storages[view.key] = copy = self._engine.copy(view.array)
                if space.account is not None:
                    space.account.add(copy)
            copies.views.append((id, view.key, view.offset, view.strides))
        return copies

    def _write(self, client: int, number: int, copies: _Copies) -> None:
        memory, blocks, problem = None, [], ""
        try:
            sizes = {key: self._engine.nbytes(array) for key, array in copies.storages.items()}
            memory, places = SharedRing(max(1, sum(sizes.values()))), {}
            for key, array in copies.storages.items():
                place = memory.put(self._engine.to_host(array))
                assert place is not None, "the memory has the size of all storages"
                places[key] = place.offset
            for id, key, offset, strides in copies.views:
                blocks.append(SavedBlock(id, places[key], sizes[key], offset, list(strides)))
        except Exception as error:  # no memory on the host: the client goes on without a snapshot
            problem = f"a worker could not write it: {first_line(error)}"
        where = None if memory is None or problem else memory.range(0)
        self._finished.append((Saved(client, number, where, blocks, copies.failures, problem), memory))
        self._wake()

    def finished(self) -> list[Saved]:
        """The snapshots that were written since the last call, and not dropped meanwhile."""
        reports = []
        while self._finished:
            saved, memory = self._finished.popleft()
            if (saved.client, saved.number) in self._memories:
                self._memories[saved.client, saved.number] = memory
                reports.append(saved)
        return reports

    def release(self, client: int, number: int) -> None:
        """The server has opened the memory, or does not need it."""
        if (memory := self._memories.pop((client, number), None)) is not None:
            memory.close()

    def forget(self, client: int) -> None:
        for owner, number in [key for key in self._memories if key[0] == client]:
            self.release(owner, number)

    # -- putting back --------------------------------------------------------------------

    def restore(self, space: ClientSpace, m: Restore, lost: Callable[[str], Failure]) -> None:
        """Put the tensors of a snapshot into the client's space; ``lost`` makes a failure for those that cannot be.

        Raises DeviceBroken.
        """
        for one in m.failures:
            space.put(one.id, Failure(one.cause, one.kind, one.text, one.site, one.elsewhere))
        storages = _Storages(self._engine, m.memories)
        for tensor in m.tensors:
            try:
                block = storages.block(tensor)
                if space.account is not None:
                    space.account.add(block)
                space.put(tensor.id, block)
            except Exception as error:  # its memory is gone, or there is no room: reads of this tensor fail
                if self._engine.is_broken(error):
                    raise DeviceBroken(first_line(error)) from error
                space.put(tensor.id, lost(f"it could not be restored: {error}"))


class _Storages:
    """The storages of a snapshot, in the memory that the server holds. Those that become a tensor are uploaded once."""

    def __init__(self, engine: Engine, memories: list[SharedRange]) -> None:
        self._engine, self._memories = engine, memories
        self._rings = SharedRings()
        #: (memory, where it begins) -> the storage on the device
        self._uploaded: dict[tuple[int, int], Any] = {}

    def block(self, tensor: RestoredTensor) -> Any:
        """A block as it was, with its strides; or one that is put together from parts of others."""
        t = TensorType(tuple(tensor.sizes), DTYPES[tensor.dtype])
        terms = [self._term(t, pieces) for pieces in tensor.terms]
        return terms[0] if len(terms) == 1 else combine(terms, tensor.op)

    def _term(self, t: TensorType, pieces: list[SavedPiece]) -> Any:
        if len(pieces) == 1 and pieces[0].lengths == pieces[0].sizes == list(t.shape):
            piece = pieces[0]
            key = piece.memory, piece.block.storage
            if key not in self._uploaded:
                self._uploaded[key] = self._engine.upload_storage(self._bytes(piece))
            return self._engine.view_storage(self._uploaded[key], t, piece.block.offset, tuple(piece.block.strides))
        kind = f"V{t.dtype.itemsize}"
        block = np.empty(t.shape, kind)
        for piece in pieces:
            saved = np.ndarray(
                tuple(piece.sizes), kind, self._bytes(piece), piece.block.offset, tuple(piece.block.strides)
            )
            block[_region(piece.to, piece.lengths)] = saved[_region(piece.start, piece.lengths)]
        storage = self._engine.upload_storage(block.reshape(-1).view(np.uint8).data)
        return self._engine.view_storage(storage, t, 0, block.strides)

    def _bytes(self, piece: SavedPiece) -> memoryview:
        memory = replace(self._memories[piece.memory], offset=piece.block.storage)
        return self._rings.read(memory, piece.block.nbytes)


def _region(starts: list[int], lengths: list[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))


class WakePipe:
    """Wakes the worker's loop from another thread."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        os.write(self._write, b"\0")

    def drain(self) -> None:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return
