"""The worker as a pure state machine: messages in, messages out; the engine it is given does the computing.

Each client has a `Space` of its own: its tensors, its signatures, its transfers. Nothing a client sends can name
anything outside it. A space runs its stream in order, whatever it holds:

    Execute    each instruction calls its linked kernel; a failing one leaves a `Failure` where its result would be,
               and whoever depends on that becomes the same failure. First cause first.
    Part       a piece of a large tensor the client sends; the instruction that needs it comes after the last piece
    FETCH      a small value goes out at once; a large one in parts, as fast as the client takes them. Until the last
               is out the space waits, so that later instructions cannot change what is being sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gt.ops import Signature
from gt.types import BYTES
from gt.wire.codec import signature_of
from gt.wire.messages import (
    FETCH,
    FIRST_CODE,
    INLINE,
    RESET,
    Admit,
    Definition,
    Done,
    Drop,
    Execute,
    Message,
    NoValue,
    Part,
    PartTaken,
    Query,
    Reply,
    Report,
    Trouble,
    ValueInline,
    ValuePart,
    WorkerStats,
)
from gt.wire.parts import Incoming, Outgoing, Road
from gt.wire.shared import Lanes
from gt.worker.engines import Engine, Linked


@dataclass(frozen=True, slots=True)
class Send:
    """One message to the dispatcher; for a `Reply`, ``inner`` is what the client gets, ``data`` the bytes behind it."""

    message: Message
    inner: Message | None = None
    data: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands where a tensor would be whose instruction, or one it depends on, failed."""

    cause: int
    kind: str
    text: str
    site: int


class DeviceBroken(Exception):
    """The device can do no more in this process: the worker ends, and says why."""


class Entry:
    """A signature, ready to run."""

    __slots__ = ("plain", "run", "signature", "width")

    def __init__(self, signature: Signature, run: Linked) -> None:
        self.signature, self.run = signature, run
        self.plain, self.width = signature.plain, signature.width


class Space:
    """What one client has on this worker."""

    def __init__(self, shares_memory: bool) -> None:
        self.store: dict[int, Any] = {}
        self.codes: dict[int, Entry] = {}
        #: how many of the values in the store are failures; as long as there are none, nobody looks for them
        self.failures = 0
        self.transfers: dict[int, tuple[Incoming, memoryview] | Exception] = {}
        self.shares_memory = shares_memory
        #: the name of the client's lane
        self.lane = ""
        self.road = Road()
        #: the value that is going out, and what waits behind it
        self.outgoing: Outgoing | None = None
        self.waiting: deque[tuple[Execute, int]] = deque()

    def close(self) -> None:
        self.store.clear()
        self.outgoing = None
        self.road.close()


