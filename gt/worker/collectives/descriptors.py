"""A bell, and the connections of a group.

gloo has no abort: a collective that waits for a peer who never comes would wait for ever, and its group could not
be taken down. Nor does it say that a peer is gone before a collective wants something of that very peer. Its
connections are ordinary sockets of this process, though, and each group's device listens on a port of its own, so they
can be told from all others: they come from that port, or go to one that a peer's device listens on. A duplicate of each
can be watched for its other end's end; shut down, it ends every collective that waits on it, here and there.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
from collections.abc import Iterator


class Bell:
    """A descriptor that becomes readable when rung, from any thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def ring(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def drain(self) -> None:
        with contextlib.suppress(OSError):  # silent, or closed
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


class Watch:
    """Waits for a bell or for the other end of a connection to end, whichever comes first."""

    def __init__(self, bell: Bell, links: list[socket.socket]) -> None:
        self._bell, self._poll = bell, select.poll()
        self._poll.register(bell.fd, select.POLLIN)
        for link in links:
            self._poll.register(link, select.POLLRDHUP)

    def wait(self, seconds: float | None) -> bool:
        """Has the other end of a connection ended? Said once of each."""
        events = self._poll.poll(None if seconds is None else seconds * 1000)
        ended = [fd for fd, _ in events if fd != self._bell.fd]
        for fd in ended:
            self._poll.unregister(fd)
        if len(events) > len(ended):
            self._bell.drain()
        return bool(ended)


def listening() -> set[int]:
    """The TCP ports this process listens on."""
    return {s.getsockname()[1] for s in _sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


def links(own: int, peers: set[tuple[str, int]]) -> list[socket.socket]:
    """Duplicates of the connections that come from port ``own`` or go to one of the peers' (host, port)."""
    found = []
    for s in _sockets():
        with contextlib.suppress(OSError):
            peer = s.getpeername()[:2]  # a listener has none, and must be left alone: gloo would end the process
            if peer in peers or s.getsockname()[1] == own:
                found.append(socket.socket(fileno=os.dup(s.fileno())))  # s.dup() would make it blocking
    return found


def shut(links: list[socket.socket]) -> None:
    for link in links:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """A duplicate of each, closed after its turn: no number can come to mean another file meanwhile."""
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
