"""The messages that a worker has for the dispatcher."""

from __future__ import annotations

from msgspec import Struct

from gt.wire.messages import Done, Message, Reply


class OutgoingMessage(Struct, frozen=True):
    """A message to the dispatcher. In a `Reply`, ``inner`` is the client's message, and ``data`` the bytes after it."""

    message: Message
    inner: Message | None = None
    data: memoryview | None = None


class WorkerOutbox:
    """Collects the messages of one event."""

    def __init__(self) -> None:
        #: the number of this worker; -1 until the dispatcher has assigned one
        self.worker = -1
        #: the worker takes the list after each event
        self.messages: list[OutgoingMessage] = []

    def send(self, message: Message, inner: Message | None = None, data: memoryview | None = None) -> None:
        self.messages.append(OutgoingMessage(message, inner, data))

    def send_done(self, client: int, worker_set: int) -> None:
        """Send a `Done`. If the last message is a reply to the same client, the `Done` becomes a part of it."""
        done, messages = Done(client, worker_set, 0), self.messages
        if messages:
            reply = messages[-1].message
            if isinstance(reply, Reply) and reply.client == client and reply.done is None:
                message = Reply(client, reply.request, reply.last, done, reply.lost)
                messages[-1] = OutgoingMessage(message, messages[-1].inner, messages[-1].data)
                return
        messages.append(OutgoingMessage(done))
