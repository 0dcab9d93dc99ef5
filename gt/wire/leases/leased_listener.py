"""Keeps the session of a client that is silent: a `ZmqListener` whose clients may come back on another connection.

A client sends `Open` with its `Hello` (see `gt.wire.numbering`). From then on its name, for the rest of the server, is
that of its first connection, also when another connection carries the session.

How a connection ends decides how long the session is kept:

    a Bye, or a refusal       not at all
    the peer's kernel has     `GRACE_S`: the process has ended, or a device in the network has reset the connection. In
    closed the connection     the second case the client notices it too, and comes back at once
    closed, and the process   the lease, while it is stopped; then `SILENT_GRACE_S`. The server can see this if the
    is stopped                process is on its host (`gt.wire.shared.process_state`)
    closed, and the process   `SILENT_GRACE_S`: a device in the network has reset the connection, and the client cannot
    runs on this host         make another one so far
    only silence              the lease: the process is stopped, or the network is away
    silence, then closed      `SILENT_GRACE_S`: the stopped process was killed, or the client has given up this
                              connection and is trying to make another

ZeroMQ does not report how a connection ended. A second descriptor of each connection keeps its state in the kernel, so
that it can be looked at when ZeroMQ has closed its own (`gt.wire.sockets.TcpConnection`). After silence it stays open,
for reading: so the end of a stopped process is noticed, and the process finds its connection closed when it continues.

Viewers send no `Open`, and pass through unchanged. So do workers, unless the server keeps a journal
(`gt.dispatcher.journal`). Then all sessions outlive the server: `restore` puts them back, and `wait_for_restored` gives
each peer time to come back. The session of a worker whose connection is lost in any other way is not kept.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gt.wire.codec import BadFrame
from gt.wire.identities import PeerIdentity
from gt.wire.numbering import (
    CONTROL,
    Acknowledge,
    Control,
    Expired,
    Numbering,
    Open,
    Opened,
    Resume,
    Resumed,
    control,
    read_control,
)
from gt.wire.shared import process_state
from gt.wire.sockets import MAX_UNSENT_MESSAGES, TcpConnection, ZmqListener
from gt.wire.token_file import Identities

#: Seconds that the session of a client whose connection was closed is kept.
GRACE_S = 2.0
#: The same after silence: longer than a client that is alive needs for one more attempt.
SILENT_GRACE_S = 15.0
#: Seconds between two calls of `LeasedListener.silent`; if there are more, the server did not run.
MAX_CALL_INTERVAL_S = 2.0
#: Seconds that a worker may take to come back to a server that was started again.
WORKER_RETURN_S = 30.0
#: Messages that a client may leave unacknowledged before it counts as lost. They must all fit into a new connection.
MAX_KEPT_MESSAGES = MAX_UNSENT_MESSAGES - 16
#: The same for a worker of a server with a journal. It acknowledges nothing while it computes.
MAX_UNSENT_TO_WORKER = 16 * MAX_UNSENT_MESSAGES
MAX_KEPT_BY_WORKER = MAX_UNSENT_TO_WORKER - 16
#: The longest identity of a process that is kept.
MAX_PROCESS_CHARACTERS = 200


class SessionJournal(Protocol):
    """Keeps what is needed to restore sessions."""

    def opened(self, peer: bytes, key: bytes, worker: bool) -> None: ...

    def acknowledged(self, peer: bytes, received: int) -> None: ...


class Lease:
    """The session of a client or a worker."""

    def __init__(self, name: bytes, tcp: TcpConnection, key: bytes, worker: bool) -> None:
        #: the peer's name for the rest of the server
        self.name = name
        self.key, self.worker = key, worker
        self.numbering = Numbering()
        #: the connection that carries the session; None while there is none
        self.wire: bytes | None = None
        #: the last connection that carried the session
        self.tcp = tcp
        #: the number of the last attempt to resume
        self.attempt = 0
        #: when the session ends if no connection carries it until then, and the latest time for that if its process is
        #: running, or stopped
        self.deadline = self.latest_return = self.latest_end = 0.0
        #: the identity of the process, and whether it was reported as stopped
        self.process = ""
        self.stopped = False


class LeasedListener:
    """See `gt.wire.transport.Listener`. ``report`` is called with a client and what is known about its silence."""

    def __init__(
        self,
        inner: ZmqListener,
        identities: Identities,
        lease_s: float,
        report: Callable[[bytes, str], object],
        journal: SessionJournal | None = None,
    ) -> None:
        self._inner, self._identities, self._lease_s, self._report = inner, identities, lease_s, report
        self._journal = journal
        self._by_name: dict[bytes, Lease] = {}
        self._by_wire: dict[bytes, Lease] = {}
        self._by_key: dict[bytes, Lease] = {}
        #: when `silent` was called the last time
        self._last_call = float("inf")

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        for wire, frames in self._inner.receive(seconds):
            lease = self._by_wire.get(wire)
            if frames[0][:1] == CONTROL:
                try:
                    lease = self._control(wire, lease, read_control(frames.pop(0)))
                except BadFrame as error:
                    yield wire if lease is None else lease.name, error
                    continue
                if not frames:
                    continue
            if lease is None:
                yield wire, frames
            else:
                lease.numbering.incoming(frames)
                yield lease.name, frames

    def _control(self, wire: bytes, lease: Lease | None, message: Control) -> Lease | None:
        """Handle a message that is not counted, and return the session of its connection. Raises BadFrame."""
        if isinstance(message, Acknowledge) and lease is not None:
            self._acknowledged(lease, message.received)
        elif isinstance(message, Open) and lease is None:
            lease = self._open(wire, message)
        elif isinstance(message, Resume) and lease is None:
            lease = self._resume(wire, message)
        else:
            raise BadFrame(f"unexpected message {type(message).__name__}")
        return lease

    def _acknowledged(self, lease: Lease, received: int) -> None:
        lease.numbering.acknowledged(received)
        if self._journal is not None:
            self._journal.acknowledged(lease.name, received)

    def _open(self, wire: bytes, m: Open) -> Lease | None:
        """Begin a session, if this peer may have one."""
        if m.worker and self._journal is None:
            self._inner.send(wire, [control(Opened(b"", 0.0))])
            return None
        key = secrets.token_bytes(16)
        if self._journal is not None:
            self._journal.opened(wire, key, m.worker)
        lease = self._add(Lease(wire, self._inner.tcp(wire).duplicate(), key, m.worker))
        lease.process = m.process[:MAX_PROCESS_CHARACTERS]
        lease.wire, self._by_wire[wire] = wire, lease
        self._send(lease, [control(Opened(key, self._lease_s, self._journal is not None))])
        return lease

    def _add(self, lease: Lease) -> Lease:
        self._by_name[lease.name] = self._by_key[lease.key] = lease
        return lease

    def _resume(self, wire: bytes, m: Resume) -> Lease | None:
        """Let this connection carry its session from now on. Returns the session, if there is one."""
        lease = self._by_key.get(m.key)
        if lease is not None and lease.tcp.key != self._inner.tcp(wire).key:  # another token: it is not this client
            lease = None
        if lease is None or m.attempt <= lease.attempt:
            if lease is None:
                self._inner.send(wire, [control(Expired())])
            self._inner.drop(wire)
            return None
        try:
            missing = lease.numbering.resume(m.received)
        except BadFrame:  # the journal that restored the session does not explain what the peer has received
            lease.deadline = lease.latest_end = 0.0
            self._inner.send(wire, [control(Expired())])
            self._inner.drop(wire)
            return None
        if self._journal is not None:
            self._journal.acknowledged(lease.name, m.received)
        if lease.wire is not None:  # the client has noticed the loss first
            del self._by_wire[lease.wire]
            self._inner.drop(lease.wire)
        lease.tcp.close()
        lease.wire, lease.tcp, lease.attempt = wire, self._inner.tcp(wire).duplicate(), m.attempt
        lease.process, lease.stopped = m.process[:MAX_PROCESS_CHARACTERS], False
        self._by_wire[wire] = lease
        self._report(lease.name, "has a new connection")
        self._send(lease, [control(Resumed(lease.numbering.received))])
        for frames in missing:
            self._send(lease, frames)
        return lease

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost. A message for a client without a connection is kept."""
        lease = self._by_name.get(peer)
        if lease is None:
            return self._inner.send(peer, frames)
        frames = lease.numbering.outgoing(frames)
        if lease.wire is not None:
            self._send(lease, frames)
        limit = MAX_KEPT_BY_WORKER if lease.worker else MAX_KEPT_MESSAGES
        if len(lease.numbering.kept) > limit:  # it never reads, or does not acknowledge
            self.drop(peer)
            return False
        return True

    def _send(self, lease: Lease, frames: list[Any]) -> None:
        if lease.wire is not None and not self._inner.send(lease.wire, frames):
            del self._by_wire[lease.wire]
            lease.wire = None
            closed, now = lease.tcp.closed_by_peer, time.monotonic()
            lease.deadline = now + (0.0 if lease.worker else GRACE_S if closed else self._lease_s)
            lease.latest_end = lease.deadline if lease.worker else now + self._lease_s
            lease.latest_return = min(now + SILENT_GRACE_S, lease.latest_end)
            if closed or lease.worker:
                lease.tcp.close()
            else:
                lease.tcp.shut_down(socket.SHUT_WR)
                self._report(lease.name, f"does not answer; its session is kept for {self._lease_s:g} s")

    def silent(self, now: float) -> list[bytes]:
        """Clients whose lease has ended. Sends an acknowledgement to the others, which fails where one is lost."""
        expired = self._inner.silent(now)
        # who came back while the server did not run waits to be received
        stalled, self._last_call = max(0.0, now - self._last_call - MAX_CALL_INTERVAL_S), now
        for lease in self._by_name.values():
            lease.deadline, lease.latest_end = lease.deadline + stalled, lease.latest_end + stalled
            lease.latest_return += stalled
            if lease.wire is not None:
                self._send(lease, [lease.numbering.acknowledgement()])
                continue
            if lease.tcp.is_open and lease.tcp.closed_by_peer:
                lease.tcp.close()
                lease.deadline = min(lease.deadline, now + SILENT_GRACE_S)
            self._wait_for_process(lease, now)
            if now >= lease.deadline:
                expired.append(lease.name)
        return expired

    def _wait_for_process(self, lease: Lease, now: float) -> None:
        """A process that runs, on this host, did not close its connection by its end: it has time to come back. One
        that is stopped cannot: its time begins when it continues."""
        later = min(now + SILENT_GRACE_S, lease.latest_end)
        if lease.deadline >= later:
            return
        state = process_state(lease.process)
        if state == "running":
            lease.deadline = max(lease.deadline, min(now + GRACE_S, lease.latest_return))
        elif state == "stopped":
            lease.deadline = later
            if not lease.stopped:
                lease.stopped = True
                left = lease.latest_end - now
                self._report(lease.name, f"lost its connection and is stopped; its session is kept for {left:.0f} s")

    # -- a server that is started again --------------------------------------------------

    def sessions(self) -> list[tuple[bytes, bytes, bool, Numbering]]:
        """(peer, key, whether it is a worker, its numbering) of all sessions, for `restore`."""
        return [(lease.name, lease.key, lease.worker, lease.numbering) for lease in self._by_name.values()]

    def restore(self, peer: bytes, key: bytes, worker: bool, public_key: bytes, numbering: Numbering) -> None:
        """Put a session back. It has no connection."""
        lease = self._add(Lease(peer, TcpConnection(-1, public_key), key, worker))
        lease.numbering, lease.deadline = numbering, float("inf")
        lease.latest_end = lease.deadline

    def replay_message(self, peer: bytes, frames: list[bytes]) -> None:
        """Count a message that the server received before it ended."""
        if (lease := self._by_name.get(peer)) is not None:
            lease.numbering.incoming(frames)

    def replay_acknowledgement(self, peer: bytes, received: int) -> None:
        if (lease := self._by_name.get(peer)) is not None:
            lease.numbering.acknowledged(received)

    def wait_for_restored(self, now: float) -> None:
        """From now on, the peers may come back."""
        for lease in self._by_name.values():
            lease.deadline = lease.latest_end = now + (WORKER_RETURN_S if lease.worker else self._lease_s)

    # -- peers ---------------------------------------------------------------------------

    def identity(self, peer: bytes) -> PeerIdentity | None:
        tcp = self._tcp(peer)
        return None if tcp is None else self._identities.find(tcp.key)

    def public_key(self, peer: bytes) -> bytes:
        tcp = self._tcp(peer)
        return b"" if tcp is None else tcp.key

    def address(self, peer: bytes) -> str:
        tcp = self._tcp(peer)
        return "" if tcp is None else tcp.address

    def _tcp(self, peer: bytes) -> TcpConnection | None:
        """The last connection of a peer; None if it is lost."""
        lease = self._by_name.get(peer)
        if lease is not None:
            return lease.tcp
        try:
            return self._inner.tcp(peer)
        except KeyError:
            return None

    def needs_heartbeat(self, peer: bytes) -> bool:
        return peer not in self._by_name

    def drop(self, peer: bytes) -> None:
        """Ignore the peer, and disconnect it soon; its session ends."""
        lease = self._by_name.pop(peer, None)
        if lease is None:
            self._inner.drop(peer)
            return
        del self._by_key[lease.key]
        lease.tcp.close()
        if lease.wire is not None:
            del self._by_wire[lease.wire]
            self._inner.drop(lease.wire)

    def close(self) -> None:
        self._inner.close()
        for lease in self._by_name.values():
            lease.tcp.close()
