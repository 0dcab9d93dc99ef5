"""Recording of events, while somebody listens: what this worker ran for each client, and when.

Off, there is no recorder, and the loops that run instructions are as they are. On, the same loops run over iterators
and tables that also read the clock:

    the interpreter     `_TimedCodes` notes each code that it looks up, with the time
    sections            `tick` notes the time before each call of a section
    graphs, compiled    the time before and after the section
    moves               the time at their start, and when they are done
    waits               from the word that could not run to the moment when the stream continues

An instruction ends where the next one begins, so one reading of the clock is enough for both. Chunks of marks become
rows (`gt.wire.event_messages.COLUMNS`) when they are sent. On a GPU a mark is a CUDA event, which is read when the GPU
has reached it: recording never waits for the GPU. As such a mark is not cheap, most chunks have only a first and a last
one. Their time is divided between their instructions as it was in the chunks that have all marks: one of
`DETAILED_EVERY`, and each section until the time of all its instructions is known.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gt.ops.families import family
from gt.wire.event_messages import COLUMNS, LEVELS, TRANSFER, Recorded
from gt.wire.structures import EventName
from gt.wire.words import FIRST_CODE
from gt.worker.engines import Engine, Marks
from gt.worker.fragment_run import FragmentRun
from gt.worker.fragments import LinkedFragment, LinkedSection
from gt.worker.linked import LinkedMove, LinkedSignature
from gt.worker.space import ClientSpace

#: Events are sent after this time, or when there are this many.
BATCH_NS, BATCH_EVENTS = 50_000_000, 1000
#: Nanoseconds between two measurements of memory.
MEMORY_NS = 1_000_000_000
#: Where marks are not cheap, one chunk of this many has all marks.
DETAILED_EVERY = 64
#: The most chunks that wait for the GPU. Older ones are dropped.
MAX_WAITING_CHUNKS = 10_000

Clock = Callable[[], int]


class _Chunk(NamedTuple):
    """Consecutive events: event k began at mark k and ended at mark k + 1."""

    marks: list[Any]
    #: indices of names; -1 is a free, which is no event
    whats: list[int]
    sites: list[int]
    execute: int
    queued: int
    fragment: int
    level: int


class _TimedCodes:
    """A client's codes. Notes each code that is looked up, and the time."""

    __slots__ = ("_codes", "_mark", "_note", "first", "found")

    def __init__(self, codes: dict[int, Any], mark: Callable[[], Any], first: Any) -> None:
        self._codes, self._mark = codes, mark
        #: a mark at the beginning, if the codes have none
        self.first = first
        self.found: list[Any] = []
        self._note = self.found.append

    def __getitem__(self, code: int) -> Any:
        self._note((code, self._mark()))
        return self._codes[code]


class _ClientEvents:
    """What was recorded for one client and is not sent yet."""

    def __init__(self, now: int) -> None:
        self.begun = now
        self.chunks: list[_Chunk] = []
        #: rows of moves and waits; threads of the data plane append moves
        self.rows: deque[tuple[int, ...]] = deque()
        self.count = self.hot = 0
        self.names: list[EventName] = []
        #: code, (fragment, first instruction) or EventName -> index of the name
        self.indices: dict[Any, int] = {}
        self.new_names = 0
        self.sites: set[int] = set()
        #: section -> (whats, sites)
        self.sections: dict[LinkedSection, tuple[list[int], list[int]]] = {}
        #: since when the stream waits for a move; 0: it does not
        self.blocked = 0
        #: index of a name -> the nanoseconds that one event took, where marks are not cheap
        self.weights: dict[int, float] = {}


