"""Snapshots: all tensors of a client at one point of its program. The log before that point is not needed any more.

A snapshot goes through the client's queue, so its point is between two submissions. Each worker copies what the client
has there, and reports with `Saved` when the copies are written. The snapshot counts when all workers have reported.
Until then the one before it counts. A snapshot that is not complete when a worker is lost is given up, and begun again
if the client asked for it.

When the program runs again, it begins with the last snapshot: each tensor gets the layout it had, with other workers in
the places of lost ones.

The snapshots of a user count against the user's quota. A worker writes no part that is larger than what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from msgspec.structs import replace

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.move_emission import MoveEmitter
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost, Mesh, TensorState, tensor_state
from gt.dispatcher.plan.moves import PlannedMove
from gt.dispatcher.plan.substitutes import substituted
from gt.dispatcher.segments import ForwardOutput, Segment
from gt.dispatcher.state import Client, WorkerState
from gt.ops.placement import Partial
from gt.types import Shape
from gt.wire.messages import Configure, Notice
from gt.wire.recovery_messages import (
    Release,
    Restore,
    RestoredTensor,
    Saved,
    SavedBlock,
    SavedFailure,
    SavedPart,
    SavedPiece,
    SaveTo,
    SnapshotTaken,
    TakeSnapshot,
)
from gt.wire.words import SNAPSHOT

NOT_KEPT = 'gt.recovery("replay") is not on, so the server takes no snapshots'


class SnapshotStorage(Protocol):
    """Where parts are kept: `gt.dispatcher.recovery.snapshot_memory` or `snapshot_folder`."""

    def is_reached_from(self, host: str) -> bool:
        """Whether workers on this host (`gt.wire.shared.host_identity`) can read what is kept."""

    def new_file(self, client: int, number: int, worker: int) -> str:
        """The file for a worker's part of a snapshot; empty: the part is in memory."""

    def hold(self, part: SavedPart) -> SavedPart:
        """Keep a part that was written; returns where other processes find it. Raises OSError or ValueError."""

    def release(self, part: SavedPart) -> None:
        """The part is not needed any more."""


@dataclass(slots=True, eq=False)
class ProgramSnapshot:
    """A snapshot; in a queue it stands where it is taken."""

    number: int
    #: how many entries of the log are before it
    position: int
    #: the client's requests that wait for it
    requests: list[int]
    #: the client's tables at its point
    tensors: dict[int, AnyState] = field(default_factory=dict)
    uncached: set[int] = field(default_factory=set)
    codes: dict[int, Any] = field(default_factory=dict)
    fragments: dict[int, Any] = field(default_factory=dict)
    transfers: set[int] = field(default_factory=set)
    #: all codes and fragments in the log then
    known_codes: set[int] = field(default_factory=set)
    known_fragments: set[int] = field(default_factory=set)
    configuration: Configure | None = None
    #: the workers that have not reported; None: its turn in the queue has not come
    missing: set[int] | None = None
    #: worker -> where its part is, or will be; and where its blocks are in it
    parts: dict[int, SavedPart] = field(default_factory=dict)
    blocks: dict[int, dict[int, SavedBlock]] = field(default_factory=dict)
    failures: dict[int, SavedFailure] = field(default_factory=dict)
    weight: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class RestoreMark:
    """In a queue: put the tensors of the snapshot back."""

    snapshot: ProgramSnapshot
    weight: ClassVar[int] = 0


