"""Tensors that are in files, and how their values are read: by the workers where they can, otherwise by the client.

A tensor in a file consists of chunks: each is a block of the tensor, in row-major order. A safetensors file has one
chunk for each tensor; a distributed checkpoint of torch has one for each process that held a part. A worker reads only
what its own block has in common with the chunks.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gt.client.stream import connect, sites
from gt.client.stream.session import Session
from gt.client.tensor.emit import call, call_with, coded_call, upload
from gt.client.tensor.tensor import Tensor
from gt.errors import RemoteError, ShapeError
from gt.functions.creation import empty
from gt.functions.joining import stack
from gt.ops import OPS
from gt.ops.system.files import TAIL, proof
from gt.saving.headers import is_large
from gt.types import BYTES, Shape, TensorType
from gt.wire.interrupts import deferred

LOAD, LOAD_BLOCK, COUNT = OPS["load_file"], OPS["load_block"], OPS["count_elements"]

#: The most small tensors in one instruction, and the most chunks.
MAX_TENSORS, MAX_CHUNKS = 1000, 256
#: The first bytes of a file that are part of its proof.
HEAD_BYTES = 4096

#: session -> the files that its workers can read
_readable: WeakKeyDictionary[Session, set[str]] = WeakKeyDictionary()


class SeenFile:
    """A file that the client has open. Workers open it by its path, and refuse another one that has replaced it."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path = file, path
        status = os.fstat(file.fileno())
        self.nbytes = status.st_size
        position = file.tell()
        file.seek(0)
        head = file.read(HEAD_BYTES)
        file.seek(max(0, self.nbytes - TAIL))
        tail = file.read()
        file.seek(position)
        self.request: dict[str, Any] = {
            "path": path, "head": HEAD_BYTES, "proof": proof(head, tail), "size": self.nbytes,
            "changed_ns": status.st_mtime_ns,
        }  # fmt: skip

    def mapped(self) -> memoryview:
        """Its bytes, of which only those that are used are read."""
        return memoryview(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ))


@contextmanager
def opened(paths: Iterable[str]) -> Iterator[dict[str, SeenFile]]:
    """The files by path, open."""
    files: dict[str, SeenFile] = {}
    try:
        for path in paths:
            files[path] = SeenFile(open(path, "rb"), path)  # noqa: SIM115, closed below
        yield files
    finally:
        for seen in files.values():
            seen.file.close()


class StoredChunk(NamedTuple):
    """A block of a tensor in a file."""

    file: SeenFile
    offset: int
    starts: Shape
    sizes: Shape


class StoredTensor(NamedTuple):
    type: TensorType
    chunks: tuple[StoredChunk, ...]

    @property
    def is_whole(self) -> bool:
        """Whether one chunk is all of it."""
        return len(self.chunks) == 1 and self.chunks[0].sizes == self.type.shape


def whole(file: SeenFile, t: TensorType, offset: int) -> StoredTensor:
    """A tensor that is one chunk of a file."""
    return StoredTensor(t, (StoredChunk(file, offset, (0,) * t.ndim, t.shape),))


