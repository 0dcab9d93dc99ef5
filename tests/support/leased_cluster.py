"""A `Cluster` whose clients keep their sessions over lost connections.

The real `LeasedConnection` and `LeasedListener` run over simulated sockets and the cluster's own clock. A socket keeps
the order of its messages until it is cut; a cut loses what is on its way, in both directions. A client that is cut off
makes new sockets, which may arrive late.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from gt.client.stream.session import Session
from gt.dispatcher.actions import Action, Close, SendAll, SendMessage
from gt.dispatcher.journal.state_codec import decode_state, encode_state
from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder
from gt.errors import ConnectionLost
from gt.testing import Cluster, Frames
from gt.wire.codec import BadFrame, encode
from gt.wire.leases import leased_connection, leased_listener
from gt.wire.leases.leased_connection import LeasedConnection
from gt.wire.leases.leased_listener import LeasedListener
from gt.wire.messages import Heartbeat
from gt.wire.sockets import SILENCE_MS

#: How long the server keeps the session of a silent client, in simulated seconds.
LEASE_S = 40.0
#: Simulated seconds without a message after which a wait can only be one that never ends.
LONGEST_WAIT_S = 200


class Socket:
    """A client's socket: see `gt.wire.sockets.ZmqConnection`. The server knows it by its name."""

    def __init__(self, cluster: LeasedCluster, owner: bytes) -> None:
        self.cluster, self.owner = cluster, owner
        self.name = cluster.new_socket(self)
        self.inbox: deque[Frames] = deque()
        self.ended = self.refused = ""
        self.unreachable = self.closed_by_peer = False
        #: whether one side has closed it
        self.closed = False
        #: if it was cut off silently: when both sides notice
        self.noticed_at: float | None = None
        #: messages wait until this time: the socket was made while the network was away
        self.opens_at = cluster.away.get(owner, 0.0)

    @property
    def passes(self) -> bool:
        return not self.closed and self.noticed_at is None

    def cut(self, silently: bool) -> None:
        """Lose the last messages that are on their way, or all of them."""
        rng, wires = self.cluster.rng, self.cluster.wires
        for wire in ((self.name, b""), (b"", self.name)):
            queue = wires.get(wire, deque())
            while queue and (silently or rng.random() < 0.7):
                queue.pop()
        if silently:
            self.noticed_at = self.cluster.now + SILENCE_MS / 1000 * rng.uniform(0.8, 1.2)
        else:
            self.closed = True

    @property
    def lost(self) -> bool:
        """Whether both sides can know that it is lost."""
        return self.closed or (self.noticed_at is not None and self.cluster.now >= self.noticed_at)

    # -- the client's side ---------------------------------------------------------------

    def also_wake_on(self, fd: int) -> None:
        pass

    def send(self, frames: Frames) -> None:
        if self.passes:
            self.cluster._post(self.name, b"", list(frames))

    def wait(self, milliseconds: int) -> bool:
        if self.lost and not self.inbox and not self.cluster.wires.get((b"", self.name)):
            self.ended = self.ended or "the server closed the connection, or died"
            self.closed_by_peer = self.closed
        return bool(self.inbox) or bool(self.ended)

    def take(self) -> list[Frames]:
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def close(self) -> None:
        self.closed = True


class Tcp:
    """What the server sees of a socket: see `gt.wire.sockets.TcpConnection`."""

    key = b"one token"
    address = "simulated"

    def __init__(self, socket: Socket | None) -> None:
        self._socket = socket

    def duplicate(self) -> Tcp:
        return Tcp(self._socket)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def closed_by_peer(self) -> bool:
        # a socket that is silent cannot say that the client has closed it
        return self._socket is None or (self._socket.closed and self._socket.noticed_at is None)

    def shut_down(self, how: int = 0) -> None:
        pass

    def close(self) -> None:
        self._socket = None