class EventRecorder:
    """Records the events of all clients of a worker. ``clock``: nanoseconds, of a clock that never goes back."""

    def __init__(self, engine: Engine, clock: Clock, spaces: dict[int, ClientSpace]) -> None:
        self._engine, self.clock, self._spaces = engine, clock, spaces
        self._marks: Marks = engine.marks(clock)
        self._clients: dict[int, _ClientEvents] = {}
        #: id of an `Execute` message that is not finished -> (number, when it arrived)
        self._arrived: dict[int, tuple[int, int]] = {}
        self._executes = 0
        self._execute = self._queued = 0
        self._events = self._client(0)
        self._fragment = self._chunk_count = 0
        self._sent = clock()
        self._memory_read = self._sent - MEMORY_NS

    def _client(self, client: int) -> _ClientEvents:
        events = self._clients.get(client)
        if events is None:
            events = self._clients[client] = _ClientEvents(self.clock())
        return events

    # -- what runs -----------------------------------------------------------------------

    def arrived(self, message: Any) -> None:
        """An `Execute` message arrived. The dispatcher counts them too, so the number identifies it."""
        self._executes += 1
        self._arrived[id(message)] = self._executes, self.clock()

    def begin(self, client: int, message: Any) -> None:
        """The words of this message run from here on. If the stream has waited for a move, that becomes an event."""
        self._events, self._fragment = events, _ = self._client(client), 0
        self._execute, self._queued = self._arrived.get(id(message), (0, 0))
        if events.blocked:
            what = self._name("wait", lambda: EventName("wait", "waiting", "wait", "wait for a move", "", 0))
            events.rows.append((what, self._execute, 0, self._queued, events.blocked, self.clock(), 0, 0))
            events.blocked = 0

    def waits(self) -> None:
        """The stream of the current client must wait for a move."""
        self._events.blocked = self.clock()

    def finish(self, message: Any) -> None:
        self._arrived.pop(id(message), None)

    def run_fragment(self, number: int) -> None:
        self._fragment = number

    def codes(self, space: ClientSpace) -> _TimedCodes:
        """The client's codes, for one call of the interpreter."""
        mark = self._marks.mark
        return _TimedCodes(space.codes, mark, None) if self._detailed() else _TimedCodes(space.codes, _no_mark, mark())

    def _detailed(self) -> bool:
        """Whether the next chunk has all marks."""
        self._chunk_count += 1
        return self._marks.cheap or self._chunk_count % DETAILED_EVERY == 1

    def interpreted(self, space: ClientSpace, codes: _TimedCodes, stream: list[Any], i: int, end: int) -> None:
        """The interpreter has run the words from ``i`` to ``end``. The last code may be one that must wait."""
        found, marks = ([pair[k] for pair in codes.found] for k in (0, 1))
        if end < len(stream) and stream[end] >= FIRST_CODE:
            found.pop()
        else:
            marks.append(self._marks.mark())
        if not found:
            return
        if codes.first is not None:
            marks = [codes.first, marks[-1] or self._marks.mark()]
        indices, widths = {}, {}
        for code in set(found):
            indices[code], widths[code] = self._name_of_code(space, code), space.codes[code].width
        sites: list[int] = []
        note = sites.append
        for code in found:
            while stream[i] < 0:
                i += 1
            note(stream[i + 1])
            i += widths[code]
        whats = [indices[code] for code in found]
        self._add(marks, whats, sites, 0)

    def marks(self, section: LinkedSection) -> tuple[list[Any], Callable[[Any], Any] | None]:
        """(marks, tick) for a section: a first mark, and a function that returns its argument and adds a mark."""
        marks: list[Any] = [self._marks.mark()]
        if not self._detailed() and section in self._events.sections:
            return marks, None
        note, mark = marks.append, self._marks.mark

        def tick(call: Any) -> Any:
            note(mark())
            return call

        return marks, tick

    def section_ran(
        self, run: FragmentRun, section: LinkedSection, marks: list[Any], detailed: bool, level: str
    ) -> None:
        """A section has run: as a whole at this level, or "". ``detailed``: then there is a mark before each call."""
        marks.append(self._marks.mark())
        if level:
            self._add([marks[0], marks[-1]], [self._name_of_section(section, level)], [0], LEVELS.index(level))
            return
        known = self._events.sections.get(section)
        if known is None:
            known = self._events.sections[section] = self._parts(run.space, run.fragment, section)
        whats, sites = known
        count = len(marks) - 2 if detailed else len(whats)  # fewer than all if a call failed
        marks = marks[1:] if detailed else marks
        self._add(marks, whats[:count], sites[:count], 1)

    def _parts(
        self, space: ClientSpace, fragment: LinkedFragment, section: LinkedSection
    ) -> tuple[list[int], list[int]]:
        """What each call of a section is, and its source line."""
        instructions = [fragment.parsed.instructions[index] for index in section.indices]
        whats = [self._name_of_code(space, part.code) if part.code >= 0 else -1 for part in instructions]
        sites = [part.site if part.code >= 0 else 0 for part in instructions]
        return whats, sites

    def _add(self, marks: list[Any], whats: list[int], sites: list[int], level: int) -> None:
        events = self._events
        events.chunks.append(_Chunk(marks, whats, sites, self._execute, self._queued, self._fragment, level))
        events.count += len(whats)
        if self._fragment:
            events.hot += len(whats)
        if len(events.chunks) > MAX_WAITING_CHUNKS:
            del events.chunks[: MAX_WAITING_CHUNKS // 2]

    def moving(self, moves: list[LinkedMove], site: int) -> Callable[[], None]:
        """Moves begin, as one. Returns the function that any thread calls when they are done."""
        what = self._name(("move", moves[0], len(moves)), lambda: _move_name("move", moves))
        begun, rows, clock = self.clock(), self._events.rows, self.clock
        head = what, self._execute, site, begun, begun
        tail = self._fragment, 0
        return lambda: rows.append((*head, clock(), *tail))

    # -- names ---------------------------------------------------------------------------

    def _name(self, key: Any, make: Callable[[], EventName]) -> int:
        events = self._events
        index = events.indices.get(key)
        if index is None:
            index = events.indices[key] = len(events.names)
            events.names.append(make())
        return index

    def _name_of_code(self, space: ClientSpace, code: int) -> int:
        return self._name(code, lambda: _code_name(space.codes[code]))

    def _name_of_section(self, section: LinkedSection, level: str) -> int:
        from gt.worker.hot.section import title

        assert section.body is not None
        text = title(section.body)
        return self._name((section, level), lambda: EventName("section", "compiled", level, text, "", 0))

    # -- sending -------------------------------------------------------------------------

    def due(self, now: int) -> bool:
        """Whether events should be sent now."""
        return now - self._sent >= BATCH_NS or any(e.count >= BATCH_EVENTS for e in self._clients.values())

    def drain(self, everything: bool = False) -> list[Recorded]:
        """The messages with all events that are complete. ``everything``: wait for the GPU to complete the rest."""
        now = self._sent = self.clock()
        memory: dict[str, int] = {}
        if now - self._memory_read >= MEMORY_NS or everything:
            self._memory_read, memory = now, _memory(self._engine)
        messages = [Recorded(0, now, now, [], [], b"", [], 0, memory)] if memory else []
        for client, events in list(self._clients.items()):
            if client and (events.chunks or events.rows or memory):
                messages.append(self._message(client, events, now, bool(memory), everything))
            if client not in self._spaces and not events.chunks:
                del self._clients[client]
        return messages

    def _message(self, client: int, events: _ClientEvents, now: int, memory: bool, everything: bool) -> Recorded:
        complete: list[tuple[_Chunk, list[int]]] = []
        for chunk in events.chunks:
            times = self._marks.times(chunk.marks, everything)
            if times is None:
                break
            complete.append((chunk, times if self._marks.cheap else _divided(chunk, times, events.weights)))
        del events.chunks[: len(complete)]
        rows = _rows(complete)
        if count := len(events.rows):
            beside = np.array([events.rows.popleft() for _ in range(count)], dtype=np.int64)
            rows = np.concatenate([rows, beside])
        new = set(np.unique(rows[:, 2]).tolist()) - events.sites - {0}
        events.sites |= new
        names, events.new_names = events.names[events.new_names :], len(events.names)
        held = {"held": _held(self._engine, self._spaces.get(client))} if memory else {}
        begun, events.begun = events.begun, now
        hot, events.hot, events.count = events.hot, 0, 0
        shares = _shares(events.names, rows)
        return Recorded(client, begun, now, names, sorted(new), rows.tobytes(), shares, hot, held)


def _no_mark() -> None:
    pass


def _divided(chunk: _Chunk, times: list[int], weights: dict[int, float]) -> list[int]:
    """The times of all marks. With all marks, remember what each event took; with two, divide the time like that."""
    whats = chunk.whats
    if len(times) == len(whats) + 1:
        weights.update(zip(whats, np.maximum(np.diff(times), 1).tolist(), strict=True))
        return times
    passed = np.cumsum([weights.get(what, 1.0) for what in whats])
    inner = times[0] + passed / passed[-1] * (times[-1] - times[0])
    return [times[0], *inner.astype(np.int64).tolist()]


def _rows(chunks: list[tuple[_Chunk, list[int]]]) -> Any:
    """The rows of all chunks, made at once: most chunks are short, and each call of numpy has its price."""
    whats, sites, starts, ends = array("q"), array("q"), array("q"), array("q")
    heads: list[tuple[int, int, int, int]] = []
    for chunk, times in chunks:
        whats.extend(chunk.whats)
        sites.extend(chunk.sites)
        starts.extend(times[:-1])
        ends.extend(times[1:])
        heads.append((chunk.execute, chunk.queued, chunk.fragment, chunk.level))
    rows = np.empty((len(whats), len(COLUMNS)), dtype=np.int64)
    for column, values in ((0, whats), (2, sites), (4, starts), (5, ends)):
        rows[:, column] = np.frombuffer(values, dtype=np.int64)
    if chunks:
        counts = [len(chunk.whats) for chunk, _ in chunks]
        rows[:, (1, 3, 6, 7)] = np.repeat(np.array(heads, dtype=np.int64), counts, axis=0)
    return rows[rows[:, 0] >= 0]


def _shares(names: list[EventName], rows: Any) -> list[tuple[str, int, int, int]]:
    """(family, events, nanoseconds, bytes). Moves run beside the instructions: their family is `TRANSFER`."""
    totals: dict[str, list[int]] = {}
    counts = np.bincount(rows[:, 0], minlength=len(names))
    spent = np.bincount(rows[:, 0], weights=rows[:, 5] - rows[:, 4], minlength=len(names))
    for index in np.flatnonzero(counts).tolist():
        name, count = names[index], int(counts[index])
        total = totals.setdefault(TRANSFER if name.kind == "move" else name.family, [0, 0, 0])
        total[0] += count
        total[1] += int(spent[index])
        total[2] += count * name.nbytes
    return [(name, total[0], total[1], total[2]) for name, total in totals.items()]


def _code_name(linked: LinkedSignature | LinkedMove) -> EventName:
    if isinstance(linked, LinkedMove):
        return _move_name("start", [linked])
    signature = linked.signature
    nbytes = sum(t.nbytes for t in signature.outs)
    return EventName("op", family(signature.op), signature.op.name, str(signature), linked.signal, nbytes)


def _move_name(kind: str, moves: list[LinkedMove]) -> EventName:
    sizes = [[t.nbytes for t in (move.before, move.after) if t is not None] for move in moves]
    nbytes, first = sum(max(each, default=0) for each in sizes), moves[0]
    # between meshes some workers only send and others only receive
    role = ", sends" if first.after is None else ", receives" if first.before is None else ""
    return EventName(kind, "moves", first.kind, f"{first}{role}", "", nbytes, first.members)


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
    return {"used": used, "total": total, "peak": peak}
