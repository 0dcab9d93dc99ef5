"""What the dispatcher knows of each client and each worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.ledger import Ledger
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost
from gt.dispatcher.plan.signals import Signals
from gt.ops import Signature
from gt.types import BOOL, BYTES, FLOAT, INT, TensorType
from gt.wire.codec import encode
from gt.wire.messages import Ask, Definition, Locate, Submit, Trace, WorkerInfo

Peer = bytes

#: Estimated microseconds that every call takes.
MIN_CALL_US = 4.0

#: The Python type of a number in a stream.
NUMBER_TYPES: dict[Any, type] = {INT: int, FLOAT: float, BOOL: bool}


class CodedSignature:
    """A client's signature, in the form that the forwarding loop needs."""

    __slots__ = (
        *("blobs", "cost", "definition", "into", "nbytes", "numbers", "offsets", "plain"),
        *("signature", "start", "width"),
    )

    def __init__(self, definition: Definition, signature: Signature) -> None:
        self.definition, self.signature = definition, signature
        #: its size on the wire
        self.nbytes = len(encode(definition))
        #: offsets of the operands that may be the number of a transfer
        self.blobs = tuple(signature.start + i for i, t in enumerate(signature.ins) if t is BYTES)
        #: offsets of the numbers, with their Python types
        self.numbers = tuple(
            (signature.start + i, NUMBER_TYPES[t]) for i, t in enumerate(signature.ins) if t in NUMBER_TYPES
        )
        self.plain, self.width, self.start = signature.plain, signature.width, signature.start
        self.offsets, self.into = signature.offsets, signature.into
        #: estimated microseconds on a plain CPU core; `Client.pace` corrects it by measured time
        self.cost = estimate(signature)


def estimate(signature: Signature) -> float:
    """Microseconds: the minimum of a call, 10 GB/s for the bytes, 50 GFLOP/s for flops beyond one an element.

    The estimate is at most ten seconds. A call that claims more will fail, and must not overflow the accounts.
    """
    if signature.op.view:
        return MIN_CALL_US
    types = [t for t in (*signature.ins, *signature.outs) if isinstance(t, TensorType)]
    flops = signature.op.flops(*signature.ins, **dict(signature.attrs)) if signature.op.flops else 0
    work = sum(t.nbytes for t in types) * 5 + flops
    return MIN_CALL_US + min(work, 500_000_000_000) / 5e4


@dataclass(slots=True, eq=False)
class WorkerSet:
    """A set of workers that get the same words of one client."""

    number: int
    workers: tuple[WorkerState, ...]
    peers: tuple[Peer, ...]
    #: what they got and were not yet asked to confirm: estimated microseconds on each worker, and the weight
    cost: float = 0.0
    weight: int = 0


