"""Traces for ui.perfetto.dev: a lane for each client, the dispatcher and each worker, arrows between them, counters.

client 1      the source lines, side by side, just before the dispatcher got what they emitted
dispatcher    the messages it handled
worker 0      "instructions" (with waits), and "moves" beside them
arrows        source line -> dispatcher -> the first instruction of that line in each message
counters      memory used, and work ahead, of each worker
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from gt.events.table import EventTable
from gt.wire.event_messages import DISPATCHER, Listening

#: The numbers of processes in the file; viewers use 0 for the machine itself.
DISPATCHER_PROCESS, FIRST_WORKER, FIRST_CLIENT = 1, 10, 100_000
INSTRUCTIONS, FIRST_MOVES = 1, 100
#: The width of a source line in nanoseconds, if there is room for it; and the room before the first event.
LINE_NS, ROOM_NS = 1_000, 100_000

Entry = dict[str, Any]


class _Arrow(NamedTuple):
    """From a source line to the first of its instructions in a message to a worker."""

    worker: int
    line: str
    #: when the dispatcher received the line's instructions, and when it forwarded them
    received: int
    dispatched: int
    #: when the first one began on the worker
    started: int


def write_perfetto(file: TextIO, table: EventTable, listening: Listening | None = None, own: int = 0) -> None:
    """Write a trace. ``own``: only this client is named; what is known of the others is shown as "other clients"."""
    base = table.span()[0]
    if own and listening is not None:  # others may have worked before this client's first instruction
        base = min(base or listening.now, listening.now)
    base = max(0, base - ROOM_NS)
    devices = {} if listening is None else {worker.id: worker.device for worker in listening.workers}
    entries = [*_lanes(table, devices, own), *_work(table, base), *_dispatched(table, base), *_counters(table, base)]
    if own:
        entries += _others(table, base, own)
    wall = base if listening is None else base + listening.wall - listening.now
    trace = {"displayTimeUnit": "ms", "baseTimeNanoseconds": wall, "traceEvents": entries}
    json.dump(trace, file)


def _named(kind: str, process: int, name: str, thread: int = 0) -> Entry:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _lanes(table: EventTable, devices: dict[int, str], own: int) -> Iterator[Entry]:
    keys = table.sources()
    for client in sorted({client for _, client in keys if client}):
        yield _named("process_name", FIRST_CLIENT + client, f"client {client}")
    yield _named("process_name", DISPATCHER_PROCESS, "dispatcher")
    workers = {worker for worker, _ in keys} | {entry.worker for entry in table.memory} | devices.keys()
    for worker in sorted(workers - {DISPATCHER}):
        device = f" ({devices[worker]})" if worker in devices else ""
        yield _named("process_name", FIRST_WORKER + worker, f"worker {worker}{device}")
        yield _named("thread_name", FIRST_WORKER + worker, "instructions", INSTRUCTIONS)
        yield {"ph": "M", "name": "process_sort_index", "pid": FIRST_WORKER + worker, "args": {"sort_index": worker}}


def _work(table: EventTable, base: int) -> Iterator[Entry]:
    """The events of workers. Moves that overlap in time are in different rows."""
    free_rows: dict[int, list[int]] = {}
    for event in sorted(table.events(), key=lambda event: event.started):
        process, name = FIRST_WORKER + event.worker, event.name
        thread = INSTRUCTIONS
        if name.kind == "move":
            rows = free_rows.setdefault(event.worker, [])
            row = next((k for k, end in enumerate(rows) if end <= event.started), len(rows))
            if row == len(rows):
                rows.append(0)
                yield _named("thread_name", process, f"moves {row + 1}" if row else "moves", FIRST_MOVES + row)
            rows[row], thread = event.ended, FIRST_MOVES + row
        details = {"client": event.client, "bytes": name.nbytes, "level": event.level, "line": event.site}
        details |= {"signal": name.signal} if name.signal else {}
        yield {
            "ph": "X",
            "cat": name.family,
            "name": name.text if name.kind != "op" else name.op,
            "pid": process,
            "tid": thread,
            "ts": (event.started - base) / 1e3,
            "dur": (event.ended - event.started) / 1e3,
            "args": details | ({"call": name.text} if name.kind == "op" else {}),
        }


def _dispatched(table: EventTable, base: int) -> Iterator[Entry]:
    """What the dispatcher did, the source lines of clients, and the arrows."""
    first = _first_of_lines(table)
    flow = 0
    for source, client in table.sources():
        if source != DISPATCHER:
            continue
        common = {"ph": "X", "cat": "dispatcher", "pid": DISPATCHER_PROCESS, "tid": client}
        yield _named("thread_name", DISPATCHER_PROCESS, f"client {client}", client)
        rows = table.rows(source, client).tolist()
        slices = {row[4] for row in rows if row[0] < 0}
        arrows: list[_Arrow] = []
        for worker, execute, serial, received, started, ended in rows:
            if worker < 0 or started not in slices:  # the second: sent while a message of another client was handled
                slices.add(started)
                times = {"ts": (started - base) / 1e3, "dur": (ended - started) / 1e3}
                yield common | times | {"name": f"submission {serial}" if serial else "message", "args": {}}
            lines = first.get((worker, client, execute), {})
            arrows += [_Arrow(worker, line, received or started, started, at) for line, at in lines.items()]
        places = _places(arrows, base)
        for (_, line), (begun, width) in places.items():
            lane = {"pid": FIRST_CLIENT + client, "tid": 1, "ts": (begun - base) / 1e3, "dur": width / 1e3}
            yield {"ph": "X", "cat": "line", "name": line, "args": {}} | lane
        for arrow in arrows:
            flow += 1
            yield from _steps(flow, client, arrow, places[arrow.received, arrow.line][0], base)


def _places(arrows: list[_Arrow], base: int) -> dict[tuple[int, str], tuple[int, int]]:
    """(when a line's instructions were received, line) -> (begin, width) of its slice. An arrow begins at the innermost
    slice at its time, so no slice may be inside another one."""
    lines: dict[int, dict[str, int]] = {}
    for arrow in sorted(arrows, key=lambda arrow: (arrow.received, arrow.started)):
        known = lines.setdefault(arrow.received, {})
        known.setdefault(arrow.line, len(known))
    places, previous = {}, base
    for received, known in lines.items():
        width = max(1, min(LINE_NS, (received - previous) // len(known)))
        for line, index in known.items():
            places[received, line] = received - (len(known) - index) * width, width
        previous = received
    return places


def _first_of_lines(table: EventTable) -> dict[tuple[int, int, int], dict[str, int]]:
    """(worker, client, execute) -> source line -> when its first instruction began."""
    first: dict[tuple[int, int, int], dict[str, int]] = {}
    for event in table.events():
        if event.site and event.execute and event.name.kind != "move":
            lines = first.setdefault((event.worker, event.client, event.execute), {})
            lines[event.site] = min(event.started, lines.get(event.site, event.started))
    return first


def _steps(flow: int, client: int, arrow: _Arrow, begun: int, base: int) -> Iterator[Entry]:
    """The arrow from a source line, whose slice began at ``begun``, over the dispatcher to its first instruction."""
    sent, dispatched, started = ((time - base) / 1e3 for time in (begun, arrow.dispatched, arrow.started))
    step = {"cat": "flow", "name": "instruction", "id": flow}
    yield step | {"ph": "s", "pid": FIRST_CLIENT + client, "tid": 1, "ts": sent}
    yield step | {"ph": "t", "pid": DISPATCHER_PROCESS, "tid": client, "ts": dispatched}
    yield step | {"ph": "f", "bp": "e", "pid": FIRST_WORKER + arrow.worker, "tid": INSTRUCTIONS, "ts": started}


def _counters(table: EventTable, base: int) -> Iterator[Entry]:
    for memory in table.memory:
        if not memory.client:
            values = {"used": memory.sizes.get("used", 0)}
            yield _counter("memory", memory.worker, memory.time - base, values)
    for queue in table.queues:
        yield _counter("work ahead", queue.worker, queue.time - base, {"microseconds": queue.microseconds})


def _counter(name: str, worker: int, nanoseconds: int, values: dict[str, int]) -> Entry:
    """Perfetto calls it by its name and the key of the value. It does not decode escapes in them, so they are ASCII."""
    return {"ph": "C", "name": name, "pid": FIRST_WORKER + worker, "ts": nanoseconds / 1e3, "args": values}


def _others(table: EventTable, base: int, own: int) -> Iterator[Entry]:
    """How much of each interval a worker spent for other clients."""
    for share in table.shares:
        if share.client not in (0, own) and share.worker != DISPATCHER and share.ended > max(share.begun, base):
            percent = round(100 * share.nanoseconds / (share.ended - share.begun))
            yield _counter("other clients (%)", share.worker, max(0, share.begun - base), {share.family: percent})
