"""A server with a journal: writes its state, and puts it back when it starts again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from gt.dispatcher.journal import journal as kinds
from gt.dispatcher.journal.journal import Journal, PeerRecord
from gt.dispatcher.journal.state_codec import decode_state, encode_state
from gt.errors import ConfigError
from gt.wire.identities import PeerIdentity
from gt.wire.leases.leased_listener import LeasedListener
from gt.wire.numbering import Numbering
from gt.wire.transport import Listener


class RestartedServer(Protocol):
    """What happens to a server, as `gt.dispatcher.server.Server` does it."""

    core: Any

    def use_core(self, core: Any) -> None: ...

    def receive(self, peer: bytes, frames: list[bytes]) -> None: ...

    def gone(self, peer: bytes) -> None: ...

    def refuse(self, peer: bytes, reason: str) -> None: ...

    def tick_core(self, now: float) -> None: ...

    def flush(self, now: int) -> None: ...


class Restart:
    """``externals``: what the core refers to and is not part of its state."""

    def __init__(self, journal: Journal, listener: Listener, externals: Mapping[str, Any]) -> None:
        assert isinstance(listener, LeasedListener), "a journal needs TCP"
        self._journal, self._listener, self._externals = journal, listener, externals
        self._peers: dict[bytes, PeerRecord] = {}
        journal.describe = self._describe
        #: what to add to the clock, so that time goes on where it stopped
        self.clock_offset = 0.0

    def identity(self, peer: bytes) -> PeerIdentity | None:
        """Who a peer is, or was when the journal was written."""
        return self._peers[peer].identity if self._journal.replaying else self._listener.identity(peer)

    def write_state(self, core: Any) -> None:
        """Write the journal anew. Raises OSError."""
        sessions = self._listener.sessions()
        names = dict.fromkeys([*core.by_peer, *(name for name, *_ in sessions)])
        peers = [self._describe(name) for name in names]
        self._journal.begin(encode_state([core, sessions], self._externals), peers)

    def _describe(self, peer: bytes) -> PeerRecord:
        listener = self._listener
        return PeerRecord(peer, listener.public_key(peer), listener.address(peer), listener.identity(peer))

    def restore(self, server: RestartedServer) -> bool:
        """Put the server into the state that the journal describes; False if there is none. Raises ConfigError."""
        has_journal = False
        for kind, peer, value in self._journal.events():
            has_journal = True
            try:
                self._replay(server, kind, peer, value)
            except Exception as error:
                raise ConfigError(
                    f"the journal cannot be read ({type(error).__name__}: {error}); remove it, or name another folder"
                ) from error
        if has_journal:
            self.clock_offset = max(0.0, self.clock_offset - time.monotonic())
            self._listener.wait_for_restored(time.monotonic())
            known = {name for name, *_ in self._listener.sessions()}
            for peer in [peer for peer in server.core.by_peer if peer not in known]:
                server.gone(peer)  # its connection ended with the server before
        return has_journal

    def _replay(self, server: RestartedServer, kind: int, peer: Any, value: Any) -> None:
        match kind:
            case kinds.MESSAGE | kinds.FRAMES:
                frames = [value] if kind == kinds.MESSAGE else value
                self._listener.replay_message(peer, frames)
                server.receive(peer, frames)
            case kinds.RECEIVED:
                self._listener.replay_acknowledgement(peer, value)
            case kinds.TICK:
                self.clock_offset = value
                server.tick_core(value)
            case kinds.FLUSH:
                server.flush(self._journal.now)
            case kinds.GONE:
                self._listener.drop(peer)
                server.gone(peer)
            case kinds.REFUSED:
                server.refuse(peer, value.decode())
            case kinds.OPENED:
                self._listener.restore(peer, value[1:], bool(value[0]), self._peers[peer].key, Numbering())
            case kinds.PEER:
                self._peers[peer] = value
            case kinds.STATE:
                core, sessions = decode_state(value, self._externals)
                server.use_core(core)
                for name, key, worker, numbering in sessions:
                    self._listener.restore(name, key, worker, self._peers[name].key, numbering)
            case _:
                raise ValueError(f"a record of the kind {kind}")
