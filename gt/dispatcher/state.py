"""What the dispatcher knows: where tensors lie, what clients are owed, what workers are doing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.ledger import Book
from gt.dispatcher.plan.layouts import Layout, Lost, Where
from gt.dispatcher.plan.signals import Signals
from gt.ops import Signature
from gt.types import BOOL, BYTES, FLOAT, INT, TensorType
from gt.wire.codec import encode
from gt.wire.messages import Ask, Definition, Locate, Submit, Trace, WorkerInfo

Peer = bytes


class Violation(Exception):
    """A peer broke the protocol; it loses its connection."""


#: Microseconds any call takes.
FLOOR = 4.0


#: The Python type of a number in a stream.
KINDS: dict[Any, type] = {INT: int, FLOAT: float, BOOL: bool}


class Coded:
    """A client's signature as the forwarding loop needs it."""

    __slots__ = (
        *("blobs", "cost", "definition", "into", "nbytes", "numbers", "offsets", "plain"),
        *("signature", "start", "width"),
    )

    def __init__(self, definition: Definition, signature: Signature) -> None:
        self.definition, self.signature = definition, signature
        #: its size on the wire
        self.nbytes = len(encode(definition))
        #: where the operands are that may be the number of a transfer
        self.blobs = tuple(signature.start + i for i, t in enumerate(signature.ins) if t is BYTES)
        #: where numbers are, and of which Python type
        self.numbers = tuple((signature.start + i, KINDS[t]) for i, t in enumerate(signature.ins) if t in KINDS)
        self.plain, self.width, self.start = signature.plain, signature.width, signature.start
        self.offsets, self.into = signature.offsets, signature.into
        #: estimated microseconds on a plain CPU core; what a client really used corrects it
        self.cost = estimate(signature)


def estimate(signature: Signature) -> float:
    """A floor for the call, 10 GB/s for the bytes, 50 GFLOP/s for the arithmetic beyond one operation an element.

    No more than ten seconds: what claims to be longer will fail, and nobody's account should overflow by it.
    """
    if signature.op.view:
        return FLOOR
    types = [t for t in (*signature.ins, *signature.outs) if isinstance(t, TensorType)]
    flops = signature.op.flops(*signature.ins, **dict(signature.attrs)) if signature.op.flops else 0
    work = sum(t.nbytes for t in types) * 5 + flops
    return FLOOR + min(work, 500_000_000_000) / 5e4


@dataclass(slots=True, eq=False)
class Crew:
    """Workers that get the same words of one client."""

    number: int
    workers: tuple[Worker, ...]
    peers: tuple[Peer, ...]
    #: what they were given and not asked to confirm yet: estimated microseconds on each of them, and its weight
    cost: float = 0.0
    weight: int = 0


