"""Every message that crosses a wire: frozen data without behaviour.

    client ──Hello, Recover, Configure, Submit, Cancel, Chunk, ChunkTaken, Ask, Locate, Trace, Bye──▶ dispatcher
    client ◀──Credit, FailureReport, Notice, Blocks, values, ChunkTaken, Answer, Located, Roster── dispatcher
                        dispatcher ──Admit, Define, Execute, Leave, Chunk, ChunkTaken, Query, Drop──▶ worker
                        dispatcher ◀──Hello, Done, FailureReport, Notice, Reply, ChunkTaken, Report, Bye── worker

The dispatcher also sends Welcome, Refusal and Heartbeat to both. *Values* are ValueInline, ValueChunk, Checked and
NoValue. `gt.wire.event_messages` has the messages of the event stream, `recovery_messages` those of recovery, and
`link_messages` those that measure links. `ToDispatcher`, `ToClient` and `ToWorker` at the end list everything that each
role may receive. A viewer receives what a client may receive.

`Submit.stream` is the client's program; `gt.wire.words` describes its words.

A message is one frame. A `Chunk` or `ValueChunk` names the shared memory that holds its bytes, or carries them in a
second frame. A `Reply` wraps a worker's message for a client: the dispatcher reads the wrapper and forwards the rest
unread.
"""

from __future__ import annotations

from gt.wire.event_messages import EventsToClient, EventsToDispatcher, Record
from gt.wire.link_messages import LinksToDispatcher, LinksToWorker
from gt.wire.recovery_messages import RecoveryToClient, RecoveryToDispatcher, RecoveryToWorker
from gt.wire.structures import (
    Definition,
    Fragment,
    GroupSpec,
    Move,
    SharedRange,
    SignalSpec,
    WorkerInfo,
    WorkerPlace,
    WorkerStats,
)
from gt.wire.structures import Message as Message
from gt.wire.words import Word


class Hello(Message, frozen=True, array_like=True, tag=True):
    """The first message of every connection."""

    role: str  # "client", "worker" or "viewer"
    protocol: int
    version: str
    host: str  # peers with equal hosts can open each other's memory (see `gt.wire.shared.host_identity`)
    pid: int
    backend: str = ""
    device: str = ""
    gpu: str = ""  # the unique name of a worker's GPU; empty for a CPU
    #: the "host:port KEY" of the store where the members of a group that this worker leads meet
    store: str = ""
    operator: str = ""  # a viewer's proof that it may see everything
    settings: list[str] = []  # the names of a worker's settings that are on (see `gt.wire.settings`)
    place: WorkerPlace = WorkerPlace()
    speed: float = 0.0  # see `WorkerInfo`


class Welcome(Message, frozen=True, array_like=True, tag=True):
    """Answers `Hello`. A client also gets the connected workers."""

    id: int  # the number of the client or the worker
    version: str
    workers: list[WorkerInfo] = []
    #: the names of the settings that are on in the server or in a worker (see `gt.wire.settings`)
    settings: list[str] = []
    definitions: int = 0  # how many signatures the client may have defined; 0: there is no quota
    transfers: int = 0  # how many large values it may send before instructions use them; 0: there is no quota
    data_secret: bytes = b""  # what workers prove to each other (see `gt.worker.collectives.store`)


class Refusal(Message, frozen=True, array_like=True, tag=True):
    """The last message of a connection."""

    reason: str


class Heartbeat(Message, frozen=True, array_like=True, tag=True):
    """Sent to every peer each second. Sending to a lost peer fails, so the sender notices the loss."""


class Configure(Message, frozen=True, array_like=True, tag=True):
    """Defines the signals of all later submissions and definitions."""

    signals: list[SignalSpec]
    #: whether a tensor without a signal is sharded along dim 0 over all workers if it is long there
    auto: bool
    weight: int = 0  # an eighth of its bytes; it comes back as `Credit`
    #: if not None, the client's tensors move onto the meshes of these signals (`gt.rebalance`); with the tensors that
    #: auto-sharding replicates because they belong to an optimizer
    rebalanced: list[int] | None = None


