"""The dispatcher's state of each client and each worker.

Two quantities measure work. *Cost* is estimated microseconds on a worker: the scheduler limits and shares it. *Weight*
is the size of a submission in words: it comes back to the client as credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.ledger import Ledger
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost
from gt.dispatcher.plan.signals import KeptParts, Signals
from gt.dispatcher.recovery.program_log import ProgramLog
from gt.ops import Signature
from gt.ops.cost import estimate
from gt.types import BOOL, BYTES, FLOAT, INT
from gt.wire.codec import encode
from gt.wire.event_messages import Listen
from gt.wire.identities import OWNER, PeerIdentity
from gt.wire.messages import Ask, Configure, Locate, Submit, Trace
from gt.wire.recovery_messages import FindKept
from gt.wire.structures import Definition, WorkerInfo
from gt.wire.words import MAX_UNACKNOWLEDGED_BYTES

Peer = bytes

#: Estimated microseconds of work that a worker with one client gets ahead, while other workers of the client have less
#: than the usual limit. A new client waits this long, once.
MAX_ALONE_AHEAD_US = 1e6

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


@dataclass(slots=True, eq=False)
class WorkerSet:
    """A set of workers that get the same words of one client."""

    number: int
    workers: tuple[WorkerState, ...]
    peers: tuple[Peer, ...]
    #: the work they got for which no confirmation was requested yet: estimated microseconds on each worker, and weight
    cost: float = 0.0
    weight: int = 0
    #: estimated microseconds of the work that the first worker confirms, and the others have not been asked to
    behind: float = 0.0


@dataclass(slots=True, eq=False)
class TimeShare:
    """The account of worker time of one user on one worker. A client of the owner has a share of its own."""

    #: worker time used, in microseconds times ``rate``; who has used the least is served first
    used: float = 0.0
    #: 1 / the user's weight
    rate: float = 1.0
    #: whether all clients of a user have it in common
    common: bool = False


@dataclass(slots=True, eq=False)
class ViewerState:
    """A viewer: it listens to events, and has no program."""

    peer: Peer
    #: whether it may see the instructions of all clients
    operator: bool


@dataclass(slots=True, eq=False)
class Client:
    """One client: its program so far (codes, tensors, fragments), its queue, its open requests and its accounts."""

    id: int
    peer: Peer
    host: str
    ledger: Ledger
    identity: PeerIdentity = OWNER
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
    #: the sum of the weights in its worker sets, for which no confirmation was requested yet
    unrequested: int = 0
    #: worker -> the client's codes that were announced to it; its keys are the workers that admitted the client
    announced: dict[int, set[int]] = field(default_factory=dict)
    #: request -> the workers that will answer it
    reads: dict[int, set[int]] = field(default_factory=dict)
    #: reads that the dispatcher answered with an error because no worker was connected
    abandoned_reads: set[int] = field(default_factory=set)
    #: `counted_bytes` of the values it has requested and not reported as taken
    untaken: int = 0
    #: the bytes of the definitions in ``codes``
    defined_bytes: int = 0
    #: (transfer, bytes, bytes in a frame) of the chunks that its worker has not acknowledged, oldest first
    chunks: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: the sum of their bytes in frames
    chunk_bytes: int = 0
    #: transfer -> the layout of its chunks, until an instruction uses it
    transfers: dict[int, Layout | Lost] = field(default_factory=dict)
    #: its program, if it asked for recovery
    log: ProgramLog | None = None
    #: chunks in the queue; the bytes of those that are not of its log; how often its program began again without the
    #: client having seen that yet
    queued_chunks: int = 0
    queued_chunk_bytes: int = 0
    unseen_restarts: int = 0
    #: it gets a home when this many workers are connected: more than one while it waits for a new worker
    min_workers: int = 1
    #: lost worker -> the worker that takes its place in the signals
    substitutes: dict[int, int] = field(default_factory=dict)
    #: with recovery: the weights of its meshes
    kept_parts: KeptParts = field(default_factory=dict)
    #: requests that wait until the queue is empty
    waiting_requests: list[Ask | Locate | Trace | Listen | FindKept] = field(default_factory=list)
    #: the latest requests for traces; those that are open are also in ``reads``
    traces: list[int] = field(default_factory=list)
    #: the serial number of the last submission
    serial: int = 0
    #: weights: received, done, and reported to the client as done
    received: int = 0
    done: int = 0
    credited: int = 0
    #: its account of worker time at its home
    share: TimeShare = field(default_factory=TimeShare)
    #: whether its next turn overtakes the work of other clients; whether all its work that is not done does
    urgent: bool = False
    only_urgent: bool = True
    #: measured time divided by estimated time; each client has its own, so an odd program does not affect the others
    pace: float = 1.0
    #: the time in seconds, on the shell's clock, since when it has had work and no worker
    stranded_since: float | None = None
    #: the workers that had no room for more of its work when last checked
    full_workers: list[int] = field(default_factory=list)

    @property
    def recovers(self) -> bool:
        """Whether its program can run again when a worker is lost."""
        return self.log is not None and not self.log.refusal

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
        """Queue the stream of a submission."""
        self.received += submit.weight
        # the stream is copied because forwarding replaces codes in it
        self.queue.append([Submit(submit.serial, [], submit.stream[:], submit.weight), 0])

    def enqueue_configuration(self, configure: Configure) -> None:
        """Queue a configuration: it applies to the submissions after it."""
        self.received += configure.weight
        self.queue.append([configure, 0])

    def has_room(self, workers: Mapping[int, WorkerState], limit: float) -> bool:
        """Whether the workers that run its program may get more work.

        If some of them are full and others are not, as the stages of a pipeline are in turn, those that are full and
        have no other client may get more: the work of the others may be behind it in the stream.

        The workers that were full last time are checked first. With many workers, each of which reports when it is
        done, checking all of them every time would take quadratic time.
        """
        if self.queued_chunks and self.chunk_bytes >= MAX_UNACKNOWLEDGED_BYTES:
            return False
        full = self.full_workers
        while full:
            worker = workers.get(full[-1])
            if worker is not None and not worker.has_room_for(self.id, limit):
                break
            full.pop()
        if not full:
            busy = [w for w in map(workers.__getitem__, self.announced) if w.ahead >= limit or w.parked]
            full += [w.id for w in busy if not w.has_room_for(self.id, limit)]
        if not full:
            return True
        return len(full) < len(self.announced) and all(id not in workers or workers[id].may_run_ahead for id in full)


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker, and the work that it has not confirmed yet."""

    id: int
    peer: Peer
    info: WorkerInfo
    layout: Layout
    #: the names of its settings that are on
    settings: frozenset[str] = frozenset()
    #: why it ended, if it could still report it
    exit_reason: str = ""
    #: estimated microseconds of the work it got and has not confirmed
    ahead: float = 0.0
    #: (client, weight, estimate, number of workers whose times are averaged) it must still confirm, oldest first. The
    #: number is 0 if the time is that of another worker already
    unconfirmed: deque[tuple[int, int, float, int]] = field(default_factory=deque)
    #: how often it has confirmed work
    confirmations: int = 0
    #: client -> the share of ``ahead`` that waits until the client has taken more of a large value
    parked: dict[int, float] = field(default_factory=dict)
    #: the most that any client at home here had used when it was served; a client that begins or returns from a pause
    #: starts with this much
    clock: float = 0.0
    admitted: set[int] = field(default_factory=set)
    #: clients whose space it was told to drop because their program began again, and has not reported as dropped
    dropping: list[int] = field(default_factory=list)
    #: client -> microseconds for which its work ran here while others waited
    blocked_us: dict[int, int] = field(default_factory=dict)
    #: user -> the account of worker time that all their clients at home here have in common
    shares: dict[str, TimeShare] = field(default_factory=dict)

    def share_of(self, identity: PeerIdentity) -> TimeShare:
        """The account of worker time of a client whose home this worker becomes. It starts level with the others."""
        if not identity.user:
            return TimeShare(self.clock)
        share = self.shares.setdefault(identity.user, TimeShare(common=True))
        share.used, share.rate = max(share.used, self.clock), 1.0 / identity.quota.weight
        return share

    def forget_client(self, client: int) -> bool:
        """A client has ended. Returns whether the worker has a space of it."""
        self.parked.pop(client, None)
        self.blocked_us.pop(client, None)
        was_admitted = client in self.admitted
        self.admitted.discard(client)
        return was_admitted

    def expect(self, client: int, weight: int, cost: float, sharing: int = 1) -> None:
        """Add work that the worker was requested to confirm; ``sharing``: see ``unconfirmed``."""
        self.unconfirmed.append((client, weight, cost, sharing))
        self.ahead += cost
        if client in self.parked:
            self.parked[client] += cost

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
        self.confirmations += 1
        self.ahead = self.ahead - cost if unconfirmed else 0.0
        if client in self.parked:
            self.parked[client] -= cost
        return weight, cost, sharing

    def park(self, client: int) -> None:
        """The worker runs nothing more of this client for now, so the client's share does not count as work ahead."""
        if client not in self.parked:
            self.parked[client] = sum(cost for owner, _, cost, _ in self.unconfirmed if owner == client)

    @property
    def may_run_ahead(self) -> bool:
        """Whether it may get more than the usual work ahead: it has one client, which waits for nothing."""
        return len(self.admitted) == 1 and not self.parked and self.ahead < MAX_ALONE_AHEAD_US

    def has_room_for(self, client: int, limit: float) -> bool:
        """Whether it may get more of this client's work; ``limit`` is the most microseconds ahead."""
        if not self.parked:
            return self.ahead < limit
        return client not in self.parked and self.ahead - sum(self.parked.values()) < limit