@dataclass(slots=True, eq=False)
class Client:
    id: int
    peer: Peer
    host: str
    book: Book
    codes: dict[int, Coded] = field(default_factory=dict)
    #: the codes below were forgotten, and the fragments up to this one defined: none of these numbers is given again
    first_code: float = 0
    last_fragment: int = 0
    tensors: dict[int, Where] = field(default_factory=dict)
    #: (code, *places of the operands) -> where it runs, and its results lie; or a `gt.dispatcher.forward.Plan`
    plans: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    #: number -> `gt.dispatcher.replay.replay.Known`
    fragments: dict[int, Any] = field(default_factory=dict)
    #: tensor -> its copies in other layouts
    copies: dict[int, dict[Layout, int]] = field(default_factory=dict)
    #: tensors whose copies are let go after use
    loose: set[int] = field(default_factory=set)
    #: tensor -> the plan that made it, if it lies on several workers
    made: dict[int, Any] = field(default_factory=dict)
    config: Signals = field(default_factory=Signals)
    #: what it was advised of
    advised: set[str] = field(default_factory=set)
    #: and of that, how much by workers
    noticed: int = 0
    #: [submit, position]: received, and not yet given to a worker
    queue: deque[list[Any]] = field(default_factory=deque)
    #: the worker new tensors are made on
    home: int | None = None
    #: the sets of workers it has given work to; and how many there were, also with those that are gone
    crews: dict[tuple[int, ...], Crew] = field(default_factory=dict)
    crewed: int = 0
    #: the weights its crews were not asked for yet, all together
    unasked: int = 0
    #: which of its codes each worker was told; the workers it has work on
    told: dict[int, set[int]] = field(default_factory=dict)
    #: request -> the workers that will answer it
    reads: dict[int, set[int]] = field(default_factory=dict)
    #: requests that were answered by the dispatcher in the worker's place
    given_up: set[int] = field(default_factory=set)
    #: (transfer, bytes, of which in a frame) of the parts its worker has not confirmed, oldest first
    parts: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: the bytes of those in frames
    parts_ahead: int = 0
    #: transfer -> where its parts went, until an instruction uses it
    transfers: dict[int, Layout | Lost] = field(default_factory=dict)
    #: questions that wait for the end of the queue
    questions: list[Ask | Locate | Trace] = field(default_factory=list)
    #: the last requests for traces; those that are open are among its reads
    traces: list[int] = field(default_factory=list)
    #: the last submission received
    serial: int = 0
    #: weights: received, done, and done as far as the client was told
    received: int = 0
    done: int = 0
    told_done: int = 0
    #: worker time used, in microseconds on its home's clock; who has used least goes first
    used: float = 0.0
    #: measured over estimated time; its own, so that nobody's odd program spoils the others' estimates
    pace: float = 1.0
    #: since when it has had work and no worker, as the shell's clock said
    stranded: float | None = None
    #: the workers that had no room for more of it when they were last asked
    full: list[int] = field(default_factory=list)

    def forget_plans(self) -> None:
        """What was planned holds no longer: the workers or the signals are others now."""
        self.plans.clear()
        self.forget_courses()

    def forget_courses(self) -> None:
        for known in self.fragments.values():
            known.courses.clear()

    def enqueue(self, submit: Submit) -> None:
        self.received += submit.weight
        # its stream is a copy: codes in it will be replaced
        self.queue.append([Submit(submit.serial, [], submit.stream[:], submit.weight), 0])

    def has_room(self, workers: Mapping[int, Worker], limit: float) -> bool:
        """May all the workers it has work on get more? Who had no room is asked first: each of many says when he is
        done, and asking all of them every time would take their number squared."""
        full = self.full
        while full:
            worker = workers.get(full[-1])
            if worker is not None and not worker.free_for(self.id, limit):
                return False
            full.pop()
        busy = [w for w in map(workers.__getitem__, self.told) if w.ahead >= limit or w.parked]
        full += [w.id for w in busy if not w.free_for(self.id, limit)]
        return not full


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    peer: Peer
    info: WorkerInfo
    layout: Layout
    #: why it ended, if it could still say so
    last_words: str = ""
    #: estimated microseconds of what it was given and has not done
    ahead: float = 0.0
    #: (client, weight, estimate, among how many workers) of what it was asked to confirm and has not, oldest first
    given: deque[tuple[int, int, float, int]] = field(default_factory=deque)
    #: client -> the part of ``ahead`` that waits until the client has taken more of a large value
    parked: dict[int, float] = field(default_factory=dict)
    #: how much time the client last served had used: who begins, or comes back from a pause, starts here
    clock: float = 0.0
    admitted: set[int] = field(default_factory=set)

    def give(self, client: int, weight: int, cost: float, among: int = 1) -> None:
        self.given.append((client, weight, cost, among))
        self.ahead += cost

    def finish(self, client: int) -> tuple[int, float, int] | None:
        """The client's oldest, which need not be the oldest of all: (weight, estimate, among); None if it has none."""
        given = self.given
        at = 0
        if not given or given[0][0] != client:  # rare
            at = next((i for i, (owner, *_) in enumerate(given) if owner == client), -1)
            if at < 0:
                return None
        _, weight, cost, among = given[at]
        del given[at]
        self.ahead = self.ahead - cost if given else 0.0
        if client in self.parked:
            self.parked[client] -= cost
        return weight, cost, among

    def park(self, client: int) -> None:
        if client not in self.parked:
            self.parked[client] = sum(cost for owner, _, cost, _ in self.given if owner == client)

    def free_for(self, client: int, limit: float) -> bool:
        """May it get more of this client's work?"""
        if not self.parked:
            return self.ahead < limit
        return client not in self.parked and self.ahead - sum(self.parked.values()) < limit
