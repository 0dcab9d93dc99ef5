"""The transport between machines: ZeroMQ over TCP, encrypted and authenticated by CURVE.

The kernel reports the end of a connection; silence alone is not a sign. A DEALER watches the events of its socket. A
ROUTER notices when it cannot reach a peer, and the server sends to each peer once a second. ZeroMQ's heartbeats detect
hosts that vanish without closing a connection; its I/O thread answers them even while Python computes.

`ZmqListener` and `ZmqConnection` have the same interface as the classes of `gt.wire.unix`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gt.wire.auth import Keys
from gt.wire.codec import BadFrame
from gt.wire.words import MAX_FRAME_BYTES

#: Messages that may wait for a peer before it counts as lost.
MAX_UNSENT_MESSAGES = 4096
#: The interval of ZeroMQ's heartbeats, and the silence after which a peer counts as lost.
HEARTBEAT_MS, SILENCE_MS = 2000, 10_000
#: How long a handshake may take, and the interval of attempts to connect.
HANDSHAKE_MS, RECONNECT_MS = 5000, 50

#: Event of a failed handshake -> the reason that the user sees.
_FAILED = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the server has another secret (GT_TOKEN, or the token file of its user)",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the server expects a secret, or is not a GT server",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: the server has another secret, or is not a GT server",
}


def _configure(socket: zmq.Socket[bytes], keys: Keys) -> None:
    socket.linger = 0
    # credits limit what is pending; a second limit here would drop messages or block
    socket.sndhwm = socket.rcvhwm = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)
    socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public


class ZmqListener:
    """The server's side. Raises OSError if the address is in use."""

    def __init__(self, address: str, keys: Keys) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, keys)
        self._socket = self._context.socket(zmq.ROUTER)
        _configure(self._socket, keys)
        self._socket.router_mandatory = True
        # a peer that sends requests but never reads the answers counts as lost
        self._socket.sndhwm = MAX_UNSENT_MESSAGES
        self._socket.curve_server = True
        #: a ROUTER cannot close one connection, so messages of these peers are ignored
        self._dropped: set[bytes] = set()
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, error.strerror) from None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._gatekeeper.socket, zmq.POLLIN)

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        for source, _ in self._poller.poll(max(0, int(seconds * 1000) + 1)):
            if source is not self._socket:
                self._gatekeeper.answer()
                continue
            peer, *frames = self._socket.recv_multipart()
            if frames and peer not in self._dropped:
                yield peer, frames

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost."""
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                self._dropped.discard(peer)
                return False
            raise
        return True

    def silent(self, now: float) -> list[bytes]:
        """Always empty: ZeroMQ's heartbeats close the connection of a silent peer."""
        return []

    def drop(self, peer: bytes) -> None:
        self._dropped.add(peer)

    def close(self) -> None:
        self._context.destroy(linger=0)


class Gatekeeper:
    """Tells ZeroMQ which peers to accept: only those with the key derived from the secret (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        from zmq.utils import z85

        self._allowed = z85.decode(keys.peer)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        version, request, *fields = self.socket.recv_multipart()
        accepted = len(fields) == 5 and fields[3] == b"CURVE" and fields[4] == self._allowed
        code, text = (b"200", b"OK") if accepted else (b"400", b"another secret")
        self.socket.send_multipart([version, request, code, text, b"peer", b""])


class ZmqConnection:
    """A client's or a worker's side. One thread at a time may touch it."""

    def __init__(self, address: str, keys: Keys) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        _configure(self._socket, keys)
        self._socket.curve_serverkey = keys.peer
        self._socket.reconnect_ivl = RECONNECT_MS
        self._events: zmq.Socket[bytes] = self._socket.get_monitor_socket()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._events, zmq.POLLIN)
        # see `gt.wire.transport.Connection`
        self.ended = ""
        self.refused = ""
        self._greeted = False
        self._socket.connect(address)

    def also_wake_on(self, fd: int) -> None:
        self._poller.register(fd, zmq.POLLIN)

    def send(self, frames: list[Any]) -> None:
        self._socket.send_multipart(frames)

    def wait(self, milliseconds: int) -> bool:
        """Wait for messages, at most this long; whether something happened."""
        ready = self._poller.poll(milliseconds)
        if any(source is self._events for source, _ in ready):
            self._read_events()
        return bool(ready)

    def take(self) -> list[list[bytes]]:
        """The messages that have arrived."""
        messages = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            messages.append(self._socket.recv_multipart())
        return messages

    def _read_events(self) -> None:
        """Set ``ended`` or ``refused`` from the events of the connection."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._greeted = True
            elif event == zmq.EVENT_DISCONNECTED and self._greeted:
                self.ended = self.ended or "the server closed the connection, or died"
            elif event == zmq.EVENT_DISCONNECTED:  # a server that cannot read our handshake closes the connection
                self.refused = self.refused or _FAILED[zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL]
            elif event in _FAILED:
                self.refused = _FAILED[zmq.Event(event)]

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close(0)
        self._socket.close(500)  # milliseconds in which the last message can still be sent