class Worker:
    def __init__(self, engine: Engine, host: str = "") -> None:
        self.engine, self.host = engine, host
        self.id = -1
        self.spaces: dict[int, Space] = {}
        self.lanes = Lanes()
        self.instructions = 0
        self.causes = 0
        self.out: list[Send] = []

    # -- events --------------------------------------------------------------------------

    def handle(self, message: Message, data: memoryview | None = None) -> list[Send]:
        """Everything the dispatcher says; ``data`` is the frame behind a `Part`."""
        HANDLERS[type(message)](self, message, data)
        out, self.out = self.out, []
        return out

    def _admit(self, m: Admit, data: object) -> None:
        self.spaces[m.client] = Space(bool(m.host) and m.host == self.host)

    def _drop(self, m: Drop, data: object) -> None:
        space = self.spaces.pop(m.client, None)
        if space is not None:
            self.lanes.forget(space.lane)
            # each `Execute` is confirmed once, run or not: the dispatcher counts them
            self.out += [Send(Done(m.client, waiting.weight, 0)) for waiting, _ in space.waiting]
            space.close()

    def _query(self, m: Query, data: object) -> None:
        self.out.append(Send(Report(m.client, m.request, self.stats(m.client))))

    def _part(self, m: Part, data: memoryview | None) -> None:
        space = self.spaces[m.client]
        try:
            self._take(space, m, data)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            # without its traceback, which would hold on to the memory
            space.transfers[m.transfer] = error.with_traceback(None)
        self.out.append(Send(PartTaken(m.transfer, m.nbytes, m.client)))

    def _take(self, space: Space, m: Part, data: memoryview | None) -> None:
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

    def _part_taken(self, m: PartTaken, data: object) -> None:
        space = self.spaces[m.client]
        space.road.taken(m.transfer)
        if space.outgoing is not None:
            self._send_parts(m.client, space)
        while space.waiting and space.outgoing is None:
            self._run(space, *space.waiting.popleft())

    def _execute(self, m: Execute, data: object) -> None:
        space = self.spaces[m.client]
        if space.waiting or space.outgoing is not None:
            space.waiting.append((m, 0))
        else:
            self._run(space, m, 0)

    # -- running -------------------------------------------------------------------------

    def _run(self, space: Space, m: Execute, start: int) -> None:
        if start == 0:
            for definition in m.definitions:
                space.codes[definition.code] = self._link(definition)
        stop = self._stream(space, m, start)
        if stop < len(m.stream):
            space.waiting.appendleft((m, stop))
        else:
            self._done(m)

    def _done(self, m: Execute) -> None:
        """Said along with the last value, if there is one."""
        done, last = Done(m.client, m.weight, 0), self.out[-1] if self.out else None
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
            return Entry(signature, _raising(error))

    def _stream(self, space: Space, m: Execute, i: int) -> int:
        """Run a stream from word ``i``; stops early behind a fetch whose value goes out in parts."""
        stream: list[Any] = m.stream
        store, codes, end, count = space.store, space.codes, len(m.stream), 0
        while i < end:
            code = stream[i]
            if code < 0:
                if type(store.pop(-code)) is Failure:
                    space.failures -= 1
                i += 1
                continue
            if code < FIRST_CODE:
                i = self._control(space, m, i)
                if space.outgoing is not None:
                    break
                continue
            entry = codes[code]
            count += 1
            if space.failures and self._poisoned(space, entry.signature, stream, i):
                i += entry.width
                continue
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

    def _general(self, space: Space, entry: Entry, stream: list[Any], i: int) -> None:
        signature, store = entry.signature, space.store
        words = stream[i + signature.start : i + signature.width]
        for offset in signature.offsets:
            words[offset - signature.start] = store[stream[i + offset]]
        if BYTES in signature.ins:
            words = [self._received(space, w) if t is BYTES else w for w, t in zip(words, signature.ins, strict=True)]
        made = entry.run(*words)
        if signature.into:
            return
        if len(signature.outs) == 1:
            store[stream[i + 2]] = made
        else:
            store.update(zip(stream[i + 2 : i + signature.start], made, strict=True))

    def _received(self, space: Space, word: int | bytes) -> memoryview:
        if isinstance(word, bytes):
            return memoryview(word)
        transfer = space.transfers.pop(word, None)
        if isinstance(transfer, Exception):
            raise transfer
        if transfer is None or not transfer[0].complete:
            raise ValueError("the value did not arrive in full")
        return transfer[1]

    def _control(self, space: Space, m: Execute, i: int) -> int:
        stream: list[Any] = m.stream
        if stream[i] == RESET:
            for old in [code for code in space.codes if code < stream[i + 1]]:
                del space.codes[old]
            return i + 2
        assert stream[i] == FETCH, f"control word {stream[i]}"
        self._fetch(space, m.client, stream[i + 1], space.store[stream[i + 2]])
        return i + 3

    # -- failures ------------------------------------------------------------------------

    def _poisoned(self, space: Space, signature: Signature, stream: list[Any], i: int) -> bool:
        """Does an operand stand for a failure? Then so do the results."""
        for offset in signature.offsets:
            value = space.store[stream[i + offset]]
            if type(value) is Failure:
                self._poison(space, signature, stream, i, value)
                return True
        return False

    def _poison(self, space: Space, signature: Signature, stream: list[Any], i: int, failure: Failure) -> None:
        for id in stream[i + 2 : i + signature.start]:
            if type(space.store.get(id)) is not Failure:
                space.failures += 1
            space.store[id] = failure

    def _failed(
        self, space: Space, client: int, signature: Signature, stream: list[Any], i: int, error: Exception
    ) -> None:
        if self.engine.is_broken(error):
            raise DeviceBroken(_first_line(error)) from error
        self.causes += 1
        where = f"worker {self.id} ({self.engine.device})"
        problem = _first_line(error)
        kind = "RemoteError"
        if self.engine.is_out_of_memory(error):
            kind, problem = "OutOfMemory", f"out of memory. {self._holders(client)}"
        site = stream[i + 1] if type(stream[i + 1]) is int else 0
        failure = Failure(self.causes, kind, f"{signature} failed on {where}: {problem}", site)
        self._poison(space, signature, stream, i, failure)
        self.out.append(Send(Trouble(client, failure.cause, kind, failure.text, failure.site)))

    def _holders(self, client: int) -> str:
        """What holds the memory, as far as its reader may know: his own tensors by size, the others' as a sum."""
        mine = [v for v in self.spaces[client].store.values() if type(v) is not Failure]
        mine.sort(key=self.engine.nbytes, reverse=True)
        shown = ", ".join(f"{tuple(v.shape)} {_gib(self.engine.nbytes(v))}" for v in mine[:3])
        stats = self.stats(client)
        rest = stats.bytes - stats.client_bytes
        return (
            f"This client holds {_gib(stats.client_bytes)} in {stats.client_tensors} tensors"
            f"{f' (largest: {shown})' if shown else ''}, other clients {_gib(rest)}"
        )

    # -- values --------------------------------------------------------------------------

    def _fetch(self, space: Space, client: int, request: int, value: Any) -> None:
        if type(value) is Failure:
            self._reply(client, NoValue(request, value.kind, value.text, value.cause, value.site))
            return
        try:
            data = self.engine.to_host(value)
        except Exception as error:
            if self.engine.is_broken(error):
                raise DeviceBroken(_first_line(error)) from error
            text = f"reading a value failed on worker {self.id} ({self.engine.device}): {error}"
            self._reply(client, NoValue(request, "RemoteError", text))
            return
        if data.nbytes <= INLINE:
            self._reply(client, ValueInline(request, bytes(data)))
            return
        space.outgoing = Outgoing(request, data, space.road, space.shares_memory)
        self._send_parts(client, space)

    def _reply(self, client: int, value: Any, data: memoryview | None = None, last: bool = True) -> None:
        self.out.append(Send(Reply(client, value.request, last), value, data))

    def _send_parts(self, client: int, space: Space) -> None:
        outgoing = space.outgoing
        assert outgoing is not None
        for piece in outgoing.ready():
            part = ValuePart(outgoing.value, piece.offset, piece.nbytes, outgoing.total, piece.place)
            self._reply(client, part, piece.data, last=outgoing.all_sent)
        if outgoing.all_sent:
            space.outgoing = None

    def stats(self, client: int) -> WorkerStats:
        sizes = {
            c: [self.engine.nbytes(v) for v in s.store.values() if type(v) is not Failure]
            for c, s in self.spaces.items()
        }
        mine = sizes.get(client, [])
        return WorkerStats(
            worker=self.id,
            device=self.engine.device,
            backend=self.engine.name,
            total_instructions=self.instructions,
            hot_instructions=0,
            unique_sequences=0,
            compilation_stats={},
            memory=self.engine.memory(),
            client_tensors=len(mine),
            client_bytes=sum(mine),
            tensors=sum(map(len, sizes.values())),
            bytes=sum(map(sum, sizes.values())),
        )


def _raising(error: Exception) -> Linked:
    def run(*operands: Any) -> Any:
        raise error

    return run


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


HANDLERS: dict[type, Callable[[Worker, Any, Any], None]] = {
    Admit: Worker._admit,
    Drop: Worker._drop,
    Query: Worker._query,
    Part: Worker._part,
    PartTaken: Worker._part_taken,
    Execute: Worker._execute,
}
