"""Where the time went: each moment of an interval, on each worker, belongs to one of `KINDS`.

    compute                 the worker runs an instruction
    exposed communication   the worker waits for a move that all its members have started, and has nothing else to do
    bubble                  the worker waits for another one: it has nothing to do while another worker computes or
                            waits, or it waits for a move that another member has not started yet
    dispatcher              no worker has anything to do, and the dispatcher works
    wire                    only a message is on its way: to a worker, or to the client, which waits for it
    client Python           nothing but the client's program runs
    idle                    nothing happens at all: the client waits, or says nothing, for a long time

The shares of the workers are averaged, so all kinds together are the whole interval.

Over NCCL a worker's GPU waits for a move, and the worker does not: the exposed communication is part of the time of the
instruction that reads the result, and its own time is not known (`gt.events.kernels` finds it in a trace of kernels).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gt.events.advice import advice
from gt.events.critical_path import PathPart, Work, critical_path, late_members
from gt.events.intervals import NOTHING, complement, difference, intersection, length, union
from gt.events.table import ENDED, EXECUTE, STARTED, WHAT, EventTable
from gt.wire.event_messages import DISPATCHER

KINDS = ("compute", "exposed communication", "bubble", "dispatcher", "wire", "client Python", "idle")
#: A longer wait for a message is not the wire's: the client waits for something else.
#: A client without a recording of its own that sends nothing for longer than the second time counts as idle.
MAX_WIRE_NS, MAX_SILENCE_NS = 5_000_000, 1_000_000_000


@dataclass(slots=True)
class Breakdown:
    begun: int
    ended: int
    #: kind -> nanoseconds; together they are ``ended - begun``
    times: dict[str, float]
    #: worker -> nanoseconds in which it computed
    computing: dict[int, int] = field(default_factory=dict)
    #: (family, nanoseconds) on all workers, and (source line, nanoseconds); the largest first
    families: list[tuple[str, int]] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    #: how many instructions ran, and how many of them in repeated fragments
    instructions: int = 0
    hot: int = 0
    #: nanoseconds in which workers waited for sections to be compiled, and how many sections
    compiling: int = 0
    compilations: int = 0
    #: nanoseconds on the wire in which the client waited for a value; None if its waits are not known
    read: int | None = None
    #: the largest share of its memory that a device used
    memory: float = 0.0
    path: list[PathPart] = field(default_factory=list)
    #: worker -> when it waited for moves, and for other workers
    waiting: dict[int, Any] = field(default_factory=dict)
    bubbles: dict[int, Any] = field(default_factory=dict)
    #: False: moves ended on GPUs, so exposed communication is part of compute
    waits_known: bool = True
    #: kind of which all workers take part -> when it was
    gaps: dict[str, Any] = field(default_factory=dict)

    @property
    def wall(self) -> int:
        return self.ended - self.begun

    def share(self, kind: str) -> float:
        return self.times[kind] / self.wall if self.wall else 0.0

    def lines_of_text(self) -> list[str]:
        """The breakdown, the critical path and what to do about it, for people."""
        text = [f"where {self.wall / 1e6:,.2f} ms went ({self.instructions:,} instructions, {self.hot:,} of them hot)"]
        text += [f"  {kind:<22} {self._amount(kind)}" for kind in KINDS]
        if self.path:
            shown = ", then ".join(f"{part.where} {part.nanoseconds / 1e6:,.3f} ms" for part in self.path[:6])
            text.append(f"critical path: {shown}{', …' if len(self.path) > 6 else ''}")
        text.append("what would help most:")
        return text + [f"  {number}. {line}" for number, line in enumerate(advice(self), 1)]

    def _amount(self, kind: str) -> str:
        if kind == "exposed communication" and not self.waits_known:
            return "not known, part of compute: GPUs wait for NCCL (gt.debug.trace(path, kernels=True) shows it)"
        return f"{self.share(kind):6.1%}  {self.times[kind] / 1e6:10,.3f} ms"


def break_down(
    table: EventTable, begun: int, ended: int, clients: list[int] | None = None, waits: Any = None
) -> Breakdown:
    """Where the time from ``begun`` to ``ended`` went. ``waits``: when the client waited, if it is known."""
    keys = [key for key in table.sources() if clients is None or key[1] in clients]
    workers = sorted({worker for worker, _ in keys if worker != DISPATCHER})
    clipped = np.array([[begun, ended]], dtype=np.int64)
    work = Work(table, [key for key in keys if key[0] != DISPATCHER], begun, ended)
    late = late_members(work)
    computing = {w: intersection(_computing(table, w, keys), clipped) for w in workers}
    blocked = {w: difference(intersection(_waiting(table, w, keys), clipped), computing[w]) for w in workers}
    waiting = {w: difference(blocked[w], union(late[w])) for w in workers}
    busy = union(*computing.values(), *blocked.values())
    gap = complement(busy, begun, ended)
    handled, in_flight = _dispatching(table, keys)
    dispatching = intersection(gap, handled)
    wire, python, idle = _rest(difference(gap, dispatching), in_flight, waits)
    gaps = {"dispatcher": dispatching, "wire": wire, "client Python": python, "idle": idle}
    bubbles = {w: difference(busy, union(computing[w], waiting[w])) for w in workers}
    parts = {"compute": computing, "exposed communication": waiting, "bubble": bubbles}
    times = {kind: sum(map(length, spans.values())) / max(1, len(workers)) for kind, spans in parts.items()}
    times |= {kind: float(length(spans)) for kind, spans in gaps.items()}
    result = Breakdown(begun, ended, times, waiting=waiting, bubbles=bubbles, gaps=gaps)
    result.read = None if waits is None else length(intersection(wire, union(waits)))
    result.computing = {w: length(spans) for w, spans in computing.items()}
    _add_totals(result, table, keys)
    result.path = critical_path(work)
    result.waits_known = not work.has_device_moves
    return result


def _of_kinds(table: EventTable, worker: int, keys: list[tuple[int, int]], *kinds: str) -> Any:
    """The rows of a worker's events of these kinds."""
    found = []
    for key in keys:
        if key[0] == worker:
            rows, names = table.rows(*key), table.names[key]
            wanted = np.array([name.kind in kinds for name in names], dtype=bool)
            found.append(rows[wanted[rows[:, WHAT]]] if len(rows) else rows)
    return np.concatenate(found)


