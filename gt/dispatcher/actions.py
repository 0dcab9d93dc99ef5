"""The actions that the dispatcher's core decides on and its shell carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gt.dispatcher.state import Peer
from gt.wire.messages import Message


@dataclass(frozen=True, slots=True)
class SendMessage:
    """One message for one peer. ``rest`` are frames to send after it; without a message they are all that is sent."""

    peer: Peer
    message: Message | None
    rest: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class SendAll:
    """One message for several peers; it is encoded once."""

    peers: tuple[Peer, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection to this peer."""

    peer: Peer
    reason: str


Action = SendMessage | SendAll | Close
