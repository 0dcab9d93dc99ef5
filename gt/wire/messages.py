"""Every message that crosses a wire: frozen data without behaviour.

    client ──Hello, Configure, Submit, Chunk, ChunkTaken, Ask, Locate, Trace, Bye──▶ dispatcher
    client ◀──Credit, FailureReport, Notice, Blocks, values, ChunkTaken, Answer, Located, Roster── dispatcher
                        dispatcher ──Admit, Define, Execute, Leave, Chunk, ChunkTaken, Query, Drop──▶ worker
                        dispatcher ◀──Hello, Done, FailureReport, Notice, Reply, ChunkTaken, Report, Bye── worker

The dispatcher also sends Welcome, Refusal and Heartbeat to both. *Values* are ValueInline, ValueChunk, Checked and
NoValue. `ToDispatcher`, `ToClient` and `ToWorker` at the end list everything that each role may receive.

`Submit.stream` is the client's program, a flat list of words:

    code, site, outputs…, operands…    run a signature (see `gt.ops.signature`); code >= FIRST_CODE
    FETCH, request, id                 send the value of a tensor
    RESET, code                        forget the signatures below this code, and the fragments that use them; these
                                       codes and fragment numbers are not used again
    RUN, fragment, 0, base, 0, inputs…, numbers…
                                       run a fragment (see `gt.wire.fragments`)
    FORGET, fragment                   the fragment will not run again
    -id                                free a tensor

A stream to a worker also has signatures and moves that the dispatcher defines, with codes from FIRST_DISPATCHER_CODE
on, tensors with ids from FIRST_DISPATCHER_ID on, and

    READ, request, id, worker          ``worker`` sends the value; -1: each worker sends its block. The others only
                                       confirm that they have a value
    DISCARD, transfer                  drop the chunks of this transfer; no instruction will use them
    LEAVE, group                       leave the group; no move will use it
    TRACE, request, begin              begin a trace; or end it, and send what was recorded
    RUN, fragment, section, base, dispatcher_base, inputs…, numbers…
                                       run a fragment from this section on; the dispatcher's ids count from
                                       ``dispatcher_base``

An operand of type bytes is the bytes themselves, or the number of a transfer whose chunks were sent before.

A message is one frame. A `Chunk` or `ValueChunk` names the shared memory that holds its bytes, or carries them in a
second frame. A `Reply` wraps a worker's message for a client: the dispatcher reads the wrapper and forwards the rest
unread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

FETCH, RESET, READ, DISCARD, LEAVE, RUN, FORGET, TRACE = 1, 2, 3, 4, 5, 6, 7, 8
FIRST_CODE = 16
#: From these on, codes and tensor ids belong to the dispatcher, which creates them to run a program on several workers.
FIRST_DISPATCHER_CODE, FIRST_DISPATCHER_ID = 1 << 31, 1 << 40

#: The words that a client may submit beyond those credited as done. Eight bytes of a value in the stream count as one.
WINDOW_WORDS = 1 << 16
#: A peer that exceeds these limits loses its connection.
MAX_FRAME_BYTES = 16 << 20
MAX_SUBMIT_WORDS = 1 << 16
#: A submission is this much shorter than a frame, because the dispatcher's version of it must fit into one frame too.
SUBMIT_MARGIN_BYTES = 2 << 20
#: The words of one instruction, which also limits its attributes; the signatures of a client, and the size of each.
MAX_INSTRUCTION_WORDS = 1 << 14
MAX_SIGNATURES, MAX_DEFINITION_BYTES = 1 << 16, 256 << 10
#: The words of a fragment, and the fragments of a client.
MAX_FRAGMENT_WORDS, MAX_FRAGMENTS = 1 << 14, 256
#: Values up to this size travel in a control message; larger ones travel in chunks.
MAX_INLINE_BYTES = 64 << 10
#: A chunk in a frame is small, so that control messages do not wait long behind it. One in shared memory may be larger.
CHUNK_BYTES, SHARED_CHUNK_BYTES = 1 << 20, 8 << 20
#: The bytes that may be sent in frames before the receiver acknowledges some; the size of the shared memory.
MAX_UNACKNOWLEDGED_BYTES, SHARED_RING_BYTES = 8 << 20, 64 << 20

Word = int | float | bool | bytes
#: the name of a signal; "" means no signal; names that begin with @ are reserved for GT
SignalName = Annotated[str, msgspec.Meta(max_length=200)]
#: ("float32", (2, 3)) for a tensor, ("int", None) for a scalar
WireType = tuple[str, tuple[int, ...] | None]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base class of all messages."""


class Hello(Message, frozen=True, array_like=True, tag=True):
    """The first message of every connection."""

    role: str  # "client" or "worker"
    protocol: int
    version: str
    #: peers with equal hosts can open each other's memory (see `gt.wire.shared.host_identity`)
    host: str
    pid: int
    backend: str = ""
    device: str = ""
    #: the unique name of a worker's GPU; empty for a CPU
    gpu: str = ""
    #: the "host:port" of the store where the members of a group that this worker leads meet
    store: str = ""


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """The description of a worker, for clients and for other workers."""

    id: int
    backend: str
    device: str
    host: str
    pid: int
    gpu: str = ""
    store: str = ""

    def __repr__(self) -> str:
        """Without the fields that workers use to find each other."""
        gpu = f", gpu={self.gpu!r}" if self.gpu else ""
        return f"Worker(id={self.id}, device={self.device!r}{gpu}, backend={self.backend!r}, pid={self.pid})"


