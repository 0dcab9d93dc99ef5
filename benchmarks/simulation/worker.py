"""A worker that computes nothing: it walks through the streams it receives and keeps a clock.

Like the real one, it runs its stream in order, starts a collective and continues, and waits where a result is first
used. Before a write in place it waits for everything that is pending. A collective begins when all its members have
reached it and their earlier ones are complete. Values that are read are zeros.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from benchmarks.simulation.machine import Machine
from gt.types import DTYPES, TensorType
from gt.wire.codec import encode, from_wire, signature_of
from gt.wire.messages import Checked, Chunk, ChunkTaken, Define, Done, Execute, Message, Reply, ValueInline
from gt.wire.structures import Definition, Move
from gt.wire.words import FETCH, FIRST_CODE, FIRST_DISPATCHER_CODE, LEAVE, READ, RESET

#: (time, message, its data)
Post = Callable[[float, Message, tuple[bytes, ...]], None]


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective: when each member arrived, and when it is complete."""

    kind: str
    members: tuple[int, ...]
    nbytes: float = 0.0
    come: dict[int, float] = field(default_factory=dict)
    over: float | None = None


class Board:
    """Where the members of collectives meet."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.workers: dict[int, Worker] = {}
        self._groups: dict[tuple[int, int], Meeting] = {}
        #: worker -> its incomplete collectives in order; and when its last one was complete
        self._lines: dict[int, deque[Meeting]] = {}
        self._free: dict[int, float] = {}
        #: seconds of collectives, on the busiest worker
        self.taken: dict[int, float] = {}
        self.collectives = 0
        self.woken: deque[tuple[Worker, Meeting]] = deque()

    def come(self, worker: int, group: int, number: int, move: Any, at: float) -> Meeting:
        """The worker's ``number``-th collective in this group."""
        meeting = self._groups.setdefault((group, number), Meeting(move.kind, move.members))
        meeting.come[worker] = at
        meeting.nbytes = max(meeting.nbytes, move.nbytes)
        self._lines.setdefault(worker, deque()).append(meeting)
        if len(meeting.come) == len(meeting.members):
            del self._groups[group, number]
        self._settle(meeting)
        return meeting

    def _settle(self, meeting: Meeting) -> None:
        queue = [meeting]
        while queue:
            now = queue.pop()
            lines = [self._lines.get(w, deque()) for w in now.members]
            if len(now.come) < len(now.members) or any(not line or line[0] is not now for line in lines):
                continue
            started = max(*now.come.values(), *(self._free.get(w, 0.0) for w in now.members))
            seconds = self.machine.collective_seconds(now.kind, now.members, now.nbytes)
            now.over = started + seconds
            self.collectives += 1
            for w, line in zip(now.members, lines, strict=True):
                line.popleft()
                self._free[w] = now.over
                self.taken[w] = self.taken.get(w, 0.0) + seconds
            queue += dict.fromkeys(line[0] for line in lines if line)
            self.woken += [(self.workers[w], now) for w in now.members]

    def wake(self) -> None:
        """Continue the workers that waited for a complete collective, and those that wait for them."""
        while self.woken:
            worker, meeting = self.woken.popleft()
            worker.wake(meeting)


@dataclass(frozen=True, slots=True)
class Entry:
    """The cost of a code."""

    seconds: float
    width: int
    start: int
    offsets: tuple[int, ...]
    outs: tuple[TensorType, ...]
    into: bool


