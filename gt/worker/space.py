"""What one client has on a worker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gt.wire.messages import Execute
from gt.wire.transfers import Channel, Incoming, Outgoing
from gt.worker.collectives.interface import CollectiveHandle

#: This bit in `Failure.cause` says that a lost worker is the cause. Other workers receive only the number.
LOST_WORKER_BIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Failure:
    """Takes the place of a tensor whose instruction failed, or depends on one that failed."""

    cause: int
    kind: str
    text: str
    site: int
    #: whether the instruction failed on another worker
    elsewhere: bool = False


#: The value of an unknown id. Only a client that breaks the protocol can read it.
NO_TENSOR = Failure(0, "RemoteError", "there is no such tensor", 0)


class PendingMove:
    """Takes the place of a tensor until its move is complete."""

    __slots__ = ("cause", "failure", "handle", "reads_operand", "site", "text")

    def __init__(
        self, text: str, site: int, handle: CollectiveHandle, cause: CollectiveHandle | None, failure: Failure | None
    ) -> None:
        #: the move in words
        self.text, self.site = text, site
        self.handle = handle
        #: gives the number of a failure on one of the source workers; None if the move does not transfer it
        self.cause = cause
        #: why this worker had no operand; it sent zeros instead, so that the others do not wait
        self.failure = failure
        #: whether it may still read the array it was started with
        self.reads_operand = True

    def done(self) -> bool:
        return self.handle.done() and (self.cause is None or self.cause.done())


#: The types of the values in a store that are not tensors.
PLACEHOLDERS = (Failure, PendingMove)


class ClientSpace:
    def __init__(self, shares_memory: bool) -> None:
        #: tensor id -> array, or a placeholder
        self.store: dict[int, Any] = {}
        self.codes: dict[int, Any] = {}
        #: number -> a fragment as it arrived; a `gt.worker.fragments.LinkedFragment` once it has run
        self.fragments: dict[int, Any] = {}
        #: how many values in the store are placeholders; while it is 0, instructions need not look for them
        self.placeholders = 0
        #: tensor id -> its pending move; the moves that have no result on this worker
        self.pending: dict[int, PendingMove] = {}
        self.sends: list[PendingMove] = []
        self.transfers: dict[int, tuple[Incoming, memoryview] | Exception] = {}
        #: group -> its members
        self.groups: dict[int, tuple[int, ...]] = {}
        #: group that is being left -> its last collective
        self.leave_barriers: dict[int, PendingMove] = {}
        #: the reasons for not compiling that were announced to the client
        self.announced_reasons: set[str] = set()
        self.shares_memory = shares_memory
        #: the name of the client's shared memory
        self.ring = ""
        self.channel = Channel()
        #: the value that is being sent; the move that the program waits for; and the words that wait for them
        self.outgoing: Outgoing | None = None
        self.awaited: PendingMove | None = None
        self.waiting: deque[tuple[Execute, int]] = deque()

    def put(self, id: int, value: Any) -> None:
        """Store a tensor or a placeholder."""
        if self.placeholders:
            self._remove_placeholder(id)
        if type(value) in PLACEHOLDERS:
            self.placeholders += 1
            if type(value) is PendingMove:
                self.pending[id] = value
        self.store[id] = value

    def drop(self, id: int) -> None:
        if self.placeholders:
            self._remove_placeholder(id)
        self.store.pop(id, None)

    def _remove_placeholder(self, id: int) -> None:
        """Update the counts if the value is a placeholder. Its move continues."""
        if type(self.store.get(id)) in PLACEHOLDERS:
            self.placeholders -= 1
            move = self.pending.pop(id, None)
            if move is not None and move.reads_operand:
                self.sends.append(move)

    def received(self, word: int | bytes) -> memoryview:
        """A bytes operand: in the stream itself, or in chunks that were sent before."""
        if isinstance(word, bytes):
            return memoryview(word)
        transfer = self.transfers.pop(word, None)
        if isinstance(transfer, Exception):
            raise transfer
        if transfer is None or not transfer[0].complete:
            raise ValueError("the value did not arrive in full")
        return transfer[1]

    def must_wait(self) -> bool:
        """Whether the rest of the program must wait."""
        if self.awaited is not None and self.awaited.done():
            self.awaited = None
        return self.outgoing is not None or self.awaited is not None

    def close(self) -> None:
        self.store.clear()
        self.outgoing = self.awaited = None
        self.channel.close()
