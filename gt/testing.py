"""A complete GT system in one thread, for tests: the real cores and the real codec, without sockets and clocks.

    cluster = Cluster(workers=2, seed=7)
    with cluster.client():
        assert gt.ones(3).sum().item() == 3

Each wire (one sender, one receiver) keeps the order of its messages, as a socket does. The seed determines which wire
delivers next, so the same seed gives the same run. `cluster.kill_worker` and `cluster.kill_client` simulate deaths;
`cluster.step` delivers one message.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gt.client.stream.connect import use
from gt.client.stream.session import Session
from gt.dispatcher.actions import Action, Close, SendAll, SendMessage
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.listeners import Clocks
from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder
from gt.dispatcher.recovery.snapshot_memory import SnapshotMemory
from gt.errors import ConnectionLost
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.event_messages import Record
from gt.wire.link_messages import LinkMeasured, MeasureLink, OpenProbe, ProbeOpen
from gt.wire.messages import Hello
from gt.wire.shared import host_identity
from gt.wire.structures import WorkerPlace
from gt.worker.collectives.local import LocalNetwork, LocalPlane
from gt.worker.core import Worker
from gt.worker.engines import Engine, make_engine
from gt.worker.outbox import OutgoingMessage
from gt.worker.recovery.snapshots import WorkerSnapshots

Frames = list[Any]


class Cluster:
    """A dispatcher, workers and clients in one thread, with messages delivered in an order drawn from the seed.

    ``snapshots``: the folder for snapshots of programs; None: they are kept in shared memory. ``speeds``: what the
    workers report as measured, in the order in which they join, again and again.

    Example::

        cluster = gt.testing.Cluster(workers=2, seed=7)
        with cluster.client():
            assert gt.ones(3).sum().item() == 3
    """

    def __init__(
        self,
        workers: int = 1,
        seed: int = 0,
        backend: str = "torch",
        hosts: Sequence[str] = (),
        snapshots: str | os.PathLike[str] | None = None,
        speeds: Sequence[float] = (0.0,),
    ) -> None:
        self.rng = random.Random(seed)
        #: where snapshots are kept
        self.storage = SnapshotFolder(Path(snapshots), False) if snapshots else SnapshotMemory(host_identity())
        self.dispatcher = Dispatcher(clocks=Clocks(self.clock, self.clock), storage=self.storage)
        self.backend = backend
        self._engine: Engine | None = None
        self.network = LocalNetwork()
        #: (sender, receiver) -> messages that are not delivered yet; the dispatcher is b""
        self.wires: dict[tuple[bytes, bytes], deque[Frames]] = {}
        self.workers: dict[bytes, Worker] = {}
        self.clients: dict[bytes, Session] = {}
        #: peers that receive nothing until they are removed from this set, like a stopped process
        self.paused: set[bytes] = set()
        #: peers whose connection the dispatcher has closed, and its reason
        self.closed: dict[bytes, str] = {}
        #: the simulated time, in seconds
        self.now = 0.0
        #: worker -> how far its clock is ahead of the dispatcher's, in nanoseconds
        self.skews: dict[bytes, int] = {}
        self._ticks = 0
        #: called after every message; tests use it to check invariants
        self.after_step: Callable[[Cluster], None] | None = None
        self._names = 0
        #: the hosts of the workers in the order in which they join, again and again; empty: all are on one
        self.hosts, self.speeds = hosts, speeds
        #: two hosts, in the order of their names -> microseconds from one to the other, and bytes in a microsecond
        self.links: dict[tuple[str, str], tuple[float, float]] = {}
        self._host_of: dict[bytes, str] = {}
        self._decode = Decode("dispatcher"), Decode("worker")
        for _ in range(workers):
            self.add_worker()

    # -- workers and clients -------------------------------------------------------------

    def add_worker(self) -> bytes:
        """Add a worker and return its name, once the dispatcher has welcomed it."""
        self._engine = self._engine or make_engine(self.backend, "cpu" if self.backend == "torch" else None)
        name = self._name("w")
        self._host_of[name] = self.hosts[self.dispatcher.next_worker % len(self.hosts)] if self.hosts else ""
        self.workers[name] = Worker(self._engine, host_identity(), snapshots=WorkerSnapshots(self._engine))
        speed = self.speeds[self.dispatcher.next_worker % len(self.speeds)]
        hello = replace(self._hello("worker"), place=WorkerPlace(self._host_of[name]), speed=speed)
        self._post(name, b"", [encode(hello)])
        while name in self.workers and self.workers[name].id < 0:
            self.step()
        return name

    def add_client(self) -> Session:
        """Add a client and return its session, once the dispatcher has welcomed it."""
        name = self._name("c")
        session = self.clients[name] = Session(f"cluster in this process, client {name.decode()}")
        session.connection.link = ClusterLink(self, name)
        self._post(name, b"", [encode(self._hello("client"))])
        session.connection.wait(lambda: session.welcomed)
        return session

    @contextlib.contextmanager
    def client(self) -> Iterator[Session]:
        """Add a client whose session is the current one inside the block."""
        session = self.add_client()
        with use(session):
            yield session
        session.close()

    def kill_worker(self, name: bytes) -> None:
        """Remove a worker as if its process had died."""
        worker = self.workers.pop(name)
        for space in worker.spaces.values():
            space.close()  # the memory of a process ends with it
        for client in list(worker.spaces):
            worker.snapshots.forget(client)
        self.network.lose(worker.id)
        self._cut(name)

    def kill_client(self, session: Session) -> None:
        """Remove a client as if its process had died."""
        name = self.name_of(session)
        del self.clients[name]
        session.connection.link = None
        session.connection.end(ConnectionLost("killed by the test"))
        session.uploads.close()
        self._cut(name)

    def name_of(self, session: Session) -> bytes:
        """The name of a client, by its session."""
        return next(name for name, client in self.clients.items() if client is session)

    def _cut(self, name: bytes) -> None:
        """Disconnect a lost peer. Messages that it has sent still arrive; the empty one after them reports the loss."""
        self.wires.pop((b"", name), None)
        self._post(name, b"", [])

    def _name(self, kind: str) -> bytes:
        self._names += 1
        return f"{kind}{self._names}".encode()

    def _hello(self, role: str) -> Hello:
        store = f"local:{self.dispatcher.next_worker}" if role == "worker" else ""
        return Hello(role, PROTOCOL, VERSION, host_identity(), self._names, self.backend, "cpu", store=store)

    # -- delivery ------------------------------------------------------------------------

    def _post(self, source: bytes, target: bytes, frames: Frames) -> None:
        self.wires.setdefault((source, target), deque()).append(frames)

    def step(self) -> bool:
        """Deliver one message, chosen at random among the first ones of all wires. Returns False if there is none."""
        busy = [wire for wire, queue in self.wires.items() if queue and wire[1] not in self.paused]
        if not busy:
            return False
        source, target = wire = busy[0] if len(busy) == 1 else self.rng.choice(busy)
        frames = self.wires[wire].popleft()
        if target == b"":
            self._to_dispatcher(source, frames)
        elif target in self.workers:
            self._to_worker(target, frames)
        elif target in self.clients:
            self.clients[target].handle(frames)
        if self.after_step is not None:
            self.after_step(self)
        return True

    def settle(self) -> None:
        """Deliver all messages."""
        while self.step():
            pass

    def clock(self) -> int:
        """A time in nanoseconds that goes on by a microsecond each time it is read."""
        self._ticks += 1000
        return int(self.now * 1e9) + self._ticks

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, and let the dispatcher act on it."""
        self.now += seconds
        self._act_unasked(self.dispatcher.tick(self.now))

    def _to_dispatcher(self, source: bytes, frames: Frames) -> None:
        if not frames:
            self._act_unasked(self.dispatcher.gone(source))
            return
        if source in self.closed:
            return
        try:
            message = self._decode[0](frames[0])
        except BadFrame as error:
            self._act_unasked(self.dispatcher.refuse(source, f"a frame that does not decode: {error}"))
            return
        listeners, sender = self.dispatcher.listeners, self.dispatcher.by_peer.get(source)
        begun = self.clock() if listeners else 0
        actions = self.dispatcher.handle(source, message, tuple(frames[1:]), len(frames[0]))
        self._act(actions)
        if begun:
            listeners.handled(sender, message, actions, begun, self.clock())

    def _to_worker(self, name: bytes, frames: Frames) -> None:
        message = self._decode[1](frames[0])
        worker = self.workers[name]
        if isinstance(message, Record):
            skew = self.skews.get(name, 0)
            for answer in worker.record(message, lambda: self.clock() + skew):
                self._post(name, b"", [encode(answer)])
            return
        if type(message).__name__ == "Welcome":
            worker.assign_id(message.id)
            worker.mover.plane = LocalPlane(self.network, message.id)
            return
        if isinstance(message, OpenProbe):
            self._post(name, b"", [encode(ProbeOpen(name.decode(), b""))])
            return
        if isinstance(message, MeasureLink):
            pair = sorted((self._host_of[name], self._host_of[message.address.encode()]))
            figures = self.links.get((pair[0], pair[1]), (0.0, 0.0))
            self._post(name, b"", [encode(LinkMeasured(message.worker, *figures))])
            return
        for outgoing in worker.handle(message, memoryview(frames[1]) if len(frames) > 1 else None):
            self._post(name, b"", frames_of(outgoing))
        self._wake()

    def _wake(self) -> None:
        """Continue the workers whose move is complete. Their messages may let others continue."""
        while waiting := [(name, worker) for name, worker in self.workers.items() if worker.can_continue()]:
            for name, worker in waiting:
                for outgoing in worker.wake():
                    self._post(name, b"", frames_of(outgoing))
        for name, worker in self.workers.items():
            for saved in worker.snapshots.finished():
                self._post(name, b"", [encode(saved)])

    def _act_unasked(self, actions: list[Action]) -> None:
        """Carry out actions that are not the answer to a message."""
        self._act(actions)
        if listeners := self.dispatcher.listeners:
            listeners.handled(None, None, actions, self.clock(), self.clock())

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Close):
                self.closed[action.peer] = action.reason
                continue
            if isinstance(action, SendAll):
                self._act([SendMessage(peer, action.message) for peer in action.peers])
                continue
            if action.peer not in self.workers and action.peer not in self.clients:
                continue
            head = [] if action.message is None else [encode(action.message)]
            self._post(b"", action.peer, [*head, *action.rest])


