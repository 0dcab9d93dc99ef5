"""A session: one client's stream of instructions, and the values it reads.

Emitting appends words to a list and returns; the list goes out when it is long enough, when a value is read, or a
moment later by itself. Nothing on that way takes a lock: ``extend`` of a list is one step for every other thread.
Each submission uses up credit, which comes back as work is done. A client that is far ahead waits here, and nowhere
does a queue grow without bound.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client import config
from gt.client.codes import Codes
from gt.client.reading import Pending
from gt.client.troubles import Troubles
from gt.client.uploads import Uploads
from gt.errors import BY_NAME, ClusterError, ConnectionLost, GtError, NoWorkers, RemoteError, WorkerLost
from gt.ops import Signature
from gt.say import warn
from gt.types import TensorType
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.messages import (
    FETCH,
    INLINE,
    MAX_WORDS,
    WINDOW,
    Advice,
    Alive,
    Answer,
    Ask,
    Blocks,
    Bye,
    Checked,
    Configure,
    Credit,
    Locate,
    Located,
    NoValue,
    PartTaken,
    Place,
    Refused,
    Roster,
    Submit,
    Trouble,
    ValueInline,
    ValuePart,
    Welcome,
    WorkerInfo,
    WorkerStats,
)
from gt.wire.shared import Lanes

if TYPE_CHECKING:  # it brings zmq with it, which is for those who connect
    from gt.client.link import Link

#: Words that go out together.
BATCH = 640
#: Seconds until it is heard from others why a value failed, at the latest.
EXPLAINED = 3.0
#: The most tensors freed at once: what is emitted between two submissions fits into one (`MAX_WORDS`).
FREED = 4096


class Session(Codes):
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
        self.words: list[Any] = []
        self.extend = self.words.extend
        #: ids of tensors that Python let go, not yet told
        self.dropped: deque[int] = deque()
        self.next_id = itertools.count(1).__next__
        self._requests = itertools.count(1).__next__
        self._pending: dict[int, Any] = {}
        self._flushing = threading.RLock()
        self._serial = 0
        #: a submission that is perhaps not sent yet
        self._staged: list[Any] | None = None
        #: weights: sent, and known to be done; and of the bytes among the words
        self._sent = self._done = self._inline = 0
        self.uploads = Uploads(self)
        self._lanes = Lanes()
        self.troubles = Troubles()
        #: the last submissions, for `gt.debug.print_tape`
        self.recent: deque[tuple[list[Any], dict[int, tuple[Signature, str]]]] = deque(maxlen=16)
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

    def free(self) -> None:
        """Tell the workers which tensors Python let go since the last time; many at once, not all of a million."""
        dropped, append, count = self.dropped, self.words.append, FREED
        while dropped and count:
            try:
                append(-dropped.popleft())
            except IndexError:  # another thread was quicker
                return
            count -= 1

    def flush(self) -> None:
        """Send what was emitted so far; before, wait if too much of what was sent is not done yet."""
        if self._sent - self._done > WINDOW:
            while not self.await_(lambda: self._sent - self._done <= WINDOW // 2, 3.0):
                self._need_worker()
        self._submit()

    def flush_by_itself(self) -> bool:
        """For the background thread, which must neither wait nor raise. Was there anything to send?"""
        if not (self.words or self.dropped) or self.ended is not None or self._sent - self._done > WINDOW:
            return False
        try:
            self._submit()
        except GtError:
            return False
        return True

    def _submit(self) -> None:
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        with self._flushing:
            if self._staged is not None:  # an interrupt came before we knew that it was sent
                self.send(self._staged)
            if self.dropped:
                self.free()
            words = self.words
            count = min(len(words), MAX_WORDS)
            if not count:
                return
            stream, definitions = words[:count], self._definitions[:]
            # counted here, of what is sent: whoever emits may be between two steps of its own just now
            weight = count + sum([len(word) >> 3 for word in stream if type(word) is bytes])
            frames = [encode(Submit(self._serial + 1, definitions, stream, weight))]
            defined = len(definitions)
            # no call from here to the deletion: an interrupt, or another thread, comes before all of it or after
            self._staged = frames
            self._serial += 1
            self._sent += weight
            self._inline = 0
            del words[:count], self._definitions[:defined]
            self.send(frames)
            self._staged = None
            self.recent.append((stream, self._by_code))

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
        request = self._requests()
        pending = self._pending[request] = Pending(type.nbytes)
        try:
            self.extend((FETCH, request, id))
            self.flush()
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

    def _refused(self, m: Refused, frames: object) -> None:
        self._end(BY_NAME["Refused"](f"the server turned this connection away: {m.reason}"))

    def _alive(self, m: Alive, frames: object) -> None:
        pass

    def _roster(self, m: Roster, frames: object) -> None:
        if gone := [w for w in self.workers if w not in m.workers]:
            self._lanes = Lanes()  # the lost worker's memory need not live on
            self.troubles.workers_gone(gone)
        self.workers = m.workers

    def _credit(self, m: Credit, frames: object) -> None:
        self._done = max(self._done, m.done)

    def _trouble(self, m: Trouble, frames: object) -> None:
        self.troubles.happened(m)

    def _advice(self, m: Advice, frames: object) -> None:
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

    def _value_part(self, m: ValuePart, frames: list[bytes]) -> None:
        pending = self._pending.get(m.request)
        if pending is not None:
            try:
                data = memoryview(frames[1]) if m.place is None else self._lanes.read(m.place, m.nbytes)
            except (OSError, ValueError) as error:  # its sender died before we looked
                pending.fail(self._unreadable(m.place, error))
            else:
                pending.part(m, data)
        if self.link is not None:  # taken even if nobody wants it any more: the worker waits for it
            self.link.send([encode(PartTaken(m.request, m.nbytes, worker=m.worker))])

    def _unreadable(self, place: Place | None, error: Exception) -> WorkerLost:
        pid = 0 if place is None else place.pid
        who = next(
            (f"worker {w.id} ({w.device}, pid {pid})" for w in self.workers if w.pid == pid), f"the worker of pid {pid}"
        )
        return WorkerLost(f"{who} is gone, or its memory cannot be read ({error}); GT_SHM=0 does without it")

    def _no_value(self, m: NoValue, frames: object) -> None:
        self.troubles.no_value(m, self._pending.get(m.request))

    def _part_taken(self, m: PartTaken, frames: object) -> None:
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
    Refused: Session._refused,
    Alive: Session._alive,
    Roster: Session._roster,
    Credit: Session._credit,
    Trouble: Session._trouble,
    Advice: Session._advice,
    Blocks: Session._blocks,
    Checked: Session._checked,
    ValueInline: Session._value,
    ValuePart: Session._value_part,
    NoValue: Session._no_value,
    PartTaken: Session._part_taken,
    Answer: Session._answer,
    Located: Session._answer,
}
