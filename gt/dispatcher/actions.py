"""What the dispatcher's core decides and its shell does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gt.dispatcher.state import Peer
from gt.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """One message for one peer; ``rest`` are frames passed on unread."""

    peer: Peer
    message: Message | None
    rest: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class SendAll:
    """One message for several peers: it is encoded once."""

    peers: tuple[Peer, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """This peer has no business here any more."""

    peer: Peer
    reason: str


Action = Send | SendAll | Close
