"""The messages that a worker has for the dispatcher."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gt.wire.messages import Done, Message, Reply


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to the dispatcher. In a `Reply`, ``inner`` is the client's message, and ``data`` the bytes after it."""

    message: Message
    inner: Message | None = None
    data: memoryview | None = None


class WorkerOutbox:
    def __init__(self) -> None:
        #: the number of this worker; -1 until the dispatcher has assigned one
        self.worker = -1
        self._messages: list[OutgoingMessage] = []

    def send(self, message: Message, inner: Message | None = None, data: memoryview | None = None) -> None:
        self._messages.append(OutgoingMessage(message, inner, data))

    def send_done(self, client: int, worker_set: int) -> None:
        """Send a `Done`; as a part of the last reply if that goes to the same client."""
        done, last = Done(client, worker_set, 0), self._messages[-1] if self._messages else None
        reply = last.message if last is not None else None
        if last is not None and isinstance(reply, Reply) and reply.client == client and reply.done is None:
            self._messages[-1] = replace(last, message=Reply(client, reply.request, reply.last, done))
        else:
            self.send(done)

    def take(self) -> list[OutgoingMessage]:
        messages, self._messages = self._messages, []
        return messages
