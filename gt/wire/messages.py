"""Every message that crosses a wire, and nothing else: frozen data without behaviour.

    client ──Hello, Configure, Submit, Chunk, Ask, Locate, Trace, Bye──▶ dispatcher
    client ◀──Welcome, Refusal, Credit, FailureReport, Notice, Blocks, values, Answer, Located── dispatcher
                        dispatcher ──Welcome, Admit, Define, Execute, Leave, Chunk, Query, Drop──▶ worker
                        dispatcher ◀──Hello, Done, FailureReport, Notice, Reply, Report── worker

`Submit.stream` is the client's program, a flat list of words:

    code, site, outputs…, operands…    run a signature (see `gt.ops.signature`); code >= FIRST_CODE
    FETCH, request, id                 send the tensor's value back
    RESET, code                        forget the signatures below this code, and all fragments; their numbers do not
                                       come back
    RUN, fragment, 0, base, 0, inputs…, numbers…
                                       run a fragment (see `gt.wire.fragments`)
    FORGET, fragment                   it will not be run again
    -id                                forget a tensor

To workers, a stream also has the dispatcher's own signatures and moves, with codes from FIRST_LOCAL on, tensors with
ids from FIRST_OWN on, and

    READ, request, id, worker          send the value, or your block of it if ``worker`` is -1; if it is not you, say
                                       only whether there is one
    DISCARD, transfer                  nobody will use what came in these parts
    LEAVE, group                       nobody will move anything in this group
    TRACE, request, begin              begin to write down what happens when; or end it, and send what was written
    RUN, fragment, part, base, own, inputs…, numbers…
                                       from this part of it on, with the dispatcher's own ids counted from ``own``

An operand of type bytes is the bytes themselves, or the number of a transfer whose parts were sent before.

A message is one frame. A `Chunk` or `ValueChunk` says in which shared memory its bytes lie, or carries them as a second
frame. A `Reply` wraps a worker's message for a client: the dispatcher reads the wrapper and passes the rest on unread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

FETCH, RESET, READ, DISCARD, LEAVE, RUN, FORGET, TRACE = 1, 2, 3, 4, 5, 6, 7, 8
FIRST_CODE = 16
#: Above these, codes and tensor ids are the dispatcher's own: what it makes of a client's program for several workers.
FIRST_LOCAL, FIRST_OWN = 1 << 31, 1 << 40

#: The most a client may have under way, in words of its stream; eight bytes of a value in it count as one.
WINDOW = 1 << 16
#: Limits a peer cannot exceed without losing its connection.
MAX_FRAME = 16 << 20
MAX_WORDS = 1 << 16
#: A submission is shorter than a frame by so much: what the dispatcher makes of it must still fit into one.
MARGIN = 2 << 20
#: The words of one instruction, and as many attributes; the signatures a client may have, and their size each.
MAX_WIDTH = 1 << 14
MAX_SIGNATURES, MAX_DEFINITION = 1 << 16, 256 << 10
#: The words of a fragment, and the fragments a client may have.
MAX_FRAGMENT, MAX_FRAGMENTS = 1 << 14, 256
#: Values up to here ride in a control message; larger ones go in parts.
INLINE = 64 << 10
#: A part in a frame is small, so that no control message waits behind it for long; one in shared memory may be larger.
CHUNK, SHARED_CHUNK = 1 << 20, 8 << 20
#: Bytes under way before the receiver must confirm some; also the size of the shared memory.
CHUNKS_AHEAD, LANE = 8 << 20, 64 << 20

Word = int | float | bool | bytes
#: the name of a signal; "" is none, and what begins with @ is GT's own
SignalName = Annotated[str, msgspec.Meta(max_length=200)]
#: ("float32", (2, 3)) for a tensor, ("int", None) for a scalar
WireType = tuple[str, tuple[int, ...] | None]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The root of all messages."""


