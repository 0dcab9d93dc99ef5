"""The dispatcher's shell: one socket, one loop, and the clock. ``python -m gt.server`` runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import zmq

from gt.dispatcher.core import Action, Close, Dispatcher, Send
from gt.dispatcher.state import Peer
from gt.dispatcher.trail import Trail
from gt.errors import ConfigError
from gt.log import topic, warn
from gt.wire.auth import Keys
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.messages import Alive
from gt.wire.sockets import Gatekeeper, listening


class Server:
    def __init__(self, address: str, keys: Keys | None, host: str = "localhost", port: int = 9000) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gatekeeper = Gatekeeper(self.context, keys) if keys is not None else None
        try:
            self.socket = listening(self.context, address, keys)
        except zmq.ZMQError as error:
            raise ConfigError(_why_not(address, error)) from None
        self.core = Dispatcher(host, port)
        self.decode = Decode("dispatcher")
        self.closed: set[Peer] = set()
        self.debug = topic("GT_DEBUG_DISPATCHER")
        self.verbose = topic("GT_VERBOSE")
        log = os.environ.get("GT_INSTRUCTION_LOG")
        self.trail = Trail(log, self.core) if log else None
        self.next_tick = time.monotonic() + 1.0

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        if self.gatekeeper is not None:
            poller.register(self.gatekeeper.socket, zmq.POLLIN)
        while True:
            wait = self.next_tick - time.monotonic()
            for socket, _ in poller.poll(max(0, int(wait * 1000) + 1)):
                if socket is self.socket:
                    self._take()
                elif self.gatekeeper is not None:
                    self.gatekeeper.answer()
            if time.monotonic() >= self.next_tick:
                self._tick()

    def _take(self) -> None:
        frames = self.socket.recv_multipart()
        peer = frames[0]
        if peer in self.closed or len(frames) < 2:
            return
        try:
            message = self.decode(frames[1])
        except BadFrame as error:
            self._act(self.core.bad_frame(peer, str(error)))
            return
        actions = self.core.handle(peer, message, tuple(frames[2:]), len(frames[1]))
        if self.trail is not None:
            self.trail.received(peer, message)
        self._act(actions)

    def _tick(self) -> None:
        """Once a second: try every peer, since sending to one that is gone fails."""
        self.next_tick = time.monotonic() + 1.0
        self._act(self.core.tick(time.monotonic()))
        self._act([Send(peer, Alive()) for peer in self.core.by_peer])
        self.closed = {peer for peer in self.closed if self._reaches(peer)}

    def _reaches(self, peer: Peer) -> bool:
        return self._sent([peer, encode(Alive())])

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Close):
                self.closed.add(action.peer)
                if action.reason:
                    warn(f"a connection was ended: {action.reason}")
                continue
            if self.trail is not None:
                self.trail.sent(action)
            head = [] if action.message is None else [encode(action.message)]
            if not self._sent([action.peer, *head, *action.rest]):
                if self.verbose:
                    self.verbose(f"a peer is gone: {self.core.by_peer.get(action.peer)}")
                self._act(self.core.gone(action.peer))

    def _sent(self, frames: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        self.context.destroy(linger=0)


def _why_not(address: str, error: zmq.ZMQError) -> str:
    if error.errno == zmq.EADDRINUSE:
        return f"{address} is taken: another server runs there; stop it, or choose another port with -p"
    return f"cannot listen on {address}: {error.strerror}"
