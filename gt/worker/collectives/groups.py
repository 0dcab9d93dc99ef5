"""One group at one member: made in the background, then flights, until it breaks or is left.

A thread of the group's own makes the process group and, in the end, lets go of it; both can take their time. Between
the two a flight is issued by whoever starts it. Only what cannot be issued yet goes through the thread, and keeps
its place there: flights started before the group is made, and those whose array is still on its way to the host.

A member whose connection ends has died or left: GRACE_S later the group is broken, whatever it is doing. Only later,
because what that member sent before may still be on its way through gloo.

A second thread waits for gloo's collectives, in their order and without the interpreter's lock, and rings. (gloo's
futures would call back as well, but later: tried with small all-reduces between two processes.) NCCL's need no
thread: a collective has ended, for this process, when it was issued, and a stream does the waiting.
"""

from __future__ import annotations

import queue
import re
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gt.worker.collectives import Broken
from gt.worker.collectives.descriptors import Bell, Watch, shut

if TYPE_CHECKING:  # torch is imported by the group's thread
    from gt.worker.collectives.operations import Plan

#: Seconds from a member's end to the group's.
GRACE_S = 2.0

#: says that the group was left meanwhile
Left = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is in which group, as this worker was told, and the address and device of this one."""

    group: int
    members: tuple[int, ...]
    rank: int
    store: str
    backend: str
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class Made:
    """A group that works."""

    pg: Any
    #: does a stream wait for its collectives?
    on_stream: bool
    #: the connections to the other members, as far as they can be seen
    links: list[socket.socket]
    #: before the process group is let go of; may take its time
    end: Callable[[], None]
    #: what only has to be there
    beside: Made | None = None


class Departure:
    """One flight."""

    __slots__ = ("__weakref__", "_bring", "_ended", "_error", "_finish", "_names", "_plan", "_work", "kind", "told")

    def __init__(self, kind: str, names: str, plan: Callable[[], Plan], bring: Callable[[Any], Any]) -> None:
        #: what a `Broken` begins with
        self.kind, self._names = kind, names
        #: prepares what goes over the wire; and takes the result from there to the engine
        self._plan: Callable[[], Plan] | None = plan
        self._bring = bring
        self._finish: Callable[[], Any] | None = None
        #: what a stream waits for
        self._work: Any = None
        self._ended = False
        self._error = ""
        #: who wants to know when it ends
        self.told: Callable[[], None] | None = None

    def done(self) -> bool:
        return self._ended

    def result(self) -> Any:
        assert self._ended, f"{self.kind} among {self._names}: the result of a flight that is not done"
        if self._error:
            raise Broken(f"{self.kind} among {self._names}: {self._error}")
        finish, self._finish = self._finish, None
        assert finish is not None, f"{self.kind} among {self._names}: its result was taken already"
        if self._work is not None:
            self._work.wait()  # returns at once
            self._work = None
        made = finish()
        return None if made is None else self._bring(made)

    def issue(self, made: Made) -> Any:
        """What must be waited for, if anything."""
        assert self._plan is not None
        plan, self._plan = self._plan(), None
        self._finish = plan.finish
        work = plan.issue(made.pg) if plan.issue is not None else None
        if not made.on_stream:
            return work
        self._work = work
        return None

    def end(self, error: str) -> None:
        """A first error stays. What gloo still reads and writes, it holds on to itself."""
        if error and (self._finish is not None or not self._ended):
            self._error, self._plan, self._finish = error, None, None
        if self.told is not None:
            self.told()
            self.told = None
        self._ended = True


def _reason(error: BaseException) -> str:
    """The first sentence, without places in gloo's source."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error)).split("\n")[0]
    return text.split(". ")[0].strip() or type(error).__name__


