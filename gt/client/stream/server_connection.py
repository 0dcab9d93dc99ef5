"""The server as one session sees it: the link to it, the workers behind it, and how the connection ended.

Every wait of a client passes through `ServerConnection.wait`, and the end of the connection ends every wait.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gt.client.stream.link import Link
from gt.client.stream.long_wait import LongWait, Questions
from gt.errors import ClusterError, ConnectionLost, GtError, NoWorkers, WorkerLost
from gt.wire import interrupts
from gt.wire.codec import encode
from gt.wire.event_messages import ExplainWait
from gt.wire.messages import Bye
from gt.wire.structures import WorkerInfo

#: (seconds to wait for a new worker when one is lost, seconds between two snapshots)
RecoveryOptions = tuple[float, float]
#: Seconds to wait for a first worker before an instruction is refused.
FIRST_WORKER_TIMEOUT_S = 3.0
#: Seconds between two checks, during a wait for a worker's progress, that a worker is connected.
WORKER_CHECK_S = 3.0
#: How many submissions after an interrupt are followed by a `Cancel`, unless a read is answered before.
CANCELS_AFTER_INTERRUPT = 16
#: What errors about tensors of an ended session say.
SESSION_ENDS = "gt.gpu_workers and gt.connect begin a new session: call them before the first tensor"


@interrupts.deferred
class ServerConnection:
    def __init__(self, name: str) -> None:
        #: how the server was reached, for messages
        self.name = name
        #: "tcp://host:port" or "unix:path"; empty if there are no sockets
        self.address = ""
        self.workers: list[WorkerInfo] = []
        #: the arguments of `gt.recovery`; None: the server does not keep the program
        self.recovery: RecoveryOptions | None = None
        #: the numbers of lost workers in whose places the server puts others
        self.replaced: set[int] = set()
        self.link: Link | None = None
        #: why the session is over; None while it is open
        self.ended: GtError | None = None
        self.on_end: list[Callable[[], None]] = []
        #: why the server (True) or a worker (False) is lost, according to the scheduler that runs them; empty: unknown
        self.explain: Callable[[bool], str] | None = None
        #: how many of the next submissions are followed by a `Cancel`: after Ctrl-C in a wait, Python frees what the
        #: program has abandoned only when the exception is handled
        self.cancels_due = 0
        #: (begin, end) of the waits of this client, in nanoseconds, while it listens to its events
        self.waits: deque[tuple[int, int]] | None = None
        #: what waits that take long have asked the server
        self.questions = Questions(lambda: self.send([encode(ExplainWait())]))

    @property
    def is_shared(self) -> bool:
        """Whether the server has other users, so that its workers open no files."""
        return self.address.startswith("tcp:")

    def worker_ids(self) -> list[int]:
        """The numbers that signals may name."""
        return sorted({worker.id for worker in self.workers} | self.replaced)

    def check_open(self) -> None:
        """Raise the reason why the session is over, if it is."""
        if self.ended is not None:
            raise self.ended.with_traceback(None)

    def send(self, frames: list[Any]) -> None:
        link = self.link
        if link is None:
            raise self.ended or ConnectionLost("there is no connection")
        try:
            link.send(frames)
        except ConnectionLost as error:
            raise self.end(error) from None

    def wait(self, ready: Callable[[], bool], timeout: float | None = None, long_wait: LongWait | None = None) -> bool:
        """Handle messages until ``ready()``; False after ``timeout`` seconds. Raises if the connection ends.

        ``long_wait``: the wait that this call is a part of; without it, this call is a wait of its own.
        """
        link = self.link
        if link is None:
            raise self.ended or ConnectionLost("there is no connection")
        begun = 0 if self.waits is None else time.perf_counter_ns()
        long = long_wait or LongWait(self.questions)
        try:
            arrived = link.wait(lambda: ready() or self.ended is not None or long.check(), timeout)
        except ConnectionLost as error:
            raise self.end(error) from None
        except KeyboardInterrupt:
            self.cancels_due = CANCELS_AFTER_INTERRUPT
            raise
        finally:
            self.questions.open.discard(long)
        if self.waits is not None and begun:
            self.waits.append((begun, time.perf_counter_ns()))
        self.check_open()
        return arrived

    def wait_for_workers(self, count: int, timeout: float, give_up: Callable[[], object] = bool) -> bool:
        """Wait until ``count`` workers are connected. ``give_up`` returns true, or raises, to end the wait early."""
        return self.wait(lambda: bool(give_up()) or len(self.workers) >= count, timeout)

    def wait_for_progress(self, ready: Callable[[], bool]) -> None:
        """Wait for something that a worker does. Raises NoWorkers if there is none."""
        long = LongWait(self.questions)
        while not self.wait(ready, WORKER_CHECK_S, long):
            self.require_worker()

    def require_worker(self) -> None:
        """Raise NoWorkers if no worker connects soon: with recovery, within the time that the program may wait."""
        patience = max(FIRST_WORKER_TIMEOUT_S, self.recovery[0] if self.recovery is not None else 0.0)
        if not self.wait_for_workers(1, patience):
            raise NoWorkers(f"no worker is connected to {self.name}; {self._how_to_start_one()}")

    def _how_to_start_one(self) -> str:
        if not self.address.startswith("tcp://"):
            return "gt.gpu_workers(1) starts one"
        from gt.wire.addresses import split_address  # it imports sockets, which `import gt` does without

        host, port = split_address(self.address)
        return f"start one with: python -m gt.worker --host {host} -p {port}"

    def end(self, error: ClusterError | GtError) -> GtError:
        """Mark the session as over. The first reason is kept and returned."""
        if self.ended is None:
            if isinstance(error, ConnectionLost):
                error = ConnectionLost(f"the connection to {self.name} is lost: {error}")
            self.ended = self.explained(error)
            for callback in self.on_end:
                callback()
        return self.ended

    def explained(self, error: GtError) -> GtError:
        """The error of a lost server or worker, with the reason of the scheduler if it knows one."""
        if self.explain is None or not isinstance(error, ConnectionLost | WorkerLost):
            return error
        reason = self.explain(isinstance(error, ConnectionLost))
        return WorkerLost(f"{reason}: {error}") if reason else error

    def close(self) -> bool:
        """Say goodbye, so that the server frees this session's tensors. False if it was closed before."""
        link, self.link = self.link, None
        if link is None:
            return False
        if self.ended is None:
            self.ended = ConnectionLost(f"this session was disconnected, and its tensors went with it; {SESSION_ENDS}")
            with contextlib.suppress(ConnectionLost):
                link.send([encode(Bye())])
        link.close()
        return True
