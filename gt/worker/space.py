"""What one client has on a worker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gt.ops import Signature
from gt.types import TensorType
from gt.wire.codec import from_wire
from gt.wire.messages import Execute, Move
from gt.wire.transfers import Channel, Incoming, Outgoing
from gt.worker.collectives import Flight
from gt.worker.engines import Linked


class DeviceBroken(Exception):
    """The device can do no more in this process: the worker ends."""


#: This bit in `Failure.cause` says that a lost worker is the cause. Other workers receive only the number.
LOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands where a tensor would be whose instruction, or one it depends on, failed."""

    cause: int
    kind: str
    text: str
    site: int
    #: on another worker
    elsewhere: bool = False


#: What a word stands for that names nothing: only a client that breaks the protocol gets to see it.
NOTHING = Failure(0, "RemoteError", "there is no such tensor", 0)


class Flying:
    """Stands where a tensor will be as soon as it has been moved."""

    __slots__ = ("cause", "failure", "flight", "reads", "site", "what")

    def __init__(self, what: str, site: int, flight: Flight, cause: Flight | None, failure: Failure | None) -> None:
        #: the move in words
        self.what, self.site = what, site
        self.flight = flight
        #: the number of a failure on one of the workers the value comes from, if they are asked
        self.cause = cause
        #: what became of this worker's own part; it took part with zeros, so that nobody waits for it
        self.failure = failure
        #: may it still read the array it was begun with?
        self.reads = True

    def landed(self) -> bool:
        return self.flight.done() and (self.cause is None or self.cause.done())


class Entry:
    """A signature, ready to run."""

    __slots__ = ("plain", "run", "signature", "width")

    def __init__(self, signature: Signature, run: Linked) -> None:
        self.signature, self.run = signature, run
        self.plain, self.width = signature.plain, signature.width


class MoveEntry:
    """A worker's part in a move, in the place of a signature: one operand, one result."""

    __slots__ = ("after", "before", "group", "how", "into", "kind", "members", "plain", "signature", "start", "width")

    def __init__(self, move: Move, members: tuple[int, ...]) -> None:
        self.kind, self.group, self.how, self.members = move.kind, move.group, dict(move.how), members
        self.before = _type(move.before)
        self.after = _type(move.after)
        self.plain, self.width, self.start, self.into = -1, 4, 3, False
        self.signature = self

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where its operand is, if it has one."""
        return (3,) if self.before is not None else ()

    def __str__(self) -> str:
        return f"{self.kind} among workers {', '.join(map(str, self.members))}"


def _type(wire: Any) -> TensorType | None:
    found = None if wire is None else from_wire(wire)
    assert found is None or isinstance(found, TensorType)
    return found


class Space:
    def __init__(self, shares_memory: bool) -> None:
        self.store: dict[int, Any] = {}
        self.codes: dict[int, Any] = {}
        #: number -> a fragment; a `gt.worker.fragments.Program` once it was run
        self.fragments: dict[int, Any] = {}
        #: how many of the values in the store are none: failures, or still flying; without any, nobody looks for them
        self.odd = 0
        #: what is on its way here, and what is on its way from here alone
        self.flying: dict[int, Flying] = {}
        self.sent: list[Flying] = []
        self.transfers: dict[int, tuple[Incoming, memoryview] | Exception] = {}
        #: the groups it moves tensors in -> their members
        self.groups: dict[int, tuple[int, ...]] = {}
        #: the last flights in groups it is leaving
        self.farewells: dict[int, Flying] = {}
        #: the reasons for which something of it is not compiled, as far as its client was told
        self.told: set[str] = set()
        self.shares_memory = shares_memory
        #: the name of the client's lane
        self.lane = ""
        self.channel = Channel()
        #: the value that is going out, the one that is waited for, and what waits behind them
        self.outgoing: Outgoing | None = None
        self.awaited: Flying | None = None
        self.waiting: deque[tuple[Execute, int]] = deque()

    def put(self, id: int, value: Any) -> None:
        """Keep a value, or what stands for one."""
        if self.odd:
            self.forget(id)
        if type(value) in ODD:
            self.odd += 1
            if type(value) is Flying:
                self.flying[id] = value
        self.store[id] = value

    def drop(self, id: int) -> None:
        if self.odd:
            self.forget(id)
        self.store.pop(id, None)

    def forget(self, id: int) -> None:
        """If it is odd, it is so no longer; what it was a part of goes on."""
        was = self.store.get(id)
        if type(was) in ODD:
            self.odd -= 1
            flying = self.flying.pop(id, None)
            if flying is not None and flying.reads:
                self.sent.append(flying)

    def received(self, word: int | bytes) -> memoryview:
        """An operand that came in the stream, or in parts before it."""
        if isinstance(word, bytes):
            return memoryview(word)
        transfer = self.transfers.pop(word, None)
        if isinstance(transfer, Exception):
            raise transfer
        if transfer is None or not transfer[0].complete:
            raise ValueError("the value did not arrive in full")
        return transfer[1]

    def stopped(self) -> bool:
        """Must the rest of its program wait?"""
        if self.awaited is not None and self.awaited.landed():
            self.awaited = None
        return self.outgoing is not None or self.awaited is not None

    def close(self) -> None:
        self.store.clear()
        self.outgoing = self.awaited = None
        self.channel.close()


ODD = (Failure, Flying)


def raising(error: Exception) -> Linked:
    def run(*operands: Any) -> Any:
        raise error

    return run


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