class Costs:
    """The costs of definitions; equal ones are computed once for all workers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[bytes, Entry] = {}

    def of(self, definition: Definition) -> Entry:
        key = encode(definition)
        entry = self._known.get(key)
        if entry is None:
            s = signature_of(definition)
            seconds = self._machine.op_seconds(s)
            entry = self._known[key] = Entry(seconds, s.width, s.start, s.offsets, s.outs, s.into)
        return entry


@dataclass(frozen=True, slots=True)
class MoveEntry:
    kind: str
    group: int
    members: tuple[int, ...]
    nbytes: float
    before: bool
    after: TensorType | None


class Worker:
    def __init__(self, id: int, board: Board, costs: Costs, post: Post) -> None:
        self.id, self.board, self._costs, self._post = id, board, costs, post
        self.clock = 0.0
        #: seconds of computing, and of waiting for collectives
        self.busy = self.waited = 0.0
        self.instructions = 0
        self._codes: dict[int, Any] = {}
        self._types: dict[int, TensorType] = {}
        self._flying: dict[int, Meeting] = {}
        self._sent: list[Meeting] = []
        self._members: dict[int, tuple[int, ...]] = {}
        self._counts: dict[int, int] = {}
        #: (the message, where the worker stopped in it, when it arrived)
        self._queue: deque[tuple[Execute, int, float]] = deque()
        #: crew -> seconds not acknowledged yet
        self._unsaid: defaultdict[int, float] = defaultdict(float)
        #: what the rest of its program waits for
        self._awaited: Meeting | None = None
        board.workers[id] = self

    # -- messages --------------------------------------------------------------------------

    def handle(self, message: Message, at: float) -> None:
        match message:
            case Execute():
                self._queue.append((message, 0, at))
                self._go_on()
            case Define():
                self._define(message)
            case Chunk():
                self._post(max(self.clock, at), ChunkTaken(message.transfer, message.nbytes, message.client), ())

    def _define(self, m: Define) -> None:
        for definition in m.definitions:
            self._learn(definition)
        for group in m.groups:
            self._members[group.id] = tuple(group.members)
        for move in m.moves:
            self._codes[move.code] = self._move(move)

    def _learn(self, definition: Definition) -> None:
        self._codes[definition.code] = self._costs.of(definition)

    def _move(self, move: Move) -> MoveEntry:
        before, after = (None if t is None else from_wire(t) for t in (move.before, move.after))
        assert after is None or isinstance(after, TensorType)
        sizes = [t.nbytes for t in (before, after) if isinstance(t, TensorType)]
        nbytes = float(max(sizes, default=0))
        if move.kind == "exchange":
            nbytes = _exchanged(dict(move.options))
        return MoveEntry(move.kind, move.group, self._members[move.group], nbytes, before is not None, after)

    # -- its program -----------------------------------------------------------------------

    def wake(self, meeting: Meeting) -> None:
        if self._awaited is meeting:
            self._await(meeting)
            self._go_on()

    def _await(self, meeting: Meeting) -> bool:
        """Is it complete? Then the clock is past it; otherwise the program stops here."""
        if meeting.over is None:
            self._awaited = meeting
            return False
        self._awaited = None
        if meeting.over > self.clock:
            self.waited += meeting.over - self.clock
            self.clock = meeting.over
        return True

    def _go_on(self) -> None:
        while self._queue and self._awaited is None:
            message, start, at = self._queue.popleft()
            if not start:
                self.clock = max(self.clock, at)
                for definition in message.definitions:
                    self._learn(definition)
            started = self.clock
            stop = self._stream(message, start)
            if stop < len(message.stream):
                self._queue.appendleft((message, stop, at))
                continue
            self._unsaid[message.worker_set] += self.clock - started
            if message.confirmed_by(self.id):
                micros = int(self._unsaid.pop(message.worker_set) * 1e6)
                self._post(self.clock, Done(message.client, message.worker_set, micros), ())

    def _stream(self, m: Execute, i: int) -> int:
        stream: list[Any] = m.stream
        end = len(stream)
        while i < end:
            code = stream[i]
            if code < 0:
                self._drop(-code)
                i += 1
            elif code < FIRST_CODE:
                i += self._control(m, i)
                if self._awaited is not None:
                    return i
            else:
                entry = self._codes[code]
                if type(entry) is MoveEntry:
                    if not self._start(entry, stream[i + 2], stream[i + 3]):
                        return i
                    i += 4
                    if self._awaited is not None:
                        return i
                elif self._run(entry, stream, i):
                    i += entry.width
                else:
                    return i
        return i

    def _drop(self, id: int) -> None:
        self._types.pop(id, None)
        if id in self._flying:
            self._sent.append(self._flying.pop(id))

    def _run(self, entry: Entry, stream: list[Any], i: int) -> bool:
        flying = self._flying
        if flying and not all(self._land(stream[i + o]) for o in entry.offsets):
            return False
        if entry.into and not self._quiet():
            return False
        self.clock += entry.seconds
        self.busy += entry.seconds
        self.instructions += 1
        for id, t in zip(stream[i + 2 : i + entry.start], entry.outs, strict=True):
            self._types[id] = t
        return True

    def _land(self, id: int) -> bool:
        meeting = self._flying.get(id)
        if meeting is None:
            return True
        if not self._await(meeting):
            return False
        del self._flying[id]
        return True

    def _quiet(self) -> bool:
        while self._sent:
            if not self._await(self._sent[0]):
                return False
            self._sent.pop(0)
        return all(self._land(id) for id in list(self._flying))

    def _start(self, entry: MoveEntry, out: int, operand: int) -> bool:
        """Join a collective; False if its operand is still pending."""
        if entry.before and not self._land(operand):
            return False
        number = self._counts[entry.group] = self._counts.get(entry.group, 0) + 1
        launch = self.board.machine.launch_us * 1e-6
        self.clock += launch
        self.busy += launch
        meeting = self.board.come(self.id, entry.group, number, entry, self.clock)
        if entry.after is not None:
            self._types[out] = entry.after
            self._flying[out] = meeting
        else:
            self._sent.append(meeting)
        if not self.board.machine.overlap:
            self._await(meeting)
        return True

    def _control(self, m: Execute, i: int) -> int:
        """The number of words; 0 if the value is still pending."""
        stream: list[Any] = m.stream
        if stream[i] == RESET:
            below, is_own = stream[i + 1], stream[i + 1] >= FIRST_DISPATCHER_CODE
            for old in [code for code in self._codes if code < below and (code >= FIRST_DISPATCHER_CODE) == is_own]:
                del self._codes[old]
            return 2
        if stream[i] == LEAVE:
            return 2 if self._quiet() else 0
        assert stream[i] in (FETCH, READ), f"control word {stream[i]}"
        request, id = stream[i + 1], stream[i + 2]
        if not self._land(id):
            return 0
        sends = stream[i] == FETCH or stream[i + 3] in (self.id, -1)
        inner: Message = Checked(request, self.id)
        if sends:
            inner = ValueInline(request, bytes(self._types[id].nbytes), self.id if stream[i] == READ else -1)
        self._post(self.clock, Reply(m.client, request), (encode(inner),))
        return 3 if stream[i] == FETCH else 4


def _exchanged(how: dict[str, Any]) -> float:
    """The larger of the bytes it sends and receives."""
    item = DTYPES[how["dtype"]].itemsize
    return float(max(sum(prod(sizes) for _, _, sizes in how[direction]) * item for direction in ("sends", "receives")))
