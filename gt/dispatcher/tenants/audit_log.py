"""The audit log of a server: who connected, from where, in which role; what was refused, and why; who disconnected.
Who does not answer, and who is back on another connection.

One line of JSON for each event. A log that cannot be written any more, on a full disk for example, is reported once,
and the server goes on without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from gt.dispatcher.core import Dispatcher
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.say import warn
from gt.wire.identities import PeerIdentity
from gt.wire.messages import Hello, Refusal

#: The most characters of a reason, which may quote what a peer sent.
MAX_REASON_LENGTH = 400


class AuditLog:
    """Has the interface of the other logs of `gt.dispatcher.server.Server`, and hears of handshakes and ends too."""

    def __init__(
        self,
        path: str,
        core: Dispatcher,
        identity_of: Callable[[Peer], PeerIdentity | None],
        address_of: Callable[[Peer], str],
    ) -> None:
        self._path, self._core, self._identity_of, self._address_of = path, core, identity_of, address_of
        self._file: Any = open(path, "ab", buffering=0)  # noqa: SIM115, open as long as the server runs
        #: peer -> what its lines say about it. A server that was started again has peers already
        self._connected = {peer: self._about(peer) | self._role_of(peer) for peer in core.by_peer}

    def received(self, peer: Peer, message: Any) -> None:
        if type(message) is Hello and peer in self._core.by_peer:
            about = self._connected[peer] = self._about(peer) | self._role_of(peer) | {"pid": message.pid}
            self._write("connected", about)

    def sent(self, peers: tuple[Peer, ...], message: Any, rest: object) -> None:
        if type(message) is Refusal:
            for peer in peers:
                about = self._connected.get(peer) or self._about(peer)
                self._write("refused", about | {"reason": message.reason[:MAX_REASON_LENGTH]})

    def noted(self, peer: Peer, event: str) -> None:
        """What happened to the connection of a session that is kept."""
        if (about := self._connected.get(peer)) is not None:
            about["address"] = self._address_of(peer) or about["address"]
            self._write("session", about | {"reason": event})

    def ended(self, peer: Peer) -> None:
        """The connection of a peer ended."""
        if (about := self._connected.pop(peer, None)) is not None:
            self._write("disconnected", about)

    def failed_handshake(self, address: str, reason: str) -> None:
        """A peer without a valid token tried to connect."""
        self._write("refused", {"address": address, "reason": reason})

    def _about(self, peer: Peer) -> dict[str, Any]:
        identity = self._identity_of(peer)
        user = None if identity is None else identity.user or identity.role
        return {"user": user, "address": self._address_of(peer)}

    def _role_of(self, peer: Peer) -> dict[str, Any]:
        roles = {Client: "client", WorkerState: "worker", ViewerState: "viewer"}
        return {"role": roles[type(self._core.by_peer[peer])], "name": self._core.name_of(peer)}

    def _write(self, event: str, about: dict[str, Any]) -> None:
        if self._file is None:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
        try:
            self._file.write((json.dumps({"time": stamp, "event": event, **about}) + "\n").encode())
        except OSError as error:
            self._file.close()
            self._file = None
            warn(f"the audit log ends here: {self._path} cannot be written ({error.strerror}); the server goes on")