class Hello(Message, frozen=True, array_like=True, tag=True):
    """The first message of every connection."""

    role: str  # "client" or "worker"
    protocol: int
    version: str
    #: Peers with equal hosts can open each other's memory (see `gt.wire.shared.host_identity`).
    host: str
    pid: int
    backend: str = ""
    device: str = ""
    #: a worker's GPU, as no other names it; empty for a CPU
    gpu: str = ""
    #: where workers that are to work together with this one meet: "host:port"
    store: str = ""


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a client may know of a worker."""

    id: int
    backend: str
    device: str
    host: str
    pid: int
    gpu: str = ""
    store: str = ""

    def __repr__(self) -> str:
        """For people: the rest is how workers find each other."""
        gpu = f", gpu={self.gpu!r}" if self.gpu else ""
        return f"Worker(id={self.id}, device={self.device!r}{gpu}, backend={self.backend!r}, pid={self.pid})"


class Welcome(Message, frozen=True, array_like=True, tag=True):
    #: the client's or the worker's number
    id: int
    version: str
    workers: list[WorkerInfo] = []


class Refusal(Message, frozen=True, array_like=True, tag=True):
    """The last message of a connection."""

    reason: str


class Heartbeat(Message, frozen=True, array_like=True, tag=True):
    """Sent every second to every peer: a peer that is gone makes the sending fail."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """What a code stands for from here on."""

    code: int
    op: str
    attrs: list[tuple[str, Any]]
    ins: list[WireType]
    into: bool = False
    #: what it was emitted under, as the last `Configure` before it describes it
    signal: SignalName = ""


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a program that comes again, in canonical form (see `gt.wire.fragments`)."""

    number: int
    #: how many tensors it is given, it makes, and the dispatcher makes for it
    inputs: int
    made: int
    own: int
    words: list[int]
    #: its instructions are to be compiled
    compile: bool = False
    #: which of its numbers never change, and what they are
    constant: list[tuple[int, Word]] = []


class SignalSpec(msgspec.Struct, frozen=True, array_like=True):
    """Where one signal puts things."""

    name: SignalName
    #: in the order of the mesh, the last axis the quickest; empty: all there are
    workers: list[int]
    #: axes in order, with their sizes; empty: one axis over all its workers
    mesh: list[tuple[str, int]]
    #: what is made under it: (dim, axis), where "" is the only axis, and a negative dim counts from the end
    shard: list[tuple[int, str]]
    replicate: bool
    #: the placement of results under it; None: the planner's choice; empty: replicated
    output: list[tuple[int, str]] | None
    #: False: a gathered copy is let go after its use
    keep: bool
    #: not of the user's configuration, but of `Configure.auto`
    auto: bool = False


class Configure(Message, frozen=True, array_like=True, tag=True):
    """What signals mean for the instructions submitted, and the codes defined, from here on."""

    signals: list[SignalSpec]
    #: what no signal places is cut along dim 0 over all workers if it is long there
    auto: bool


class Submit(Message, frozen=True, array_like=True, tag=True):
    """A piece of a client's program. ``weight`` comes back as `Credit` when it is done."""

    #: 1, 2, 3…: one that came before is a repetition after an interrupt, and is skipped
    serial: int
    definitions: list[Definition]
    stream: list[Word]
    weight: int
    fragments: list[Fragment] = []


class SharedRange(msgspec.Struct, frozen=True, array_like=True):
    """Where a part lies: a range of the sender's shared memory (see `gt.wire.shared`)."""

    pid: int
    fd: int
    name: str
    size: int
    at: int


class Chunk(Message, frozen=True, array_like=True, tag=True):
    """A piece of a large tensor on its way to a worker; without a place, its bytes are the next frame."""

    transfer: int
    offset: int
    nbytes: int
    total: int
    place: SharedRange | None = None
    #: filled in by the dispatcher
    client: int = 0


class ChunkTaken(Message, frozen=True, array_like=True, tag=True):
    """The receiver has taken the oldest part it was sent. ``transfer`` is the request, for the parts of a value."""

    transfer: int
    nbytes: int
    client: int = 0
    #: whose part it was, if a worker's
    worker: int = -1


class Ask(Message, frozen=True, array_like=True, tag=True):
    """How are the workers? Answered by `Answer`."""

    request: int


class Locate(Message, frozen=True, array_like=True, tag=True):
    """Where does this tensor lie, and why? Answered by `Located`."""

    request: int
    id: int
    shape: tuple[int, ...]


class Located(Message, frozen=True, array_like=True, tag=True):
    request: int
    workers: list[int]
    #: of the mesh
    shape: list[int]
    placements: list[str]
    #: (worker, starts, sizes)
    blocks: list[tuple[int, tuple[int, ...], tuple[int, ...]]]
    #: how it came there, in lines
    story: list[str]


class Trace(Message, frozen=True, array_like=True, tag=True):
    """Begin a trace on the workers, or end it; answered by `Blocks`, which says by whom, and a value from each: nothing
    at the beginning, and in the end what it wrote down."""

    request: int
    begin: bool


class Bye(Message, frozen=True, array_like=True, tag=True):
    """A clean end, or the last words of a worker whose device broke."""

    reason: str = ""


class Credit(Message, frozen=True, array_like=True, tag=True):
    """So much of what the client submitted is done, in all."""

    done: int


