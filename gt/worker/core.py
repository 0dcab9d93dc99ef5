"""The worker as a pure state machine: messages in, messages out; the engine it is given does the computing.

Each client has a `Space` of its own: its tensors, its signatures, its transfers. Nothing a client sends can name
anything outside it. A space runs its stream in order, whatever it holds:

    Execute    each instruction calls its linked kernel; a failing one leaves a `Failure` where its result would be,
               and whoever depends on that becomes the same failure. First cause first.
    Chunk       a piece of a large tensor the client sends; the instruction that needs it comes after the last piece
    FETCH      a small value goes out at once; a large one in parts, as fast as the client takes them. Until the last
               is out the space waits, so that later instructions cannot change what is being sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gt.ops import Signature
from gt.types import BYTES
from gt.wire.codec import signature_of
from gt.wire.messages import (
    DISCARD,
    FETCH,
    FIRST_CODE,
    FIRST_LOCAL,
    FORGET,
    LEAVE,
    READ,
    RESET,
    RUN,
    TRACE,
    Admit,
    Checked,
    Chunk,
    ChunkTaken,
    Define,
    Definition,
    Done,
    Drop,
    Execute,
    FailureReport,
    Leave,
    Message,
    NoValue,
    Query,
    Reply,
    Report,
)
from gt.wire.shared import Lanes
from gt.wire.transfers import Incoming
from gt.worker.account import account, holders
from gt.worker.answering import Answering, Send
from gt.worker.collectives import Broken, Plane
from gt.worker.engines import Engine
from gt.worker.fragments import Program
from gt.worker.hot.levels import Levels
from gt.worker.mover import Mover
from gt.worker.replay import Replaying
from gt.worker.space import LOST, NOTHING, DeviceBroken, Entry, Failure, MoveEntry, Space, first_line, raising
from gt.worker.tracing import Tracer, Untraced


class Worker(Answering, Replaying):
    def __init__(self, engine: Engine, host: str = "", plane: Plane | None = None, levels: str = "off") -> None:
        super().__init__(Levels(engine, levels))
        self.engine, self.host = engine, host
        self.id = -1
        self.spaces: dict[int, Space] = {}
        self.lanes = Lanes()
        self.causes = 0
        self.tracer = Tracer(engine)
        self.mover = Mover(engine, plane, self.tracer)
        self.out: list[Send] = []

    # -- events --------------------------------------------------------------------------

    def handle(self, message: Message, data: memoryview | None = None) -> list[Send]:
        """Everything the dispatcher says; ``data`` is the frame behind a `Chunk`."""
        if getattr(message, "client", None) in self.spaces or isinstance(message, Admit | Query | Drop):
            HANDLERS[type(message)](self, message, data)
        elif isinstance(message, Execute) and message.confirm:  # its client is gone; run or not, it is confirmed
            self.out.append(Send(Done(message.client, message.crew, 0)))
        out, self.out = self.out, []
        return out

    def _admit(self, m: Admit, data: object) -> None:
        self.spaces[m.client] = Space(bool(m.host) and m.host == self.host)
        self.tracer.joined()

    def _drop(self, m: Drop, data: object) -> None:
        self.tracer.left(m.client)
        space = self.spaces.pop(m.client, None)
        if space is not None:
            self.lanes.forget(space.lane)
            self.mover.leave(space)
            for number in list(space.fragments):
                self.forget(space, number)
            # what is to be confirmed is, run or not: the dispatcher counts them
            self.out += [Send(Done(m.client, waiting.crew, 0)) for waiting, _ in space.waiting if waiting.confirm]
            space.close()

    def _query(self, m: Query, data: object) -> None:
        told = account(self, self.id, self.engine, self.spaces, m.client)
        self.out.append(Send(Report(m.client, m.request, told)))

    def _part(self, m: Chunk, data: memoryview | None) -> None:
        space = self.spaces[m.client]
        try:
            self._take(space, m, data)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            # without its traceback, which would hold on to the memory
            space.transfers[m.transfer] = error.with_traceback(None)
        self.out.append(Send(ChunkTaken(m.transfer, m.nbytes, m.client)))

    def _take(self, space: Space, m: Chunk, data: memoryview | None) -> None:
        if m.transfer not in space.transfers:
            buffer = memoryview(self.engine.allocate(m.total))
            space.transfers[m.transfer] = Incoming(buffer), buffer
        transfer = space.transfers[m.transfer]
        if isinstance(transfer, Exception):  # what began badly goes on being thrown away
            return
        if m.place is not None and space.shares_memory:
            if space.lane != m.place.name:  # a client has one at a time
                self.lanes.forget(space.lane)
                space.lane = m.place.name
            data = self.lanes.read(m.place, m.nbytes)
        if data is None or data.nbytes != m.nbytes:
            raise ValueError("a part without its bytes")
        transfer[0].add(m.offset, data)

    def _part_taken(self, m: ChunkTaken, data: object) -> None:
        space = self.spaces[m.client]
        space.channel.taken(m.transfer)
        if space.outgoing is not None:
            self._send_parts(m.client, space)
        self._go_on(space)

    def may_go_on(self) -> bool:
        return any(s.awaited is not None and s.awaited.landed() for s in self.spaces.values())

    def wake(self) -> list[Send]:
        """Something that was moved may have arrived."""
        for space in list(self.spaces.values()):
            if space.awaited is not None:
                self._go_on(space)
        out, self.out = self.out, []
        return out

    def _go_on(self, space: Space) -> None:
        while space.waiting and not space.stopped():
            self._run(space, *space.waiting.popleft())

    def _execute(self, m: Execute, data: object) -> None:
        space = self.spaces[m.client]
        if space.waiting:
            space.waiting.append((m, 0))
            self._go_on(space)
        elif space.stopped():
            space.waiting.append((m, 0))
        else:
            self._run(space, m, 0)

    def _define(self, m: Define, data: object) -> None:
        space = self.spaces[m.client]
        for definition in m.definitions:
            space.codes[definition.code] = self._link(definition)
        for group in m.groups:
            self.mover.join(space, group, self.id)
        for move in m.moves:
            space.codes[move.code] = MoveEntry(move, space.groups[move.group])
        for fragment in m.fragments:
            space.fragments[fragment.number] = fragment  # linked when first run: what it needs may still wait its turn

    def _leave(self, m: Leave, data: object) -> None:
        space = self.spaces[m.client]
        self.mover.lose(space, m.group, m.reason)
        self._go_on(space)

    # -- running -------------------------------------------------------------------------

    def _run(self, space: Space, m: Execute, start: int) -> None:
        if start == 0:
            for definition in m.definitions:
                space.codes[definition.code] = self._link(definition)
        stop = self._stream(space, m, start)
        if stop < len(m.stream):
            space.waiting.appendleft((m, stop))
        elif m.confirm:
            self._done(m)

    def _done(self, m: Execute) -> None:
        """Said along with the last value, if there is one."""
        done, last = Done(m.client, m.crew, 0), self.out[-1] if self.out else None
        reply = last.message if last is not None else None
        if last is not None and isinstance(reply, Reply) and reply.client == m.client and reply.done is None:
            self.out[-1] = replace(last, message=Reply(m.client, reply.request, reply.last, done))
        else:
            self.out.append(Send(done))

    def _link(self, definition: Definition) -> Entry:
        signature = signature_of(definition)
        try:
            return Entry(signature, self.engine.link(signature))
        except Exception as error:
            return Entry(signature, raising(error))

    def _stream(self, space: Space, m: Execute, i: int) -> int:
        """Run a stream from word ``i``; stops behind a value that goes out in parts, or before one still on its way."""
        stream: list[Any] = m.stream
        store, codes, end, count = space.store, space.codes, len(m.stream), 0
        while i < end:
            code = stream[i]
            if code < 0:
                space.drop(-code)
                i += 1
                continue
            if code < FIRST_CODE:
                i = self._control(space, m, i)
                if space.outgoing is not None or space.awaited is not None:
                    break
                continue
            entry = codes[code]
            if space.odd or space.sent:
                if not self._ready(space, entry.signature, stream, i):
                    break
                if self._poisoned(space, entry, stream, i):
                    i += entry.width
                    continue
            count += 1
            try:
                plain = entry.plain
                if plain == 2:
                    store[stream[i + 2]] = entry.run(store[stream[i + 3]], store[stream[i + 4]])
                elif plain == 1:
                    store[stream[i + 2]] = entry.run(store[stream[i + 3]])
                else:
                    self._general(space, entry, stream, i)
            except Exception as error:
                self._failed(space, m.client, entry.signature, stream, i, error)
            i += entry.width
        self.instructions += count
        return i

    def _general(self, space: Space, entry: Entry | MoveEntry, stream: list[Any], i: int) -> None:
        if isinstance(entry, MoveEntry):
            self.mover.start(space, entry, stream[i + 1], stream[i + 2], stream[i + 3])
            return
        signature, store = entry.signature, space.store
        words = stream[i + signature.start : i + signature.width]
        for offset in signature.offsets:
            words[offset - signature.start] = store[stream[i + offset]]
        if BYTES in signature.ins:
            words = [space.received(w) if t is BYTES else w for w, t in zip(words, signature.ins, strict=True)]
        made = entry.run(*words)
        if signature.into:
            return
        if len(signature.outs) == 1:
            made = (made,)
        for id, value in zip(stream[i + 2 : i + signature.start], made, strict=True):
            space.put(id, value)

    def _control(self, space: Space, m: Execute, i: int) -> int:
        stream: list[Any] = m.stream
        if stream[i] == RESET:
            below, own = stream[i + 1], stream[i + 1] >= FIRST_LOCAL
            for old in [code for code in space.codes if code < below and (code >= FIRST_LOCAL) == own]:
                del space.codes[old]
            for number, program in list(space.fragments.items()):
                if isinstance(program, Program) and not program.codes <= space.codes.keys():
                    self.forget(space, number)
            return i + 2
        if stream[i] == RUN:
            return self._fragment(space, m, i)
        if stream[i] == FORGET:
            self.forget(space, stream[i + 1])
            return i + 2
        if stream[i] == DISCARD:
            space.transfers.pop(stream[i + 1], None)
            return i + 2
        if stream[i] == LEAVE:
            return i + 2 if self._quiet(space) and self.mover.parted(space, stream[i + 1]) else i
        if stream[i] == TRACE:
            return self._trace(space, m, i)
        assert stream[i] in (FETCH, READ), f"control word {stream[i]}"
        request, id = stream[i + 1], stream[i + 2]
        if not self._landed(space, id):
            return i
        value = space.store.get(id, NOTHING)
        if stream[i] == READ and stream[i + 3] not in (self.id, -1) and type(value) is not Failure:
            self._reply(m.client, Checked(request, self.id))
        else:
            self._fetch(space, m.client, request, value)
        return i + (3 if stream[i] == FETCH else 4)

    def _trace(self, space: Space, m: Execute, i: int) -> int:
        """Nothing may be under way that belongs before it, or inside."""
        if not self._quiet(space):
            return i
        _, request, begin = m.stream[i : i + 3]
        assert isinstance(request, int)
        try:
            told = self.tracer.begin(m.client, len(self.spaces) == 1) if begin else self.tracer.end(m.client)
        except Untraced as reason:
            self._reply(m.client, NoValue(request, "RemoteError", f"worker {self.id} {reason}"))
        else:
            self._value(space, m.client, request, memoryview(told))
        return i + 3

    def _ready(self, space: Space, signature: Any, stream: list[Any], i: int) -> bool:
        """Have all operands arrived, and left, if they are written in place?"""
        arrived = all(self._landed(space, stream[i + offset]) for offset in signature.offsets)
        return arrived and (not signature.into or self._unread(space))

    def _unread(self, space: Space) -> bool:
        """Is nothing under way from here? What is written in place may be the very memory others still read."""
        left = [id for id, flying in space.flying.items() if flying.reads]
        return self.mover.all_left(space) and all(self._landed(space, id) for id in left)

    def _quiet(self, space: Space) -> bool:
        """Is nothing under way at all?"""
        return self.mover.all_left(space) and all(self._landed(space, id) for id in list(space.flying))

    def _landed(self, space: Space, id: int) -> bool:
        """Has it arrived? If not, it is waited for from here on."""
        value = space.flying.get(id)
        if value is None:
            return True
        if not value.landed():
            space.awaited = value
            return False
        try:
            made = self.mover.land(value)
        except Exception as error:
            if self.engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            lost = isinstance(error, Broken)  # who it was, others know
            kind = "WorkerLost" if lost else "RemoteError"
            made = self._failure(kind, value.what, first_line(error), value.site, elsewhere=lost)
        del space.flying[id]
        space.put(id, made)
        return True

    # -- failures ------------------------------------------------------------------------

    def _poisoned(self, space: Space, entry: Any, stream: list[Any], i: int) -> bool:
        """Does an operand stand for a failure? Then so do the results; but in a move everybody takes part."""
        if isinstance(entry, MoveEntry):
            return False
        for offset in entry.signature.offsets:
            value = space.store.get(stream[i + offset])
            if type(value) is Failure:
                self._poison(space, entry.signature, stream, i, value)
                return True
        return False

    def _poison(
        self, space: Space, signature: Signature | MoveEntry, stream: list[Any], i: int, failure: Failure
    ) -> None:
        if isinstance(signature, MoveEntry) and signature.after is None:
            return  # nothing of it arrives here, so nobody would free it
        for id in stream[i + 2 : i + signature.start]:
            space.put(id, failure)

    def _failed(
        self, space: Space, client: int, signature: Signature, stream: list[Any], i: int, error: Exception
    ) -> None:
        if self.engine.is_broken(error):
            raise DeviceBroken(first_line(error)) from error
        problem = first_line(error)
        kind = "RemoteError"
        if isinstance(error, Broken):
            kind = "WorkerLost"
        if self.engine.is_out_of_memory(error):
            kind, problem = "OutOfMemory", f"out of memory. {holders(self.engine, self.spaces, client)}"
        site = stream[i + 1] if type(stream[i + 1]) is int else 0
        failure = self._failure(kind, signature, problem, site)
        self._poison(space, signature, stream, i, failure)
        self.out.append(Send(FailureReport(client, failure.cause, kind, failure.text, failure.site)))

    def _failure(self, kind: str, what: object, problem: str, site: int, elsewhere: bool = False) -> Failure:
        """Of a number no other worker gives."""
        self.causes += 1
        text = f"{what} failed on worker {self.id} ({self.engine.device}): {problem}"
        lost = LOST if kind == "WorkerLost" else 0
        return Failure((self.id + 1 << 32) + self.causes | lost, kind, text, site, elsewhere)


HANDLERS: dict[type, Callable[[Worker, Any, Any], None]] = {
    Admit: Worker._admit,
    Drop: Worker._drop,
    Query: Worker._query,
    Chunk: Worker._part,
    ChunkTaken: Worker._part_taken,
    Execute: Worker._execute,
    Define: Worker._define,
    Leave: Worker._leave,
}
