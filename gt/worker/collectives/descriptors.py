"""A wakeup descriptor, and the connections of a group.

gloo has no abort: a collective waits for a lost peer for ever, and its group cannot be destroyed before it ends. gloo
also reports a lost peer only when a collective needs that peer. But its connections are ordinary sockets of this
process.
Each group's device listens on a separate port, so the group's connections can be recognised: they come from that
port, or go to a port that a peer's device listens on. A duplicate of such a socket can be watched for the end of the
peer. Shutting it down ends every collective that waits on it, at both ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
from collections.abc import Iterator


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

    def __init__(self, wakeup: WakeEvent, connections: list[socket.socket]) -> None:
        self._wakeup, self._poll = wakeup, select.poll()
        self._poll.register(wakeup.fd, select.POLLIN)
        for connection in connections:
            self._poll.register(connection, select.POLLRDHUP)

    def wait(self, seconds: float | None) -> bool:
        """Wait, for None without a limit. Returns whether a peer closed its connection, once for each peer."""
        events = self._poll.poll(None if seconds is None else seconds * 1000)
        closed = [fd for fd, _ in events if fd != self._wakeup.fd]
        for fd in closed:
            self._poll.unregister(fd)
        if len(events) > len(closed):
            self._wakeup.clear()
        return bool(closed)


def listening_ports() -> set[int]:
    """The TCP ports this process listens on."""
    return {s.getsockname()[1] for s in _sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


def group_connections(port: int, peers: set[tuple[str, int]]) -> list[socket.socket]:
    """Duplicates of the connections that come from ``port`` or go to one of the peers' (host, port)."""
    connections = []
    for s in _sockets():
        with contextlib.suppress(OSError):
            peer = s.getpeername()[:2]  # raises for a listener; shutting a listener down would make gloo abort
            if peer in peers or s.getsockname()[1] == port:
                connections.append(socket.socket(fileno=os.dup(s.fileno())))  # s.dup() would make it blocking
    return connections


def shut_down(connections: list[socket.socket]) -> None:
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
