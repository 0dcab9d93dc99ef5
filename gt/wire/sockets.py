"""ZeroMQ sockets as GT uses them: how they are set up, and how a peer's end is noticed.

A connection's end is seen by the kernel, not guessed from silence: a DEALER watches its socket's events, a ROUTER
notices when it cannot reach a peer (`server.py` tries once a second). ZeroMQ's own heartbeats, answered by its I/O
thread even while Python computes, catch hosts that vanish without closing anything.
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gt.wire.auth import Keys
from gt.wire.messages import MAX_FRAME

HEARTBEAT_MS, SILENCE_MS = 2000, 10_000

_FAILED = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the server has another secret (GT_TOKEN, or the token file of its user)",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the server expects a secret, or is no GT server",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: the server has another secret, or is no GT server",
}


def _configure(socket: zmq.Socket[bytes], keys: Keys | None) -> None:
    socket.linger = 0
    # credits bound what is under way; a second bound here would only drop or block
    socket.sndhwm = socket.rcvhwm = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public


def listening(context: zmq.Context[Any], address: str, keys: Keys | None) -> zmq.Socket[bytes]:
    """A server's socket. Raises zmq.ZMQError if the address is taken."""
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    _configure(socket, keys)
    socket.router_mandatory = True
    if keys is not None:
        socket.curve_server = True
    try:
        socket.bind(address)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


class Gatekeeper:
    """Answers ZeroMQ's question who may pass: holders of the one key only (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        from zmq.utils import z85

        self._allowed = z85.decode(keys.peer)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        version, request, *fields = self.socket.recv_multipart()
        passes = len(fields) == 5 and fields[3] == b"CURVE" and fields[4] == self._allowed
        code, text = (b"200", b"OK") if passes else (b"400", b"another secret")
        self.socket.send_multipart([version, request, code, text, b"peer", b""])


class Connection:
    """A client's or a worker's socket, and what happens to it."""

    def __init__(self, context: zmq.Context[Any], address: str, keys: Keys | None) -> None:
        self.socket = context.socket(zmq.DEALER)
        _configure(self.socket, keys)
        if keys is not None:
            self.socket.curve_serverkey = keys.peer
        self.socket.reconnect_ivl = 50
        self.events = self.socket.get_monitor_socket()
        #: why there is no connection (any more), in words; empty as long as there is hope
        self.ended = ""
        #: why the server would not have us
        self.refused = ""
        self._greeted = False
        self.socket.connect(address)

    def look(self) -> None:
        """Take note of what happened to the connection."""
        while self.events.poll(0):
            event = recv_monitor_message(self.events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._greeted = True
            elif event == zmq.EVENT_DISCONNECTED and self._greeted:
                self.ended = self.ended or "the server closed the connection, or died"
            elif event == zmq.EVENT_DISCONNECTED:  # a server that cannot read our greeting just hangs up
                self.refused = self.refused or _FAILED[zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL]
            elif event in _FAILED:
                self.refused = _FAILED[event]

    def close(self) -> None:
        self.socket.disable_monitor()
        self.events.close(0)
        self.socket.close(0)
