"""Messages that survive a lost connection: each side counts what it receives, and keeps what it sends until the other
side has counted it.

A connection delivers in order. So no message carries a number: the n-th message that one side of a session sends is the
n-th that the other side receives, however many connections carry them. After a loss both sides say how many messages
they have received, and each sends again what the other one lacks. So no message is lost, and none arrives twice.

An acknowledgement (`Acknowledge`) is a frame in front of a message that is sent anyway, after every few messages. It
travels alone only where nothing else is sent.

The two sides also exchange a few messages of their own, which are neither counted nor sent again:

    Open       peer     keep a session for this connection; a frame in front of the first message, which is counted
    Opened     server   the answer; the messages after it are counted
    Resume     peer     the first message of a new connection for an old session
    Resumed    server   the answer: the session goes on
    Expired    server   the answer: there is no such session any more

Each is a frame that begins with `CONTROL`, with which no other message begins.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from gt.wire.codec import BadFrame, encode
from gt.wire.structures import Message

CONTROL = b"\0"
#: What may arrive before the next message that is sent acknowledges it.
ACKNOWLEDGE_MESSAGES, ACKNOWLEDGE_BYTES = 32, 256 << 10
#: What may arrive before an acknowledgement is sent alone: this many times as much.
ALONE = 4


class Acknowledge(Message, frozen=True, array_like=True, tag=True):
    """How many messages of the session the sender has received."""

    received: int


class Open(Message, frozen=True, array_like=True, tag=True):
    """Goes with the `Hello` of a client or a worker."""

    worker: bool = False
    #: the sender's process (see `gt.wire.shared.process_identity`)
    process: str = ""


class Opened(Message, frozen=True, array_like=True, tag=True):
    """Answers `Open`."""

    #: a secret number: who has it can resume the session. Empty: there is no session, because the server has no journal
    #: and this is a worker
    key: bytes
    #: seconds that the server keeps the session of a client that does not answer
    lease_s: float
    #: whether the session outlives the server, because it keeps a journal
    outlives_server: bool = False


class Resume(Message, frozen=True, array_like=True, tag=True):
    """The first message of a connection that continues a session."""

    key: bytes
    #: 1, 2, 3…; a connection that was delayed on its way has a number that is too low
    attempt: int
    received: int
    #: as in `Open`: a server that was started again does not know it
    process: str = ""


class Resumed(Message, frozen=True, array_like=True, tag=True):
    """Answers `Resume`. What the client lacks follows."""

    received: int


class Expired(Message, frozen=True, array_like=True, tag=True):
    """Answers `Resume`: the server has no such session."""


Control = Acknowledge | Open | Opened | Resume | Resumed | Expired
_decoder = msgspec.msgpack.Decoder(Control)


def control(message: Control) -> bytes:
    """The frame of a message that is not counted."""
    return CONTROL + encode(message)


def read_control(frame: bytes) -> Control:
    """The inverse of `control`. Raises BadFrame."""
    try:
        message: Control = _decoder.decode(memoryview(frame)[1:])
    except msgspec.MsgspecError as error:
        raise BadFrame(f"{type(error).__name__}: {error}") from None
    return message


class Numbering:
    """One side of a session: how many messages it has sent and received, and which sent ones the other may lack."""

    __slots__ = ("_bytes", "_reported", "kept", "received", "sent")

    def __init__(self) -> None:
        self.sent = self.received = 0
        #: the messages that the other side has not acknowledged, oldest first
        self.kept: deque[list[Any]] = deque()
        #: how many received messages the other side knows of, and the bytes of those after them
        self._reported = self._bytes = 0

    def outgoing(self, frames: list[Any]) -> list[Any]:
        """Count a message. Returns what to send: the message, and perhaps an acknowledgement before it."""
        self.kept.append(frames)
        self.sent += 1
        if self.received - self._reported >= ACKNOWLEDGE_MESSAGES or self._bytes >= ACKNOWLEDGE_BYTES:
            return [self.acknowledgement(), *frames]
        return frames

    def incoming(self, frames: list[bytes]) -> None:
        """Count a message that arrived."""
        self.received += 1
        self._bytes += len(frames[-1])

    @property
    def overdue(self) -> bool:
        """Whether to send an acknowledgement alone."""
        return (
            self.received - self._reported >= ALONE * ACKNOWLEDGE_MESSAGES or self._bytes >= ALONE * ACKNOWLEDGE_BYTES
        )

    def acknowledgement(self) -> bytes:
        """The frame that tells the other side what arrived."""
        self._reported, self._bytes = self.received, 0
        return control(Acknowledge(self.received))

    def acknowledged(self, received: int) -> None:
        """The other side has received this many messages. Raises BadFrame if that cannot be."""
        if received > self.sent:
            raise BadFrame(f"{received} messages of {self.sent} acknowledged")
        for _ in range(len(self.kept) - (self.sent - received)):
            self.kept.popleft()

    def resume(self, received: int) -> list[list[Any]]:
        """A new connection; the other side has received this many messages. Returns those that it lacks.

        The caller tells the other side what `received` is here. Raises BadFrame if there are messages that nobody has.
        """
        if received < self.sent - len(self.kept):
            raise BadFrame(f"{received} messages received, but more were acknowledged")
        self.acknowledged(received)
        self._reported, self._bytes = self.received, 0
        return list(self.kept)
