"""The transport between machines: ZeroMQ over TCP, encrypted and authenticated by CURVE.

The kernel reports the end of a connection; silence alone is not a sign. A DEALER watches the events of its socket. A
ROUTER notices when it cannot reach a peer, and the server sends to each peer once a second. ZeroMQ's heartbeats detect
hosts that vanish without closing a connection; its I/O thread answers them even while Python computes. ZeroMQ does not
say which of the two happened; `TcpConnection` does.

`ZmqListener` and `ZmqConnection` have the same interface as the classes of `gt.wire.unix`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gt.errors import ConfigError
from gt.wire import interrupts
from gt.wire.addresses import join_address
from gt.wire.auth import Keys
from gt.wire.server_keys import KeyPair, remember_server
from gt.wire.token_file import Identities
from gt.wire.words import MAX_FRAME_BYTES


def silence_ms(seconds: str) -> int:
    """The setting GT_SILENCE_S in milliseconds; 10 s if it is empty."""
    try:
        milliseconds = int(float(seconds or 10) * 1000)
    except (ValueError, OverflowError):
        milliseconds = 0
    if milliseconds < 10:
        raise ConfigError(f"GT_SILENCE_S={seconds}: a number of seconds is needed, for example 10")
    return milliseconds


#: Messages that may wait for a peer before it counts as lost.
MAX_UNSENT_MESSAGES = 4096
#: The silence after which a connection counts as lost; there are five heartbeats in it.
SILENCE_MS = silence_ms(os.environ.get("GT_SILENCE_S", ""))
#: Messages that are taken before the server looks at the clock and at new connections again: a poll takes longer than
#: a message.
MAX_RECEIVED_AT_ONCE = 64
#: Flags for sending a frame, as plain numbers: combining zmq's own takes longer than sending.
_MORE, _LAST = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK)
#: How many lost peers are remembered.
MAX_LOST_PEERS = 1024
#: How long a handshake may take, and the interval of attempts to connect.
HANDSHAKE_MS, RECONNECT_MS = 5000, 50

#: Event of a failed handshake -> the reason that the user sees.
_FAILED = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the server has another secret (GT_TOKEN, or the token file of its user), or the "
    "token was revoked",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the server expects a secret, or is not a GT server",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: the server's key is not the one that the token or "
    "known_servers has, or it is not a GT server",
}
#: The reason that a new attempt does not change.
NOT_AUTHORIZED = _FAILED[zmq.EVENT_HANDSHAKE_FAILED_AUTH]
#: The reason that may also be a fault of the network.
HANDSHAKE_CUT = _FAILED[zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL]


def configure_socket(socket: zmq.Socket[bytes], keys: Keys | KeyPair) -> None:
    socket.linger = 0
    # credits limit what is pending; a second limit here would drop messages or block
    socket.sndhwm = socket.rcvhwm = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, SILENCE_MS // 5)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)
    socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public


class ZmqListener:
    """The server's side. ``on_failed_handshake`` is called with the address of a peer without a valid token, and the
    reason. A peer for which more than ``max_unsent`` messages wait is lost. ``prefix`` begins the names of all peers,
    because ZeroMQ gives them the same names in every process. Raises OSError if the address is in use."""

    def __init__(
        self,
        address: str,
        keys: KeyPair,
        identities: Identities,
        on_failed_handshake: Callable[[str, str], object] = lambda address, reason: None,
        max_unsent: int = MAX_UNSENT_MESSAGES,
        prefix: bytes = b"",
    ) -> None:
        self._prefix = prefix
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, identities, on_failed_handshake)
        self._socket = self._context.socket(zmq.ROUTER)
        configure_socket(self._socket, keys)
        self._socket.router_mandatory = True
        # a peer that sends requests but never reads the answers counts as lost
        self._socket.sndhwm = max_unsent
        self._socket.curve_server = True
        self._connections: dict[bytes, TcpConnection] = {}
        #: peers whose messages are ignored until they are disconnected -> calls of `silent` since then
        self._dropped: dict[bytes, int] = {}
        #: the last peers that were lost; some of their messages may still arrive
        self._lost: deque[bytes] = deque(maxlen=MAX_LOST_PEERS)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, error.strerror) from None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._gatekeeper.socket, zmq.POLLIN)

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes]]]:
        for source, _ in self._poller.poll(max(0, int(seconds * 1000) + 1)):
            if source is not self._socket:
                self._gatekeeper.answer()
                continue
            for _ in range(MAX_RECEIVED_AT_ONCE):
                try:
                    peer = self._prefix + self._socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                frames = self._receive_frames(peer)
                if peer not in self._dropped and peer in self._connections:
                    yield peer, frames

    def _receive_frames(self, peer: bytes) -> list[bytes]:
        """The rest of a message, after the name of its peer."""
        if peer in self._connections:
            return self._socket.recv_multipart()
        first = self._socket.recv(copy=False)
        if peer not in self._lost:
            self._connections[peer] = TcpConnection(int(first.get("__fd")), str(first.get("User-Id")).encode())
        return [first.bytes, *(self._socket.recv_multipart() if first.more else ())]

    def tcp(self, peer: bytes) -> TcpConnection:
        """The connection of a peer that has sent a message. Raises KeyError if it is lost."""
        return self._connections[peer]

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost."""
        try:
            send = self._socket.send  # `send_multipart` takes twice as long
            send(peer[len(self._prefix) :], _MORE)
            for frame in frames[:-1]:
                send(frame, _MORE)
            send(frames[-1], _LAST)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                if (connection := self._connections.pop(peer, None)) is not None:
                    connection.close()
                    self._lost.append(peer)
                self._dropped.pop(peer, None)
            elif error.errno == zmq.EAGAIN:
                self.drop(peer)
            else:
                raise
            return False
        return True

    def silent(self, now: float) -> list[bytes]:
        """Always empty: ZeroMQ's heartbeats close the connection of a silent peer. Disconnects dropped peers."""
        for peer, calls in list(self._dropped.items()):
            self._dropped[peer] = calls + 1
            self.send(peer, [b""])  # fails, and forgets the peer, if it has disconnected
            if calls and peer in self._dropped:  # after one full interval, in which it could read why it was dropped
                # ZeroMQ cannot close one connection of a ROUTER. It notices that the connection below was shut down.
                self._connections[peer].shut_down()
        return []

    def needs_heartbeat(self, peer: bytes) -> bool:
        return True

    def drop(self, peer: bytes) -> None:
        """Ignore the peer, and disconnect it soon."""
        if peer in self._connections:
            self._dropped.setdefault(peer, 0)

    def close(self) -> None:
        self._context.destroy(linger=0)
        for connection in self._connections.values():
            connection.close()


