"""Two ways to carry the same frames: a Unix socket within one machine, ZeroMQ between machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gt.wire.codec import BadFrame

if TYPE_CHECKING:
    from gt.wire.auth import Keys


class Listener(Protocol):
    """The server's side of all its connections."""

    def receive(self, seconds: float) -> Iterator[tuple[bytes, list[bytes] | BadFrame | None]]:
        """What came, waiting at most so long: (peer, frames); (peer, None) for one that ended; or what is wrong."""

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """False if the peer is gone. Never blocks."""

    def silent(self, now: float) -> list[bytes]:
        """Peers that are there but have not answered for too long."""

    def drop(self, peer: bytes) -> None:
        """Hear no more of this peer."""

    def close(self) -> None: ...


class Connection(Protocol):
    """A client's or a worker's side. Reading is for one thread at a time, and so is sending over ZeroMQ."""

    #: why there is no connection any more; empty as long as there is one, or hope for one
    ended: str
    #: why the server would not have us
    refused: str

    def also_wake_on(self, fd: int) -> None:
        """Let `wait` return when this descriptor can be read, too."""

    def send(self, frames: list[Any]) -> None: ...

    def wait(self, milliseconds: int) -> bool:
        """Is there something to take? Waits at most so long."""

    def take(self) -> list[list[bytes]]:
        """The messages that are here."""

    def close(self) -> None: ...


def listen(address: str, keys: Keys | None) -> Listener:
    """``unix:PATH`` or ``tcp://HOST:PORT``. Raises OSError if the address is taken."""
    if address.startswith("unix:"):
        from gt.wire.unix import UnixListener

        return UnixListener(address.removeprefix("unix:"))
    from gt.wire.sockets import ZmqListener

    assert keys is not None, "what others can reach needs a secret"
    return ZmqListener(address, keys)


def connection(address: str, keys: Keys | None) -> Connection:
    if address.startswith("unix:"):
        from gt.wire.unix import UnixConnection

        return UnixConnection(address.removeprefix("unix:"))
    from gt.wire.sockets import ZmqConnection

    assert keys is not None, "what others can reach needs a secret"
    return ZmqConnection(address, keys)
