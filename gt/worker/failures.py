"""Failed instructions: a failure takes the place of the results, and of all results that depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.errors import QuotaExceeded
from gt.ops import Signature
from gt.wire.messages import FailureReport
from gt.worker.collectives.interface import GroupBroken
from gt.worker.engines import Engine
from gt.worker.engines.host_memory import NoHostMemory
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.linked import LinkedMove
from gt.worker.outbox import WorkerOutbox
from gt.worker.space import LOST_WORKER_BIT, PLACEHOLDERS, ClientSpace, Failure


class FailureRecorder:
    def __init__(self, engine: Engine, spaces: Mapping[int, ClientSpace], outbox: WorkerOutbox) -> None:
        self._engine, self._spaces, self._outbox = engine, spaces, outbox
        self._count = 0

    def create(self, kind: str, what: object, problem: str, site: int, elsewhere: bool = False) -> Failure:
        """A new failure. Its ``cause`` is unique among all workers, and has a bit that marks a lost worker."""
        self._count += 1
        worker = self._outbox.worker
        text = f"{what} failed on worker {worker} ({self._engine.device}): {problem}"
        lost = LOST_WORKER_BIT if kind == "WorkerLost" else 0
        return Failure((worker + 1 << 32) + self._count | lost, kind, text, site, elsewhere)

    def record(
        self,
        space: ClientSpace,
        client: int,
        signature: Signature | LinkedMove,
        stream: list[Any],
        i: int,
        error: Exception,
    ) -> None:
        """The instruction at word ``i`` failed: store a failure as its results, and report it. Raises DeviceBroken."""
        if self._engine.is_broken(error):
            raise DeviceBroken(first_line(error)) from error
        problem = first_line(error)
        kind = "WorkerLost" if isinstance(error, GroupBroken) else "RemoteError"
        if isinstance(error, QuotaExceeded):
            kind = "QuotaExceeded"
        elif self._engine.is_out_of_memory(error):
            why = f": {problem}" if isinstance(error, NoHostMemory) else ""
            kind, problem = "OutOfMemory", f"out of memory{why}. {_memory_holders(self._engine, self._spaces, client)}"
        site = stream[i + 1] if type(stream[i + 1]) is int else 0
        failure = self.create(kind, signature, problem, site)
        _store(space, signature, stream, i, failure)
        self._outbox.send(FailureReport(client, failure.cause, kind, failure.text, failure.site))


def propagate(space: ClientSpace, linked: Any, stream: list[Any], i: int) -> bool:
    """If an operand is a failure, store it as all results, and return True. Not for a move: all workers take part."""
    if isinstance(linked, LinkedMove):
        return False
    for offset in linked.signature.offsets:
        value = space.store.get(stream[i + offset])
        if type(value) is Failure:
            _store(space, linked.signature, stream, i, value)
            return True
    return False


def _store(space: ClientSpace, signature: Signature | LinkedMove, stream: list[Any], i: int, failure: Failure) -> None:
    if isinstance(signature, LinkedMove) and signature.after is None:
        return  # the move has no result on this worker, so the client would never free it
    for id in stream[i + 2 : i + signature.start]:
        space.put(id, failure)


def _memory_holders(engine: Engine, spaces: Mapping[int, ClientSpace], client: int) -> str:
    """What uses the memory. The client sees its own tensors by size, those of other clients only as a sum."""
    tensors = [v for v in spaces[client].store.values() if type(v) not in PLACEHOLDERS]
    tensors.sort(key=engine.nbytes, reverse=True)
    largest = ", ".join(f"{tuple(v.shape)} {_gib(engine.nbytes(v))}" for v in tensors[:3])
    held = sum(map(engine.nbytes, tensors))
    total = sum(engine.nbytes(v) for s in spaces.values() for v in s.store.values() if type(v) not in PLACEHOLDERS)
    return (
        f"This client holds {_gib(held)} in {len(tensors)} tensors"
        f"{f' (largest: {largest})' if largest else ''}, other clients {_gib(total - held)}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
