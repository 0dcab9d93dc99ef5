"""The transport of one machine: a Unix socket, without a library between us and the kernel.

ZeroMQ hands every message to a thread of its own and back. With three busy processes on two cores that is a third of a
round trip (``python benchmarks/control_plane.py --only transports``), although bare hops without any work in them cost
the same. Between processes of one user on one host none of what it offers is needed: access is a matter of the
socket's folder, and the kernel tells of a peer's end at once.

On the wire a message is: the number of its frames (one byte), their lengths (four bytes each), the frames.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from gt.wire.codec import BadFrame
from gt.wire.messages import MAX_FRAME

_HEADS = {n: struct.Struct(f"<B{n}I") for n in (1, 2, 3)}
_READ = 1 << 18
#: Seconds a message may take to leave; only a server that hangs takes so long.
SEND_TIMEOUT = 10.0
#: Bytes a peer may leave lying before it counts as gone.
UNSENT = 256 << 20
#: Seconds a peer may be stopped (by a signal or a debugger) before it counts as gone.
STOPPED = 10.0


def packed(frames: list[Any]) -> list[Any]:
    return [_HEADS[len(frames)].pack(len(frames), *map(len, frames)), *frames]


class Inbox:
    """Bytes as they come in, cut into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> list[list[bytes]]:
        """The messages that are complete. Raises BadFrame for what is no message."""
        data = self._rest + data if self._rest else data
        messages, at, end = [], 0, len(data)
        while at < end:
            head = _HEADS.get(data[at])
            if head is None:
                raise BadFrame(f"a message of {data[at]} frames")
            if at + head.size > end:
                break
            lengths = head.unpack_from(data, at)[1:]
            if max(lengths) > MAX_FRAME:
                raise BadFrame(f"a frame of {max(lengths)} bytes")
            start = at + head.size
            if start + sum(lengths) > end:
                break
            frames = []
            for length in lengths:
                frames.append(data[start : start + length])
                start += length
            messages.append(frames)
            at = start
        self._rest = data[at:]
        return messages


class _Peer:
    def __init__(self, name: bytes, wire: socket.socket) -> None:
        self.name, self.wire, self.inbox = name, wire, Inbox()
        #: what the peer has not taken yet; credits bound it
        self.unsent = bytearray()
        self.pid = _peer_pid(wire)
        self.watch = Stopwatch(self.pid)


class UnixListener:
    """The server's side: many peers, and nobody who is slow holds up the others."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._by_fd: dict[int, _Peer] = {}
        self._by_name: dict[bytes, _Peer] = {}
        self._count = 0

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        """What came: (peer, frames), or (peer, None) for one that ended, or what is wrong with what it sent."""
        for fd, event in self._poll.poll(max(0, int(seconds * 1000) + 1)):
            peer = self._by_fd.get(fd)
            if peer is None:
                self._accept(fd)
                continue
            if event & select.POLLOUT:
                self._push(peer)
            if event & ~select.POLLOUT:
                yield from self._read(peer)

    def _accept(self, fd: int) -> None:
        if fd != self._listener.fileno():
            return
        try:
            wire, _ = self._listener.accept()
        except OSError:  # it went away while it waited
            return
        wire.setblocking(False)
        self._count += 1
        peer = _Peer(b"unix %d" % self._count, wire)
        self._by_fd[wire.fileno()] = self._by_name[peer.name] = peer
        self._poll.register(wire, select.POLLIN)

    def _read(self, peer: _Peer) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        try:
            data = peer.wire.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(peer.name)
            yield peer.name, None
            return
        try:
            messages = peer.inbox.cut(data)
        except BadFrame as error:
            yield peer.name, error
            return
        for frames in messages:
            yield peer.name, frames

    def send(self, name: bytes, frames: list[Any]) -> bool:
        """False if the peer is gone."""
        peer = self._by_name.get(name)
        if peer is None:
            return False
        parts = packed(frames)
        if len(peer.unsent) > UNSENT:  # it asks and asks, and never takes an answer
            self.drop(name)
            return False
        if peer.unsent:
            peer.unsent += b"".join(parts)
            return True
        try:
            sent = peer.wire.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(name)
            return False
        if sent < sum(map(len, parts)):
            peer.unsent += memoryview(b"".join(parts))[sent:]
            self._poll.modify(peer.wire, select.POLLIN | select.POLLOUT)
        return True

    def _push(self, peer: _Peer) -> None:
        try:
            del peer.unsent[: peer.wire.send(peer.unsent)]
        except OSError:  # full again, or gone: reading will tell
            return
        if not peer.unsent:
            self._poll.modify(peer.wire, select.POLLIN)

    def silent(self, now: float) -> list[bytes]:
        """Peers that were stopped too long ago to be waited for."""
        return [peer.name for peer in self._by_name.values() if peer.watch.stopped_for(now) > STOPPED]

    def drop(self, name: bytes) -> None:
        """End the connection."""
        peer = self._by_name.pop(name, None)
        if peer is not None:
            del self._by_fd[peer.wire.fileno()]
            self._poll.unregister(peer.wire)
            peer.wire.close()

    def close(self) -> None:
        for name in list(self._by_name):
            self.drop(name)
        self._listener.close()


class UnixConnection:
    """A client's or a worker's side. Any thread may send; one at a time may wait and take."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._wire = socket.socket(socket.AF_UNIX)
        self._connected = False
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._waiting: list[list[Any]] = []
        self._readable = False
        #: why there is no connection any more; empty as long as there is one, or hope for one
        self.ended = ""
        self.refused = ""

    def also_wake_on(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    def _connect(self) -> bool:
        """The server may still be starting: no socket yet is no error."""
        try:
            self._wire.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        self._wire.settimeout(SEND_TIMEOUT)
        self._poll.register(self._wire, select.POLLIN)
        self._watch = Stopwatch(_peer_pid(self._wire))
        self._connected = True
        for frames in self._waiting:
            self.send(frames)
        return True

    def send(self, frames: list[Any]) -> None:
        if not self._connected:
            self._waiting.append(frames)
            return
        with self._sending:
            try:
                parts = packed(frames)
                sent = self._wire.sendmsg(parts)
                if sent < sum(map(len, parts)):
                    self._wire.sendall(memoryview(b"".join(parts))[sent:])
            except OSError as error:
                self.ended = self.ended or f"the server takes no more ({error.strerror or error})"

    def wait(self, milliseconds: int) -> bool:
        """Is there something to take? Waits at most so long."""
        if not self._connected and not self._connect():
            time.sleep(0.01)
            return False
        ready = self._poll.poll(milliseconds)
        self._readable = any(fd == self._wire.fileno() for fd, _ in ready)
        if not ready and milliseconds and self._watch.stopped_for(time.monotonic()) > STOPPED:
            self.ended = self.ended or f"the server has been stopped for {STOPPED:g} s"
        return bool(ready)

    def take(self) -> list[list[bytes]]:
        """The messages that are here."""
        if not self._readable:  # a socket with a timeout for sending would wait for so long
            return []
        try:
            data = self._wire.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = self.ended or "the server closed the connection, or died"
            return []
        return self._inbox.cut(data)

    def close(self) -> None:
        self._wire.close()


class Stopwatch:
    """How long a process on this host has been stopped: it keeps its connection open, but will not answer."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: float | None = None

    def stopped_for(self, now: float) -> float:
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                stopped = file.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except OSError:
            stopped = False
        if not stopped:
            self._since = None
            return 0.0
        self._since = self._since if self._since is not None else now
        return now - self._since


def _peer_pid(wire: socket.socket) -> int:
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getpid()
    return int(struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