class Submit(Message, frozen=True, array_like=True, tag=True):
    """The next words of a client's program. ``weight`` comes back as `Credit` when they have run."""

    #: 1, 2, 3…; a serial seen before is a retry after an interrupt, and is skipped
    serial: int
    definitions: list[Definition]
    stream: list[Word]
    weight: int
    fragments: list[Fragment] = []


class ValuesTaken(Message, frozen=True, array_like=True, tag=True):
    """The client has taken values, or does not wait for them any more: the sum of their `counted_bytes`."""

    nbytes: int


class Cancel(Message, frozen=True, array_like=True, tag=True):
    """Submitted instructions that have not started, and whose results are freed before this message, need not run."""

    #: the requests of reads that the client does not wait for any more
    reads: list[int]


class Chunk(Message, frozen=True, array_like=True, tag=True):
    """A chunk of a large tensor for a worker. Without ``memory``, the next frame holds its bytes."""

    transfer: int
    offset: int  #: DROPPED: no instruction will use this transfer
    nbytes: int
    #: the bytes of the whole tensor
    total: int
    memory: SharedRange | None = None
    #: filled in by the dispatcher
    client: int = 0


class ChunkTaken(Message, frozen=True, array_like=True, tag=True):
    """Acknowledges the oldest chunk. For the chunks of a value, ``transfer`` is the request."""

    transfer: int
    nbytes: int
    client: int = 0
    #: the worker that sent the chunk; -1 if a client sent it
    worker: int = -1


class Ask(Message, frozen=True, array_like=True, tag=True):
    """Requests the statistics of the workers. Answered by `Answer`."""

    request: int


class Locate(Message, frozen=True, array_like=True, tag=True):
    """Requests the layout of a tensor and its history. Answered by `Located`."""

    request: int
    id: int
    shape: tuple[int, ...]


class Located(Message, frozen=True, array_like=True, tag=True):
    """Answers `Locate`."""

    request: int
    workers: list[int]
    #: the sizes of the mesh axes
    shape: list[int]
    placements: list[str]
    #: (worker, starts, sizes)
    blocks: list[tuple[int, tuple[int, ...], tuple[int, ...]]]
    #: the reasons for its layout, one a line
    history: list[str]


class Trace(Message, frozen=True, array_like=True, tag=True):
    """Begins or ends a trace on the workers. `Blocks` answers it and lists the workers; then each sends a value: empty
    at the beginning, the recorded events at the end."""

    request: int
    begin: bool


class Bye(Message, frozen=True, array_like=True, tag=True):
    """Closes the connection; a worker whose device broke gives the reason."""

    reason: str = ""


class Credit(Message, frozen=True, array_like=True, tag=True):
    """The total weight of the client's submissions that have run."""

    done: int


class FailureReport(Message, frozen=True, array_like=True, tag=True):
    """An instruction failed. Values that depend on it have the same ``cause``."""

    client: int
    cause: int
    #: the name of an error class (see `gt.errors.BY_NAME`)
    kind: str
    text: str
    #: the client's number for the source line
    site: int


class Notice(Message, frozen=True, array_like=True, tag=True):
    """Information for the user; nothing failed."""

    text: str
    #: the client it is for, if a worker sends it
    client: int = 0


class Blocks(Message, frozen=True, array_like=True, tag=True):
    """Several workers send the blocks of a value: (worker, starts, sizes) each. All of ``workers`` will answer."""

    request: int
    shape: tuple[int, ...]
    itemsize: int
    blocks: list[tuple[int, tuple[int, ...], tuple[int, ...]]]
    workers: list[int]


class Checked(Message, frozen=True, array_like=True, tag=True):
    """This worker has the value too; another one sends it."""

    request: int
    worker: int


class ValueInline(Message, frozen=True, array_like=True, tag=True):
    """A small value, or a worker's small block of one."""

    request: int
    data: bytes
    worker: int = -1


class ValueChunk(Message, frozen=True, array_like=True, tag=True):
    """A chunk of the value. Without ``memory``, the next frame holds its bytes."""

    request: int
    offset: int
    nbytes: int
    total: int
    memory: SharedRange | None = None
    worker: int = -1


