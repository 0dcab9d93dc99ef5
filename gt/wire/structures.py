"""What messages consist of: the description of a worker, a signature, a fragment, a signal, a move."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gt.wire.words import Word

#: the name of a signal; "" means no signal; names that begin with @ are reserved for GT
SignalName = Annotated[str, msgspec.Meta(max_length=200)]
#: ("float32", (2, 3)) for a tensor, ("int", None) for a scalar
WireType = tuple[str, tuple[int, ...] | None]
#: The greatest weight of a worker on an axis of a mesh.
MAX_WEIGHT = 1000


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base class of all messages: frozen data that crosses a wire."""


class WorkerPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker is. A field is empty, or -1, if the machine does not tell."""

    #: equal for workers on one host
    machine: str = ""
    hostname: str = ""
    #: the NUMA node of its GPU, or the only one whose cores it may use
    numa: int = -1
    #: the PCI address of its GPU, "0000:17:00.0"
    pci: str = ""
    #: the PCI addresses of the GPUs below the same PCIe switch, and of those that it reaches by NVLink
    pcie: tuple[str, ...] = ()
    nvlink: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [self.hostname, f"NUMA node {self.numa}" if self.numa >= 0 else "", f"PCI {self.pci}" * bool(self.pci)]
        for name, neighbours in (("PCIe", self.pcie), ("NVLink", self.nvlink)):
            words.append(f"{name} to {' '.join(neighbours)}" if neighbours else "")
        return ", ".join(filter(None, words))


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """The description of a worker, for clients and for other workers."""

    id: int
    backend: str
    device: str
    host: str
    pid: int
    gpu: str = ""
    store: str = ""
    place: WorkerPlace = WorkerPlace()
    #: measured when it started: billions of float32 operations a second in a matrix product; 0: unknown
    speed: float = 0.0

    def __repr__(self) -> str:
        """Without the fields that workers use to find each other."""
        gpu = f", gpu={self.gpu!r}" if self.gpu else ""
        at = f", at={str(self.place)!r}" if str(self.place) else ""
        speed = f", speed={self.speed:.3g}" if self.speed else ""
        device = f"device={self.device!r}{gpu}, backend={self.backend!r}{speed}"
        return f"Worker(id={self.id}, {device}, pid={self.pid}{at})"


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
    #: (axis, the weights of its workers, at most `MAX_WEIGHT`): blocks follow them; other axes are cut evenly
    weights: list[tuple[str, list[int]]] = []
    #: whether the measured speeds of the workers are the weights
    by_speed: bool = False


class SharedRange(msgspec.Struct, frozen=True, array_like=True):
    """Where in the sender's shared memory a chunk begins (see `gt.wire.shared`)."""

    pid: int
    fd: int
    name: str
    #: the bytes of the whole shared memory, not of the chunk
    size: int
    #: where the chunk begins
    offset: int


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


class EventName(msgspec.Struct, frozen=True, array_like=True):
    """What an event of the event stream stands for."""

    #: "op"; "section" (a part of a fragment that runs as a whole); "compile" (of a section that waits for it); "start"
    #: (of a move); "move"; "wait" (for a move)
    kind: str
    #: the kind of work (`gt.ops.families`), or "moves", "waiting", "compiled"
    family: str
    #: the name of the op, or of the move
    op: str
    #: the call with its types
    text: str
    signal: str
    #: the bytes of the result, or those that the move carries
    nbytes: int
    #: the workers that take part in a move
    members: tuple[int, ...] = ()
    #: whether the move ends on the device, later than its event: nobody on the host sees that, nor waits for it
    ends_on_device: bool = False


class HotSection(msgspec.Struct, frozen=True, array_like=True):
    """How a worker runs one section of a client's repeated fragment."""

    worker: int
    client: int
    #: "fragment 7.0: forward (matmul, add, relu)"
    title: str
    #: instructions in it, and how often it ran
    length: int
    runs: int
    level: str
    compile_seconds: float
    saved_seconds: float
    #: why it does not run at a higher level
    reasons: list[str]


class LargeTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a client, where it is placed, and why."""

    client: int
    type: str
    shape: tuple[int, ...]
    nbytes: int
    layout: str
    #: (worker, starts, sizes)
    blocks: list[tuple[int, tuple[int, ...], tuple[int, ...]]]
    history: list[str]


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
