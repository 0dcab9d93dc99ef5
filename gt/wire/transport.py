"""Two transports for the same frames: a Unix socket within one machine, ZeroMQ between machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gt.wire.codec import BadFrame

if TYPE_CHECKING:
    from gt.wire.auth import Keys
    from gt.wire.identities import PeerIdentity
    from gt.wire.leases.leased_listener import SessionJournal
    from gt.wire.server_keys import KeyPair
    from gt.wire.spinning import Spinning
    from gt.wire.token_file import Identities


class Listener(Protocol):
    """The server's side of all its connections."""

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        """Yield what arrives within ``seconds``: (peer, frames), (peer, None) for a peer that disconnected, or
        (peer, BadFrame)."""

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost. Never blocks."""

    def silent(self, now: float) -> list[bytes]:
        """Peers that are connected but have not answered for too long."""

    def needs_heartbeat(self, peer: bytes) -> bool:
        """Whether the loss of this peer is noticed only when something is sent to it."""

    def identity(self, peer: bytes) -> PeerIdentity | None:
        """Who a peer that has sent a message is; None if its token is not valid any more."""

    def address(self, peer: bytes) -> str:
        """Where a peer's connection comes from."""

    def drop(self, peer: bytes) -> None:
        """Ignore this peer from now on, and close its connection at once or soon."""

    def close(self) -> None: ...


class Connection(Protocol):
    """A client's or a worker's side. Only one thread at a time may read; the same holds for sending over ZeroMQ."""

    #: why the connection ended; empty before and while it exists
    ended: str
    #: why the server refused the connection; empty if it did not
    refused: str

    def also_wake_on(self, fd: int) -> None:
        """Make `wait` return when this descriptor becomes readable, too."""

    def send(self, frames: list[Any]) -> None: ...

    def wait(self, milliseconds: int) -> bool:
        """Wait for messages, at most this long; whether something happened."""

    def take(self) -> list[list[bytes]]:
        """The messages that have arrived."""

    def close(self) -> None: ...


def listen(
    address: str,
    keys: KeyPair | None,
    identities: Identities | None,
    lease_s: float,
    report: Callable[[bytes, str], object],
    on_failed_handshake: Callable[[str, str], object],
    journal: SessionJournal | None = None,
    spinning: Spinning | None = None,
) -> Listener:
    """A listener at ``unix:PATH`` or ``tcp://HOST:PORT``. Raises OSError if the address is in use.

    Over TCP, the session of a client that does not answer is kept for ``lease_s`` seconds, and ``report`` is called
    with the client and the event. ``on_failed_handshake`` is called with the address of a peer without a valid token,
    and the reason. With a ``journal``, sessions outlive the server.
    ``spinning``: whether waits on a Unix socket look for messages before they block.
    """
    if address.startswith("unix:"):
        from gt.wire.unix import UnixListener

        return UnixListener(address.removeprefix("unix:"), spinning)
    from gt.wire.leases.leased_listener import MAX_UNSENT_TO_WORKER, LeasedListener
    from gt.wire.sockets import MAX_UNSENT_MESSAGES, ZmqListener

    assert keys is not None, "a TCP address needs keys"
    assert identities is not None, "a TCP address needs tokens"
    limit, prefix = MAX_UNSENT_MESSAGES, b""
    if journal is not None:  # a worker that returns gets at once what it has missed; no peer has the name of an old one
        limit, prefix = MAX_UNSENT_TO_WORKER, os.urandom(8)
    inner = ZmqListener(address, keys, identities, on_failed_handshake, limit, prefix)
    return LeasedListener(inner, identities, lease_s, report, journal)


def connection(
    address: str, keys: Keys | None, leased: bool = False, worker: bool = False, spinning: Spinning | None = None
) -> Connection:
    """The connection to a server at ``unix:PATH`` or ``tcp://HOST:PORT``. It is established in the background.

    With ``leased``, a connection over TCP that is lost is replaced by another one, as long as the server waits for it.
    ``spinning``: as in `listen`.
    """
    if address.startswith("unix:"):
        from gt.wire.unix import UnixConnection

        return UnixConnection(address.removeprefix("unix:"), spinning)
    from gt.wire.sockets import ZmqConnection

    assert keys is not None, "a TCP address needs keys"
    if leased:
        from gt.wire.leases.leased_connection import LeasedConnection

        return LeasedConnection(address, keys, worker)
    return ZmqConnection(address, keys)


def settled_connection(connection: Connection) -> Connection | None:
    """The connection that a worker uses from now on; None until the server has said whether it keeps a session for the
    worker. A server without a journal does not."""
    settled = getattr(connection, "settled", None)  # a Unix socket has no sessions
    return settled() if settled is not None else connection
