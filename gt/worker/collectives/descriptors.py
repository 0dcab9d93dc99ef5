"""A wakeup descriptor, and the connections of a group.

gloo has no abort: a collective waits for a lost peer for ever, and its group cannot be destroyed before it ends. gloo
also reports a lost peer only when a collective needs that peer. But its connections are ordinary sockets of this
process.
Each group's device listens on a separate port, so the group's connections can be recognised: they come from that
port, or go to a port that a peer's device listens on. A duplicate of such a socket can be watched for the end of the
peer. Shutting it down ends every collective that waits on it, at both ends.

A network that loses packets closes no connection. So the kernel probes an idle connection every few seconds, and tells
when the peer last answered. The peer's kernel answers, also while the peer computes or is stopped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Iterable, Iterator

#: Seconds without an answer after which a path counts as lost.
PATH_TIMEOUT_S = 10.0
#: The kernel probes a connection that was idle for the first time, then at the second interval, this often.
PROBE_AFTER_S, PROBE_INTERVAL_S, PROBES = 4, 2, 3
#: `struct tcp_info` of Linux: state, ca_state, retransmits, probes; last_data_sent, last_ack_recv in milliseconds ago
_TCP_INFO = struct.Struct("=BBBB4x36xI8xI")
_TCP_CLOSE = 7


class WakeEvent:
    """A descriptor that any thread can make readable."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_set = False

    def set(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)
                self._is_set = True  # after the write: `clear` would otherwise leave the descriptor readable

    def clear(self) -> None:
        if not self._is_set:
            return
        self._is_set = False
        with contextlib.suppress(OSError):  # it is not set, or closed
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


class PeerMonitor:
    """Waits for a wakeup, or for a peer to close its connection."""

    def __init__(self, wakeup: WakeEvent, connections: Iterable[socket.socket]) -> None:
        self._wakeup, self._poll = wakeup, select.poll()
        self._poll.register(wakeup.fd, select.POLLIN)
        for connection in connections:
            self._poll.register(connection, select.POLLRDHUP)

    def wait(self, seconds: float) -> bool:
        """Wait. Returns whether a peer closed its connection, once for each peer."""
        events = self._poll.poll(seconds * 1000)
        closed = [fd for fd, _ in events if fd != self._wakeup.fd]
        for fd in closed:
            self._poll.unregister(fd)
        if len(events) > len(closed):
            self._wakeup.clear()
        return bool(closed)


def listening_ports() -> set[int]:
    """The TCP ports this process listens on."""
    return {s.getsockname()[1] for s in _sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


def group_connections(port: int, peers: dict[tuple[str, int], int]) -> dict[socket.socket, tuple[int, ...]]:
    """Duplicates of the connections that come from ``port`` or go to one of the peers: (host, port) -> worker. With the
    worker at the other end of each, or several if it may be any of them: a connection comes from any port of a peer."""
    connections: dict[socket.socket, tuple[int, ...]] = {}
    incoming: dict[socket.socket, str] = {}
    for s in _sockets():
        with contextlib.suppress(OSError):
            peer = s.getpeername()[:2]  # raises for a listener; shutting a listener down would make gloo abort
            if peer in peers or s.getsockname()[1] == port:
                connection = socket.socket(fileno=os.dup(s.fileno()))  # s.dup() would make it blocking
                connections[connection] = (peers[peer],) if peer in peers else ()
                if peer not in peers:
                    incoming[connection] = peer[0]
    known = {worker for workers in connections.values() for worker in workers}
    for connection, host in incoming.items():
        connections[connection] = tuple(w for (h, _), w in peers.items() if h == host and w not in known)
    return connections


def probe(connection: socket.socket) -> None:
    """Let the kernel probe the connection while it is idle."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def is_silent(connection: socket.socket) -> bool:
    """Whether the peer's kernel has not answered for too long, although it was sent something.

    A peer that does not read for long is not silent: its kernel answers. But the kernel asks rarely then, so the time
    since the last answer alone is no sign.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    state, _, _, probes, sent, answered = _TCP_INFO.unpack(info)
    asked = sent + 1000 < answered or probes > 1 or state == _TCP_CLOSE
    return bool(asked and answered >= (PATH_TIMEOUT_S - 1) * 1000)


def shut_down(connections: Iterable[socket.socket]) -> None:
    """End the connections, so that every collective that waits on one ends, at both ends."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """The TCP sockets of this process, as duplicates: the original descriptor may be closed and reused at any time.

    Each duplicate is closed when the iteration continues.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
            continue
        with socket.socket(fileno=fd) as s:
            if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
                yield s