class NoValue(Message, frozen=True, array_like=True, tag=True):
    """There is no value: it depends on an instruction that failed, or on a lost worker."""

    request: int
    kind: str
    text: str
    cause: int = 0
    site: int = 0
    #: the failure was on another worker, whose `FailureReport` has the details
    elsewhere: bool = False


class Answer(Message, frozen=True, array_like=True, tag=True):
    """Answers `Ask`."""

    request: int
    workers: list[WorkerStats]


class Roster(Message, frozen=True, array_like=True, tag=True):
    """Workers joined, with these settings on, or are gone. Sending all of them for each change would take too long."""

    joined: list[WorkerInfo]
    gone: list[int]
    settings: list[str] = []


class Admit(Message, frozen=True, array_like=True, tag=True):
    """A new client: its first instruction follows. All tensors of its user may take ``memory`` bytes; 0: any number."""

    client: int
    host: str
    user: str = ""
    memory: int = 0


class Define(Message, frozen=True, array_like=True, tag=True):
    """Defines codes, groups and fragments on this worker. The instructions that use them are the same for several."""

    client: int
    definitions: list[Definition]
    moves: list[Move]
    groups: list[GroupSpec]
    fragments: list[Fragment] = []


class Leave(Message, frozen=True, array_like=True, tag=True):
    """A member of this group is lost: its pending moves will not complete."""

    client: int
    group: int
    reason: str


class Execute(Message, frozen=True, array_like=True, tag=True):
    """The next words of one client's program for a worker, as planned by the dispatcher."""

    client: int
    definitions: list[Definition]
    stream: list[Word]
    #: the number of the set of workers that run it; each client has its own numbering
    worker_set: int
    #: whether to answer with `Done`, which also covers the earlier ones of this worker set that had no answer
    confirm: bool = True
    urgent: bool = False  # whether it may run before messages of other clients that arrived earlier; it has no moves
    confirmer: int = -1  # the only worker that answers; -1: each worker does

    def confirmed_by(self, worker: int) -> bool:
        """Whether this worker answers with `Done`."""
        return self.confirm and self.confirmer in (-1, worker)


class Drop(Message, frozen=True, array_like=True, tag=True):
    """The client disconnected: free everything it had."""

    client: int
    #: it did not disconnect, but its program begins again: answer with `Dropped`
    again: bool = False


class Query(Message, frozen=True, array_like=True, tag=True):
    """Requests a worker's statistics for one client. Answered by `Report`."""

    client: int
    request: int


class Done(Message, frozen=True, array_like=True, tag=True):
    """An `Execute` has run. ``microseconds`` includes the earlier ones of its worker set that had no answer."""

    client: int
    worker_set: int
    microseconds: int


class Reply(Message, frozen=True, array_like=True, tag=True):
    """The next frame is a message for a client; ``last``: the request is complete with it."""

    client: int
    request: int
    last: bool = True
    #: the `Done` that would be the next message; sent along, so that a read costs one message less
    done: Done | None = None
    #: the message says that a worker is lost
    lost: bool = False


class Report(Message, frozen=True, array_like=True, tag=True):
    """Answers `Query`."""

    client: int
    request: int
    stats: WorkerStats


_ToAll = Welcome | Refusal | Heartbeat
ToDispatcher = (
    Hello
    | RecoveryToDispatcher
    | Configure
    | Submit
    | ValuesTaken
    | Cancel
    | Chunk
    | ChunkTaken
    | Ask
    | Locate
    | Trace
    | Bye
    | Done
    | FailureReport
    | Notice
    | Reply
    | Report
    | EventsToDispatcher
    | LinksToDispatcher
)
ToClient = (
    _ToAll
    | Credit
    | FailureReport
    | Notice
    | Blocks
    | Checked
    | ValueInline
    | ValueChunk
    | NoValue
    | ChunkTaken
    | Answer
    | Located
    | Roster
    | RecoveryToClient
    | EventsToClient
)
_Work = Admit | Define | Leave | Execute | Chunk | ChunkTaken | Drop | Query
ToWorker = _ToAll | _Work | Record | RecoveryToWorker | LinksToWorker
