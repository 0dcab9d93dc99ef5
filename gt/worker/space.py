"""What one client has on a worker: tensors, codes, fragments, transfers, and the streams that wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gt.wire.messages import Execute
from gt.wire.transfers import Channel, Incoming, Outgoing
from gt.worker.collectives.interface import CollectiveHandle
from gt.worker.memory_account import MemoryAccount

#: This bit in `Failure.cause` says that a lost worker is the cause. Other workers receive only the number.
LOST_WORKER_BIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Failure:
    """Takes the place of a tensor whose instruction failed, or depends on one that failed."""

    #: a number that identifies the first failure; 0 if there is none
    cause: int
    #: the kind of the error that the client raises, for example "RemoteError"
    kind: str
    text: str
    #: the client's number of the source line
    site: int
    #: whether the instruction failed on another worker
    elsewhere: bool = False


#: The value of an unknown id. Only a client that breaks the protocol can read it.
NO_TENSOR = Failure(0, "RemoteError", "there is no such tensor", 0)


class PendingMove:
    """Takes the place of a tensor until its move is complete."""

    __slots__ = ("failure", "handle", "is_noted", "operand", "reads_operand", "site", "text")

    def __init__(
        self,
        text: str,
        site: int,
        handle: CollectiveHandle,
        failure: Failure | None,
        operand: Any = None,
    ) -> None:
        #: the move in words
        self.text, self.site = text, site
        self.handle = handle
        #: why this worker had no operand; it sends zeros instead, so that the others do not wait
        self.failure = failure
        #: the array it was started with, which it may read until it is done; None if it has none, or has copied it
        self.operand = operand
        #: whether the `Failure.cause` of a failure at a source travels with it
        self.is_noted = False
        #: whether its end matters even if nobody needs its result
        self.reads_operand = True

    def done(self) -> bool:
        return self.handle.done()


#: The types of the values in a store that are not tensors.
PLACEHOLDERS = (Failure, PendingMove)


class ClientSpace:
    """The state of one client. ``shares_memory``: client and worker are on one host."""

    def __init__(self, shares_memory: bool, account: MemoryAccount | None = None) -> None:
        #: what the tensors of its user take, if the user has a quota of memory
        self.account = account
        #: tensor id -> array, or a placeholder
        self.store: dict[int, Any] = {}
        #: code -> a `gt.worker.linked.LinkedSignature` or `LinkedMove`
        self.codes: dict[int, Any] = {}
        #: number -> the fragment as it arrived; from its first run on a `gt.worker.fragments.LinkedFragment`
        self.fragments: dict[int, Any] = {}
        #: how many values in the store are placeholders; while it is 0, instructions need not look for them
        self.placeholders = 0
        #: tensor id -> its pending move
        self.pending: dict[int, PendingMove] = {}
        #: pending moves without a result in the store: this worker only sends, or the result was freed
        self.sends: list[PendingMove] = []
        #: transfer -> its chunks and the memory they are assembled in, or why they could not be received
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
        #: the value that is being sent; the move that the stream waits for; the streams that wait, each from a word on
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
        """Update the counts if the value is a placeholder. A pending move continues without a result."""
        if type(self.store.get(id)) in PLACEHOLDERS:
            self.placeholders -= 1
            move = self.pending.pop(id, None)
            if move is not None and move.reads_operand:
                self.sends.append(move)

    def arrays(self, ids: list[int]) -> list[Any]:
        """Those of the tensors that are arrays, not placeholders."""
        values = [self.store.get(id) for id in ids]
        return [value for value in values if value is not None and type(value) not in PLACEHOLDERS]

    def received(self, word: int | bytes) -> memoryview:
        """The bytes of an operand: the word itself, or the chunks of the transfer with this number."""
        if isinstance(word, bytes):
            return memoryview(word)
        transfer = self.transfers.pop(word, None)
        if isinstance(transfer, Exception):
            raise transfer
        if transfer is None or not transfer[0].complete:
            raise ValueError("the value did not arrive in full")
        return transfer[1]

    def must_wait(self) -> bool:
        """Whether the rest of the stream must wait."""
        if self.awaited is not None and self.awaited.done():
            self.awaited = None
        return self.outgoing is not None or self.awaited is not None

    def close(self) -> None:
        self.store.clear()
        self.outgoing = self.awaited = None
        self.channel.close()