class SnapshotKeeper:
    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        storage: SnapshotStorage | None,
        log: Callable[[str], object],
    ) -> None:
        self._clients, self._workers, self._delivery, self._storage = clients, workers, delivery, storage
        self._log = log
        self._count = 0

    # -- taking --------------------------------------------------------------------------

    def request(self, client: Client, m: TakeSnapshot, rest: object) -> None:
        """A client asks for a snapshot."""
        problem = NOT_KEPT if client.log is None else client.log.refusal
        if client.log is not None and client.log.taking is not None:
            problem = "the snapshot before it is not complete"
        if problem:
            self._delivery.send(client, SnapshotTaken(m.request, problem))
        else:
            self.begin(client, [m.request])

    def begin(self, client: Client, requests: list[int]) -> None:
        """Take a snapshot after what is in the client's queue."""
        log = client.log
        assert log is not None
        self._count += 1
        log.taking = ProgramSnapshot(self._count, log.length, requests)
        client.queue.append([log.taking, 0])

    def take(self, client: Client, snapshot: ProgramSnapshot) -> None:
        """Its turn in the queue has come: everything before it was forwarded."""
        log = client.log
        if log is None or log.taking is not snapshot:
            return
        if self._storage is None:
            self.give_up(client, "this server cannot keep the memory of workers, and has no --snapshots folder")
        elif strange := [worker for worker in self._workers if worker not in self._workers_here()]:
            where = f"worker {strange[0]} is on another host than the server, or of another user"
            self.give_up(client, f"{where}, and the server has no --snapshots folder")
        else:
            snapshot.tensors, snapshot.uncached = dict(client.tensors), set(client.uncached)
            snapshot.codes, snapshot.fragments = dict(client.codes), dict(client.fragments)
            snapshot.transfers, snapshot.configuration = set(client.transfers), log.configuration
            snapshot.known_codes, snapshot.known_fragments = set(log.codes), set(log.fragments)
            snapshot.missing = set(client.announced)
            quota = client.identity.quota.snapshots
            limit = max(0, quota - self._used(client.identity.user)) if quota else -1
            for worker in client.announced:
                file = self._storage.new_file(client.id, snapshot.number, worker)
                snapshot.parts[worker] = SavedPart(None, file)
                self._delivery.send(self._workers[worker], SaveTo(client.id, snapshot.number, file, limit))
                self._delivery.execute(client, Segment((worker,), [SNAPSHOT, snapshot.number]), 0, [])
            self._complete(client, snapshot)

    def _used(self, user: str) -> int:
        """The bytes of all snapshots of a user."""
        logs = [client.log for client in self._clients.values() if client.identity.user == user]
        snapshots = [one for log in logs if log is not None for one in (log.snapshot, log.taking) if one is not None]
        return sum(part.nbytes for snapshot in snapshots for part in snapshot.parts.values())

    def saved(self, worker: WorkerState, m: Saved, rest: object) -> None:
        """A worker has written its part."""
        self._delivery.send(worker, Release(m.client, m.number))
        client = None if m.client in worker.dropping else self._clients.get(m.client)
        snapshot = None if client is None or client.log is None else client.log.taking
        if (
            client is None
            or snapshot is None
            or snapshot.number != m.number
            or worker.id not in (snapshot.missing or ())
        ):
            return
        if problem := m.problem or self._keep(client, snapshot, worker, m):
            self.give_up(client, problem)
            return
        assert snapshot.missing is not None
        snapshot.blocks[worker.id] = {block.id: block for block in m.blocks}
        snapshot.failures.update((failure.id, failure) for failure in m.failures)
        snapshot.missing.discard(worker.id)
        self._complete(client, snapshot)

    def _keep(self, client: Client, snapshot: ProgramSnapshot, worker: WorkerState, m: Saved) -> str:
        """Keep a worker's part; returns why that is not possible."""
        assert self._storage is not None
        part = replace(snapshot.parts[worker.id], memory=m.memory, nbytes=max(0, m.nbytes))
        try:
            snapshot.parts[worker.id] = self._storage.hold(part)
        except (OSError, ValueError) as error:
            return f"the server cannot open the memory of worker {worker.id}: {error}"
        quota = client.identity.quota.snapshots
        if quota and self._used(client.identity.user) > quota:
            return f"the parts of all workers together exceed the quota of snapshots, {quota} bytes"
        return ""

    def _complete(self, client: Client, snapshot: ProgramSnapshot) -> None:
        log = client.log
        if snapshot.missing or log is None:
            return
        self._release(log.snapshot)
        log.begin_at(snapshot)
        self._answer(client, snapshot, "")

    def give_up(self, client: Client, problem: str) -> None:
        """The snapshot that is being taken will not be complete. The one before it still counts."""
        log = client.log
        if log is not None and log.taking is not None:
            snapshot, log.taking = log.taking, None
            self._release(snapshot)
            self._answer(client, snapshot, problem)
            if not log.snapshot_failed:  # most programs do not wait for a snapshot, and would not hear of it
                log.snapshot_failed = True
                rest = "the one before it counts" if log.snapshot else "a lost worker means to begin the program again"
                self._delivery.send(client, Notice(f"no snapshot: {problem}; {rest}"))
                self._log(f"client {client.id}: no snapshot: {problem}")

    def begin_again(self, client: Client) -> None:
        """The client's program runs again: take the snapshot at the end of it that the client has asked for."""
        log = client.log
        if log is not None and log.taking is not None:
            before, log.taking = log.taking, None
            self._release(before)
            if before.requests:
                self.begin(client, before.requests)

    def client_gone(self, client: Client) -> None:
        if client.log is not None:
            self._release(client.log.snapshot)
            self._release(client.log.taking)

    def _answer(self, client: Client, snapshot: ProgramSnapshot, problem: str) -> None:
        for request in snapshot.requests:
            self._delivery.send(client, SnapshotTaken(request, problem))

    def _release(self, snapshot: ProgramSnapshot | None) -> None:
        if snapshot is not None and self._storage is not None:
            for part in snapshot.parts.values():
                self._storage.release(part)
            snapshot.parts.clear()

    # -- a server that is started again --------------------------------------------------

    def files(self) -> set[str]:
        """The files of all snapshots, also of those that are being taken."""
        logs = [client.log for client in self._clients.values() if client.log is not None]
        snapshots = [one for log in logs for one in (log.snapshot, log.taking) if one is not None]
        return {part.file for snapshot in snapshots for part in snapshot.parts.values() if part.file}

    def lose_files(self, missing: set[str]) -> int:
        """Programs whose snapshot is not there any more cannot run again. Returns how many there are."""
        lost = [
            log
            for log in (client.log for client in self._clients.values())
            if log is not None and log.snapshot and any(p.file in missing for p in log.snapshot.parts.values())
        ]
        for log in lost:
            log.refuse("its snapshot was lost when the server was started again")
        return len(lost)

    # -- putting back --------------------------------------------------------------------

    def restore(self, client: Client, snapshot: ProgramSnapshot) -> None:
        """Put the tensors back on the workers that there are now."""
        assert client.home is not None
        if client.home in self._workers_here():
            client.substitutes.update((w, client.home) for w in self._lost_homes(snapshot))
        output = ForwardOutput()
        parts: dict[int, Restore] = {}
        workers, saved = list(snapshot.parts), list(snapshot.parts.values())
        for id, state in snapshot.tensors.items():
            if isinstance(state, Lost):
                client.tensors[id] = state
                continue
            home = self._remapped(client, state.home)
            if home.mesh.shape != state.home.mesh.shape:
                home = home.combined()  # the terms of a partial sum cannot be kept apart on fewer workers
            client.tensors[id] = tensor_state(state.type, home)
            for worker in home.workers:
                part = parts.setdefault(worker, Restore(client.id, saved, [], []))
                if id in snapshot.failures:
                    part.failures.append(snapshot.failures[id])
                else:
                    terms = _terms(snapshot, workers, id, state, home, worker)
                    sizes = list(home.local(state.type, worker).shape)
                    op = next((p.op for p in state.home.placements if isinstance(p, Partial)), "")
                    part.tensors.append(RestoredTensor(id, state.type.dtype.name, sizes, terms, op))
        client.uncached.update(snapshot.uncached)
        emitter = MoveEmitter(client, output, 0)
        for id, state in snapshot.tensors.items():
            for copy in state.copies if isinstance(state, TensorState) else ():
                now: Any = client.tensors[id]
                target = self._remapped(client, copy)
                if target not in now.layouts and id not in client.uncached:
                    emitter.copy_to(id, PlannedMove(0, now.home, target, now.type), sole_use=True)
        for worker, part in parts.items():
            self._delivery.admit(client, self._workers[worker])
            self._delivery.send(self._workers[worker], part)
        self._delivery.deliver(client, output, 0)

    def _workers_here(self) -> list[int]:
        """The workers that can read what is kept."""
        storage = self._storage
        return [w.id for w in self._workers.values() if storage is not None and storage.is_reached_from(w.info.host)]

    def _lost_homes(self, snapshot: ProgramSnapshot) -> set[int]:
        """Lost workers that held whole tensors: the client's new home takes their place."""
        homes = {state.home for state in snapshot.tensors.values() if isinstance(state, TensorState)}
        return {home.worker for home in homes if home.single and home.worker not in self._workers}

    def _remapped(self, client: Client, layout: Layout) -> Layout:
        """The same layout with other workers in the places of lost ones; on fewer workers if there are not enough."""
        if all(worker in self._workers for worker in layout.workers):
            return layout
        workers = substituted(layout.workers, self._workers_here() or list(self._workers), (), client.substitutes)
        if len(workers) == len(layout.workers):
            return Layout(Mesh(workers, layout.mesh.parts), layout.placements)
        if len(workers) > 1 and len(layout.mesh.shape) == 1:
            return Layout(Mesh(workers), layout.placements)
        return Layout(Mesh(workers))