class TcpConnection:
    """A connection that ZeroMQ uses, by a descriptor of our own: it stays valid when ZeroMQ closes its own."""

    def __init__(self, fd: int, key: bytes = b"") -> None:
        #: the public key of the other end, which is authenticated
        self.key = key
        #: where it comes from
        self.address = ""
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # it was closed before we looked
            self._socket = socket.socket(fileno=os.dup(fd))
            self.address = _host_and_port(self._socket.getpeername())

    def duplicate(self) -> TcpConnection:
        """The same connection, to be closed on its own."""
        return TcpConnection(-1 if self._socket is None else self._socket.fileno(), self.key)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def closed_by_peer(self) -> bool:
        """Whether the other end has closed the connection. If not, a lost connection was only silent."""
        if self._socket is None:
            return True
        poll = select.poll()
        poll.register(self._socket, getattr(select, "POLLRDHUP", 0))  # POLLHUP and POLLERR are always reported
        return bool(poll.poll(0))

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """Close the connection below ZeroMQ."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(how)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _host_and_port(other_end: Any) -> str:
    host, port = str(other_end[0]).removeprefix("::ffff:"), other_end[1]
    return join_address(host, port)


class Gatekeeper:
    """Tells ZeroMQ which peers to accept: only those with the key that follows from a valid token (ZAP, RFC 27)."""

    def __init__(
        self, context: zmq.Context[Any], identities: Identities, on_failed_handshake: Callable[[str, str], object]
    ) -> None:
        self._identities, self._on_failed_handshake = identities, on_failed_handshake
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer a question of ZeroMQ."""
        from zmq.utils import z85

        version, request, *fields = self.socket.recv_multipart()
        key = z85.encode(fields[4]) if len(fields) == 5 and fields[3] == b"CURVE" else b""
        if self._identities.find(key) is None:  # its token may be newer than what was read
            with contextlib.suppress(ConfigError):  # the server reports it
                self._identities.reload()
        accepted = self._identities.find(key) is not None
        code, text = (b"200", b"OK") if accepted else (b"400", b"no valid token")
        # the key becomes the "User-Id" of all messages of this connection
        self.socket.send_multipart([version, request, code, text, key if accepted else b"", b""])
        if not accepted:
            address = fields[1].decode(errors="replace") if len(fields) > 1 else ""
            self._on_failed_handshake(address.removeprefix("::ffff:"), "no valid token")


