"""What the dispatcher knows: where tensors lie, what clients are owed, what workers are doing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gt.ops import Signature
from gt.types import TensorType
from gt.wire.messages import Definition, Submit, WorkerInfo

Peer = bytes


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where a tensor lies: whole, on one worker. Compared by identity: the worker's record owns the only one."""

    worker: int

    def __str__(self) -> str:
        return f"worker {self.worker}"


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """Where a tensor was: what a read of it, or of anything made from it, is told."""

    text: str


Where = Layout | Lost


class Coded:
    """A client's signature as the forwarding loop needs it."""

    __slots__ = ("cost", "definition", "offsets", "plain", "signature", "start", "width")

    def __init__(self, definition: Definition, signature: Signature) -> None:
        self.definition, self.signature = definition, signature
        self.plain, self.width, self.start = signature.plain, signature.width, signature.start
        self.offsets = signature.offsets
        #: estimated microseconds on a plain CPU core; what a client really used corrects it
        self.cost = estimate(signature)


def estimate(signature: Signature) -> float:
    """A floor for the call, 10 GB/s for the bytes, 50 GFLOP/s for the arithmetic beyond one operation an element."""
    types = [t for t in (*signature.ins, *signature.outs) if isinstance(t, TensorType)]
    flops = signature.op.flops(*signature.ins, **dict(signature.attrs)) if signature.op.flops else 0
    return 4.0 + sum(t.nbytes for t in types) / 1e4 + flops / 5e4


@dataclass(slots=True, eq=False)
class Client:
    id: int
    peer: Peer
    host: str
    codes: dict[int, Coded] = field(default_factory=dict)
    tensors: dict[int, Where] = field(default_factory=dict)
    #: (code, *places of the operands) -> where it runs, and its results lie
    plans: dict[tuple[Any, ...], Where] = field(default_factory=dict)
    #: [submit, position]: received, and not yet given to a worker
    queue: deque[list[Any]] = field(default_factory=deque)
    #: the worker new tensors are made on
    home: int | None = None
    #: which codes each worker was told
    told: dict[int, set[int]] = field(default_factory=dict)
    #: request -> the worker that will answer it
    reads: dict[int, int] = field(default_factory=dict)
    #: requests that were answered by the dispatcher in the worker's place
    given_up: set[int] = field(default_factory=set)
    #: transfer -> sizes of its parts that the worker has not confirmed
    parts: dict[int, list[int]] = field(default_factory=dict)
    #: the last submission received
    serial: int = 0
    #: weights: received, done, and done as far as the client was told
    received: int = 0
    done: int = 0
    told_done: int = 0
    #: worker time used, in microseconds; who has used least goes first
    used: float = 0.0
    #: since when it has had work and no worker, as the shell's clock said
    stranded: float | None = None

    def enqueue(self, submit: Submit) -> None:
        self.received += submit.weight
        self.queue.append([submit, 0])


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    peer: Peer
    info: WorkerInfo
    layout: Layout
    #: estimated microseconds of what it was given and has not done
    ahead: float = 0.0
    #: (client, weight, estimate) of each `Execute` it has not confirmed, oldest first
    given: deque[tuple[int, int, float]] = field(default_factory=deque)
    #: measured over estimated time
    pace: float = 1.0
    admitted: set[int] = field(default_factory=set)