def _terms(
    snapshot: ProgramSnapshot, workers: list[int], id: int, state: TensorState, home: Layout, worker: int
) -> list[list[SavedPiece]]:
    """Where the terms of a worker's block are saved, each in pieces."""
    shape, before = state.type.shape, state.home
    start, sizes = home.block(shape, worker)
    if home.mesh.parts == before.mesh.parts and home.placements == before.placements:
        # the same bits as the worker that it replaces
        sources = [{(start, sizes): before.workers[home.workers.index(worker)]}]
    else:
        sources = _saved_blocks(state)
    return [
        [
            SavedPiece(
                workers.index(source),
                snapshot.blocks[source][id],
                list(lengths),
                [a - b for a, b in zip(low, at, strict=True)],
                [a - b for a, b in zip(low, start, strict=True)],
                [b - a for a, b in zip(low, high, strict=True)],
            )
            for (at, lengths), source in blocks.items()
            for low, high in [_overlap(start, sizes, at, lengths)]
            if all(a < b for a, b in zip(low, high, strict=True))
        ]
        for blocks in sources
    ]


def _saved_blocks(state: TensorState) -> list[dict[tuple[Shape, Shape], int]]:
    """For each term of the tensor its blocks: (start, sizes) -> a worker that has the block."""
    layout = state.home
    terms: dict[Shape, dict[tuple[Shape, Shape], int]] = {}
    for worker in layout.workers:
        at = zip(layout.placements, layout.mesh.coordinates[worker], strict=True)
        term = tuple(rank for placement, rank in at if isinstance(placement, Partial))
        terms.setdefault(term, {}).setdefault(layout.block(state.type.shape, worker), worker)
    return list(terms.values())


def _overlap(start: Shape, sizes: Shape, at: Shape, lengths: Shape) -> tuple[list[int], list[int]]:
    """Where two blocks overlap: from, to."""
    low = [max(a, b) for a, b in zip(start, at, strict=True)]
    return low, [min(a + n, b + m) for a, n, b, m in zip(start, sizes, at, lengths, strict=True)]