class SimulatedListener:
    """See `gt.wire.sockets.ZmqListener`."""

    def __init__(self, cluster: LeasedCluster) -> None:
        self._cluster = cluster
        self.arrived: tuple[bytes, Frames] | None = None
        #: sockets whose messages the server ignores; those that it dropped itself are closed at the next tick
        self._lost: set[bytes] = set()
        self._dropped: set[bytes] = set()

    def receive(self, seconds: float) -> Iterator[tuple[bytes, Frames]]:
        if self.arrived is not None and self.arrived[0] not in self._lost | self._dropped:
            yield self.arrived[0], list(self.arrived[1])

    def tcp(self, wire: bytes) -> Tcp:
        return Tcp(self._cluster.sockets[wire])

    def send(self, wire: bytes, frames: Frames) -> bool:
        socket = self._cluster.sockets[wire]
        if socket.lost:
            self._lost.add(wire)
            return False
        if socket.passes:
            self._cluster._post(b"", wire, list(frames))
        return True

    def silent(self, now: float) -> list[bytes]:
        for wire in self._dropped:
            self._cluster.sockets[wire].closed = True
        return []

    def drop(self, wire: bytes) -> None:
        self._dropped.add(wire)

    def close(self) -> None:
        pass


class NoJournal:
    """A journal that keeps nothing: `LeasedCluster.restart_server` writes the state itself."""

    def opened(self, peer: bytes, key: bytes, worker: bool) -> None:
        pass

    def acknowledged(self, peer: bytes, received: int) -> None:
        pass


class LeasedLink:
    """A session's link: see `gt.client.stream.link.ThreadedLink`. While it waits, it delivers messages."""

    def __init__(self, cluster: LeasedCluster, name: bytes, session: Session) -> None:
        self._cluster, self._session, self._name = cluster, session, name
        with cluster.sockets_for(name):
            self.connection = LeasedConnection("tcp://simulated:1", None)  # type: ignore[arg-type]
        #: after how many messages a wait is interrupted, as by Ctrl-C; negative: never
        self.interrupt_after = -1

    def send(self, frames: Frames) -> None:
        if self.connection.ended:
            raise ConnectionLost(self.connection.ended)
        self.connection.send(list(frames))

    def poll(self) -> None:
        """What the background thread does: look after the connection, and receive."""
        if self._cluster.is_stopped(self._name.decode()):
            return
        with self._cluster.sockets_for(self._name):
            self.connection.wait(0)
        for frames in self.connection.take():
            self._session.handle(frames)
        if self.connection.ended:
            self._session.connection.end(ConnectionLost(self.connection.ended))

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        ticks = 0
        while not ready():
            if self.connection.ended:
                raise ConnectionLost(self.connection.ended)
            if self.interrupt_after == 0:
                self.interrupt_after = -1
                raise KeyboardInterrupt
            self.interrupt_after -= self.interrupt_after > 0
            if self._cluster.step():
                continue
            if timeout is not None and ticks >= timeout:
                return False
            ticks += 1
            assert ticks < LONGEST_WAIT_S, f"client {self._name.decode()} waits for a message that will not come"
            self._cluster.tick()
        return True

    def close(self) -> None:
        self._cluster.disconnect(self._name)


