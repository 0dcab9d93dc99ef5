"""The worker as a pure state machine: messages in, messages out. The engine computes.

Each client has a `ClientSpace`: its tensors, its signatures, its transfers. A client cannot name anything outside of
its space. The messages:

    Define      codes, groups and fragments that later streams use
    Execute     a stream of words: the `Interpreter` calls one kernel for each instruction, the `Replayer` runs
                fragments, and this file handles the other control words
    Chunk       a chunk of a large tensor from the client; the instruction that uses it comes after the last chunk

The streams of a client run in order. A stream stops at an instruction whose operand is still moving, and after a value
that is sent in chunks: until the last chunk is sent, later instructions must not change the value. The rest of the
stream, and all later streams of this client, wait in `ClientSpace.waiting`. The streams of other clients continue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from gt.wire.event_messages import ClockReading, Record
from gt.wire.messages import (
    Admit,
    Checked,
    Chunk,
    ChunkTaken,
    Define,
    Done,
    Drop,
    Execute,
    Leave,
    Message,
    NoValue,
    Query,
    Report,
)
from gt.wire.recovery_messages import CopyKept, Dropped, FreeKept, Release, Restore, SaveTo
from gt.wire.structures import Definition
from gt.wire.words import (
    DISCARD,
    FETCH,
    FIRST_CODE,
    FIRST_DISPATCHER_CODE,
    FORGET,
    KEEP,
    LEAVE,
    READ,
    RESET,
    RUN,
    SNAPSHOT,
    TRACE,
)
from gt.worker.collectives.interface import DataPlane
from gt.worker.engines import Engine
from gt.worker.failures import FailureRecorder
from gt.worker.fragments import LinkedFragment
from gt.worker.hot.levels import Levels
from gt.worker.interpreter import Interpreter
from gt.worker.linked import LinkedMove, LinkedSignature, link_definition
from gt.worker.memory_account import MemoryAccount
from gt.worker.mover import Mover
from gt.worker.outbox import OutgoingMessage, WorkerOutbox
from gt.worker.recovery.kept_tensors import KeptTensors
from gt.worker.recovery.snapshot_store import NoSnapshots, SnapshotStore
from gt.worker.replay import Replayer
from gt.worker.replies import ValueReplies
from gt.worker.space import NO_TENSOR, ClientSpace, Failure
from gt.worker.tracing import NoTrace, Tracer
from gt.worker.uploads import UploadReceiver
from gt.worker.worker_stats import worker_stats

if TYPE_CHECKING:
    from gt.worker.recording import EventRecorder


class Worker:
    """The state of a worker. The shell calls `handle` and `wake`, and sends the messages that they return."""

    def __init__(
        self,
        engine: Engine,
        host: str = "",
        plane: DataPlane | None = None,
        levels: str = "off",
        opens_files: bool = True,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self.engine, self.host = engine, host
        #: whether instructions may open files; never on a shared server, whose users are not the worker's
        self._opens_files = opens_files
        self.id = -1
        self.spaces: dict[int, ClientSpace] = {}
        #: user -> the account that their spaces and snapshots have in common
        self._accounts: WeakValueDictionary[str, MemoryAccount] = WeakValueDictionary()
        self.outbox = WorkerOutbox()
        self.tracer = Tracer(engine)
        self.replies = ValueReplies(engine, self.outbox)
        self.uploads = UploadReceiver(engine, self.outbox)
        self.snapshots: SnapshotStore = snapshots or NoSnapshots()
        self._failures = failures = FailureRecorder(engine, self.spaces, self.outbox)
        self.kept = KeptTensors(engine, self.outbox, failures)
        self.mover = Mover(engine, plane, self.tracer, failures)
        self.interpreter = Interpreter(self.mover, failures)
        self.replayer = Replayer(Levels(engine, levels), self.interpreter, self.mover, failures, self.outbox)
        self.recorder: EventRecorder | None = None
        #: called with the client between the instructions of its long sections: the shell may call `handle_in_pause`
        self.pause: Callable[[int], None] | None = None

    def assign_id(self, number: int) -> None:
        """The dispatcher accepted this worker under a number."""
        self.id = self.outbox.worker = number

    # -- events --------------------------------------------------------------------------

    def handle(self, message: Message, data: memoryview | None = None) -> list[OutgoingMessage]:
        """Handle a message of the dispatcher; returns the messages to send. ``data``: the second frame of a `Chunk`."""
        if self.recorder is not None and isinstance(message, Execute):
            self.recorder.arrived(message)
        if getattr(message, "client", None) in self.spaces or isinstance(message, Admit | Query | Drop | FreeKept):
            HANDLERS[type(message)](self, message, data)
        elif isinstance(message, Execute) and message.confirmed_by(self.id):
            # its client has disconnected, but the dispatcher counts on `Done`
            self.outbox.send(Done(message.client, message.worker_set, 0))
        outbox = self.outbox
        messages, outbox.messages = outbox.messages, []
        return messages

    def handle_in_pause(self, message: Message, data: memoryview | None = None) -> list[OutgoingMessage]:
        """Handle a message of another client than the one whose section pauses."""
        outbox, messages = self.outbox, self.outbox.messages
        outbox.messages = []
        with nullcontext() if self.recorder is None else self.recorder.interrupted():
            answers = self.handle(message, data)
        outbox.messages = messages
        return answers

    def record(self, m: Record, clock: Callable[[], int]) -> list[Message]:
        """Begin or end to record events, with a clock in nanoseconds. Returns the events so far if they are requested,
        and the time."""
        recorder = self.recorder
        events: list[Message] = []
        if recorder is not None and (m.flush or not m.on):
            events += recorder.drain(everything=True)
        if m.on != (recorder is not None):
            from gt.worker.recording import EventRecorder

            recorder = EventRecorder(self.engine, clock, self.spaces) if m.on else None
            self.recorder = self.interpreter.recorder = self.replayer.recorder = self.mover.recorder = recorder
        return [*events, ClockReading(m.sent, clock())]

    def can_continue(self) -> bool:
        """Whether a move that a stream waits for is complete."""
        return any(s.awaited is not None and s.awaited.done() for s in self.spaces.values())

    def wake(self) -> list[OutgoingMessage]:
        """Continue the streams whose move is complete; returns the messages to send."""
        for space in list(self.spaces.values()):
            if space.awaited is not None:
                self._continue(space)
        messages, self.outbox.messages = self.outbox.messages, []
        return messages

    def _admit(self, m: Admit, data: object) -> None:
        account = None
        if m.memory:
            account = self._accounts.get(m.user) or MemoryAccount(self.engine, m.user, m.memory)
            self._accounts[m.user] = account
        self.spaces[m.client] = ClientSpace(bool(m.host) and m.host == self.host, account)
        self.tracer.client_joined()
        self._clients_changed()

    def _drop(self, m: Drop, data: object) -> None:
        self.tracer.client_left(m.client)
        self.snapshots.forget(m.client)
        space = self.spaces.pop(m.client, None)
        if space is not None:
            self.uploads.forget(space)
            self.kept.forget(space)
            self.mover.leave_all(space)
            for number in list(space.fragments):
                self.replayer.forget(space, number)
            # these will not run, but the dispatcher counts on their `Done`
            for waiting, _ in space.waiting:
                if waiting.confirmed_by(self.id):
                    self.outbox.send(Done(m.client, waiting.worker_set, 0))
            space.close()
            self._clients_changed()
        if m.again:
            self.outbox.send(Dropped(m.client))
        elif self.recorder is not None:
            self.recorder.client_gone(m.client)

    def _clients_changed(self) -> None:
        """A client that is alone need not pause for others, and may wait for the compiler."""
        self.replayer.levels.shared = shared = len(self.spaces) > 1
        self.replayer.pause = self.pause if shared else None

    def _release(self, m: Release, data: object) -> None:
        self.snapshots.release(m.client, m.number)

    def _restore(self, m: Restore, data: object) -> None:
        self.snapshots.restore(
            self.spaces[m.client], m, lambda problem: self._failures.create("WorkerLost", "a snapshot", problem, 0)
        )

    def _query(self, m: Query, data: object) -> None:
        interpreted = self.interpreter.instructions
        stats = worker_stats(self.id, self.engine, self.spaces, self.replayer, interpreted, m.client)
        self.outbox.send(Report(m.client, m.request, stats))

    def _chunk(self, m: Chunk, data: memoryview | None) -> None:
        self.uploads.receive(self.spaces[m.client], m, data)

    def _chunk_taken(self, m: ChunkTaken, data: object) -> None:
        space = self.spaces[m.client]
        space.channel.acknowledge(m.transfer)
        if space.outgoing is not None:
            self.replies.send_chunks(m.client, space)
        self._continue(space)

    def _define(self, m: Define, data: object) -> None:
        space = self.spaces[m.client]
        for definition in m.definitions:
            space.codes[definition.code] = self._link(space, definition)
        for group in m.groups:
            self.mover.join(space, group, self.id)
        if m.groups:
            self.replayer.levels.begin_moves()
        for move in m.moves:
            space.codes[move.code] = LinkedMove(move, space.groups[move.group])
        for fragment in m.fragments:
            # linked on its first run: a waiting `Execute` may still define codes that it uses
            space.fragments[fragment.number] = fragment

    def _link(self, space: ClientSpace, definition: Definition) -> LinkedSignature:
        return link_definition(self.engine, definition, self._opens_files, space.account)

    def _lose_group(self, m: Leave, data: object) -> None:
        """A member of a group is lost. (The control word LEAVE is different: the group is not needed any more.)"""
        space = self.spaces[m.client]
        self.mover.lose(space, m.group, m.reason)
        self._continue(space)

    # -- streams -------------------------------------------------------------------------

    def _execute(self, m: Execute, data: object) -> None:
        space = self.spaces[m.client]
        if space.waiting:
            space.waiting.append((m, 0))
            self._continue(space)
        elif space.must_wait():
            space.waiting.append((m, 0))
        else:
            self._run(space, m, 0)

    def _continue(self, space: ClientSpace) -> None:
        while space.waiting and not space.must_wait():
            self._run(space, *space.waiting.popleft())

    def _run(self, space: ClientSpace, m: Execute, i: int) -> None:
        """Run a stream from word ``i`` on. The rest waits after a value that is sent in chunks, and before an
        instruction whose operand is pending."""
        if i == 0:
            for definition in m.definitions:
                space.codes[definition.code] = self._link(space, definition)
        if self.recorder is not None:
            self.recorder.begin(m.client, m)
        stream: list[Any] = m.stream
        end = len(stream)
        while i < end:
            code = stream[i]
            if code >= FIRST_CODE or code < 0:
                i = self.interpreter.run(space, m.client, stream, i)
            elif code == RUN:
                i = self.replayer.run(space, m.client, stream, i)
            else:
                i = CONTROL_WORDS[code](self, space, m, i)
            if space.awaited is not None or space.outgoing is not None:
                break
        if i < end:
            space.waiting.appendleft((m, i))
            if self.recorder is not None and space.awaited is not None:
                self.recorder.waits()
            return
        if self.recorder is not None:
            self.recorder.finish(m)
        if m.confirmed_by(self.id):
            self.outbox.send_done(m.client, m.worker_set)

    # -- control words: each returns the index of the next word, or ``i`` if the stream must wait --

    def _reset(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Forget the client's codes, or the dispatcher's, below a limit, and the linked fragments that use them."""
        stream: list[Any] = m.stream
        limit, by_dispatcher = stream[i + 1], stream[i + 1] >= FIRST_DISPATCHER_CODE
        for code in [c for c in space.codes if c < limit and (c >= FIRST_DISPATCHER_CODE) == by_dispatcher]:
            del space.codes[code]
        for number, fragment in list(space.fragments.items()):
            if isinstance(fragment, LinkedFragment) and not fragment.codes <= space.codes.keys():
                self.replayer.forget(space, number)
        return i + 2

    def _forget(self, space: ClientSpace, m: Execute, i: int) -> int:
        number: Any = m.stream[i + 1]
        self.replayer.forget(space, number)
        return i + 2

    def _discard(self, space: ClientSpace, m: Execute, i: int) -> int:
        transfer: Any = m.stream[i + 1]
        space.transfers.pop(transfer, None)
        return i + 2

    def _leave(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Leave a group that no later move uses."""
        group: Any = m.stream[i + 1]
        return i + 2 if self.mover.idle(space) and self.mover.leave(space, group) else i

    def _trace(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Begin or end a trace. Waits until no move is pending, so that no move is only partly in the trace."""
        if not self.mover.idle(space):
            return i
        _, request, begin = m.stream[i : i + 3]
        assert isinstance(request, int)
        try:
            data = self.tracer.begin(m.client, len(self.spaces) == 1) if begin else self.tracer.end(m.client)
        except NoTrace as reason:
            self.replies.send(m.client, NoValue(request, "RemoteError", f"worker {self.id} {reason}"))
        else:
            self.replies.send_bytes(space, m.client, request, memoryview(data))
        return i + 3

    def _snapshot(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Copy all tensors. Waits until no move is pending, so that all of them are there."""
        if not self.mover.idle(space):
            return i
        number: Any = m.stream[i + 1]
        self.snapshots.take(space, m.client, number)
        return i + 2

    def _keep(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Copy one tensor, or end the copies of a snapshot."""
        if not self.mover.idle(space):
            return i
        _, number, id = m.stream[i : i + 3]
        assert isinstance(number, int)
        assert isinstance(id, int)
        self.kept.keep(space, m.client, number, id)
        return i + 3

    def _fetch(self, space: ClientSpace, m: Execute, i: int) -> int:
        stream: list[Any] = m.stream
        if not self.mover.arrived(space, stream[i + 2]):
            return i
        self.replies.send_value(space, m.client, stream[i + 1], space.store.get(stream[i + 2], NO_TENSOR))
        return i + 3

    def _read(self, space: ClientSpace, m: Execute, i: int) -> int:
        """Send a value if this worker is the requested one (-1: each worker is), else confirm that there is one."""
        stream: list[Any] = m.stream
        request, id, worker = stream[i + 1 : i + 4]
        if not self.mover.arrived(space, id):
            return i
        value = space.store.get(id, NO_TENSOR)
        if worker not in (self.id, -1) and type(value) is not Failure:
            self.replies.send(m.client, Checked(request, self.id))
        else:
            self.replies.send_value(space, m.client, request, value)
        return i + 4


HANDLERS: dict[type, Callable[[Worker, Any, Any], None]] = {
    Admit: Worker._admit,
    Drop: Worker._drop,
    Query: Worker._query,
    Chunk: Worker._chunk,
    ChunkTaken: Worker._chunk_taken,
    Execute: Worker._execute,
    Define: Worker._define,
    Leave: Worker._lose_group,
    SaveTo: lambda worker, m, data: worker.snapshots.expect(m),
    Release: Worker._release,
    Restore: Worker._restore,
    CopyKept: lambda worker, m, data: worker.kept.copy(worker.spaces[m.client], m),
    FreeKept: lambda worker, m, data: worker.kept.free(m.number),
}
#: without RUN, which `Worker._run` handles
CONTROL_WORDS: dict[int, Callable[[Worker, ClientSpace, Execute, int], int]] = {
    FETCH: Worker._fetch,
    RESET: Worker._reset,
    READ: Worker._read,
    DISCARD: Worker._discard,
    LEAVE: Worker._leave,
    FORGET: Worker._forget,
    TRACE: Worker._trace,
    SNAPSHOT: Worker._snapshot,
    KEEP: Worker._keep,
}
