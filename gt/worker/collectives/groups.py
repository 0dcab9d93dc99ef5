"""One group at one member: created in the background, then collectives, until it breaks or is left.

A thread of the group creates the process group and releases it in the end; both may take long. In between, the thread
that starts a collective also issues it. The group's thread issues only what cannot be issued at once, in order:
collectives started before the group exists, and those whose array is still being copied to the host.

When the connection to a member closes, that member died or left. LOST_MEMBER_GRACE_S later the group breaks. It does
not break at once, because gloo may still hold data that the member sent before. When a member does not answer any more,
although its connection is open, the network between the two is broken. The group breaks, and the reason names both.

A second thread waits for gloo's collectives, in order and without the interpreter lock, and wakes the worker. (gloo's
futures can call back as well, but later: measured with small all-reduces between two processes.) NCCL needs no second
thread: for this process an NCCL collective is done when it is issued, and a CUDA stream waits for it.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from gt.worker.collectives.collective import ProcessCollective
from gt.worker.collectives.descriptors import PATH_TIMEOUT_S, PeerMonitor, WakeEvent, is_silent, shut_down
from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.membership import GroupBackend, Membership

#: Seconds between the end of a member's connection and the end of the group.
LOST_MEMBER_GRACE_S = 2.0
#: Seconds between two checks whether all members answer.
PATH_CHECK_S = 1.0


def _reason(error: BaseException) -> str:
    """The first sentence of an error, without positions in gloo's source."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error)).split("\n")[0]
    return text.split(". ")[0].strip() or type(error).__name__


class WorkerGroup:
    """A group at this member. ``wake`` tells the worker that a collective may be done."""

    def __init__(self, membership: Membership, wake: Callable[[], None]) -> None:
        self.membership = membership
        self._wake = wake
        self._lock = threading.RLock()
        self._backend: GroupBackend | None = None
        #: why the group cannot be used any more
        self._broken = ""
        #: the collectives that can still break; the caller may have dropped their handles
        self._collectives: weakref.WeakSet[ProcessCollective] = weakref.WeakSet()
        #: collectives that gloo works on, for the second thread; None ends the thread
        self._works: queue.SimpleQueue[tuple[ProcessCollective, Any] | None] = queue.SimpleQueue()
        #: collectives that the group's thread must issue, each with a function that waits until it can be issued
        self._tasks: deque[tuple[ProcessCollective, Callable[[], None]]] = deque()
        self._left = False
        self._wakeup = WakeEvent()
        name = f"gt group {membership.group}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, collective: ProcessCollective, ready: Callable[[], None] | None) -> None:
        """``ready`` waits until the array can be read; None if it can be read at once."""
        with self._lock:
            if self._broken:
                collective.end(self._broken)
                self._wake()
                return
            self._collectives.add(collective)
            if self._backend is None or self._tasks or ready is not None:
                self._tasks.append((collective, ready or (lambda: None)))
                self._wakeup.set()
            else:
                self._issue(collective, self._backend)

    def leave(self, reason: str = "the group was left") -> None:
        with self._lock:
            self._left = True
            self._break(reason)
            self._wakeup.set()

    def fail(self, error: BaseException) -> None:
        """This member cannot take part, so the group breaks."""
        self._break(_reason(error))

    # -- the group's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            backend = self._create()
        except Exception as error:  # any error of torch means that there is no group
            broken = isinstance(error, GroupBroken)
            self._break(str(error) if broken else f"the group could not be created: {_reason(error)}")
            self._wakeup.close()
            return
        if not backend.on_stream:
            name = f"{threading.current_thread().name}, waiting"
            threading.Thread(target=self._wait_for_works, name=name, daemon=True).start()
        with self._lock:
            self._backend = backend
            if self._broken:
                shut_down(backend.connections)
        self._serve(PeerMonitor(self._wakeup, backend.connections), backend.on_stream)
        with self._lock:
            self._backend = None
            self._works.put(None)
        backend.shutdown()
        for connection in backend.connections:
            connection.close()
        self._wakeup.close()

    def _serve(self, monitor: PeerMonitor, on_stream: bool) -> None:
        """Run until the group is left. With NCCL also until it breaks: a CUDA stream may wait for a collective, and
        only the end of the process group ends that wait."""
        deadline: float | None = None
        while not self._left and not (self._broken and on_stream):
            while self._tasks:
                self._run_task(*self._tasks[0])
            patience = PATH_CHECK_S if deadline is None else max(0.0, deadline - time.monotonic())
            if monitor.wait(patience) and deadline is None:
                deadline = time.monotonic() + LOST_MEMBER_GRACE_S
            if not self._broken and (silent := self._silent_member()):
                self._break(silent)
            if deadline is not None and time.monotonic() >= deadline:
                self._break("a member is gone")
                deadline = None

    def _silent_member(self) -> str:
        """The pair of workers whose connection is silent; empty if there is none."""
        with self._lock:
            connections = {} if self._backend is None else self._backend.connections
            for connection, workers in connections.items():
                with contextlib.suppress(OSError):
                    if is_silent(connection):
                        here, there = self.membership.members[self.membership.rank], " or ".join(map(str, workers))
                        return (
                            f"worker {here} gets no answer from worker {there} ({PATH_TIMEOUT_S:g} s): "
                            "the network between them is broken"
                        )
        return ""

    def _create(self) -> GroupBackend:
        from gt.worker.collectives.backends import BACKENDS

        return BACKENDS[self.membership.backend](self.membership, lambda: bool(self._broken))

    def _run_task(self, collective: ProcessCollective, ready: Callable[[], None]) -> None:
        """Wait, then issue a collective. It stays in the queue until then, so that later ones queue behind it."""
        try:
            ready()
        except RuntimeError as error:
            self._break(_reason(error))
        with self._lock:
            self._tasks.popleft()
            if not collective.done() and self._backend is not None:
                self._issue(collective, self._backend)

    # -- collectives -----------------------------------------------------------------------

    def _issue(self, collective: ProcessCollective, backend: GroupBackend) -> None:
        try:
            work = collective.issue(backend)
        except Exception as error:  # a closed connection, no memory: the other members must not wait for this one
            self._break(_reason(error))
            return
        if work is not None:
            self._works.put((collective, work))
            return
        collective.end("")
        if not backend.on_stream:
            self._collectives.discard(collective)
        self._wake()

    def _wait_for_works(self) -> None:
        """The second thread: wait for gloo's collectives in order."""
        while (task := self._works.get()) is not None:
            collective, work = task
            try:
                work.wait()
            except RuntimeError as error:
                self._break(_reason(error))
            with self._lock:
                collective.end("")
                self._collectives.discard(collective)
            self._wake()
            del task, collective, work  # free their memory before the next one arrives

    def _break(self, reason: str) -> None:
        """End all pending collectives. The peers see their connections close, so theirs end too."""
        with self._lock:
            if self._broken:
                return
            silent = self._silent_member()  # gloo may report it first, without a name
            self._broken = reason = silent or reason
            for collective in self._collectives:
                collective.end(reason, certain=bool(silent))
            self._collectives.clear()
            if self._backend is not None:
                shut_down(self._backend.connections)
        self._wakeup.set()
        self._wake()