class LeasedCluster(Cluster):
    """Use it inside `simulated`."""

    def __init__(self, workers: int = 1, seed: int = 0, backend: str = "torch", snapshots: str | None = None) -> None:
        self.sockets: dict[bytes, Socket] = {}
        #: client -> when its network is back, and when its process continues, which is stopped until then
        self.away: dict[bytes, float] = {}
        self.stopped_clients: dict[bytes, float] = {}
        self.links: dict[bytes, LeasedLink] = {}
        self._folder = snapshots
        self._listen()
        #: the client that new sockets belong to
        self._owner = b""
        #: worker -> when it was stopped, and when it will continue
        self._stopped: dict[bytes, tuple[float, float]] = {}
        #: called with the number of a worker just before it dies
        self.before_death: Callable[[int], object] = bool
        super().__init__(workers, seed, backend, snapshots=snapshots)

    def _listen(self) -> None:
        self._inner: Any = SimulatedListener(self)
        journal = NoJournal() if self._folder else None
        self.listener = LeasedListener(self._inner, None, LEASE_S, lambda peer, event: None, journal)  # type: ignore[arg-type]

    def restart_server(self) -> None:
        """The server is killed, and goes on from its state, as with a journal. The connections of clients are lost."""
        assert self._folder, "memory ends with the server"
        core = self.dispatcher
        externals = {"clock": core.listeners.clock, "wall": core.inspections._wall, "access": core._access}
        state = encode_state([core, self.listener.sessions()], {**externals, "snapshots": self.storage})
        for name, socket in self.sockets.items():
            if socket.opens_at <= self.now:  # the others will reach the new server
                socket.closed = socket.closed or socket.noticed_at is None
                self.wires.pop((name, b""), None)
                self.wires.pop((b"", name), None)
        self.storage.close(keep=True)
        self.storage = SnapshotFolder(Path(self._folder), threaded=False)
        self._listen()
        self.dispatcher, sessions = decode_state(state, {**externals, "snapshots": self.storage})
        snapshots = self.dispatcher.snapshots
        assert snapshots.lose_files(self.storage.begin(snapshots.files())) == 0, "a snapshot is not there any more"
        for peer, key, worker, numbering in sessions:
            self.listener.restore(peer, key, worker, Tcp.key, numbering)
        self.listener.wait_for_restored(self.now)
        known = {peer for peer, *_ in sessions}
        for peer in [peer for peer in self.dispatcher.by_peer if peer in self.sockets and peer not in known]:
            self._act_unasked(self.dispatcher.gone(peer))

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        """Inside the block, connections are made here, and have this cluster's time."""
        clock = types.SimpleNamespace(**{**vars(time), "monotonic": lambda: self.now, "sleep": lambda seconds: None})
        socket, owner = lambda *_, **__: Socket(self, self._owner), lambda: self._owner.decode()
        with (
            mock.patch.multiple(leased_connection, ZmqConnection=socket, time=clock, warn=mock.DEFAULT),
            mock.patch.multiple(leased_connection, process_identity=owner),
            mock.patch.multiple(leased_listener, time=clock, process_state=self.process_state),
            mock.patch.object(LeasedConnection, "_nobody_listens", return_value=False),
        ):
            yield

    # -- clients and their sockets -------------------------------------------------------

    def add_client(self) -> Session:
        name = self._name("c")
        session = self.clients[name] = Session(f"cluster in this process, client {name.decode()}")
        self.links[name] = session.connection.link = LeasedLink(self, name, session)
        try:
            session.connection.send([encode(self._hello("client"))])
            session.connection.wait(lambda: session.welcomed)
        except ConnectionLost:
            self.disconnect(name)
            raise
        return session

    @contextlib.contextmanager
    def sockets_for(self, name: bytes) -> Iterator[None]:
        """Sockets that are made inside the block belong to this client."""
        before, self._owner = self._owner, name
        try:
            yield
        finally:
            self._owner = before

    def new_socket(self, socket: Socket) -> bytes:
        name = self._name("s")
        self.sockets[name] = socket
        return name

    def _socket(self, name: bytes) -> Socket | None:
        """The socket that a client uses now."""
        inner: Any = self.links[name].connection._inner
        return inner if isinstance(inner, Socket) else None

    def cut_off(self, name: bytes, seconds: float, silently: bool) -> None:
        """A client's connection is lost. Its network is back after so many seconds."""
        self.away[name] = self.now + seconds
        if (socket := self._socket(name)) is not None:
            socket.cut(silently)

    def stop_client(self, name: bytes, seconds: float) -> None:
        """A client's process is stopped, and its connection is reset."""
        self.stopped_clients[name] = self.now + seconds
        self.cut_off(name, seconds, silently=False)

    def is_stopped(self, process: str) -> bool:
        return self.now < self.stopped_clients.get(process.encode(), 0.0)

    def process_state(self, process: str) -> str:
        """See `gt.wire.shared.process_state`; half of the clients are on another host."""
        if int(process.removeprefix("c")) % 2 or process.encode() not in self.links:
            return "stopped" if self.is_stopped(process) else ""
        return "stopped" if self.is_stopped(process) else "running"

    def kill_client(self, session: Session) -> None:
        name = self.name_of(session)
        session.connection.link = None
        session.connection.end(ConnectionLost("killed by the test"))
        session.uploads.close()
        if (socket := self._socket(name)) is not None:
            socket.cut(silently=False)
        self.disconnect(name)

    def disconnect(self, name: bytes) -> None:
        """The process closes its sockets. What it has sent still arrives."""
        self.clients.pop(name, None)
        self.stopped_clients.pop(name, None)
        link = self.links.pop(name, None)
        if link is not None:
            link.connection.close()

    # -- workers -------------------------------------------------------------------------

    def stop_worker(self, name: bytes, seconds: float) -> None:
        """The worker's process is stopped for so long. After `SILENCE_MS` it counts as lost."""
        self._stopped[name] = self.now, self.now + seconds
        self.paused.add(name)

    def continue_workers(self) -> None:
        """No worker is stopped any more."""
        for name in self._stopped:
            self.paused.discard(name)
        self._stopped.clear()

    def _continue_some(self) -> None:
        for name, (since, until) in list(self._stopped.items()):
            silent = self.now - since >= SILENCE_MS / 1000
            if silent and name in self.workers:
                self.kill_worker(name)
            if silent or self.now >= until:
                self.paused.discard(name)
                del self._stopped[name]

    def kill_worker(self, name: bytes) -> None:
        """The worker dies while it sends: the last of its messages are lost with it."""
        self.before_death(self.workers[name].id)
        sent = self.wires.get((name, b""), deque())
        while sent and self.rng.random() < 0.5:
            sent.pop()
        super().kill_worker(name)

    # -- delivery ------------------------------------------------------------------------

    def step(self) -> bool:
        busy = [wire for wire, queue in self.wires.items() if queue and self._may_deliver(*wire)]
        if not busy:
            return False
        source, target = wire = busy[0] if len(busy) == 1 else self.rng.choice(busy)
        frames = self.wires[wire].popleft()
        if target in self.sockets:
            self._to_client(self.sockets[target], frames)
        elif source in self.sockets:
            self._from_client(source, frames)
        elif target == b"":
            self._to_dispatcher(source, frames)
        elif target in self.workers:
            self._to_worker(target, frames)
        if self.after_step is not None:
            self.after_step(self)
        return True

    def _may_deliver(self, source: bytes, target: bytes) -> bool:
        return target not in self.paused and (source not in self.sockets or self.sockets[source].opens_at <= self.now)

    def _to_client(self, socket: Socket, frames: Frames) -> None:
        if socket.owner in self.links and self._socket(socket.owner) is socket:
            socket.inbox.append(frames)
            self.links[socket.owner].poll()

    def _from_client(self, source: bytes, frames: Frames) -> None:
        self._inner.arrived = source, frames
        for peer, message in self.listener.receive(0):
            if isinstance(message, BadFrame):
                self._act_unasked(self.dispatcher.refuse(peer, str(message)))
            elif message is not None:
                self._to_dispatcher(peer, message)

    def tick(self, seconds: float = 1.0) -> None:
        super().tick(seconds)
        if isinstance(self.storage, SnapshotFolder):
            self.storage.clean()
        self._continue_some()
        clients = [peer for peer in self.dispatcher.by_peer if peer in self.sockets]
        self._act([SendMessage(peer, Heartbeat()) for peer in clients if self.listener.needs_heartbeat(peer)])
        for peer in self.listener.silent(self.now):
            self.listener.drop(peer)
            self._act_unasked(self.dispatcher.gone(peer))
        for link in list(self.links.values()):
            link.poll()
        for wire in [wire for wire, queue in self.wires.items() if not queue]:
            del self.wires[wire]

    def _act(self, actions: list[Action]) -> None:
        """As `gt.dispatcher.server.Server` does it."""
        unreachable: dict[bytes, None] = {}
        for action in actions:
            if isinstance(action, Close):
                self.closed[action.peer] = action.reason
                if action.peer in self.sockets:
                    self.listener.drop(action.peer)
            elif isinstance(action, SendAll):
                for peer in action.peers:
                    self._send(SendMessage(peer, action.message), unreachable)
            else:
                self._send(action, unreachable)
        for peer in unreachable:
            self._act_unasked(self.dispatcher.gone(peer))

    def _send(self, action: SendMessage, unreachable: dict[bytes, None]) -> None:
        head = [] if action.message is None else [encode(action.message)]
        if action.peer in self.workers:
            self._post(b"", action.peer, [*head, *action.rest])
        elif action.peer in self.sockets and not self.listener.send(action.peer, [*head, *action.rest]):
            unreachable[action.peer] = None