class ZmqConnection:
    """A client's or a worker's side. One thread at a time may touch it.

    With ``reconnect``, ZeroMQ tries to connect until it succeeds. Without it, it tries once.
    """

    def __init__(self, address: str, keys: Keys, reconnect: bool = True) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        configure_socket(self._socket, keys)
        self._socket.curve_serverkey = keys.server
        self._keys = keys
        self._socket.reconnect_ivl = RECONNECT_MS if reconnect else -1
        self._events: zmq.Socket[bytes] = self._socket.get_monitor_socket()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._events, zmq.POLLIN)
        # see `gt.wire.transport.Connection`
        self.ended = ""
        self.refused = ""
        #: whether the only attempt to connect has failed
        self.unreachable = False
        #: whether the server closed the connection that has ended; otherwise it did not answer
        self.closed_by_peer = False
        self._tcp: TcpConnection | None = None
        self._greeted = False
        self._socket.connect(address)

    def also_wake_on(self, fd: int) -> None:
        self._poller.register(fd, zmq.POLLIN)

    def send(self, frames: list[Any]) -> None:
        # the events tell why a connection takes no messages: it is lost, or the server refused it
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    @interrupts.interruptible
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

    @interrupts.deferred
    def _read_events(self) -> None:
        """Set ``ended``, ``refused`` or ``unreachable`` from the events of the connection."""
        while self._events.poll(0):
            message = recv_monitor_message(self._events)
            event = message["event"]
            if event == zmq.EVENT_CONNECTED:
                self._tcp = TcpConnection(int(message["value"]))
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._greeted = True
                if self._keys.remember_as:
                    remember_server(self._keys.remember_as, self._keys.server)
            elif event == zmq.EVENT_DISCONNECTED and self._greeted:
                self._lost()
            elif event == zmq.EVENT_DISCONNECTED:  # a server that cannot read our handshake closes the connection
                self.refused = self.refused or HANDSHAKE_CUT
            elif event == zmq.EVENT_CLOSED:
                self.unreachable = True
            elif event in _FAILED:
                self.refused = _FAILED[zmq.Event(event)]

    def _lost(self) -> None:
        self._forget_tcp()
        self.ended = self.ended or "the server closed the connection, or died"

    def _forget_tcp(self) -> None:
        if self._tcp is not None:
            self.closed_by_peer = self._tcp.closed_by_peer
            self._tcp.close()
            self._tcp = None

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close(0)
        self._socket.close(500)  # milliseconds in which the last message can still be sent
        self._forget_tcp()