def frames_of(outgoing: OutgoingMessage) -> Frames:
    """The frames of a message, as they would go over a socket."""
    frames: Frames = [encode(outgoing.message)]
    if outgoing.inner is not None:
        frames.append(encode(outgoing.inner))
    if outgoing.data is not None:
        frames.append(bytes(outgoing.data))
    return frames


def _outside_of_kernels() -> Callable[[], contextlib.AbstractContextManager[object]]:
    """What torch does with ops in this thread now. A kernel of the torch device changes it, and waits for workers that
    run in the same thread."""
    if (torch := sys.modules.get("torch")) is None:
        return contextlib.nullcontext
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return lambda: torch._C._ForceDispatchKeyGuard(*keys)


class ClusterLink:
    """A session's link to a cluster in the same thread. While it waits, it delivers messages."""

    def __init__(self, cluster: Cluster, name: bytes) -> None:
        self._cluster, self._name = cluster, name
        self._outside = _outside_of_kernels()

    def send(self, frames: Frames) -> None:
        """Put a message on the wire to the dispatcher."""
        self._cluster._post(self._name, b"", frames)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Deliver messages until the condition holds; if there are none, one second passes. False after the timeout."""
        with self._outside():
            return self._deliver(ready, timeout)

    def _deliver(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        ticks = 0
        while not ready():
            if self._cluster.step():
                continue
            if timeout is not None and ticks >= timeout:
                return False
            # only the clock can cause another message; if it does not within a few seconds, it never will
            ticks += 1
            assert ticks < 10, f"client {self._name.decode()} waits for a message that will not come"
            self._cluster.tick()
        return True

    def close(self) -> None:
        """Disconnect the client."""
        self._cluster.clients.pop(self._name, None)
        self._cluster.wires.pop((b"", self._name), None)
