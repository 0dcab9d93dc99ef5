"""The dispatcher's shell: one listener, one loop, and the clock. ``python -m gt.server`` runs it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from typing import Any

from gt.dispatcher.actions import Action, Close, Send, SendAll
from gt.dispatcher.batching import VARIABLE, batch_size
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.instruction_log import Trail
from gt.dispatcher.lost_workers import NO_WORKERS_LEFT
from gt.dispatcher.state import Peer
from gt.errors import ConfigError
from gt.say import topic, warn
from gt.wire.auth import Keys
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.messages import Heartbeat
from gt.wire.transport import listen

TICK = 1.0


class Server:
    def __init__(self, address: str, keys: Keys | None, host: str = "localhost", port: int = 9000) -> None:
        batch = batch_size(os.environ.get(VARIABLE, ""))
        try:
            self.listener = listen(address, keys)
        except OSError as error:
            raise ConfigError(_why_not(address, error)) from None
        self.core = Dispatcher(host, port)
        self.core.batch = batch
        if address.startswith("unix:"):  # nobody can join a private system
            self.core.no_workers = NO_WORKERS_LEFT
        self.decode = Decode("dispatcher")
        self.debug = topic("GT_DEBUG_DISPATCHER")
        self.verbose = topic("GT_VERBOSE")
        log = os.environ.get("GT_INSTRUCTION_LOG")
        self.trail = Trail(log, self.core) if log else None
        self.next_tick = time.monotonic() + TICK

    def run(self) -> None:
        receive = self.listener.receive
        while True:
            now = time.monotonic()
            if now >= self.next_tick:
                self._tick(now)
            for peer, frames in receive(self.next_tick - now if self.next_tick > now else 0.0):
                if type(frames) is list:
                    self._take(peer, frames)
                elif frames is None:
                    self._gone(peer)
                else:
                    self._act(self.core.bad_frame(peer, str(frames)))

    def _take(self, peer: Peer, frames: list[bytes]) -> None:
        try:
            message = self.decode(frames[0])
        except BadFrame as error:
            self._act(self.core.bad_frame(peer, str(error)))
            return
        if self.debug:
            self.debug(f"{type(message).__name__} from {self.core.name_of(peer)}")
        actions = self.core.handle(peer, message, tuple(frames[1:]), len(frames[0]))
        if self.trail is not None:
            self.trail.received(peer, message)
        self._act(actions)

    def _tick(self, now: float) -> None:
        """Try every peer, since sending to one that is gone fails; and let time pass for the core."""
        self.next_tick = now + TICK
        self._act(self.core.tick(now))
        self._act([Send(peer, Heartbeat()) for peer in self.core.by_peer])
        for peer in self.listener.silent(now):
            self.listener.drop(peer)
            self._gone(peer)

    def _gone(self, peer: Peer) -> None:
        if self.verbose:
            self.verbose(f"{self.core.name_of(peer)} is gone")
        self._act(self.core.gone(peer))

    def _act(self, actions: Iterable[Action]) -> None:
        """All of them, in order; only then what becomes of peers that turn out to be gone."""
        gone: list[Peer] = []
        for action in actions:
            if isinstance(action, Close):
                self.listener.drop(action.peer)
                if action.reason:
                    warn(f"a connection was ended: {action.reason}")
            elif isinstance(action, SendAll):
                self._send(action.peers, [encode(action.message)], action.message, gone)
            else:
                head = [] if action.message is None else [encode(action.message)]
                self._send((action.peer,), [*head, *action.rest], action.message, gone, action.rest)
        for peer in dict.fromkeys(gone):
            self._gone(peer)

    def _send(
        self, peers: tuple[Peer, ...], frames: list[Any], message: Any, gone: list[Peer], rest: tuple[Any, ...] = ()
    ) -> None:
        for peer in peers:
            if self.trail is not None:
                self.trail.sent(Send(peer, message, rest))
            if not self.listener.send(peer, frames):
                gone.append(peer)

    def close(self) -> None:
        self.listener.close()


def _why_not(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is taken: another server runs there; stop it, or choose another port with -p"
    return f"cannot listen on {address}: {error.strerror}"
