"""The transport within one machine: a Unix socket, used directly.

ZeroMQ passes every message through its I/O thread. With three busy processes on two cores this takes a third of a
round trip (``python benchmarks/control_plane.py --only transports``), although a single hop without other work costs
the same with both transports. Processes of one user on one host need nothing that ZeroMQ offers: the permissions of
the socket's folder control access, and the kernel reports at once when a peer ends.

A message is sent as: the number of its frames (one byte), their lengths (four bytes each), the frames.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from gt.wire import interrupts
from gt.wire.codec import BadFrame
from gt.wire.identities import OWNER, PeerIdentity
from gt.wire.spinning import Spinning
from gt.wire.words import MAX_FRAME_BYTES

#: number of frames -> the format of the head of a message
_HEADS = {n: struct.Struct(f"<B{n}I") for n in (1, 2, 3)}
_HEAD = _HEADS[1]
#: A message of one frame that is no longer than this many bytes is copied behind its head, and sent as one.
_SMALL_BYTES = 1 << 14
#: The most bytes that one read takes from a socket.
_READ_BYTES = 1 << 18
#: How long sending a message may block before the server counts as lost.
SEND_TIMEOUT_S = 10.0
#: Bytes that may wait for a peer before it counts as lost.
MAX_UNSENT_BYTES = 256 << 20
#: How long a peer may be stopped (by a signal or a debugger) before it counts as lost.
MAX_STOPPED_S = 10.0


def _pack(frames: list[Any]) -> list[Any]:
    """The head of the message, and its frames."""
    return [_HEADS[len(frames)].pack(len(frames), *map(len, frames)), *frames]


def _send(wire: socket.socket, frames: list[Any]) -> bytes | memoryview:
    """Send a message as far as the socket has room, and return the rest. Raises OSError."""
    if len(frames) == 1 and len(frames[0]) <= _SMALL_BYTES:  # nearly all messages
        data = _HEAD.pack(1, len(frames[0])) + frames[0]
        try:
            sent = wire.send(data)
        except BlockingIOError:
            return data  # type: ignore[no-any-return]
        return b"" if sent == len(data) else memoryview(data)[sent:]
    buffers = _pack(frames)
    try:
        sent = wire.sendmsg(buffers)
    except BlockingIOError:
        sent = 0
    return memoryview(b"".join(buffers))[sent:] if sent < sum(map(len, buffers)) else b""


#: What a listener receives: the peer, and its frames; None: it disconnected.
Arrival = tuple[bytes, list[bytes] | BadFrame | None]


class Inbox:
    """Splits incoming bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> list[list[bytes]]:
        """The messages that are complete with these bytes; the rest waits for the next call.

        Raises BadFrame if the bytes are not a message.
        """
        if self._rest:
            data = self._rest + data
        elif len(data) > _HEAD.size and data[0] == 1:
            length = _HEAD.unpack_from(data)[1]
            if length == len(data) - _HEAD.size and length <= MAX_FRAME_BYTES:  # one message of one frame, as usual
                return [[data[_HEAD.size :]]]
        messages, position, end = [], 0, len(data)
        while position < end:
            head = _HEADS.get(data[position])
            if head is None:
                raise BadFrame(f"a message of {data[position]} frames")
            if position + head.size > end:
                break
            lengths = head.unpack_from(data, position)[1:]
            if max(lengths) > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {max(lengths)} bytes")
            start = position + head.size
            if start + sum(lengths) > end:
                break
            frames = []
            for length in lengths:
                frames.append(data[start : start + length])
                start += length
            messages.append(frames)
            position = start
        self._rest = data[position:]
        return messages


