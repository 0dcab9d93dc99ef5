"""A worker's part in snapshots: it copies the tensors of a client, and puts them back.

The copies are made on the device, in order with the client's stream. A thread writes them while the stream goes on,
into shared memory, which the server opens, so that it outlives this process, or into a file that the server names.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gt.types import DTYPES, TensorType
from gt.wire.recovery_messages import (
    Restore,
    RestoredTensor,
    Saved,
    SavedBlock,
    SavedFailure,
    SavedPart,
    SavedPiece,
    SaveTo,
)
from gt.wire.shared import SharedRing
from gt.wire.words import FIRST_DISPATCHER_ID
from gt.worker.collectives.local import combine
from gt.worker.engines import Engine
from gt.worker.engines.device_waits import repeated
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.recovery.snapshot_parts import PartReader, write_file
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
        #: (client, snapshot) -> where it is to be written
        self._targets: dict[tuple[int, int], SaveTo] = {}
        #: (client, snapshot) -> its memory
        self._memories: dict[tuple[int, int], SharedRing | None] = {}
        self._finished: deque[tuple[Saved, SharedRing | None]] = deque()

    def expect(self, m: SaveTo) -> None:
        self._targets[m.client, m.number] = m

    def take(self, space: ClientSpace, client: int, number: int) -> None:
        """Copy all tensors of the client, and write them. Raises DeviceBroken."""
        self._memories[client, number] = None
        target = self._targets.pop((client, number))
        try:
            copies = self._copies(space)
        except Exception as error:  # no room for the copies: the client goes on without a snapshot
            if self._engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            problem = f"a worker could not copy the tensors: {first_line(error)}"
            self._finished.append((Saved(client, number, None, 0, [], [], problem), None))
            return
        if self._threads is None:
            self._write(target, copies)
        else:
            self._threads.submit(self._write, target, copies)

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

    def _write(self, target: SaveTo, copies: _Copies) -> None:
        memory, blocks, problem = None, [], ""
        sizes = {key: self._engine.nbytes(array) for key, array in copies.storages.items()}
        total, places, end = sum(sizes.values()), {}, 0
        for key, size in sizes.items():
            places[key], end = end, end + size
        try:
            if 0 <= target.limit < total:
                raise ValueError(f"{total} bytes are more than what is left of the quota of snapshots, {target.limit}")
            hosted = (repeated(partial(self._engine.to_host, storage)) for storage in copies.storages.values())
            if target.file:
                write_file(target.file, total, hosted)
            else:
                memory = SharedRing(max(1, total))
                for data in hosted:
                    assert memory.put(data) is not None, "the memory has the size of all storages"
            for id, key, offset, strides in copies.views:
                blocks.append(SavedBlock(id, places[key], sizes[key], offset, list(strides)))
        except Exception as error:  # no space: the client goes on without a snapshot
            problem = f"a worker could not write it: {first_line(error)}"
        where = None if memory is None or problem else memory.range(0)
        report = Saved(target.client, target.number, where, total, blocks, copies.failures, problem)
        self._finished.append((report, memory))
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
        for key in [key for key in self._targets if key[0] == client]:
            del self._targets[key]

    # -- putting back --------------------------------------------------------------------

    def restore(self, space: ClientSpace, m: Restore, lost: Callable[[str], Failure]) -> None:
        """Put the tensors of a snapshot into the client's space; ``lost`` makes a failure for those that cannot be.

        Raises DeviceBroken.
        """
        for one in m.failures:
            space.put(one.id, Failure(one.cause, one.kind, one.text, one.site, one.elsewhere))
        storages = _Storages(self._engine, m.parts)
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
    """The storages of a snapshot. Those that become a tensor are uploaded once."""

    def __init__(self, engine: Engine, parts: list[SavedPart]) -> None:
        self._engine, self._parts = engine, PartReader(parts)
        #: (part, where it begins) -> the storage on the device
        self._uploaded: dict[tuple[int, int], Any] = {}

    def block(self, tensor: RestoredTensor) -> Any:
        """A block as it was, with its strides; or one that is put together from parts of others."""
        t = TensorType(tuple(tensor.sizes), DTYPES[tensor.dtype])
        terms = [self._term(t, pieces) for pieces in tensor.terms]
        return terms[0] if len(terms) == 1 else combine(terms, tensor.op)

    def _term(self, t: TensorType, pieces: list[SavedPiece]) -> Any:
        if len(pieces) == 1 and pieces[0].lengths == pieces[0].sizes == list(t.shape):
            piece = pieces[0]
            key = piece.part, piece.block.storage
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
        return self._parts.read(piece.part, piece.block.storage, piece.block.nbytes)


def _region(starts: list[int], lengths: list[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))


class WakePipe:
    """Wakes the worker's loop from another thread."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken = False

    def wake(self) -> None:
        os.write(self._write, b"\0")
        self._woken = True  # after the write: `drain` would otherwise leave the descriptor readable

    def drain(self) -> None:
        if not self._woken:  # reading an empty pipe costs more than the rest of the worker's loop
            return
        self._woken = False
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return
