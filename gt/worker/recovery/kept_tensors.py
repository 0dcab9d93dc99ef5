"""A worker's part in snapshots that can be forked: copies of tensors that belong to no client's space.

The copies are on the device, and count against the quota of the user who took the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.errors import QuotaExceeded
from gt.wire.recovery_messages import CopyKept, Kept
from gt.worker.engines import Engine
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.failures import FailureRecorder
from gt.worker.memory_account import MemoryAccount
from gt.worker.outbox import WorkerOutbox
from gt.worker.space import NO_TENSOR, ClientSpace, Failure


@dataclass(slots=True)
class _KeptPart:
    account: MemoryAccount | None
    #: tensor -> its copy, or its failure
    copies: dict[int, Any] = field(default_factory=dict)
    #: why it is not complete; empty: it is, or will be
    problem: str = ""


class KeptTensors:
    def __init__(self, engine: Engine, outbox: WorkerOutbox, failures: FailureRecorder) -> None:
        self._engine, self._outbox, self._failures = engine, outbox, failures
        #: snapshot -> what is here of it
        self._parts: dict[int, _KeptPart] = {}
        #: snapshots that are being taken -> the copies of them that their client has requested meanwhile
        self._waiting: dict[int, list[tuple[ClientSpace, CopyKept]]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def keep(self, space: ClientSpace, client: int, number: int, id: int) -> None:
        """Copy a tensor; 0: it was the last one. Raises DeviceBroken."""
        part = self._parts.setdefault(number, _KeptPart(space.account))
        if id == 0:
            if part.problem:
                part.copies.clear()
            self._outbox.send(Kept(client, number, part.problem))
            for target, m in self._waiting.pop(number, []):
                self.copy(target, m)
        elif not part.problem:
            try:
                part.copies[id] = self._copied(space.store.get(id, NO_TENSOR), space.account)
            except Exception as error:  # no room: the client goes on without the snapshot
                part.problem = f"worker {self._outbox.worker} could not copy the tensors: {self._problem(error)}"

    def copy(self, space: ClientSpace, m: CopyKept) -> None:
        """Copy tensors of a snapshot into a client's space. Raises DeviceBroken."""
        part = self._parts.get(m.number)
        if part is None or (not part.problem and any(source not in part.copies for source, _ in m.tensors)):
            self._waiting.setdefault(m.number, []).append((space, m))  # the client's stream is not there yet
            return
        for source, id in m.tensors:
            try:
                if part.problem:
                    raise RuntimeError(part.problem)
                space.put(id, self._copied(part.copies[source], space.account))
            except Exception as error:
                problem, kind = self._problem(error), "RemoteError"
                if isinstance(error, QuotaExceeded):
                    kind = "QuotaExceeded"
                elif self._engine.is_out_of_memory(error):
                    kind = "OutOfMemory"
                space.put(id, self._failures.create(kind, "gt.fork", problem, 0))

    def _copied(self, value: Any, account: MemoryAccount | None) -> Any:
        if type(value) is Failure:
            return value
        if account is not None:
            account.check(self._engine.nbytes(value))
        copy = self._engine.copy(value)
        if account is not None:
            account.add(copy)
        return copy

    def _problem(self, error: Exception) -> str:
        if self._engine.is_broken(error):
            raise DeviceBroken(first_line(error)) from error
        return first_line(error)

    def free(self, number: int) -> None:
        self._parts.pop(number, None)

    def forget(self, space: ClientSpace) -> None:
        """A client's space is dropped: nothing is copied into it."""
        for number, waiting in list(self._waiting.items()):
            self._waiting[number] = [entry for entry in waiting if entry[0] is not space]
            if not self._waiting[number]:
                del self._waiting[number]
