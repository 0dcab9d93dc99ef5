"""Recording of events, while somebody listens: what this worker ran for each client, and when.

Off, there is no recorder, and the loops that run instructions are as they are. On, each stretch of instructions that
ran without a stop is noted:

    the interpreter     a mark before and after its words; in detail, `_MarkedCodes` adds one for each code it looks up
    sections            a mark before and after the section; in detail, `tick` adds one before each call
    graphs, compiled    a mark before and after the section
    moves               the time at their start, and when they are done
    compiling           from the run of a section that needs code to the moment when it is there
    waits               from the word that could not run to the moment when the stream continues

An instruction ends where the next one begins, so one mark is enough for both. A mark has its price: the time of a small
kernel on a GPU, where it is a CUDA event, and a tenth of a small instruction on a CPU. So a stretch is noted in detail
where that costs little, which is if its instructions are long on a CPU; and as a sample, once for `DETAILED_EVERY`
stretches and where an instruction is new. The time of the other stretches is divided between their instructions as in
the samples (`gt.worker.event_packing`). CUDA events are read when the GPU has reached them: recording never waits for
the GPU.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gt.wire.event_messages import LEVELS, WAITING, Recorded
from gt.wire.structures import EventName
from gt.worker.engines import Engine, Marks
from gt.worker.event_names import code_name, move_name
from gt.worker.event_packing import StreamPatterns, Stretch, pack, source_lines
from gt.worker.fragment_run import FragmentRun
from gt.worker.fragments import FREE, LinkedFragment, LinkedSection
from gt.worker.linked import LinkedMove
from gt.worker.space import ClientSpace

#: Events are sent after this time, or when there are this many.
BATCH_NS, BATCH_EVENTS = 200_000_000, 50_000
#: Nanoseconds between two measurements of memory.
MEMORY_NS = 1_000_000_000
#: One stretch of this many is noted in detail; a prime, so that it does not keep step with a program.
DETAILED_EVERY = 61
#: Where marks are cheap, stretches whose instructions take this long on average are all noted in detail.
LONG_NS = 100_000
#: The most stretches of a client that wait for the GPU. Older ones are dropped, and their events counted.
MAX_WAITING_STRETCHES = 10_000

Clock = Callable[[], int]


class _MarkedCodes:
    """A client's codes. Makes a mark each time that one is looked up."""

    __slots__ = ("_codes", "_mark", "_note")

    def __init__(self, codes: dict[int, Any], mark: Callable[[], Any], note: Callable[[Any], None]) -> None:
        self._codes, self._mark, self._note = codes, mark, note

    def __getitem__(self, code: int) -> Any:
        self._note(self._mark())
        return self._codes[code]


class _SectionEvents:
    """The events of a section, without frees."""

    __slots__ = ("sites", "typical", "whats")

    def __init__(self, whats: array[int], sites: array[int]) -> None:
        self.whats, self.sites = whats, sites
        #: see `_typical`
        self.typical = 0.0


class _ClientEvents:
    """What was recorded for one client and is not sent yet."""

    def __init__(self, now: int) -> None:
        self.begun = now
        self.stretches: list[Stretch] = []
        #: (what, site, execute, queued, fragment, started, ended) of moves and waits; threads of the data plane append
        self.beside: deque[tuple[int, ...]] = deque()
        self.hot = 0
        #: events that were dropped, see `MAX_WAITING_STRETCHES`
        self.dropped = 0
        self.names: list[EventName] = []
        #: code, (fragment, first instruction) or EventName -> index of the name
        self.indices: dict[Any, int] = {}
        #: code -> (index of the name, how many words it has)
        self.codes: dict[int, tuple[int, int]] = {}
        self.patterns = StreamPatterns()
        self.new_names = 0
        self.sites: set[int] = set()
        self.sections: dict[LinkedSection, _SectionEvents] = {}
        #: since when the stream waits for a move; 0: it does not
        self.blocked = 0
        #: of the interpreter: see `_typical`; whether the last stretch had an instruction that was new
        self.typical, self.new = 0.0, True
        #: index of a name -> the nanoseconds that one event took; 0: not measured
        self.weights = np.zeros(64)


