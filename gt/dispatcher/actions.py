"""The actions that the dispatcher's core decides on and its shell carries out."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gt.dispatcher.state import Peer
from gt.wire.messages import Message


class SendMessage(Struct, frozen=True):
    """One message for one peer. ``rest`` are frames to send after it; without a message they are all that is sent."""

    peer: Peer
    message: Message | None
    rest: tuple[Any, ...] = ()


class SendAll(Struct, frozen=True):
    """One message for several peers; it is encoded once."""

    peers: tuple[Peer, ...]
    message: Message


class Close(Struct, frozen=True):
    """End the connection to this peer."""

    peer: Peer
    reason: str


Action = SendMessage | SendAll | Close
