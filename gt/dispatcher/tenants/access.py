"""Who may connect in which role, and who may see the instructions of all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hmac import compare_digest

from gt.dispatcher.state import Client, Peer
from gt.dispatcher.violations import Violation
from gt.wire.identities import MAY_CONNECT_AS, OWNER, PeerIdentity


def _owner(peer: Peer) -> PeerIdentity:
    return OWNER


@dataclass(frozen=True, slots=True)
class Access:
    #: the operator's token; "": nobody has one
    operator: str = ""
    #: everybody who can connect is an operator, because the socket is private to one user
    everybody: bool = False
    #: who a connected peer is; None if its token was revoked
    identity_of: Callable[[Peer], PeerIdentity | None] = _owner

    def admit(self, peer: Peer, role: str, clients: Iterable[Client]) -> PeerIdentity:
        """Who the peer is. Raises Violation if it may not connect in this role, or not once more."""
        identity = self.identity_of(peer)
        if identity is None:
            raise Violation(REVOKED)
        if role not in MAY_CONNECT_AS[OWNER.role]:
            raise Violation(f"unknown role {role!r}")
        if role not in MAY_CONNECT_AS[identity.role]:
            raise Violation(f"the token of {identity.user} has the role {identity.role}, not {role}")
        limit = identity.quota.sessions
        if role == "client" and limit:
            count = sum(client.identity.user == identity.user for client in clients)
            if count >= limit:
                sessions = "session" if limit == 1 else "sessions"
                raise Violation(f"{identity.user} may have {limit} {sessions} at a time, and has {count}")
        return identity

    def is_operator(self, identity: PeerIdentity, token: str) -> bool:
        """Whether a viewer that shows this token may see everything. Raises Violation if the token is wrong."""
        if self.everybody or identity.role == "operator":
            return True
        if token and not (self.operator and compare_digest(token.encode(), self.operator.encode())):
            raise Violation("this is not the operator's token of this server")
        return bool(token)


REVOKED = "the token was revoked"