@dataclass(slots=True, eq=False)
class Client:
    id: int
    peer: Peer
    host: str
    ledger: Ledger
    codes: dict[int, CodedSignature] = field(default_factory=dict)
    #: codes below ``first_code`` were forgotten; fragments up to ``last_fragment`` were defined: no number is reused
    first_code: float = 0
    last_fragment: int = 0
    tensors: dict[int, AnyState] = field(default_factory=dict)
    #: (code, *states of the operands) -> the state of the result, or a plan of `gt.dispatcher.instruction_plans`
    plans: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    #: number -> `gt.dispatcher.replay.replay_plans.KnownFragment`
    fragments: dict[int, Any] = field(default_factory=dict)
    #: tensor -> layout -> id of its cached copy in that layout
    copies: dict[int, dict[Layout, int]] = field(default_factory=dict)
    #: tensors whose copies are not cached but freed after use
    uncached: set[int] = field(default_factory=set)
    #: tensor -> (the plan that produced it, which of its results); only for tensors on several workers
    origins: dict[int, Any] = field(default_factory=dict)
    config: Signals = field(default_factory=Signals)
    #: the texts of the notices it got, and how many of them came from workers
    notices: set[str] = field(default_factory=set)
    worker_notices: int = 0
    #: [message, position] of messages that were received and not yet forwarded completely
    queue: deque[list[Any]] = field(default_factory=deque)
    #: the worker on which new tensors are created
    home: int | None = None
    #: workers -> their set; and how many sets there were, including those that were dropped
    worker_sets: dict[tuple[int, ...], WorkerSet] = field(default_factory=dict)
    worker_set_count: int = 0
    #: the weight of all its worker sets together that no worker was asked to confirm yet
    unrequested: int = 0
    #: worker -> the client's codes that were announced to it; its keys are the workers that admitted the client
    announced: dict[int, set[int]] = field(default_factory=dict)
    #: request -> the workers that will answer it
    reads: dict[int, set[int]] = field(default_factory=dict)
    #: requests that the dispatcher answered itself because there was no worker
    abandoned_reads: set[int] = field(default_factory=set)
    #: (transfer, bytes, bytes in a frame) of the chunks that its worker has not acknowledged, oldest first
    chunks: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: the sum of their bytes in frames
    chunk_bytes: int = 0
    #: transfer -> where its chunks went, until an instruction uses it
    transfers: dict[int, Layout | Lost] = field(default_factory=dict)
    #: requests that wait until the queue is empty
    waiting_requests: list[Ask | Locate | Trace] = field(default_factory=list)
    #: the latest requests for traces; those that are open are also in ``reads``
    traces: list[int] = field(default_factory=list)
    #: the serial number of the last submission
    serial: int = 0
    #: weights: received, done, and done as far as the client was told
    received: int = 0
    done: int = 0
    credited: int = 0
    #: worker time used, in microseconds on the clock of its home; the client with the least is served first
    used: float = 0.0
    #: measured time divided by estimated time; each client has its own, so an odd program does not affect the others
    pace: float = 1.0
    #: since when it has had work and no worker, on the shell's clock
    stranded_since: float | None = None
    #: the workers that had no room for more of its work when last checked
    full_workers: list[int] = field(default_factory=list)

    def forget_plans(self) -> None:
        """Call this when the workers or the signals have changed."""
        self.plans.clear()
        self.forget_replay_plans()

    def forget_replay_plans(self) -> None:
        for fragment in self.fragments.values():
            fragment.plans.clear()

    def forget_origin(self, id: int) -> None:
        self.origins.pop(id, None)
        self.uncached.discard(id)

    def enqueue(self, submit: Submit) -> None:
        self.received += submit.weight
        # the stream is copied because forwarding replaces codes in it
        self.queue.append([Submit(submit.serial, [], submit.stream[:], submit.weight), 0])

    def has_room(self, workers: Mapping[int, WorkerState], limit: float) -> bool:
        """May all the workers it has work on get more?

        The workers that were full last time are checked first. With many workers, each of which reports when it is
        done, checking all of them every time would take quadratic time.
        """
        full = self.full_workers
        while full:
            worker = workers.get(full[-1])
            if worker is not None and not worker.has_room_for(self.id, limit):
                return False
            full.pop()
        busy = [w for w in map(workers.__getitem__, self.announced) if w.ahead >= limit or w.parked]
        full += [w.id for w in busy if not w.has_room_for(self.id, limit)]
        return not full


@dataclass(slots=True, eq=False)
class WorkerState:
    id: int
    peer: Peer
    info: WorkerInfo
    layout: Layout
    #: why it ended, if it could still report it
    exit_reason: str = ""
    #: estimated microseconds of the work it got and has not confirmed
    ahead: float = 0.0
    #: (client, weight, estimate, number of workers that share the work) it must still confirm, oldest first
    unconfirmed: deque[tuple[int, int, float, int]] = field(default_factory=deque)
    #: client -> the share of ``ahead`` that waits until the client has taken more of a large value
    parked: dict[int, float] = field(default_factory=dict)
    #: how much time the client served last had used; a client that begins or returns from a pause starts here
    clock: float = 0.0
    admitted: set[int] = field(default_factory=set)

    def expect(self, client: int, weight: int, cost: float, sharing: int = 1) -> None:
        """The worker was asked to confirm this work."""
        self.unconfirmed.append((client, weight, cost, sharing))
        self.ahead += cost

    def confirm(self, client: int) -> tuple[int, float, int] | None:
        """Take the client's oldest work off the list: (weight, estimate, sharing); None if it has none."""
        unconfirmed = self.unconfirmed
        at = 0
        if not unconfirmed or unconfirmed[0][0] != client:  # rare: its work is not the oldest of all
            at = next((i for i, (owner, *_) in enumerate(unconfirmed) if owner == client), -1)
            if at < 0:
                return None
        _, weight, cost, sharing = unconfirmed[at]
        del unconfirmed[at]
        self.ahead = self.ahead - cost if unconfirmed else 0.0
        if client in self.parked:
            self.parked[client] -= cost
        return weight, cost, sharing

    def park(self, client: int) -> None:
        if client not in self.parked:
            self.parked[client] = sum(cost for owner, _, cost, _ in self.unconfirmed if owner == client)

    def has_room_for(self, client: int, limit: float) -> bool:
        """May it get more of this client's work?"""
        if not self.parked:
            return self.ahead < limit
        return client not in self.parked and self.ahead - sum(self.parked.values()) < limit
