"""``with gt.debug.trace("step.json"):`` writes what the workers do in the block as one file for ui.perfetto.dev.

The block listens to the events of its session. With ``kernels=True`` torch's profiler runs on the workers instead: each
worker sends the profiler's events, with times since it began to trace. Here they are put on one clock, with one process
in the file for each worker.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from errno import EISDIR
from typing import Any

from gt.client.stream.connect import session
from gt.client.stream.session import Session
from gt.errors import CompileError, ConfigError, ConnectionLost, GtError, RemoteError, WorkerLost
from gt.wire.event_messages import EventBatch

#: the sessions that are being traced
_traced_sessions: set[Session] = set()
#: The wall clocks of two hosts may differ by this much before one of them counts as wrong.
CLOCK_ERROR_S = 0.5


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], kernels: bool = False) -> Iterator[None]:
    """Write to ``path`` what the workers do inside the block: ops, moves, waits. Open it in ui.perfetto.dev.

    Workers may be shared: what they do for others is shown as "other clients", in percent. With ``kernels``, torch's
    profiler shows every kernel; this is possible only on workers that serve no other client.

    Example::

        with gt.debug.trace("step.json"):
            train_step(batch)
    """
    client, name = session(), os.fspath(path)
    if client in _traced_sessions:
        raise GtError(f"gt.debug.trace({name!r}): a trace is running already; only one at a time is possible")
    if client.outbox.recorder is not None:
        raise CompileError(
            f"gt.debug.trace({name!r}): inside a compiled function; trace the call of the function instead"
        )
    _traced_sessions.add(client)
    try:
        with _temporary_file(name) as temporary:
            yield from (_profiled if kernels else _listened)(client, name, temporary)
    finally:
        _traced_sessions.discard(client)


def _listened(client: Session, name: str, temporary: str) -> Iterator[None]:
    from gt.events.perfetto import write_perfetto
    from gt.events.table import EventTable

    if client.event_sink is not None:
        raise GtError(
            f"gt.debug.trace({name!r}): this session is recorded by gt.debug.explain_last_step; end that first, "
            "by gt.debug.explain_last_step(stop=True)"
        )
    client.connection.require_worker()
    tables: list[EventTable] = []
    waiting: list[EventBatch] = []
    listening = client.listen(lambda batch: tables[0].add(batch) if tables else waiting.append(batch))
    tables.append(EventTable(since=listening.now))
    for batch in waiting:
        tables[0].add(batch)
    try:
        yield
    finally:
        with contextlib.suppress(ConnectionLost):  # the block disconnected: keep what has arrived
            client.stop_listening()
        with _reporting_os_errors(name):
            with open(temporary, "w") as file:
                write_perfetto(file, tables[0], listening, own=client.id)
            os.replace(temporary, name)


def _profiled(client: Session, name: str, temporary: str) -> Iterator[None]:
    asked = time.monotonic()
    try:
        began = _request(client, name, begin=True)
    except BaseException:
        with contextlib.suppress(GtError):  # some workers may have begun
            _request(client, name, begin=False)
        raise
    seconds = time.monotonic() - asked
    try:
        yield
    except BaseException:
        with contextlib.suppress(GtError):  # the error of the block is the one to raise
            _write(name, temporary, _request(client, name, begin=False), seconds)
        raise
    traces = _request(client, name, begin=False)
    _write(name, temporary, traces, seconds)
    if lost := sorted(set(began) - set(traces)):
        who = ", ".join(f"worker {id}" for id in lost)
        raise WorkerLost(f"gt.debug.trace({name!r}): {who} is gone, and its part of the trace with it")


@contextlib.contextmanager
def _temporary_file(name: str) -> Iterator[str]:
    """A file beside the path that replaces it at the end, so that an old trace is kept until the new one is complete.
    It is created at once, so that a path that cannot be written is reported before the block runs."""
    # a device or a pipe is written, never replaced
    is_replaced = os.path.isfile(name) or not os.path.exists(name)
    temporary = f"{name}.{os.getpid()}.part" if is_replaced else name
    with _reporting_os_errors(name):
        if os.path.isdir(name):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        open(temporary, "w").close()
    try:
        yield temporary
    finally:
        if is_replaced:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


@contextlib.contextmanager
def _reporting_os_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"gt.debug.trace({name!r}): cannot be written: {error.strerror}") from None


def _request(client: Session, name: str, begin: bool) -> dict[int, bytes]:
    try:
        return client.trace(begin)
    except RemoteError as error:
        raise GtError(f"gt.debug.trace({name!r}): {error}") from None


def _write(name: str, temporary: str, traces: dict[int, bytes], seconds: float) -> None:
    """``seconds``: how long it took until all workers had begun to trace."""
    import json
    import zlib

    by_worker = {id: json.loads(zlib.decompress(data)) for id, data in sorted(traces.items()) if data}
    if not by_worker:
        return
    set_wrong_clocks(by_worker, seconds)
    began = min(trace["began"] for trace in by_worker.values())
    events = [event for id, trace in by_worker.items() for event in _events(id, trace, began)]
    with _reporting_os_errors(name):
        with open(temporary, "w") as file:
            json.dump({"displayTimeUnit": "ms", "baseTimeNanoseconds": began, "traceEvents": events}, file)
        os.replace(temporary, name)


def set_wrong_clocks(traces: dict[int, dict[str, Any]], seconds: float) -> None:
    """The workers began to trace within this time, by their wall clocks. One that says otherwise is on a host whose
    clock is wrong: its trace begins where most others begin."""
    usual = int(statistics.median_low(trace["began"] for trace in traces.values()))
    for trace in traces.values():
        if abs(trace["began"] - usual) > (seconds + CLOCK_ERROR_S) * 1e9:
            trace["began"] = usual


def _events(id: int, trace: dict[str, Any], began: int) -> Iterator[dict[str, Any]]:
    shift = (trace["began"] - began) / 1000
    process = id + 1  # viewers use process 0 for the machine itself
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"worker {id} ({trace['device']})"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": id}}
    for event in trace["events"]:
        event["pid"] = process
        if "ts" in event:
            event["ts"] = round(event["ts"] + shift, 3)
        if "id" in event:  # arrows: two workers may use the same number
            event["id"] = f"{id}.{event['id']}"
        yield event
