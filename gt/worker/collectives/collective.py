"""One collective of a process group, from its start to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.worker.collectives.interface import GroupBroken, OnDone
from gt.worker.collectives.membership import GroupBackend

if TYPE_CHECKING:  # torch is imported by the group's thread
    from gt.worker.collectives.operations import CollectivePlan


class ProcessCollective:
    """The handle of a collective between processes."""

    __slots__ = (
        "__weakref__",
        "_certain",
        "_done",
        "_error",
        "_finish",
        "_names",
        "_note",
        "_plan",
        "_to_engine",
        "_work",
        "kind",
        "on_done",
    )

    def __init__(
        self, kind: str, names: str, plan: Callable[[], CollectivePlan], to_engine: Callable[[Any], Any]
    ) -> None:
        #: for error messages; ``names`` are the members
        self.kind, self._names = kind, names
        #: prepares what is sent; None once it is issued
        self._plan: Callable[[], CollectivePlan] | None = plan
        #: converts the result to the engine's array
        self._to_engine = to_engine
        #: builds the result; None before it is issued and after the result was taken
        self._finish: Callable[[], Any] | None = None
        #: see `CollectivePlan.note`
        self._note: Callable[[], int] | None = None
        #: what a CUDA stream waits for
        self._work: Any = None
        self._done = False
        self._error, self._certain = "", False
        self.on_done: OnDone | None = None

    def done(self) -> bool:
        return self._done

    def result(self) -> Any:
        assert self._done, f"{self.kind} among {self._names}: its result was requested before it was done"
        if self._error:
            raise GroupBroken(f"{self.kind} among {self._names}: {self._error}", self._certain)
        finish, self._finish = self._finish, None
        assert finish is not None, f"{self.kind} among {self._names}: its result was taken already"
        self.wait_on_device()
        self._work = None
        result = finish()
        return None if result is None else self._to_engine(result)

    def wait_on_device(self) -> None:
        if self._work is not None:
            self._work.wait()  # returns at once: the CUDA stream waits

    def note(self) -> int:
        assert self._note is not None, f"{self.kind} among {self._names}: it carries no note"
        return self._note()

    def issue(self, backend: GroupBackend) -> Any:
        """Pass it to the backend. Returns the work that the group's second thread must wait for, or None."""
        assert self._plan is not None
        plan, self._plan = self._plan(), None
        self._finish, self._note = plan.finish, plan.note
        work = plan.issue(backend.process_group) if plan.issue is not None else None
        if not backend.on_stream:
            return work
        self._work = work
        return None

    def end(self, error: str, certain: bool = False) -> None:
        """Mark it done, with an error or "". The first error stays. gloo keeps alive the memory that it still uses."""
        if error and (self._finish is not None or not self._done):
            self._error, self._certain, self._plan, self._finish = error, certain, None, None
        if self.on_done is not None:
            self.on_done()
            self.on_done = None
        self._done = True


class NotedCollective:
    """The handle of a collective whose notes are combined by another one, as with NCCL."""

    __slots__ = ("_collective", "_notes")

    def __init__(self, collective: ProcessCollective, notes: ProcessCollective) -> None:
        self._collective, self._notes = collective, notes

    def done(self) -> bool:
        return self._collective.done() and self._notes.done()

    def result(self) -> Any:
        return self._collective.result()

    def wait_on_device(self) -> None:
        self._collective.wait_on_device()

    def note(self) -> int:
        return int(self._notes.result()[0])