class FailureReport(Message, frozen=True, array_like=True, tag=True):
    """An instruction failed. Values that depend on it carry the same ``cause``."""

    client: int
    cause: int
    kind: str
    text: str
    site: int


class Notice(Message, frozen=True, array_like=True, tag=True):
    """What a client should know, though nothing failed."""

    text: str
    #: whom a worker says it to
    client: int = 0


class Blocks(Message, frozen=True, array_like=True, tag=True):
    """The value will come from several workers: (worker, starts, sizes) each; all of ``workers`` will answer."""

    request: int
    shape: tuple[int, ...]
    itemsize: int
    pieces: list[tuple[int, tuple[int, ...], tuple[int, ...]]]
    workers: list[int]


class Checked(Message, frozen=True, array_like=True, tag=True):
    """This worker has a value there, too; another sends it."""

    request: int
    worker: int


class ValueInline(Message, frozen=True, array_like=True, tag=True):
    request: int
    data: bytes
    worker: int = -1


class ValueChunk(Message, frozen=True, array_like=True, tag=True):
    """A piece of the value; without a place, its bytes are the next frame."""

    request: int
    offset: int
    nbytes: int
    total: int
    place: SharedRange | None = None
    worker: int = -1


class NoValue(Message, frozen=True, array_like=True, tag=True):
    """The value cannot be had: it depends on an instruction that failed, or on a worker that is gone."""

    request: int
    kind: str
    text: str
    cause: int = 0
    site: int = 0
    #: the failure was on another worker, whose `FailureReport` says more
    elsewhere: bool = False


class WorkerStats(msgspec.Struct, frozen=True):
    """One worker's own account."""

    worker: int
    device: str
    backend: str
    total_instructions: int
    hot_instructions: int
    unique_sequences: int
    #: a piece in words -> length, runs, level, compile_seconds, saved_seconds, reasons
    compilation_stats: dict[str, dict[str, Any]]
    #: what the device says (GPU: used, total, allocated)
    memory: dict[str, int]
    #: of the client that asks
    client_tensors: int
    client_bytes: int
    #: of all clients together
    tensors: int
    bytes: int


class Answer(Message, frozen=True, array_like=True, tag=True):
    request: int
    workers: list[WorkerStats]


class Roster(Message, frozen=True, array_like=True, tag=True):
    """The workers changed."""

    workers: list[WorkerInfo]


class Admit(Message, frozen=True, array_like=True, tag=True):
    """A client's first instruction is on its way to this worker."""

    client: int
    host: str


class Move(msgspec.Struct, frozen=True, array_like=True):
    """What a code stands for from here on: this worker's part in moving a tensor, with one operand and one result."""

    code: int
    kind: str
    group: int
    how: list[tuple[str, Any]]
    #: the type of what it has before, and has after; None if nothing
    before: WireType | None
    after: WireType | None


class GroupSpec(msgspec.Struct, frozen=True, array_like=True):
    """Workers that move tensors among each other, by their ranks, and where they meet."""

    id: int
    members: list[int]
    store: str
    backend: str


class Define(Message, frozen=True, array_like=True, tag=True):
    """What codes stand for on this worker; the instructions that use them are the same for several workers."""

    client: int
    definitions: list[Definition]
    moves: list[Move]
    groups: list[GroupSpec]
    fragments: list[Fragment] = []


class Leave(Message, frozen=True, array_like=True, tag=True):
    """A member of this group is gone: what was under way in it will not end."""

    client: int
    group: int
    reason: str


class Execute(Message, frozen=True, array_like=True, tag=True):
    """A piece of one client's program for a worker, planned."""

    client: int
    definitions: list[Definition]
    stream: list[Word]
    #: the client's number for the workers that get it
    crew: int
    #: is its `Done` wanted? It stands for those before it, too, that this crew was not asked for
    confirm: bool = True


class Drop(Message, frozen=True, array_like=True, tag=True):
    """The client is gone: free all it had."""

    client: int


class Query(Message, frozen=True, array_like=True, tag=True):
    client: int
    request: int


class Done(Message, frozen=True, array_like=True, tag=True):
    """An `Execute` is done; it, and those of its crew that were not to be confirmed, took so long."""

    client: int
    crew: int
    micros: int


class Reply(Message, frozen=True, array_like=True, tag=True):
    """The next frame is a message for a client; ``last`` if its request is answered with it."""

    client: int
    request: int
    last: bool = True
    #: the `Done` that would have been the next message, so that a read costs one message less
    done: Done | None = None


class Report(Message, frozen=True, array_like=True, tag=True):
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
