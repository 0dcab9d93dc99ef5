"""The messages of recovery: a client's program runs again when a worker is lost."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gt.wire.structures import Message, SharedRange, WireType


class Recover(Message, frozen=True, array_like=True, tag=True):
    """Keep this client's program, and run it again when a worker is lost. Sent before the first instruction."""

    #: how many seconds to wait for a new worker before the program goes on with fewer
    wait: float
    #: seconds between two snapshots; 0: none are taken by themselves
    every: float = 0.0


class Restarted(Message, frozen=True, array_like=True, tag=True):
    """The client's program runs again, because a worker was lost. The client sends it back without requests."""

    #: the reads whose values will be sent, from their beginning
    requests: list[int]


class Dropped(Message, frozen=True, array_like=True, tag=True):
    """A worker's answer to `Drop` with ``again``: what it sends for the client after this belongs to the new run."""

    client: int


class TakeSnapshot(Message, frozen=True, array_like=True, tag=True):
    """Copy all tensors of the client as they are after what was submitted so far. Answered by `SnapshotTaken`."""

    request: int


class SnapshotTaken(Message, frozen=True, array_like=True, tag=True):
    """Answers `TakeSnapshot` and `Keep` when the snapshot is complete, and `Fork` when the tensors are there."""

    request: int
    #: why there is none; empty: there is one
    problem: str


class SavedFailure(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that has a failure instead of a value (see `gt.worker.space.Failure`)."""

    id: int
    cause: int
    kind: str
    text: str
    site: int
    elsewhere: bool


class SavedBlock(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker has written its block of a tensor."""

    id: int
    #: the storage that the block is a part of: where it begins, and its size in bytes; several blocks may share it
    storage: int
    nbytes: int
    #: where the block begins in the storage, and its strides, in bytes
    offset: int
    strides: list[int]


class SaveTo(Message, frozen=True, array_like=True, tag=True):
    """Where a worker writes its part of a snapshot; the SNAPSHOT of the client's stream comes after it."""

    client: int
    number: int
    #: the file; empty: shared memory
    file: str
    #: the most bytes that the part may have; -1: no limit
    limit: int


class Saved(Message, frozen=True, array_like=True, tag=True):
    """A worker has written its part of a snapshot."""

    client: int
    number: int
    #: None if it is in a file
    memory: SharedRange | None
    nbytes: int
    blocks: list[SavedBlock]
    failures: list[SavedFailure]
    #: why it could not be written; empty: it was
    problem: str


class SavedPart(msgspec.Struct, frozen=True, array_like=True):
    """Where the part of one worker is."""

    #: None if it is in a file
    memory: SharedRange | None
    #: empty if it is in memory
    file: str
    nbytes: int = 0


class Release(Message, frozen=True, array_like=True, tag=True):
    """The worker need not keep its part of a snapshot: the server has opened its memory, or the snapshot failed."""

    client: int
    number: int


class SavedPiece(msgspec.Struct, frozen=True, array_like=True):
    """A region of a saved block that becomes a region of another block."""

    #: the index of the part that holds the block, the block there, and its sizes
    part: int
    block: SavedBlock
    sizes: list[int]
    #: where the region begins in the saved block, where in the new one, and its lengths
    start: list[int]
    to: list[int]
    lengths: list[int]


class RestoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """One worker's block of a tensor, and where its parts are saved."""

    id: int
    dtype: str
    sizes: list[int]
    #: the terms that ``op`` combines, each in pieces; one term, unless a partial tensor is restored on fewer workers
    terms: list[list[SavedPiece]]
    op: str


class Restore(Message, frozen=True, array_like=True, tag=True):
    """Put tensors of a snapshot into the client's space, which is empty."""

    client: int
    parts: list[SavedPart]
    tensors: list[RestoredTensor]
    failures: list[SavedFailure]


class Keep(Message, frozen=True, array_like=True, tag=True):
    """Copy these tensors as they are after what was submitted so far, for `Fork`. Answered by `SnapshotTaken`."""

    request: int
    #: a random text that names the snapshot among those of the user
    key: str
    tensors: list[int]
    #: what the tensors are parts of; only clients read it
    structure: bytes
    #: for how many seconds it is kept after the session has ended
    seconds: float
    weight: ClassVar[int] = 0


class FindKept(Message, frozen=True, array_like=True, tag=True):
    """What is in this snapshot of the user? Answered by `KeptFound` when it is complete."""

    request: int
    key: str


class KeptFound(Message, frozen=True, array_like=True, tag=True):
    """Answers `FindKept`."""

    request: int
    #: why it cannot be forked; empty: it can
    problem: str
    types: tuple[WireType, ...] = ()
    structure: bytes = b""


class Fork(Message, frozen=True, array_like=True, tag=True):
    """Copy the tensors of a snapshot to new tensors of this client. Answered by `SnapshotTaken`."""

    request: int
    key: str
    #: the new tensors, in the order of `Keep.tensors`
    tensors: list[int]
    weight: ClassVar[int] = 0


class DropKept(Message, frozen=True, array_like=True, tag=True):
    """The snapshot is not needed any more. No answer."""

    key: str
    weight: ClassVar[int] = 0


class Kept(Message, frozen=True, array_like=True, tag=True):
    """A worker has copied its part of a snapshot."""

    client: int
    number: int
    #: why it could not; empty: it could
    problem: str


class CopyKept(Message, frozen=True, array_like=True, tag=True):
    """Copy tensors of a snapshot into the client's space: (tensor in the snapshot, new tensor)."""

    client: int
    number: int
    tensors: list[tuple[int, int]]


class FreeKept(Message, frozen=True, array_like=True, tag=True):
    """Free the worker's part of a snapshot."""

    number: int


RecoveryToDispatcher = Recover | Restarted | Dropped | TakeSnapshot | Saved | Keep | FindKept | Fork | DropKept | Kept
RecoveryToClient = Restarted | SnapshotTaken | KeptFound
RecoveryToWorker = SaveTo | Release | Restore | CopyKept | FreeKept
