"""Traces for ui.perfetto.dev: a lane for each client, the dispatcher and each worker, arrows between them, counters.

client 1      the source lines, at the moment when the dispatcher got what they emitted
dispatcher    the messages it handled
worker 0      "instructions" (with waits), and "moves" beside them
arrows        source line -> dispatcher -> the first instruction of that line in each message
counters      memory used, and work ahead, of each worker
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from gt.events.table import EventTable
from gt.wire.event_messages import DISPATCHER, Listening

#: The numbers of processes in the file; viewers use 0 for the machine itself.
DISPATCHER_PROCESS, FIRST_WORKER, FIRST_CLIENT = 1, 10, 100_000
INSTRUCTIONS, FIRST_MOVES = 1, 100

Entry = dict[str, Any]


def write_perfetto(file: TextIO, table: EventTable, listening: Listening | None = None, own: int = 0) -> None:
    """Write a trace. ``own``: only this client is named; what is known of the others is shown as "other clients"."""
    base = table.span()[0]
    if own and listening is not None:  # others may have worked before this client's first instruction
        base = min(base or listening.now, listening.now)
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
        lines: set[tuple[int, str]] = set()
        for worker, execute, serial, received, started, ended in rows:
            if worker < 0 or started not in slices:  # the second: sent while a message of another client was handled
                slices.add(started)
                times = {"ts": (started - base) / 1e3, "dur": (ended - started) / 1e3}
                yield common | times | {"name": f"submission {serial}" if serial else "message"}
            for line, at in first.get((worker, client, execute), {}).items():
                flow += 1
                begun = received or started
                if (begun, line) not in lines:
                    lines.add((begun, line))
                    yield _line(client, line, begun - base)
                yield from _arrow(flow, client, worker, (begun, started, at), base)


def _first_of_lines(table: EventTable) -> dict[tuple[int, int, int], dict[str, int]]:
    """(worker, client, execute) -> source line -> when its first instruction began."""
    first: dict[tuple[int, int, int], dict[str, int]] = {}
    for event in table.events():
        if event.site and event.execute and event.name.kind != "move":
            lines = first.setdefault((event.worker, event.client, event.execute), {})
            lines[event.site] = min(event.started, lines.get(event.site, event.started))
    return first


def _line(client: int, line: str, begun: int) -> Entry:
    lane = {"pid": FIRST_CLIENT + client, "tid": 1}
    return {"ph": "X", "cat": "line", "name": line, "ts": begun / 1e3, "dur": 1, "args": {}} | lane


def _arrow(flow: int, client: int, worker: int, times: tuple[int, int, int], base: int) -> Iterator[Entry]:
    """The arrow from a source line over the dispatcher to its first instruction."""
    received, dispatched, started = ((time - base) / 1e3 for time in times)
    arrow = {"cat": "flow", "name": "instruction", "id": flow}
    yield arrow | {"ph": "s", "pid": FIRST_CLIENT + client, "tid": 1, "ts": received}
    yield arrow | {"ph": "t", "pid": DISPATCHER_PROCESS, "tid": client, "ts": dispatched}
    yield arrow | {"ph": "f", "bp": "e", "pid": FIRST_WORKER + worker, "tid": INSTRUCTIONS, "ts": started}


def _counters(table: EventTable, base: int) -> Iterator[Entry]:
    for memory in table.memory:
        if not memory.client:
            values = {"used": memory.sizes.get("used", 0)}
            yield _counter("memory", memory.worker, memory.time - base, values)
    for queue in table.queues:
        yield _counter("work ahead (µs)", queue.worker, queue.time - base, {"microseconds": queue.microseconds})


def _counter(name: str, worker: int, nanoseconds: int, values: dict[str, int]) -> Entry:
    return {"ph": "C", "name": name, "pid": FIRST_WORKER + worker, "ts": nanoseconds / 1e3, "args": values}


def _others(table: EventTable, base: int, own: int) -> Iterator[Entry]:
    """How much of each interval a worker spent for other clients."""
    for share in table.shares:
        if share.client not in (0, own) and share.worker != DISPATCHER and share.ended > max(share.begun, base):
            percent = round(100 * share.nanoseconds / (share.ended - share.begun))
            yield _counter("other clients (%)", share.worker, max(0, share.begun - base), {share.family: percent})