def _computing(table: EventTable, worker: int, keys: list[tuple[int, int]]) -> Any:
    return union(_of_kinds(table, worker, keys, "op", "section", "start", "compile")[:, STARTED : ENDED + 1])


def _waiting(table: EventTable, worker: int, keys: list[tuple[int, int]]) -> Any:
    return union(_of_kinds(table, worker, keys, "wait")[:, STARTED : ENDED + 1])


def _dispatching(table: EventTable, keys: list[tuple[int, int]]) -> tuple[Any, Any]:
    """When the dispatcher worked, and when messages were on their way from it to a worker."""
    handled, in_flight = [NOTHING], [NOTHING]
    for key in keys:
        if key[0] != DISPATCHER:
            continue
        rows = table.rows(*key)
        handled.append(rows[rows[:, 0] == -1][:, 4:6])
        for worker, client in keys:
            if worker != DISPATCHER and client == key[1]:
                in_flight.append(_flights(rows[rows[:, 0] == worker], table.rows(worker, client)))
    return union(*handled), union(*in_flight)


def _flights(sent: Any, rows: Any) -> Any:
    """From when a message was sent until its first instruction began."""
    executes, first = np.unique(rows[:, EXECUTE], return_index=True)
    started = dict(zip(executes.tolist(), rows[first, STARTED].tolist(), strict=True))
    spans = [(at, started[number]) for number, at in sent[:, (1, 5)].tolist() if number in started]
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _rest(gap: Any, in_flight: Any, waits: Any) -> tuple[Any, Any, Any]:
    """(wire, client Python, idle): the time in which neither workers nor the dispatcher did anything."""
    wire = intersection(gap, in_flight)
    rest = difference(gap, wire)
    if waits is None:
        long = rest[:, 1] - rest[:, 0] > MAX_SILENCE_NS
        return wire, rest[~long], rest[long]
    waiting = intersection(rest, union(waits))
    long = waiting[:, 1] - waiting[:, 0] > MAX_WIRE_NS
    return union(wire, waiting[~long]), difference(rest, waiting), waiting[long]


def _add_totals(result: Breakdown, table: EventTable, keys: list[tuple[int, int]]) -> None:
    families: dict[str, int] = {}
    lines: dict[str, int] = {}
    for worker, client in keys:
        if worker == DISPATCHER:
            continue
        rows, names = table.rows(worker, client), table.names[worker, client]
        rows = rows[(rows[:, ENDED] > result.begun) & (rows[:, STARTED] < result.ended)]
        sites = table.sites.get(client, {})
        for what, site, started, ended, fragment in rows[:, (WHAT, 2, STARTED, ENDED, 6)].tolist():
            name = names[what]
            if name.kind == "compile":
                result.compilations += 1
                result.compiling += min(ended, result.ended) - max(started, result.begun)
            if name.kind in ("op", "section"):
                result.instructions += 1
                result.hot += fragment > 0
                families[name.family] = families.get(name.family, 0) + ended - started
                if line := sites.get(site):
                    lines[line] = lines.get(line, 0) + ended - started
    result.families = sorted(families.items(), key=lambda item: -item[1])
    result.lines = sorted(lines.items(), key=lambda item: -item[1])
    sizes = [entry.sizes for entry in table.memory if entry.sizes.get("total")]
    result.memory = max((size["used"] / size["total"] for size in sizes), default=0.0)
