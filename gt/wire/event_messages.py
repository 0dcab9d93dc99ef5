"""The messages of the event stream (see `gt.events`).

    listener ──Listen, BatchTaken──▶ dispatcher ──Record──▶ worker
    listener ◀──Listening, EventBatch── dispatcher ◀──Recorded, ClockReading── worker
    client ◀──DescribeSites── dispatcher ◀──Sites── client
    viewer ──Inspect──▶ dispatcher ──Inspection──▶ viewer
    client ──ExplainWait──▶ dispatcher ──WaitExplained──▶ client

A listener is a viewer, or a client that listens to its own session. Workers record only while there is a listener.
Events are packed. A stretch is a run of events in which each ends where the next one begins: `Recorded.stretches` holds
64-bit integers, `STRETCH_COLUMNS` for each stretch, and `Recorded.rows` the `EVENT_FIELDS` of their events. Stretches
that are alike share their rows. What an event stands for is sent once, as an `EventName`; an event has its index.
"""

from __future__ import annotations

from gt.wire.structures import EventName, HotSection, LargeTensor, Message, WorkerInfo

#: The columns of stretches: number of its `Execute` message among those of its client (0: received before recording
#: began), when the message arrived, the number of its fragment or 0, its level (an index of `LEVELS`), when it began
#: and ended (nanoseconds), the first of its rows, and how many events it has.
STRETCH_COLUMNS = ("execute", "queued", "fragment", "level", "started", "ended", "first", "count")
#: The fields of an event: index of its name, the client's source line, and when it ended, as a part of the time of its
#: stretch: 1 is the end. The types are numpy's names.
EVENT_FIELDS = [("what", "<i4"), ("site", "<i4"), ("ended", "<f8")]
LEVELS = ("eager", "template", "graph", "compiled")
#: The columns of the dispatcher's events. worker -1: a message of the client was handled. Otherwise: an `Execute`
#: message with this number was sent to the worker, for words of the submission ``serial``, at ``ended``.
DISPATCHER_COLUMNS = ("worker", "execute", "serial", "received", "started", "ended")
#: `EventBatch.source` of the dispatcher's own events.
DISPATCHER = -1
#: A listener reports this many batches together, in one `BatchTaken`.
TAKEN_TOGETHER = 16
#: Families in `shares` beside those of ops: the dispatcher's own work; moves, which run beside the instructions; those
#: that end on the device, so that waits for them are not seen; waits for moves.
DISPATCHING, TRANSFER, DEVICE_TRANSFER, WAITING = "dispatcher", "transfer", "transfer on the device", "waiting"
TRANSFERS = (TRANSFER, DEVICE_TRANSFER)


class Listen(Message, frozen=True, array_like=True, tag=True):
    """Begin or end to listen. Answered by `Listening`, after everything the client submitted before it."""

    request: int
    on: bool
    #: False: only shares of time, no instructions
    detail: bool = True


class Listening(Message, frozen=True, array_like=True, tag=True):
    """Answers `Listen`. Sent again to viewers when the workers or the clients change, with the request 0."""

    request: int
    #: nanoseconds on the clock of events, and at the same moment since 1970
    now: int
    wall: int
    #: whether the listener sees the instructions of all clients
    operator: bool
    workers: list[WorkerInfo]
    clients: list[int]


class BatchTaken(Message, frozen=True, array_like=True, tag=True):
    """The listener has read this many more batches. Batches for a listener that is far behind are dropped."""

    count: int


class Record(Message, frozen=True, array_like=True, tag=True):
    """Record events, or stop. Sent again from time to time, to compare the clocks."""

    on: bool
    #: when it was sent, on the server's clock
    sent: int
    #: send everything that is recorded so far before the answer
    flush: bool = False


class ClockReading(Message, frozen=True, array_like=True, tag=True):
    """Answers `Record`: the worker's clock, in nanoseconds."""

    sent: int
    here: int


class Recorded(Message, frozen=True, array_like=True, tag=True):
    """What a worker did for one client since the last such message; client 0: only the memory of the worker."""

    client: int
    #: the interval that it covers
    begun: int
    ended: int
    #: names that are new, and source lines that are new
    names: list[EventName]
    sites: list[int]
    stretches: bytes
    rows: bytes
    #: (family, events, nanoseconds, bytes)
    shares: list[tuple[str, int, int, int]]
    #: how many of the events were in repeated fragments
    hot: int
    #: in bytes: used, total and peak of the device; and what the client holds
    memory: dict[str, int]
    #: how many events the worker has dropped since the last message, because its GPU was too far behind
    dropped_events: int = 0
    #: the longest instruction: nanoseconds, and the call
    longest: tuple[int, str] = (0, "")


class EventBatch(Message, frozen=True, array_like=True, tag=True):
    """A worker's `Recorded`, or the dispatcher's own events, for a listener."""

    #: the worker, or `DISPATCHER`
    source: int
    client: int
    #: nanoseconds to add to the times, to get the server's clock; and the largest error of that
    offset: int
    error: int
    #: how many batches the listener has missed
    dropped: int
    begun: int
    ended: int
    names: list[EventName]
    #: (number, text) of source lines
    sites: list[tuple[int, str]]
    #: as in `Recorded`, or rows of `DISPATCHER_COLUMNS`; empty if the listener may not see the client's instructions
    stretches: bytes
    rows: bytes
    shares: list[tuple[str, int, int, int]]
    hot: int
    memory: dict[str, int]
    #: estimated microseconds of work that the worker still had
    ahead: int
    #: as in `Recorded`; without the call if the listener may not see the client's instructions
    dropped_events: int = 0
    longest: tuple[int, str] = (0, "")
    #: microseconds, since the client connected, for which its work ran on this worker while others waited
    blocked_us: int = 0


class DescribeSites(Message, frozen=True, array_like=True, tag=True):
    """Somebody who may see them needs the texts of these source lines. Answered by `Sites`."""

    sites: list[int]


class Sites(Message, frozen=True, array_like=True, tag=True):
    """Answers `DescribeSites`: (number, text)."""

    texts: list[tuple[int, str]]


class Inspect(Message, frozen=True, array_like=True, tag=True):
    """A viewer asks what else is to be seen of the system. Answered by `Inspection`."""

    request: int


class Inspection(Message, frozen=True, array_like=True, tag=True):
    """Answers `Inspect`; empty if the viewer is not the operator."""

    request: int
    #: the sections of repeated fragments, those with the most instructions first
    hot: list[HotSection]
    #: the largest tensors of all clients
    tensors: list[LargeTensor]
    #: (nanoseconds since 1970, what happened)
    log: list[tuple[int, str]]


class ExplainWait(Message, frozen=True, array_like=True, tag=True):
    """From a client that has waited for long: what does it wait for? Answered at once, by `WaitExplained`."""


class WaitExplained(Message, frozen=True, array_like=True, tag=True):
    text: str


EventsToDispatcher = Listen | BatchTaken | Sites | ClockReading | Recorded | Inspect | ExplainWait
EventsToClient = Listening | EventBatch | DescribeSites | Inspection | WaitExplained
