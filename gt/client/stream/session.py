"""A session: one client's stream of instructions, and the values it reads.

How instructions go out is `gt.client.stream.outbox`'s; here is what comes in, and every wait for it. Each submission uses up
credit, which comes back as work is done. A client that is far ahead waits here, and nowhere does a queue grow without
bound.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.signals import config
from gt.client.stream.failures import Troubles
from gt.client.stream.outbox import Sending
from gt.client.stream.reads import Collected, Pending
from gt.client.stream.uploads import Uploads
from gt.errors import BY_NAME, ClusterError, CompileError, ConnectionLost, GtError, NoWorkers, RemoteError, WorkerLost
from gt.say import warn
from gt.types import TensorType
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.messages import (
    FETCH,
    INLINE,
    WINDOW,
    Answer,
    Ask,
    Blocks,
    Bye,
    Checked,
    ChunkTaken,
    Configure,
    Credit,
    FailureReport,
    Heartbeat,
    Locate,
    Located,
    Notice,
    NoValue,
    Refusal,
    Roster,
    SharedRange,
    Trace,
    ValueChunk,
    ValueInline,
    Welcome,
    WorkerInfo,
    WorkerStats,
)
from gt.wire.shared import Lanes

if TYPE_CHECKING:  # it brings zmq with it, which is for those who connect
    from gt.client.stream.link import Link

#: Seconds until it is heard from others why a value failed, at the latest.
EXPLAINED = 3.0


class Session(Sending):
    def __init__(self, name: str = "") -> None:
        super().__init__()
        #: the last configuration sent
        self._told: Configure | None = None
        #: how it was reached, for messages
        self.name = name
        self.id = 0
        self.workers: list[WorkerInfo] = []
        self.link: Link | None = None
        #: why there is no session any more
        self.ended: GtError | None = None
        self.on_end: list[Callable[[], None]] = []
        self.welcomed = False
        self._requests = itertools.count(1).__next__
        self._pending: dict[int, Any] = {}
        self.uploads = Uploads(self)
        self._lanes = Lanes()
        self.troubles = Troubles()
        self._decode = Decode("client")

    # -- emitting ------------------------------------------------------------------------

    def configure(self) -> None:
        """In order with what is submitted: instructions before it are not touched by it, and codes are defined anew."""
        now, before = config.current, self.configured
        if now.signals or (before is not None and before.signals):
            if self._by_code:
                self._forget_signatures()
            self.flush()
            with self._flushing:
                self._submit()
                self._told = now.message(self._ids())
                self.send([encode(self._told)])
        self.configured = now

    def check_signal(self, name: str) -> None:
        """Its workers may still be starting."""
        now = config.current
        signal = now.signals[name]
        if config.missing(signal, self._ids()) is not None:
            self.await_(lambda: config.missing(signal, self._ids()) is None, 3.0)
            config.check_workers(signal, self._ids())
        if now.message(self._ids()) != self._told:
            self.configured = None  # the first workers are others than when it was told

    def _ids(self) -> list[int]:
        return [w.id for w in self.workers]

    def send(self, frames: list[Any]) -> None:
        link = self.link
        if link is None:
            raise self.ended or ConnectionLost("there is no connection")
        try:
            link.send(frames)
        except ConnectionLost as error:
            raise self._end(error) from None

    def await_(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something arrived. Every wait in a client is this one, and the link's end ends it."""
        link = self.link
        if link is None:
            raise self.ended or ConnectionLost("there is no connection")
        try:
            arrived = link.wait(lambda: ready() or self.ended is not None, timeout)
        except ConnectionLost as error:
            raise self._end(error) from None
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        return arrived

    # -- reading -------------------------------------------------------------------------

    def read(self, id: int, type: TensorType) -> Any:
        """The value's bytes, in fresh memory. Raises what made it fail."""
        if (recorder := self.recorder) is not None and recorder.thread != threading.get_ident():
            recorder.refuse("another thread reads a value meanwhile")
        elif recorder is not None:
            raise CompileError(
                "gt.compile: a value is read inside a compiled function (item, numpy, print, a condition on a tensor);"
                " give it back and read it outside"
            )
        request = self._requests()
        pending = self._pending[request] = Pending(type.nbytes)
        try:
            self.cut((FETCH, request, id))
            position = self._sent
            self.await_(lambda: pending.done or pending.guess is not None)
            if not pending.done and not self.await_(lambda: pending.done, EXPLAINED):
                pending.fail(pending.guess or RemoteError("nobody says why"))
        finally:
            del self._pending[request]
        if not isinstance(pending.error, ClusterError):  # a worker has come so far
            self._done = max(self._done, position)
        if pending.error is not None:
            try:
                raise pending.error
            finally:
                pending.error = None  # in a cycle with its traceback it would keep the caller's tensors alive
        return pending.buffer

    def ask(self) -> list[WorkerStats]:
        found: list[WorkerStats] = self._question(Ask).workers
        return found

    def locate(self, id: int, shape: tuple[int, ...]) -> Located:
        """Where a tensor lies, and why."""
        found: Located = self._question(Locate, id, shape)
        return found

    def trace(self, begin: bool) -> dict[int, bytes]:
        """Begin to trace, or end it: what each of the workers that take part has to say."""
        self.cut()
        self.flush()
        request = self._requests()
        pending = self._pending[request] = Collected()
        try:
            self.send([encode(Trace(request, begin))])
            self.await_(lambda: pending.done)
        finally:
            del self._pending[request]
        if pending.error is not None:
            raise pending.error
        return pending.values

    def finish(self, seconds: float) -> None:
        """Send all there is, and wait until the workers have done it, if that is soon."""
        while self.await_(lambda: self._sent - self._done <= WINDOW // 2, seconds) and self.words:
            self._submit()
        if self._sent and self.workers and not self.words:
            self._question(Ask, within=seconds)

    def _question(self, kind: Any, *what: Any, within: float | None = None) -> Any:
        self.flush()
        request = self._requests()
        answers: list[Any] = []
        self._pending[request] = answers
        self.send([encode(kind(request, *what))])
        return answers[0] if self.await_(lambda: bool(answers), within) else None

    # -- large values to the workers -----------------------------------------------------

    def upload(self, data: memoryview) -> bytes | int:
        """What stands for these bytes in an instruction: themselves, or the number of a transfer."""
        if data.nbytes <= INLINE:
            if self._inline >= WINDOW // 2:
                self.flush()
            self._inline += data.nbytes >> 3
            return bytes(data)
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        self._need_worker()
        return self.uploads.send(data)

    def await_workers(self, count: int, timeout: float, alive: Callable[[], object] = bool) -> bool:
        """Wait until there are so many workers; ``alive`` raises if there is no hope any more."""
        return self.await_(lambda: bool(alive()) or len(self.workers) >= count, timeout)

    def _need_worker(self) -> None:
        if not self.await_workers(1, 3.0):
            raise NoWorkers(f"no worker is connected to {self.name}; start one with python -m gt.worker")

    # -- arriving ------------------------------------------------------------------------

    def handle(self, frames: list[bytes]) -> None:
        try:
            message = self._decode(frames[0])
        except BadFrame as error:
            self._end(ConnectionLost(f"the server sent what is no message: {error}"))
            return
        HANDLERS[type(message)](self, message, frames)

    def _welcome(self, m: Welcome, frames: object) -> None:
        self.id, self.workers, self.welcomed = m.id, m.workers, True

    def _refused(self, m: Refusal, frames: object) -> None:
        self._end(BY_NAME["Refused"](f"the server turned this connection away: {m.reason}"))

    def _alive(self, m: Heartbeat, frames: object) -> None:
        pass

    def _roster(self, m: Roster, frames: object) -> None:
        if gone := [w for w in self.workers if w not in m.workers]:
            self._lanes = Lanes()  # the lost worker's memory need not live on
            self.troubles.workers_gone(gone)
        self.workers = m.workers

    def _credit(self, m: Credit, frames: object) -> None:
        self._done = max(self._done, m.done)

    def _trouble(self, m: FailureReport, frames: object) -> None:
        self.troubles.happened(m)

    def _advice(self, m: Notice, frames: object) -> None:
        warn(m.text)

    def _blocks(self, m: Blocks, frames: object) -> None:
        if (pending := self._pending.get(m.request)) is not None:
            pending.expect(m)

    def _checked(self, m: Checked, frames: object) -> None:
        if (pending := self._pending.get(m.request)) is not None:
            pending.answered(m.worker)

    def _value(self, m: ValueInline, frames: object) -> None:
        if (pending := self._pending.get(m.request)) is not None:
            pending.whole(m)

    def _value_part(self, m: ValueChunk, frames: list[bytes]) -> None:
        pending = self._pending.get(m.request)
        if pending is not None:
            try:
                data = memoryview(frames[1]) if m.place is None else self._lanes.read(m.place, m.nbytes)
            except (OSError, ValueError) as error:  # its sender died before we looked
                pending.fail(self._unreadable(m.place, error))
            else:
                pending.part(m, data)
        if self.link is not None:  # taken even if nobody wants it any more: the worker waits for it
            self.link.send([encode(ChunkTaken(m.request, m.nbytes, worker=m.worker))])

    def _unreadable(self, place: SharedRange | None, error: Exception) -> WorkerLost:
        pid = 0 if place is None else place.pid
        who = next(
            (f"worker {w.id} ({w.device}, pid {pid})" for w in self.workers if w.pid == pid), f"the worker of pid {pid}"
        )
        return WorkerLost(f"{who} is gone, or its memory cannot be read ({error}); GT_SHM=0 does without it")

    def _no_value(self, m: NoValue, frames: object) -> None:
        self.troubles.no_value(m, self._pending.get(m.request))

    def _part_taken(self, m: ChunkTaken, frames: object) -> None:
        self.uploads.taken(m)

    def _answer(self, m: Answer | Located, frames: object) -> None:
        if (answers := self._pending.pop(m.request, None)) is not None:
            answers.append(m)

    # -- the end -------------------------------------------------------------------------

    def _end(self, error: ClusterError | GtError) -> GtError:
        """Nothing more will come; the first reason is the one that is told."""
        if self.ended is None:
            if isinstance(error, ConnectionLost):
                error = ConnectionLost(f"the connection to {self.name} is lost: {error}")
            self.ended = error
            for act in self.on_end:
                act()
        return self.ended

    def close(self) -> None:
        """A clean end: all this session's tensors are freed."""
        link, self.link = self.link, None
        if link is None:
            return
        if self.ended is None:
            self.ended = ConnectionLost("this session was disconnected, and its tensors went with it")
            with contextlib.suppress(ConnectionLost):
                link.send([encode(Bye())])
        link.close()
        self.uploads.close()
        if unread := self.troubles.unread:
            some = next(iter(unread.values())).replace("\n  asked", ", asked")
            warn(f"{len(unread)} instruction(s) failed whose results were never read; the first: {some}")


HANDLERS: dict[type, Callable[[Session, Any, Any], None]] = {
    Welcome: Session._welcome,
    Refusal: Session._refused,
    Heartbeat: Session._alive,
    Roster: Session._roster,
    Credit: Session._credit,
    FailureReport: Session._trouble,
    Notice: Session._advice,
    Blocks: Session._blocks,
    Checked: Session._checked,
    ValueInline: Session._value,
    ValueChunk: Session._value_part,
    NoValue: Session._no_value,
    ChunkTaken: Session._part_taken,
    Answer: Session._answer,
    Located: Session._answer,
}
