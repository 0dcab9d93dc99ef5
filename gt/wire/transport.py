"""Two transports for the same frames: a Unix socket within one machine, ZeroMQ between machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gt.wire.codec import BadFrame

if TYPE_CHECKING:
    from gt.wire.auth import Keys


class Listener(Protocol):
    """The server's side of all its connections."""

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        """Yield what arrives within ``seconds``: (peer, frames), (peer, None) for a peer that disconnected, or
        (peer, BadFrame)."""

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is lost. Never blocks."""

    def silent(self, now: float) -> list[bytes]:
        """Peers that are connected but have not answered for too long."""

    def drop(self, peer: bytes) -> None:
        """Close the connection to this peer, or ignore the peer if the transport cannot close it."""

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


def listen(address: str, keys: Keys | None) -> Listener:
    """A listener at ``unix:PATH`` or ``tcp://HOST:PORT``. Raises OSError if the address is in use."""
    if address.startswith("unix:"):
        from gt.wire.unix import UnixListener

        return UnixListener(address.removeprefix("unix:"))
    from gt.wire.sockets import ZmqListener

    assert keys is not None, "a TCP address needs a secret"
    return ZmqListener(address, keys)


def connection(address: str, keys: Keys | None) -> Connection:
    """The connection to a server at ``unix:PATH`` or ``tcp://HOST:PORT``. It is established in the background."""
    if address.startswith("unix:"):
        from gt.wire.unix import UnixConnection

        return UnixConnection(address.removeprefix("unix:"))
    from gt.wire.sockets import ZmqConnection

    assert keys is not None, "a TCP address needs a secret"
    return ZmqConnection(address, keys)