class EventRecorder:
    """Records the events of all clients of a worker. ``clock``: nanoseconds, of a clock that never goes back."""

    def __init__(self, engine: Engine, clock: Clock, spaces: dict[int, ClientSpace]) -> None:
        self._engine, self.clock, self._spaces = engine, clock, spaces
        self._marks: Marks = engine.marks(clock)
        self._cheap = self._marks.cheap
        self._clients: dict[int, _ClientEvents] = {}
        #: client -> how many `Execute` messages of it have arrived
        self._executes: Counter[int] = Counter()
        #: the last `Execute` message, if it is not finished; its number, and when it arrived
        self._newest: Any = None
        self._newest_number = self._newest_arrived = 0
        #: id of an earlier one that is not finished -> (number, when it arrived)
        self._waiting: dict[int, tuple[int, int]] = {}
        self._execute = self._queued = 0
        self._events = self._client(0)
        self._fragment = self._stretch_count = 0
        #: the mark where the interpreter began; the marks of its instructions, if they have any
        self._first: Any = None
        self._inner: list[Any] | None = None
        #: when a section was compiled last, which is no part of its run
        self._compiled_until = 0
        #: events that are not sent yet
        self._count = 0
        self._sent = clock()
        self._memory_read = self._sent - MEMORY_NS

    def _client(self, client: int) -> _ClientEvents:
        events = self._clients.get(client)
        if events is None:
            events = self._clients[client] = _ClientEvents(self.clock())
        return events

    # -- what runs -----------------------------------------------------------------------

    def arrived(self, message: Any) -> None:
        """An `Execute` message arrived. The dispatcher counts those of each client too, so the number identifies it."""
        if self._newest is not None:
            self._waiting[id(self._newest)] = self._newest_number, self._newest_arrived
        self._executes[message.client] += 1
        self._newest, self._newest_number, self._newest_arrived = message, self._executes[message.client], self.clock()

    def client_gone(self, client: int) -> None:
        self._executes.pop(client, None)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """While a message of another client runs in the middle of the current one."""
        current = self._events, self._execute, self._queued, self._fragment
        yield
        self._events, self._execute, self._queued, self._fragment = current

    def begin(self, client: int, message: Any) -> None:
        """The words of this message run from here on. If the stream has waited for a move, that becomes an event."""
        self._events = events = self._clients.get(client) or self._client(client)
        self._fragment = 0
        if message is self._newest:
            self._execute, self._queued = self._newest_number, self._newest_arrived
        else:
            self._execute, self._queued = self._waiting.get(id(message), (0, 0))
        if events.blocked:
            what = self._name("wait", lambda: EventName("wait", WAITING, "wait", "wait for a move", "", 0))
            events.beside.append((what, 0, self._execute, self._queued, 0, events.blocked, self.clock()))
            events.blocked = 0

    def waits(self) -> None:
        """The stream of the current client must wait for a move."""
        self._events.blocked = self.clock()

    def finish(self, message: Any) -> None:
        """All words of the message have run."""
        if message is self._newest:
            self._newest = None
        else:
            self._waiting.pop(id(message), None)

    def run_fragment(self, number: int) -> None:
        self._fragment = number

    def _detailed(self, typical: float, new: bool) -> bool:
        """Whether the next stretch is noted in detail."""
        self._stretch_count += 1
        return new or typical >= LONG_NS or self._stretch_count % DETAILED_EVERY == 0

    def codes(self, space: ClientSpace) -> Any:
        """The client's codes, for one call of the interpreter, which begins now."""
        events, mark = self._events, self._marks.mark
        if self._detailed(events.typical, events.new):
            inner = self._inner = []
            return _MarkedCodes(space.codes, mark, inner.append)
        self._first, self._inner = mark(), None
        return space.codes

    def interpreted(self, space: ClientSpace, stream: list[Any], i: int, end: int, count: int) -> None:
        """The interpreter has run the words from ``i`` to ``end``, with ``count`` kernels and moves."""
        events, last, names = self._events, self._marks.mark(), len(self._events.names)
        whats, sites = events.patterns.find(stream, i, end, count) or events.patterns.add(
            stream, i, end, lambda code: self._code(space, code)
        )
        if not whats:
            return
        marks = [self._first, last]
        if self._inner is not None:  # the last code may be one that must wait
            marks = [*self._inner, last] if len(self._inner) == len(whats) else self._inner
        if self._cheap:
            events.typical = _typical(events.typical, marks[-1] - marks[0], len(whats))
        events.new = len(events.names) > names
        self._add(marks, whats, sites, 0)

    def _code(self, space: ClientSpace, code: int) -> tuple[int, int]:
        """(index of its name, how many words it has)."""
        events = self._events
        entry = events.codes.get(code)
        if entry is None:
            entry = events.codes[code] = self._name_of_code(space, code), space.codes[code].width
        return entry

    def marks(self, section: LinkedSection) -> tuple[list[Any], Callable[[Any], Any] | None]:
        """(marks, tick) for a section: a first mark, and a function that returns its argument and adds a mark, if that
        is not a free."""
        marks: list[Any] = [self._marks.mark()]
        known = self._events.sections.get(section)
        if not self._detailed(0.0 if known is None else known.typical, known is None):
            return marks, None
        note, mark = marks.append, self._marks.mark

        def tick(call: Any) -> Any:
            if call[0] != FREE:
                note(mark())
            return call

        return marks, tick

    def section_ran(
        self, run: FragmentRun, section: LinkedSection, marks: list[Any], detailed: bool, level: str
    ) -> None:
        """A section has run: as a whole at this level, or "". ``detailed``: then there is a mark before each event."""
        marks.append(self._marks.mark())
        if self._cheap:
            marks[0] = max(marks[0], self._compiled_until)
        if level:
            whole = array("i", [self._name_of_section(section, level)])
            self._add([marks[0], marks[-1]], whole, array("i", [0]), LEVELS.index(level))
            return
        known = self._events.sections.get(section)
        if known is None:
            known = self._events.sections[section] = self._section_events(run.space, run.fragment, section)
        whats, sites = known.whats, known.sites
        if detailed and len(marks) < len(whats) + 2:  # a call failed
            whats, sites = whats[: len(marks) - 2], sites[: len(marks) - 2]
        if whats:
            marks = marks[1:] if detailed else marks
            if self._cheap:
                known.typical = _typical(known.typical, marks[-1] - marks[0], len(whats))
            self._add(marks, whats, sites, 1)

    def _section_events(self, space: ClientSpace, fragment: LinkedFragment, section: LinkedSection) -> _SectionEvents:
        """What each call of a section is, and its source line."""
        instructions = [fragment.parsed.instructions[index] for index in section.indices]
        calls = [instruction for instruction in instructions if instruction.code >= 0]
        whats = array("i", [self._name_of_code(space, instruction.code) for instruction in calls])
        return _SectionEvents(whats, source_lines([instruction.site for instruction in calls]))

    def _add(self, marks: list[Any], whats: array[int], sites: array[int], level: int) -> None:
        events, count = self._events, len(whats)
        events.stretches.append(Stretch(marks, whats, sites, self._execute, self._queued, self._fragment, level))
        self._count += count
        if self._fragment:
            events.hot += count
        if len(events.stretches) > MAX_WAITING_STRETCHES:
            dropped = events.stretches[: MAX_WAITING_STRETCHES // 2]
            del events.stretches[: len(dropped)]
            events.dropped += sum(len(stretch.whats) for stretch in dropped)

    def compiled(self, waits: list[tuple[int, int]]) -> None:
        """The current client waited in these spans for a section to be compiled, which runs next."""
        what = self._name("compile", lambda: EventName("compile", "compiling", "compile", "compile a section", "", 0))
        for begun, ended in waits:
            self._events.beside.append((what, 0, self._execute, self._queued, self._fragment, begun, ended))
            self._compiled_until = ended

    def moving(self, moves: list[LinkedMove], site: int, ends_on_device: bool) -> Callable[[], None]:
        """Moves begin, as one. Returns the function that any thread calls when they are done."""
        what = self._name(("move", moves[0], len(moves)), lambda: move_name("move", moves, ends_on_device))
        begun, beside, clock = self.clock(), self._events.beside, self.clock
        head = what, site, self._execute, begun, self._fragment, begun
        return lambda: beside.append((*head, clock()))

    # -- names ---------------------------------------------------------------------------

    def _name(self, key: Any, make: Callable[[], EventName]) -> int:
        events = self._events
        index = events.indices.get(key)
        if index is None:
            index = events.indices[key] = len(events.names)
            events.names.append(make())
        return index

    def _name_of_code(self, space: ClientSpace, code: int) -> int:
        return self._name(code, lambda: code_name(space.codes[code]))

    def _name_of_section(self, section: LinkedSection, level: str) -> int:
        from gt.worker.hot.section import title

        assert section.body is not None
        text = title(section.body)
        return self._name((section, level), lambda: EventName("section", "compiled", level, text, "", 0))

    # -- sending -------------------------------------------------------------------------

    def due(self, now: int) -> bool:
        """Whether events should be sent now."""
        return self._count >= BATCH_EVENTS or now - self._sent >= BATCH_NS

    def drain(self, everything: bool = False) -> list[Recorded]:
        """The messages with all events that are complete. ``everything``: wait for the GPU to complete the rest."""
        now = self._sent = self.clock()
        self._count = 0
        memory: dict[str, int] = {}
        if now - self._memory_read >= MEMORY_NS or everything:
            self._memory_read, memory = now, _memory(self._engine)
        messages = [Recorded(0, now, now, [], [], b"", b"", [], 0, memory)] if memory else []
        for client, events in list(self._clients.items()):
            if client and (events.stretches or events.beside or memory):
                messages.append(self._message(client, events, now, bool(memory), everything))
            if client not in self._spaces and not events.stretches:
                del self._clients[client]
        return messages

    def _message(self, client: int, events: _ClientEvents, now: int, memory: bool, everything: bool) -> Recorded:
        complete: list[tuple[Stretch, list[int]]] = []
        for stretch in events.stretches:
            times = self._marks.times(stretch.marks, everything)
            if times is None:
                break
            complete.append((stretch, times))
        del events.stretches[: len(complete)]
        for _ in range(len(events.beside)):
            what, site, execute, queued, fragment, *times = events.beside.popleft()
            one = Stretch(times, array("i", [what]), source_lines([site]), execute, queued, fragment, 0)
            complete.append((one, times))
        if len(events.weights) < len(events.names):
            events.weights = np.pad(events.weights, (0, len(events.names)))
        packed = pack(complete, events.names, events.weights)
        new = packed.sites - events.sites
        events.sites |= new
        names, events.new_names = events.names[events.new_names :], len(events.names)
        held = {"held": _held(self._engine, self._spaces.get(client))} if memory else {}
        begun, events.begun = events.begun, now
        hot, events.hot = events.hot, 0
        dropped, events.dropped = events.dropped, 0
        details = packed.stretches, packed.rows, packed.shares
        return Recorded(client, begun, now, names, sorted(new), *details, hot, held, dropped, packed.longest)


def _typical(before: float, spent: int, count: int) -> float:
    """The nanoseconds that one instruction takes. On a busy machine a stretch is often interrupted, so a longer time
    than before counts only little by little."""
    mean, most = spent / count, 1.25 * before
    return most if most and mean > most else mean


def _held(engine: Engine, space: ClientSpace | None) -> int:
    from gt.worker.space import PLACEHOLDERS

    values = [] if space is None else list(space.store.values())
    return sum(engine.nbytes(value) for value in values if type(value) not in PLACEHOLDERS)


def _memory(engine: Engine) -> dict[str, int]:
    """The memory of the device; on a CPU that of this process and of the machine."""
    if memory := engine.memory():
        return memory
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[1]) * resource.getpagesize()
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"used": used, "total": total, "peak": max(used, peak)}