class _ReadBuffer:
    """Memory to read into. It is kept: allocating it for each read would cost three calls of the kernel."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(_READ_BYTES))

    def read(self, wire: socket.socket) -> bytes:
        """The bytes that have arrived, or none at the end of the connection. Raises BlockingIOError, OSError."""
        return bytes(self._memory[: wire.recv_into(self._memory)])


def _poll(poll: select.poll, milliseconds: int, spinning: Spinning | None) -> list[tuple[int, int]]:
    """``poll.poll``, after looking for messages for a moment, if this is allowed."""
    if spinning is None or not milliseconds:
        return poll.poll(milliseconds)
    ready: list[tuple[int, int]] = []
    if spinning.begin(time.perf_counter()):
        while not (ready := poll.poll(0)) and spinning.goes_on(time.perf_counter()):
            pass
    ready = ready or poll.poll(milliseconds)
    spinning.end(time.perf_counter(), bool(ready))
    return ready


class _Peer:
    def __init__(self, name: bytes, wire: socket.socket) -> None:
        self.name, self.wire, self.inbox = name, wire, Inbox()
        #: bytes that the socket had no room for; credits limit them
        self.unsent = bytearray()
        self.pid = _peer_pid(wire)
        self.stopwatch = Stopwatch(self.pid)


class UnixListener:
    """The server's side of many peers. A slow peer does not delay the others."""

    def __init__(self, path: str, spinning: Spinning | None = None) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._buffer, self._spinning = _ReadBuffer(), spinning
        self._by_fd: dict[int, _Peer] = {}
        self._by_name: dict[bytes, _Peer] = {}
        self._count = 0

    def receive(self, seconds: float) -> Iterator[Arrival]:
        """See `gt.wire.transport.Listener`."""
        for fd, event in _poll(self._poll, max(0, int(seconds * 1000) + 1), self._spinning):
            peer = self._by_fd.get(fd)
            if peer is None:
                self._accept(fd)
                continue
            if event & select.POLLOUT:
                self._send_unsent(peer)
            if event & ~select.POLLOUT:
                yield from self._read(peer)

    def _accept(self, fd: int) -> None:
        if fd != self._listener.fileno():
            return
        try:
            wire, _ = self._listener.accept()
        except OSError:  # the peer disconnected before it was accepted
            return
        wire.setblocking(False)
        self._count += 1
        peer = _Peer(b"unix %d" % self._count, wire)
        self._by_fd[wire.fileno()] = self._by_name[peer.name] = peer
        self._poll.register(wire, select.POLLIN)

    def _read(self, peer: _Peer) -> list[Arrival]:
        try:
            data = self._buffer.read(peer.wire)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.drop(peer.name)
            return [(peer.name, None)]
        try:
            return [(peer.name, frames) for frames in peer.inbox.split(data)]
        except BadFrame as error:
            return [(peer.name, error)]

    def send(self, name: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost."""
        peer = self._by_name.get(name)
        if peer is None:
            return False
        if peer.unsent:
            if len(peer.unsent) > MAX_UNSENT_BYTES:  # it sends requests but never reads the answers
                self.drop(name)
                return False
            peer.unsent += b"".join(_pack(frames))
            return True
        try:
            rest = _send(peer.wire, frames)
        except OSError:
            self.drop(name)
            return False
        if rest:
            peer.unsent += rest
            self._poll.modify(peer.wire, select.POLLIN | select.POLLOUT)
        return True

    def _send_unsent(self, peer: _Peer) -> None:
        """The socket has room: send what waits for it."""
        try:
            del peer.unsent[: peer.wire.send(peer.unsent)]
        except OSError:  # the socket is full again, or the peer is lost, which reading will report
            return
        if not peer.unsent:
            self._poll.modify(peer.wire, select.POLLIN)

    def identity(self, peer: bytes) -> PeerIdentity:
        return OWNER

    def address(self, peer: bytes) -> str:
        return f"pid {self._by_name[peer].pid}" if peer in self._by_name else ""

    def silent(self, now: float) -> list[bytes]:
        """Peers that have been stopped for too long."""
        return [peer.name for peer in self._by_name.values() if peer.stopwatch.stopped_for(now) > MAX_STOPPED_S]

    def needs_heartbeat(self, name: bytes) -> bool:
        return False  # the kernel reports the end of a peer

    def drop(self, name: bytes) -> None:
        """Close the connection."""
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

    def __init__(self, path: str, spinning: Spinning | None = None) -> None:
        self._path = path
        self._wire = socket.socket(socket.AF_UNIX)
        self._fd, self._connected = self._wire.fileno(), False
        self._inbox, self._buffer, self._spinning = Inbox(), _ReadBuffer(), spinning
        self._sending = threading.Lock()
        self._poll = select.poll()
        #: messages sent before the connection was established
        self._waiting: list[list[Any]] = []
        self._readable = False
        # see `gt.wire.transport.Connection`
        self.ended = ""
        self.refused = ""

    def also_wake_on(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    @interrupts.deferred
    def _connect(self) -> bool:
        """Whether it is connected. A missing socket is not an error, because the server may still be starting."""
        try:
            self._wire.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        self._wire.setblocking(False)  # with a timeout, every call would poll first
        self._poll.register(self._wire, select.POLLIN)
        self._stopwatch = Stopwatch(_peer_pid(self._wire))
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
                if rest := _send(self._wire, frames):
                    self._send_rest(memoryview(rest))
            except OSError as error:
                self.ended = self.ended or f"the server does not accept messages ({error.strerror or error})"

    def _send_rest(self, data: memoryview) -> None:
        """Send what the socket had no room for, when it has. Raises OSError if that takes too long."""
        room, deadline = select.poll(), time.monotonic() + SEND_TIMEOUT_S
        room.register(self._wire, select.POLLOUT)
        while data:
            if not room.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError("timed out")
            with contextlib.suppress(BlockingIOError):
                data = data[self._wire.send(data) :]

    @interrupts.interruptible
    def wait(self, milliseconds: int) -> bool:
        """Wait for messages, at most this long; whether something happened."""
        if not self._connected and not self._connect():
            time.sleep(0.01)
            return False
        ready = _poll(self._poll, milliseconds, self._spinning)
        self._readable = self._fd in [fd for fd, _ in ready]
        if not ready and milliseconds and self._stopwatch.stopped_for(time.monotonic()) > MAX_STOPPED_S:
            self.ended = self.ended or f"the server has been stopped for {MAX_STOPPED_S:g} s"
        return bool(ready)

    def take(self) -> list[list[bytes]]:
        """The messages that have arrived."""
        if not self._readable:
            return []
        try:
            data = self._buffer.read(self._wire)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = self.ended or "the server closed the connection, or died"
            return []
        return self._inbox.split(data)

    def close(self) -> None:
        self._wire.close()


class Stopwatch:
    """Measures how long a process on this host has been stopped.

    A stopped process keeps its connection open but does not answer.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped_since: float | None = None

    def stopped_for(self, now: float) -> float:
        """Seconds since the process was first seen stopped; 0 if it runs or cannot be seen."""
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                stopped = file.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except OSError:
            stopped = False
        if not stopped:
            self._stopped_since = None
            return 0.0
        self._stopped_since = self._stopped_since if self._stopped_since is not None else now
        return now - self._stopped_since


def _peer_pid(wire: socket.socket) -> int:
    """The process at the other end; without SO_PEERCRED this process, which is never stopped when it checks."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getpid()
    return int(struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