def read(stored: dict[str, StoredTensor], into: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name. Those in ``into`` get the values in place, and keep their layout."""
    for name, one in stored.items():
        _check(name, one, into.get(name))
    values = read_on_workers(stored, into)
    if values is not None:
        return values
    mapped = {seen: seen.mapped() for one in stored.values() for seen in {c.file for c in one.chunks} if seen.nbytes}
    session = connect.session()
    result = {}
    for name, one in stored.items():
        value = upload(_bytes_of(one, mapped), one.type, session)
        result[name] = into[name].copy_(value) if name in into else value
    return result


def _check(name: str, one: StoredTensor, target: Tensor | None) -> None:
    for chunk in one.chunks:
        if chunk.offset + prod(chunk.sizes) * one.type.dtype.itemsize > chunk.file.nbytes:
            raise ValueError(f"{chunk.file.path}: the file ends before {name!r} does")
    if target is not None and target._type != one.type:
        raise ShapeError(f"load(into=…): {name!r} is {one.type} in the file, and {target._type} in the program")


def _bytes_of(one: StoredTensor, mapped: dict[SeenFile, memoryview]) -> memoryview:
    """The bytes of a tensor, for a client that sends them to the workers."""
    itemsize = one.type.dtype.itemsize
    if not one.type.nbytes:
        return memoryview(b"")
    if one.is_whole:
        chunk = one.chunks[0]
        return mapped[chunk.file][chunk.offset : chunk.offset + one.type.nbytes]
    joined = np.zeros((*one.type.shape, itemsize), np.uint8)
    for chunk in one.chunks:
        data = (
            mapped[chunk.file][chunk.offset : chunk.offset + prod(chunk.sizes) * itemsize] if prod(chunk.sizes) else b""
        )
        where = tuple(slice(at, at + n) for at, n in zip(chunk.starts, chunk.sizes, strict=True))
        joined[where] = np.frombuffer(data, np.uint8).reshape(*chunk.sizes, itemsize)
    return joined.reshape(-1).data


# -- on the workers --------------------------------------------------------------------------


def read_on_workers(stored: dict[str, StoredTensor], into: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Let the workers read the tensors; None if they cannot, because they do not see the same files."""
    session = connect.session()
    files = {chunk.file for one in stored.values() for chunk in one.chunks}
    if session.connection.is_shared or not all(_can_read(session, seen) for seen in files):
        return None
    result: dict[str, Tensor] = {}
    small, blocks = [], []
    for name, one in stored.items():
        target = into.get(name)
        direct = target is not None and target.ndim and target._view is None
        if one.is_whole and not direct and (target is not None or not is_large(one.type)):
            small.append(name)
            continue
        result[name] = value = target if direct and target is not None else empty(one.type.shape, dtype=one.type.dtype)
        blocks.append(value)
        _read_blocks(value, one)
    result |= _read_small({name: stored[name] for name in small})
    _wait_for(blocks)
    # a view, or a tensor without dims, gets a copy
    return {
        name: into[name].copy_(x) if name in into and x is not into[name] else x
        for name in stored
        for x in [result[name]]
    }


def _can_read(session: Session, seen: SeenFile) -> bool:
    """Whether the workers see the same file at this path."""
    key = json.dumps(seen.request)
    readable = _readable.setdefault(session, set())
    if key in readable:
        return True
    request = json.dumps(seen.request | {"offsets": [0]}).encode()
    *_, outcome = call_with(LOAD, request, (), (("types", (((0,), "uint8"),)),), session)
    try:
        outcome.item()
    except RemoteError:
        return False
    readable.add(key)
    return True


def _read_small(stored: dict[str, StoredTensor]) -> dict[str, Tensor]:
    """Small tensors, many in one instruction."""
    by_file: dict[SeenFile, list[str]] = {}
    for name, one in stored.items():
        by_file.setdefault(one.chunks[0].file, []).append(name)
    result: dict[str, Tensor] = {}
    outcomes = []
    for seen, names in by_file.items():
        for first in range(0, len(names), MAX_TENSORS):
            batch = names[first : first + MAX_TENSORS]
            offsets = [stored[name].chunks[0].offset for name in batch]
            types = tuple((stored[name].type.shape, stored[name].type.dtype.name) for name in batch)
            request = json.dumps(seen.request | {"offsets": offsets}).encode()
            *values, outcome = call_with(LOAD, request, (), (("types", types),), connect.session())
            result.update(zip(batch, values, strict=True))
            outcomes.append(outcome)
    for outcome in outcomes:
        outcome.item()
    return result


def _read_blocks(target: Tensor, one: StoredTensor) -> None:
    """Each worker reads its own block."""
    by_file: dict[SeenFile, list[StoredChunk]] = {}
    for chunk in one.chunks:
        by_file.setdefault(chunk.file, []).append(chunk)
    for seen, chunks in by_file.items():
        for first in range(0, len(chunks), MAX_CHUNKS):
            batch = [[chunk.offset, chunk.starts, chunk.sizes] for chunk in chunks[first : first + MAX_CHUNKS]]
            _read_into(target, json.dumps(seen.request | {"chunks": batch}).encode())


@deferred
def _read_into(target: Tensor, request: bytes) -> None:
    """Emit the op that reads a file into a tensor, in place."""
    session, t = target._cell.session, target._type
    attrs = (("starts", (0,) * t.ndim), ("whole", t.shape))
    coded = coded_call(session, LOAD_BLOCK, attrs, (t, BYTES), True)
    sent = session.upload(memoryview(request))
    outbox = session.outbox
    outbox.free()
    outbox.extend((coded[0], sites.here(), target._cell.id, target._cell.id, sent))
    target._cell.version += 1
    if len(outbox.words) >= outbox.limit:
        outbox.full()


def _wait_for(tensors: list[Tensor]) -> None:
    """Wait until all workers have read these tensors. Raises the error of one that could not."""
    counts = [call(COUNT, (x.detach(),), ()) for x in tensors]
    if counts:
        stack(counts).sum().item()
