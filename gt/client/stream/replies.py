"""Requests that wait for a reply: reads of values, and questions about the system."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from typing import Any

from gt.client.stream.failures import Failures
from gt.client.stream.long_wait import LongWait
from gt.client.stream.pending import PendingFromEach, PendingValue
from gt.client.stream.progress import SILENT_WAIT_S, wait_with_progress
from gt.client.stream.server_connection import ServerConnection
from gt.errors import ConnectionLost, RemoteError, WorkerLost
from gt.wire import interrupts
from gt.wire.codec import encode
from gt.wire.event_messages import Listening
from gt.wire.messages import (
    Answer,
    Blocks,
    Checked,
    ChunkTaken,
    Located,
    NoValue,
    Trace,
    ValueChunk,
    ValueInline,
    ValuesTaken,
)
from gt.wire.shared import SharedRings
from gt.wire.structures import SharedRange
from gt.wire.words import MAX_UNTAKEN_BYTES, counted_bytes

#: Seconds that a read waits for the reason of a failure, once another worker has reported that there was a failure.
FAILURE_DETAIL_TIMEOUT_S = 3.0
#: How many predicted reads that the program did not do are remembered.
MAX_DROPPED = 64


@interrupts.deferred
class Replies:
    def __init__(self, connection: ServerConnection, failures: Failures) -> None:
        self._connection, self._failures = connection, failures
        self._next_request = itertools.count(1).__next__
        #: how often a value was waited for
        self.waits = 0
        #: request -> a `PendingValue`, or the list that an answer is put into
        self.pending: dict[int, Any] = {}
        #: reads that nobody waits for any more, and that the server does not know of
        self.abandoned: list[int] = []
        #: predicted reads that the program did not do; their replies may still arrive
        self._dropped: deque[int] = deque()
        self._rings = SharedRings()
        #: the counted bytes of reads that have ended and that the server does not know of
        self._taken = 0
        self._taking = threading.Lock()

    # -- asking --------------------------------------------------------------------------

    def expect(self, pending: PendingValue) -> int:
        """Register a reply that is expected, and return the number of its request."""
        request = self._next_request()
        self.pending[request] = pending
        return request

    def predict(self, nbytes: int) -> int:
        """Register a reply that the program does not wait for yet."""
        pending = PendingValue(nbytes)
        pending.refusals = []
        return self.expect(pending)

    def claim(self, request: int) -> None:
        """The program waits for a reply that was predicted."""
        pending: PendingValue = self.pending[request]
        refusals, pending.refusals = pending.refusals or (), None
        for refusal in refusals:
            self._failures.no_value(refusal, pending)

    def drop(self, request: int) -> None:
        """The program does not read what was predicted. Its reply is ignored, and a failure in it counts as unread."""
        self._take(self.pending[request].nbytes)
        if len(self._dropped) == MAX_DROPPED:
            self.pending.pop(self._dropped.popleft(), None)
        self._dropped.append(request)

    def wait(self, request: int) -> PendingValue:
        """Wait for the reply. If it is an error that another worker describes better, wait a little for that."""
        pending: PendingValue = self.pending[request]
        self.waits += 1
        try:
            ready = lambda: pending.done or pending.likely_error is not None
            long = LongWait(self._connection.questions)
            if not self._connection.wait(ready, SILENT_WAIT_S, long):
                wait_with_progress(self._connection, pending, ready, long)
            if not pending.done and not self._connection.wait(lambda: pending.done, FAILURE_DETAIL_TIMEOUT_S):
                pending.fail(pending.likely_error or RemoteError("an instruction failed, and no worker reported why"))
        except BaseException:
            self.abandoned.append(request)
            raise
        finally:
            del self.pending[request]
            self._take(pending.nbytes)
        return pending

    def _take(self, nbytes: int) -> None:
        """A read of a value of this size has ended. Report it from time to time: until then it counts as open."""
        with self._taking:
            self._taken += counted_bytes(nbytes)
            taken = self._taken
            if taken < MAX_UNTAKEN_BYTES // 8:
                return
            self._taken = 0
        if (link := self._connection.link) is not None:
            with contextlib.suppress(ConnectionLost):
                link.send([encode(ValuesTaken(taken))])

    def abandon(self, request: int) -> None:
        """Ignore the reply when it arrives."""
        pending = self.pending.pop(request, None)
        self.abandoned.append(request)
        if pending is not None:
            self._take(pending.nbytes)

    def ask(self, kind: Any, *fields: Any, timeout: float | None = None) -> Any:
        """Send a question, and return the answer; None after ``timeout`` seconds."""
        answers = self.begin_to_ask(kind, *fields)
        return answers[0] if self._connection.wait(lambda: bool(answers), timeout) else None

    def begin_to_ask(self, kind: Any, *fields: Any) -> list[Any]:
        """Send a question; the answer will be put into the list."""
        request = self._next_request()
        answers: list[Any] = []
        self.pending[request] = answers
        self._connection.send([encode(kind(request, *fields))])
        return answers

    def trace(self, begin: bool) -> dict[int, bytes]:
        """Begin or end a trace. Returns what each worker that takes part sends back: worker -> bytes."""
        pending = PendingFromEach()
        request = self.expect(pending)
        try:
            self._connection.send([encode(Trace(request, begin))])
            self._connection.wait(lambda: pending.done)
        finally:
            self.pending.pop(request, None)
        if pending.error is not None:
            raise pending.error
        return pending.values

    # -- arriving ------------------------------------------------------------------------

    def blocks(self, m: Blocks, frames: object) -> None:
        if (pending := self.pending.get(m.request)) is not None:
            pending.expect(m)

    def checked(self, m: Checked, frames: object) -> None:
        if (pending := self.pending.get(m.request)) is not None:
            pending.answered(m.worker)

    def inline(self, m: ValueInline, frames: object) -> None:
        if (pending := self.pending.get(m.request)) is not None:
            pending.add_inline(m)

    def chunk(self, m: ValueChunk, frames: list[bytes]) -> None:
        pending = self.pending.get(m.request)
        if pending is not None:
            try:
                data = memoryview(frames[1]) if m.memory is None else self._rings.read(m.memory, m.nbytes)
            except (OSError, ValueError) as error:  # the sender died before we read it
                pending.fail(self._unreadable(m.memory, error))
            else:
                pending.add_chunk(m, data)
        link = self._connection.link
        if link is not None:  # acknowledged even if the read was abandoned: the worker waits for it
            link.send([encode(ChunkTaken(m.request, m.nbytes, worker=m.worker))])

    def _unreadable(self, place: SharedRange | None, error: Exception) -> WorkerLost:
        pid = 0 if place is None else place.pid
        workers = self._connection.workers
        names = (f"worker {w.id} ({w.device}, pid {pid})" for w in workers if w.pid == pid)
        who = next(names, f"the worker of pid {pid}")
        return WorkerLost(f"{who} is gone, or its memory cannot be read ({error}); GT_SHM=0 does without it")

    def no_value(self, m: NoValue, frames: object) -> None:
        pending = self.pending.get(m.request)
        if pending is not None and pending.refusals is not None:
            pending.refusals.append(m)
        else:
            self._failures.no_value(m, pending)

    def answer(self, m: Answer | Located | Listening, frames: object) -> None:
        if (answers := self.pending.pop(m.request, None)) is not None:
            answers.append(m)

    def restart(self, requests: list[int]) -> None:
        """The values of these reads are sent again."""
        for request in requests:
            if (pending := self.pending.get(request)) is not None:
                pending.restart()

    def workers_lost(self) -> None:
        """Release the shared memory of workers that are gone."""
        self._rings = SharedRings()
