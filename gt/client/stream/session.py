"""A session: one client's stream of instructions, and the values it reads.

    ServerConnection   the link to the server, the workers behind it, the end
    Signatures         calls of ops -> codes
    Outbox             words -> submissions, with the `Templates` that replace repeated words
    Uploads            large values to the workers
    Replies            values and answers that come back
    Failures           instructions that failed

A session has one of each and connects them: it hands every message that arrives to the part that it is for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.stream import configuration, sites
from gt.client.stream.failures import Failures
from gt.client.stream.outbox import Outbox
from gt.client.stream.pending import PendingValue
from gt.client.stream.replies import Replies
from gt.client.stream.server_connection import RecoveryOptions, ServerConnection
from gt.client.stream.signatures import Signatures
from gt.client.stream.templates import Templates
from gt.client.stream.uploads import BackgroundUpload, Uploads
from gt.errors import ClusterError, CompileError, ConnectionLost, Refused
from gt.ops import Signature
from gt.say import warn
from gt.types import TensorType
from gt.wire import interrupts
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.event_messages import BatchTaken, DescribeSites, EventBatch, Listen, Listening, Sites, WaitExplained
from gt.wire.messages import (
    Answer,
    Ask,
    Blocks,
    Checked,
    ChunkTaken,
    Credit,
    FailureReport,
    Heartbeat,
    Locate,
    Located,
    Notice,
    NoValue,
    Refusal,
    Roster,
    ValueChunk,
    ValueInline,
    Welcome,
)
from gt.wire.recovery_messages import KeptFound, Recover, Restarted, SnapshotTaken
from gt.wire.structures import WorkerStats
from gt.wire.words import FETCH, MAX_INLINE_BYTES

if TYPE_CHECKING:
    from gt.launch.dashboard import DashboardProcess

#: The settings with which workers compile what is repeated.
AUTO_COMPILE = "GT_AUTO_COMPILE"
COMPILING = frozenset((AUTO_COMPILE, "GT_COMPILE"))
#: What a line about a long wait adds if the cause may be the compiler.
MAY_COMPILE = "; a first run of compiled code is not finished: workers may be compiling it, which takes long"


@interrupts.deferred
class Session:
    def __init__(self, name: str = "") -> None:
        configuration.prepare()
        #: this client's number; 0 until the server has sent it
        self.id = 0
        #: the names of the settings that are on in the server or in a worker
        self.settings_on_server: set[str] = set()
        self.connection = connection = ServerConnection(name)
        by_code: dict[int, Signature] = {}
        self.failures = failures = Failures()
        self.replies = replies = Replies(connection, failures)
        self.outbox = outbox = Outbox(connection, Templates(by_code), replies)
        self.signatures = Signatures(outbox, connection, by_code)
        self.uploads = uploads = Uploads(connection)
        #: what receives the events while the program listens to them
        self.event_sink: Callable[[EventBatch], None] | None = None
        self.peak_memory: dict[tuple[int, str], int] = {}  #: (worker, figure) -> the most since gt.cuda's last reset
        #: the recording of `gt.debug.explain_last_step`, if there is one
        self.step_recording: Any = None
        self.dashboard: DashboardProcess | None = None  #: the process of `gt.debug.dashboard`, if there is one
        self._decode = Decode("client")
        self._handlers: dict[type, Callable[[Any, Any], None]] = {
            Welcome: self._welcome,
            Refusal: self._refused,
            Heartbeat: lambda m, frames: None,
            Roster: self._roster,
            Restarted: self._restarted,
            Notice: lambda m, frames: warn(m.text),
            WaitExplained: self._wait_explained,
            Credit: lambda m, frames: outbox.acknowledge(m.done),
            FailureReport: lambda m, frames: failures.report(m),
            Blocks: replies.blocks,
            Checked: replies.checked,
            ValueInline: replies.inline,
            ValueChunk: replies.chunk,
            NoValue: replies.no_value,
            **dict.fromkeys((Answer, Located, Listening, SnapshotTaken, KeptFound), replies.answer),
            EventBatch: self._events,
            DescribeSites: self._describe_sites,
            ChunkTaken: uploads.taken,
        }

    # -- values --------------------------------------------------------------------------

    def read(self, id: int, type: TensorType) -> Any:
        """The bytes of a tensor's value, in new memory. Raises the error of the instruction that failed."""
        outbox = self.outbox
        outbox.training.read = True
        if outbox.recorder is not None:
            self._read_while_recording()
        request = self.replies.expect(PendingValue(type.nbytes))
        try:
            outbox.cut((FETCH, request, id))
        except BaseException:
            self.replies.abandon(request)
            raise
        sent = outbox.sent
        pending = self.replies.wait(request)
        if not isinstance(pending.error, ClusterError):  # a worker has finished everything before the read
            outbox.acknowledge(sent)
            self.connection.cancels_due = 0
        return self._value(pending)

    def read_result(self, id: int, type: TensorType) -> Any:
        """`read` for a tensor that was never written in place. Its value may have been requested before."""
        outbox = self.outbox
        outbox.training.read = True
        predictions = outbox.predictions
        request = predictions.claim(id) if outbox.recorder is None else 0
        predictions.read(id, type.nbytes)
        if not request:
            return self.read(id, type)
        if outbox.words:
            try:
                outbox.cut()
            except BaseException:
                self.replies.abandon(request)
                raise
        return self._value(self.replies.wait(request))

    def _value(self, pending: PendingValue) -> Any:
        """The bytes of a value that has arrived. Raises its error."""
        if pending.error is not None:
            try:
                raise self.connection.explained(pending.error)
            finally:
                pending.error = None  # in a cycle with its traceback it would keep the caller's tensors alive
        return pending.buffer

    def _read_while_recording(self) -> None:
        recorder = self.outbox.recorder
        assert recorder is not None
        if recorder.thread != threading.get_ident():
            recorder.refuse("another thread reads a value meanwhile")
            return
        reason = "a value is read inside (item, numpy, print, a condition on a tensor): return it and read it outside"
        recorder.refuse(reason)
        if recorder.fullgraph:
            raise CompileError(f"gt.compile: {reason}")

    def upload(self, data: memoryview | BackgroundUpload) -> bytes | int:
        """The word for these bytes in an instruction: the bytes themselves, or the number of a transfer."""
        if isinstance(data, BackgroundUpload):
            self.connection.check_open()  # first: in a forked process nothing ends the wait
            return data.take()
        if data.nbytes <= MAX_INLINE_BYTES:
            self.outbox.add_inline(data.nbytes)
            return bytes(data)
        self.connection.check_open()
        self.connection.require_worker()
        if self.uploads.quota_is_used(self.outbox.serial):
            self.outbox.flush()  # the server takes the value after the instructions that use those before it
        return self.uploads.send(data, self.outbox.serial)

    def begin_upload(self, data: memoryview) -> BackgroundUpload:
        """Send these bytes in the background, for a later `upload`. They must not change until then."""
        self.connection.check_open()
        self.connection.require_worker()
        return self.uploads.send_in_background(data)

    def keep_program(self, options: RecoveryOptions) -> None:
        """Let the server keep the program, and run it again when a worker is lost. Before the first instruction."""
        self.connection.recovery = options
        self.connection.send([encode(Recover(*options))])

    def _wait_explained(self, m: WaitExplained, frames: object) -> None:
        self.connection.questions.explained(m.text + (MAY_COMPILE if self.outbox.compiles else ""))

    # -- questions -----------------------------------------------------------------------

    def worker_stats(self) -> list[WorkerStats]:
        self.outbox.flush()
        stats: list[WorkerStats] = self.replies.ask(Ask).workers
        for s in stats:  # a worker reports its peaks since the last report
            for figure in ("allocated_peak", "reserved_peak"):
                key = s.worker, figure
                self.peak_memory[key] = max(self.peak_memory.get(key, 0), s.memory.get(figure, s.client_bytes))
        return stats

    def locate(self, id: int, shape: tuple[int, ...]) -> Located:
        """Where a tensor is placed, and why."""
        self.outbox.flush()
        located: Located = self.replies.ask(Locate, id, shape)
        return located

    def trace(self, begin: bool) -> dict[int, bytes]:
        """Begin a trace, or end it. At the end, returns what each worker that takes part has recorded."""
        self.outbox.cut()
        self.outbox.flush()
        return self.replies.trace(begin)

    def listen(self, sink: Callable[[EventBatch], None]) -> Listening:
        """From here on ``sink`` gets the events of this session, in the thread that receives them."""
        self.outbox.cut()
        self.outbox.flush()
        self.event_sink = sink
        listening: Listening = self.replies.ask(Listen, True)
        return listening

    def stop_listening(self) -> None:
        """Wait for what was emitted so far and for its events; then end the events."""
        self.outbox.cut()
        self.finish(None)
        self.replies.ask(Listen, False)
        self.event_sink = None

    # -- messages ------------------------------------------------------------------------

    def handle(self, frames: list[bytes]) -> None:
        """Pass one message to its handler. An invalid message ends the connection."""
        try:
            message = self._decode(frames[0])
        except BadFrame as error:
            self.connection.end(ConnectionLost(f"the server sent an invalid message: {error}"))
            return
        self._handlers[type(message)](message, frames)

    @property
    def welcomed(self) -> bool:
        return self.id > 0

    def _welcome(self, m: Welcome, frames: object) -> None:
        self.id, self.connection.workers = m.id, m.workers
        self.signatures.limit(m.definitions)
        self.uploads.limit = m.transfers
        self._add_settings(m.settings)

    def _add_settings(self, names: list[str]) -> None:
        self.settings_on_server |= set(names)
        self.outbox.predictions.may_cut = COMPILING.isdisjoint(self.settings_on_server)
        self.outbox.training.compiling = AUTO_COMPILE in self.settings_on_server

    def _refused(self, m: Refusal, frames: object) -> None:
        self.connection.end(Refused(f"the server refused this connection: {m.reason}"))

    def _events(self, m: EventBatch, frames: object) -> None:
        if self.event_sink is not None:
            self.event_sink(m)
        self.send_quietly(BatchTaken(1))

    def _describe_sites(self, m: DescribeSites, frames: object) -> None:
        self.send_quietly(Sites([(number, sites.describe(number)) for number in m.sites]))

    def send_quietly(self, message: Any) -> None:
        """For the thread that receives, and for destructors: does not raise."""
        if (link := self.connection.link) is not None:
            with contextlib.suppress(ConnectionLost):
                link.send([encode(message)])

    def _roster(self, m: Roster, frames: object) -> None:
        workers = self.connection.workers
        if m.gone:
            self.replies.workers_lost()
            self.failures.workers_lost([worker for worker in workers if worker.id in m.gone])
            if self.connection.recovery is not None:
                self.connection.replaced.update(m.gone)
            workers = [worker for worker in workers if worker.id not in m.gone]
        self.connection.workers = [*workers, *m.joined]
        self._add_settings(m.settings)

    def _restarted(self, m: Restarted, frames: object) -> None:
        """A worker was lost, and the server runs the program again: these reads get their values from the beginning,
        and failures are reported again."""
        self.replies.restart(m.requests)
        self.failures.restart()
        self.send_quietly(Restarted([]))

    # -- the end -------------------------------------------------------------------------

    def finish(self, seconds: float | None) -> None:
        """Submit everything, and wait until the workers have finished it. Each wait is limited to about ``seconds``."""
        if self.outbox.flush_within(seconds) and self.outbox.sent and self.connection.workers:
            self.outbox.flush()
            self.replies.ask(Ask, timeout=seconds)

    def close(self) -> None:
        """End the session; the server frees its tensors."""
        if not self.connection.close():
            return
        self.uploads.close()
        if self.dashboard is not None:
            self.dashboard.stop()
        if unread := self.failures.unread:
            first = next(iter(unread.values())).replace("\n  called at", ", called at")
            warn(f"{len(unread)} instruction(s) failed whose results were never read; the first: {first}")
