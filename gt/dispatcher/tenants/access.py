"""Who may connect in which role, and who may see the instructions of all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hmac import compare_digest

from gt.dispatcher.state import Client, Peer
from gt.dispatcher.violations import Violation
from gt.wire.identities import MAY_CONNECT_AS, OWNER, PeerIdentity
from gt.wire.messages import Hello
from gt.wire.networks import Network, is_private, store_host
from gt.wire.structures import WorkerInfo


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
    #: the networks that only workers of this system can reach, by the operator's word
    networks: tuple[Network, ...] = ()
    #: what workers prove to each other that they belong to this server
    data_secret: bytes = b""

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

    def admit_worker(self, hello: Hello, workers: Iterable[WorkerInfo]) -> None:
        """Raises Violation if tensors between this worker and another one would cross a network that is not declared
        as private: they are not encrypted."""
        for other in workers:
            if on_one_host(hello, other):
                continue
            for address in (data_host(hello.store), data_host(other.store)):
                if not _is_private(address, self.networks):
                    raise Violation(UNDECLARED.format(address=address, other=other.id))

    def is_operator(self, identity: PeerIdentity, token: str) -> bool:
        """Whether a viewer that shows this token may see everything. Raises Violation if the token is wrong."""
        if self.everybody or identity.role == "operator":
            return True
        if token and not (self.operator and compare_digest(token.encode(), self.operator.encode())):
            raise Violation("this is not the operator's token of this server")
        return bool(token)


#: How many addresses are remembered in parsed form: each new worker is compared with one at each address.
MAX_REMEMBERED_ADDRESSES = 4096
_is_private = lru_cache(MAX_REMEMBERED_ADDRESSES)(is_private)


def on_one_host(one: Hello | WorkerInfo, other: Hello | WorkerInfo) -> bool:
    """Whether two workers are on one host, or at least cannot reach each other over a network."""
    if not one.store or not other.store or (one.host and one.host == other.host):
        return True
    if one.store.startswith(IN_ONE_PROCESS) and other.store.startswith(IN_ONE_PROCESS):
        return True
    return data_host(one.store) == data_host(other.store)


@lru_cache(MAX_REMEMBERED_ADDRESSES)
def data_host(store: str) -> str:
    """The numeric address in "host:port KEY". Raises Violation."""
    try:
        return store_host(store)
    except ValueError:
        raise Violation(f"{store[:100]!r} is not the address of a store") from None


#: The beginning of the "addresses" of workers that are not processes (see `gt.testing`).
IN_ONE_PROCESS = "local:"
UNDECLARED = (
    "tensors between this worker and worker {other} would cross the network of {address} unencrypted, and it is not "
    "declared as private. If only workers can reach it, start the server with --private-network and this network, such "
    "as 10.0.0.0/8. If they have another one, start each worker with --data-address"
)
REVOKED = "the token was revoked"
