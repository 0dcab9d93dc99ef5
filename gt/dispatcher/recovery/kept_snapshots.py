"""Snapshots of some tensors that a client can fork: `gt.snapshot(model=model)` and `gt.fork`.

The copies stay on the workers that hold the tensors, in the same layout, and count against the memory quota of the
user. Any session of the same user can copy them to new tensors, by the snapshot's key: a random text that the client
has drawn. For other users the key names nothing.

`Keep`, `Fork` and `DropKept` go through the client's queue and its log. So a program that runs again takes a snapshot
again that was lost with a worker, and copies it again. A snapshot that was dropped is freed when no log would copy it.

    missing      problem    state
    None                    its turn in the queue has not come
    workers                 these have not copied their part yet
    none         ""         complete: it can be copied
    none         text       it could not be taken, or a worker with the only copy of a part is lost
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost, Mesh, TensorState, tensor_state
from gt.dispatcher.recovery.snapshots import SnapshotKeeper
from gt.dispatcher.segments import Segment
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.recovery_messages import CopyKept, DropKept, FindKept, Fork, FreeKept, Keep, Kept, KeptFound, SnapshotTaken
from gt.wire.structures import WireType
from gt.wire.words import FIRST_DISPATCHER_ID, KEEP

#: The most snapshots of a user; the most tensors in one, and the most bytes of the description of their structure.
MAX_SNAPSHOTS, MAX_TENSORS, MAX_STRUCTURE_BYTES = 64, 1 << 14, 1 << 20
#: The most messages about snapshots that a client may have in its queue.
MAX_QUEUED = 256
#: The longest time for which a snapshot is kept after its session, in seconds.
MAX_SECONDS = 86400.0
#: The messages that go through the client's queue.
QUEUED = (Keep, Fork, DropKept)
INCOMPLETE = "a worker was lost, and the session of the snapshot ended before it was taken again"
UNKNOWN = "there is no such snapshot of yours: it was dropped, its session has ended, or the text is wrong"


@dataclass(slots=True, eq=False)
class KeptSnapshot:
    user: str
    #: the client that has taken it
    owner: int
    message: Keep
    #: its number on the workers; it gets a new one if it is taken again
    number: int = 0
    #: the tensors in the order of the message
    states: list[AnyState] = field(default_factory=list)
    #: the workers that have a part of it, and those that have not copied it yet
    workers: set[int] = field(default_factory=set)
    missing: set[int] | None = None
    problem: str = ""
    #: (client, request) of those who wait until it is complete
    waiting: list[tuple[int, FindKept]] = field(default_factory=list)
    is_answered: bool = False
    dropped: bool = False
    #: when its session was first seen to have ended
    ended_at: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.missing is not None and not self.missing and not self.problem


class KeptSnapshots:
    """The snapshots of all users."""

    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        programs: SnapshotKeeper,
    ) -> None:
        self._clients, self._workers, self._delivery, self._programs = clients, workers, delivery, programs
        #: (user, key) -> the snapshot
        self._snapshots: dict[tuple[str, str], KeptSnapshot] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    # -- a client's messages -------------------------------------------------------------

    def enqueue(self, client: Client, m: Keep | Fork | DropKept, rest: object) -> None:
        """Queue the message after what the client has submitted."""
        if isinstance(m, Keep):
            self._check(m)
            if problem := self._refusal(client, m):
                self._delivery.send(client, SnapshotTaken(m.request, problem))
                return
            self._snapshots[client.identity.user, m.key] = KeptSnapshot(client.identity.user, client.id, m)
        elif sum(isinstance(queued, Fork | DropKept) for queued, _ in client.queue) >= MAX_QUEUED:
            raise Violation(f"more than {MAX_QUEUED} messages about snapshots in the queue")
        client.queue.append([m, 0])
        if client.log is not None:
            client.log.add_message(m)

    def _check(self, m: Keep) -> None:
        if not 16 <= len(m.key) <= 64 or not m.tensors or not 0 <= m.seconds <= MAX_SECONDS:
            raise Violation("a malformed snapshot")
        if len(m.tensors) > MAX_TENSORS or len(m.structure) > MAX_STRUCTURE_BYTES:
            raise Violation(f"a snapshot of {len(m.tensors)} tensors and {len(m.structure)} bytes")

    def _refusal(self, client: Client, m: Keep) -> str:
        user = client.identity.user
        if (user, m.key) in self._snapshots:
            raise Violation("two snapshots with the same key")
        if sum(snapshot.user == user for snapshot in self._snapshots.values()) < MAX_SNAPSHOTS:
            return ""
        return f"{user or 'the owner of this server'} has {MAX_SNAPSHOTS} snapshots already: drop some of them"

    def turn(self, client: Client, m: Keep | Fork | DropKept) -> None:
        """Its turn in the queue has come: everything before it was forwarded."""
        if isinstance(m, Keep):
            self._take(client, m)
        elif isinstance(m, Fork):
            self._fork(client, m)
        elif (snapshot := self._snapshots.get((client.identity.user, m.key))) is not None:
            snapshot.dropped = True
            self._free_if_unneeded(snapshot)
            if client.log is not None and client.log.forks(m.key) and client.log.taking is None:
                self._programs.begin(client, [])  # so that the log need not copy it again

    # -- taking --------------------------------------------------------------------------

    def _take(self, client: Client, m: Keep) -> None:
        """Take it; again if the program runs again and it was lost, or dropped and freed."""
        id = client.identity.user, m.key
        if (snapshot := self._snapshots.get(id)) is None:
            snapshot = self._snapshots[id] = KeptSnapshot(client.identity.user, client.id, m, is_answered=True)
        if snapshot.missing is not None and not snapshot.problem:
            return
        if unknown := [tensor for tensor in m.tensors if tensor not in client.tensors]:
            raise Violation(f"a snapshot of tensor {unknown[0]}, which does not exist")
        self._count += 1
        snapshot.number, snapshot.states = self._count, []
        words: dict[int, list[int]] = {}
        snapshot.problem = next((s.text for s in map(client.tensors.get, m.tensors) if isinstance(s, Lost)), "")
        for tensor in () if snapshot.problem else m.tensors:
            state: Any = client.tensors[tensor]
            snapshot.states.append(tensor_state(state.type, state.home))
            for worker in state.home.workers:
                words.setdefault(worker, []).extend((KEEP, self._count, tensor))
        snapshot.workers, snapshot.missing = set(words), set(words)
        for worker, stream in words.items():
            self._delivery.execute(client, Segment((worker,), [*stream, KEEP, self._count, 0]), 0, [])
        self._answer(snapshot)

    def kept(self, worker: WorkerState, m: Kept, rest: object) -> None:
        """A worker has copied its part."""
        snapshot = next((one for one in self._snapshots.values() if one.number == m.number), None)
        if snapshot is None or not snapshot.missing or worker.id not in snapshot.missing:
            return
        snapshot.problem = snapshot.problem or m.problem
        snapshot.missing.discard(worker.id)
        self._answer(snapshot)

    def _answer(self, snapshot: KeptSnapshot) -> None:
        """Answer those who wait for it when all workers have reported: a part is not freed before it is copied."""
        if snapshot.missing is None or snapshot.missing:
            return
        if snapshot.problem:
            self._free(snapshot)
        owner = self._clients.get(snapshot.owner)
        if owner is not None and not snapshot.is_answered:
            snapshot.is_answered = True
            self._delivery.send(owner, SnapshotTaken(snapshot.message.request, snapshot.problem))
        self._answer_waiting(snapshot)
        self._free_if_unneeded(snapshot)

    def _answer_waiting(self, snapshot: KeptSnapshot) -> None:
        """Answer other clients that wait for the snapshot: it is complete now, or never will be."""
        waiting, snapshot.waiting = snapshot.waiting, []
        for client, request in waiting:
            if client in self._clients:
                self.find(self._clients[client], request)

    # -- copying -------------------------------------------------------------------------

    def find(self, client: Client, m: FindKept) -> None:
        """Describe a snapshot, when it is complete."""
        snapshot = self._snapshots.get((client.identity.user, m.key))
        if snapshot is None or snapshot.dropped:
            self._delivery.send(client, KeptFound(m.request, UNKNOWN))
        elif snapshot.problem:
            self._delivery.send(client, KeptFound(m.request, snapshot.problem))
        elif not snapshot.is_complete:
            snapshot.waiting.append((client.id, m))
        else:
            types: tuple[WireType, ...] = tuple(
                (state.type.dtype.name, state.type.shape) for state in snapshot.states if isinstance(state, TensorState)
            )
            self._delivery.send(client, KeptFound(m.request, "", types, snapshot.message.structure))

    def _fork(self, client: Client, m: Fork) -> None:
        snapshot = self._snapshots.get((client.identity.user, m.key))
        problem = UNKNOWN if snapshot is None else snapshot.problem
        # its own client may copy it while it is taken: the copies come after it in the stream of each worker
        taken = snapshot is not None and (snapshot.is_complete or (snapshot.missing and snapshot.owner == client.id))
        if not problem and not taken:
            problem = "the snapshot is being taken again, because a worker was lost"
        if any(id in client.tensors or not 0 < id < FIRST_DISPATCHER_ID for id in m.tensors):
            raise Violation("a copy of a snapshot to a tensor that exists")
        if snapshot is not None and not problem and len(m.tensors) != len(snapshot.states):
            raise Violation(f"{len(m.tensors)} tensors for a snapshot of {len(snapshot.states)}")
        if snapshot is None or problem:
            client.tensors.update((id, Lost(f"gt.fork: {problem}")) for id in m.tensors)
        else:
            self._copy(client, snapshot, m.tensors)
        self._delivery.send(client, SnapshotTaken(m.request, problem))

    def _copy(self, client: Client, snapshot: KeptSnapshot, ids: list[int]) -> None:
        parts: dict[int, list[tuple[int, int]]] = {}
        for id, source, state in zip(ids, snapshot.message.tensors, snapshot.states, strict=True):
            client.tensors[id] = state
            for worker in () if isinstance(state, Lost) else state.home.workers:
                parts.setdefault(worker, []).append((source, id))
        for worker, pairs in parts.items():
            self._delivery.admit(client, self._workers[worker])
            self._delivery.send(self._workers[worker], CopyKept(client.id, snapshot.number, pairs))

    # -- the end -------------------------------------------------------------------------

    def restarted(self, client: Client) -> None:
        """The client's program runs again: what it was taking is taken again."""
        for snapshot in self._snapshots.values():
            if snapshot.owner == client.id and snapshot.missing:
                self._free(snapshot)
                snapshot.missing, snapshot.problem = None, ""

    def worker_gone(self, worker: WorkerState) -> None:
        """Its parts are lost, except those that other workers have too."""
        info = worker.info
        text = f"worker {worker.id} ({info.device}, pid {info.pid}) is gone, and a part of the snapshot with it"
        for snapshot in list(self._snapshots.values()):
            if worker.id not in snapshot.workers:
                continue
            snapshot.workers.discard(worker.id)
            snapshot.states = [_without(state, worker.id, Lost(text)) for state in snapshot.states]
            if snapshot.missing or any(isinstance(state, Lost) for state in snapshot.states):
                snapshot.problem = snapshot.problem or text
            if snapshot.missing:
                snapshot.missing.discard(worker.id)
            self._answer(snapshot)

    def client_gone(self, client: Client) -> None:
        for snapshot in list(self._snapshots.values()):
            if snapshot.owner == client.id and not (snapshot.message.seconds and snapshot.is_complete):
                if not snapshot.is_complete:  # a program that runs again must not copy it
                    snapshot.problem = snapshot.problem or INCOMPLETE
                snapshot.dropped, snapshot.missing = True, set()
                self._answer_waiting(snapshot)
            self._free_if_unneeded(snapshot)

    def tick(self, now: float) -> None:
        """Free what nobody needs any more; called about once a second."""
        for snapshot in list(self._snapshots.values()):
            if snapshot.owner not in self._clients:
                snapshot.ended_at = now if snapshot.ended_at is None else snapshot.ended_at
                snapshot.dropped = snapshot.dropped or now - snapshot.ended_at >= snapshot.message.seconds
            self._free_if_unneeded(snapshot)

    def _free_if_unneeded(self, snapshot: KeptSnapshot) -> None:
        """Free a snapshot that was dropped, unless it is being taken, or a program that runs again would copy it."""
        key = snapshot.message.key
        users = [client for client in self._clients.values() if client.identity.user == snapshot.user]
        if not snapshot.dropped or snapshot.missing or any(c.log is not None and c.log.forks(key) for c in users):
            return
        self._free(snapshot)
        self._snapshots.pop((snapshot.user, key), None)
        self._answer_waiting(snapshot)

    def _free(self, snapshot: KeptSnapshot) -> None:
        for worker in snapshot.workers & self._workers.keys():
            self._delivery.send(self._workers[worker], FreeKept(snapshot.number))
        snapshot.workers, snapshot.missing, snapshot.number = set(), set(), 0


def _without(state: AnyState, worker: int, lost: Lost) -> AnyState:
    """The state of a tensor when a worker is lost."""
    if isinstance(state, Lost) or worker not in state.home.workers:
        return state
    others = tuple(other for other in state.home.workers if other != worker)
    if not others or not state.home.replicated:
        return lost
    return tensor_state(state.type, Layout(Mesh(others)))