class Group:
    def __init__(self, membership: Membership, serve: Callable[[], None], ring: Callable[[], None]) -> None:
        self.membership = membership
        #: makes the store that the members meet at, if this one leads
        self._serve = serve
        self._ring = ring
        self._lock = threading.RLock()
        self._made: Made | None = None
        #: why it is of no more use
        self._broken = ""
        #: those that can still break; nobody may have asked for their results
        self._flights: weakref.WeakSet[Departure] = weakref.WeakSet()
        self._works: queue.SimpleQueue[tuple[Departure, Any] | None] = queue.SimpleQueue()
        #: what the thread has to issue, and what to wait for before
        self._tasks: deque[tuple[Departure, Callable[[], None]]] = deque()
        self._left = False
        self._bell = Bell()
        name = f"gt group {membership.group}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, flight: Departure, ready: Callable[[], None] | None) -> None:
        """``ready`` waits until the array can be read, if it cannot yet."""
        with self._lock:
            if self._broken:
                flight.end(self._broken)
                self._ring()
                return
            self._flights.add(flight)
            if self._made is None or self._tasks or ready is not None:
                self._tasks.append((flight, ready or (lambda: None)))
                self._bell.ring()
            else:
                self._issue(flight, self._made)

    def leave(self, reason: str = "the group was left") -> None:
        with self._lock:
            self._left = True
            self._break(reason)
            self._bell.ring()

    def fail(self, error: BaseException) -> None:
        """This member cannot do its part."""
        self._break(_reason(error))

    # -- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            made = self._make()
        except Exception as error:  # whatever torch raises: the group cannot be made
            self._break(str(error) if isinstance(error, Broken) else f"the group could not be made: {_reason(error)}")
            self._bell.close()
            return
        if not made.on_stream:
            threading.Thread(target=self._land, name=f"{threading.current_thread().name}, landing", daemon=True).start()
        with self._lock:
            self._made = made
            if self._broken:
                shut(made.links)
        self._work(Watch(self._bell, made.links), made.on_stream)
        with self._lock:
            self._made = None
            self._works.put(None)
        made.end()
        for link in made.links:
            link.close()
        self._bell.close()

    def _work(self, watch: Watch, on_stream: bool) -> None:
        """Until the group is left; or broken, if a stream waits that only the end of the process group can free."""
        deadline: float | None = None
        while not self._left and not (self._broken and on_stream):
            while self._tasks:
                self._take(*self._tasks[0])
            if watch.wait(None if deadline is None else max(0.0, deadline - time.monotonic())) and deadline is None:
                deadline = time.monotonic() + GRACE_S
            if deadline is not None and time.monotonic() >= deadline:
                self._break("a member is gone")
                deadline = None

    def _make(self) -> Made:
        from gt.worker.collectives.backends import BACKENDS

        if self.membership.rank == 0:
            self._serve()
        return BACKENDS[self.membership.backend](self.membership, lambda: bool(self._broken))

    def _take(self, flight: Departure, ready: Callable[[], None]) -> None:
        """It keeps its place in the line until it is issued."""
        try:
            ready()
        except RuntimeError as error:
            self._break(_reason(error))
        with self._lock:
            self._tasks.popleft()
            if not flight.done() and self._made is not None:
                self._issue(flight, self._made)

    # -- what happens to flights -----------------------------------------------------------

    def _issue(self, flight: Departure, made: Made) -> None:
        try:
            work = flight.issue(made)
        except Exception as error:  # a connection known to be closed, no memory: the others must not wait for this one
            self._break(_reason(error))
            return
        if work is not None:
            self._works.put((flight, work))
            return
        flight.end("")
        if not made.on_stream:
            self._flights.discard(flight)
        self._ring()

    def _land(self) -> None:
        """The second thread."""
        while (next_ := self._works.get()) is not None:
            flight, work = next_
            try:
                work.wait()
            except RuntimeError as error:
                self._break(_reason(error))
            with self._lock:
                flight.end("")
                self._flights.discard(flight)
            self._ring()
            del next_, flight, work  # what they hold should not wait for the next

    def _break(self, reason: str) -> None:
        """All that is under way ends; the peers see their connections close, so that theirs ends too."""
        with self._lock:
            if self._broken:
                return
            self._broken = reason
            for flight in self._flights:
                flight.end(reason)
            self._flights.clear()
            if self._made is not None:
                shut(self._made.links)
        self._bell.ring()
        self._ring()