class Welcome(Message, frozen=True, array_like=True, tag=True):
    """Answers `Hello`. A client also gets the connected workers."""

    #: the number of the client or the worker
    id: int
    version: str
    workers: list[WorkerInfo] = []


class Refusal(Message, frozen=True, array_like=True, tag=True):
    """The last message of a connection."""

    reason: str


class Heartbeat(Message, frozen=True, array_like=True, tag=True):
    """Sent to every peer each second. Sending to a lost peer fails, so the sender notices the loss."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """Defines a code: from here on it stands for this signature."""

    code: int
    op: str
    attrs: list[tuple[str, Any]]
    ins: list[WireType]
    into: bool = False
    #: the signal it was emitted under; the last `Configure` before it describes the signal
    signal: SignalName = ""


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """A repeated stretch of a program, with slots in place of tensor ids (see `gt.wire.fragments`)."""

    number: int
    #: how many tensors are its inputs, how many it creates, and how many the dispatcher creates for it
    inputs: int
    created: int
    dispatcher_created: int
    words: list[int]
    #: whether its instructions must be compiled
    compile: bool = False
    #: the numbers that never change: (index among its numbers, value)
    constants: list[tuple[int, Word]] = []


class SignalSpec(msgspec.Struct, frozen=True, array_like=True):
    """Where one signal places tensors."""

    name: SignalName
    #: in mesh order, the last axis varies fastest; empty: all workers
    workers: list[int]
    #: (axis, size) in order; empty: one axis over all its workers
    mesh: list[tuple[str, int]]
    #: placement of tensors created under it: (dim, axis); "" is the only axis; a negative dim counts from the end
    shard: list[tuple[int, str]]
    replicate: bool
    #: placement of results under it; None: the planner chooses; empty: replicated
    output: list[tuple[int, str]] | None
    #: False: a gathered copy is freed after its use
    keep: bool
    #: whether it comes from `Configure.auto` and not from the user's configuration
    auto: bool = False


class Configure(Message, frozen=True, array_like=True, tag=True):
    """Defines the signals of all later submissions and definitions."""

    signals: list[SignalSpec]
    #: whether a tensor without a signal is sharded along dim 0 over all workers if it is long there
    auto: bool


class Submit(Message, frozen=True, array_like=True, tag=True):
    """The next words of a client's program. ``weight`` comes back as `Credit` when they have run."""

    #: 1, 2, 3…; a serial seen before is a retry after an interrupt, and is skipped
    serial: int
    definitions: list[Definition]
    stream: list[Word]
    weight: int
    fragments: list[Fragment] = []


class SharedRange(msgspec.Struct, frozen=True, array_like=True):
    """Where in the sender's shared memory a chunk begins (see `gt.wire.shared`)."""

    pid: int
    fd: int
    name: str
    #: the bytes of the whole shared memory, not of the chunk
    size: int
    #: where the chunk begins
    offset: int


class Chunk(Message, frozen=True, array_like=True, tag=True):
    """A chunk of a large tensor for a worker. Without ``memory``, the next frame holds its bytes."""

    transfer: int
    offset: int
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


class WorkerStats(msgspec.Struct, frozen=True):
    """The statistics of one worker."""

    worker: int
    device: str
    backend: str
    total_instructions: int
    hot_instructions: int
    unique_sequences: int
    #: description of a section -> length, runs, level, compile_seconds, saved_seconds, reasons
    compilation_stats: dict[str, dict[str, Any]]
    #: as the device reports it (GPU: used, total, allocated)
    memory: dict[str, int]
    #: of the client that requests the statistics
    client_tensors: int
    client_bytes: int
    #: of all clients together
    tensors: int
    bytes: int


class Answer(Message, frozen=True, array_like=True, tag=True):
    """Answers `Ask`."""

    request: int
    workers: list[WorkerStats]


class Roster(Message, frozen=True, array_like=True, tag=True):
    """The workers changed."""

    workers: list[WorkerInfo]


class Admit(Message, frozen=True, array_like=True, tag=True):
    """A new client: its first instruction follows."""

    client: int
    host: str


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Defines a code: from here on it stands for this worker's share of a move, with one operand and one result."""

    code: int
    kind: str
    group: int
    #: see `gt.worker.collectives`
    options: list[tuple[str, Any]]
    #: the type of this worker's block before and after the move; None if it has none
    before: WireType | None
    after: WireType | None


class GroupSpec(msgspec.Struct, frozen=True, array_like=True):
    """The workers that take part in a collective, by rank, and the address of their store."""

    id: int
    members: list[int]
    store: str
    backend: str


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


class Drop(Message, frozen=True, array_like=True, tag=True):
    """The client disconnected: free everything it had."""

    client: int


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


class Report(Message, frozen=True, array_like=True, tag=True):
    """Answers `Query`."""

    client: int
    request: int
    stats: WorkerStats


ToDispatcher = (
    Hello
    | Configure
    | Submit
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
)
ToClient = (
    Welcome
    | Refusal
    | Heartbeat
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
)
ToWorker = Welcome | Refusal | Heartbeat | Admit | Define | Leave | Execute | Chunk | ChunkTaken | Drop | Query
