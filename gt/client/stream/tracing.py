"""``with gt.debug.trace("step.json"):`` what the workers do meanwhile, as one file for ui.perfetto.dev.

Each worker sends what it wrote down, with times since it began; here they are put on one clock, a process for each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from errno import EISDIR
from typing import Any

from gt.client.stream.connect import session
from gt.client.stream.session import Session
from gt.errors import CompileError, ConfigError, GtError, RemoteError, WorkerLost

#: the sessions that are traced
_running: set[Session] = set()


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write to ``path`` what the workers do inside the block: ops, kernels, collectives. Open it in ui.perfetto.dev."""
    now, name = session(), os.fspath(path)
    if now in _running:
        raise GtError(f"gt.debug.trace({name!r}): a trace is running already, and there is one at a time")
    if now.recorder is not None:
        raise CompileError(f"gt.debug.trace({name!r}): inside a compiled function; trace the call of it")
    _running.add(now)
    try:
        with _beside(name) as beside:
            yield from _traced(now, name, beside)
    finally:
        _running.discard(now)


def _traced(now: Session, name: str, beside: str) -> Iterator[None]:
    try:
        began = _told(now, name, begin=True)
    except BaseException:
        with contextlib.suppress(GtError):  # some may have begun
            _told(now, name, begin=False)
        raise
    try:
        yield
    except BaseException:
        with contextlib.suppress(GtError):  # the first error is the one that is told
            _write(name, beside, _told(now, name, begin=False))
        raise
    traces = _told(now, name, begin=False)
    _write(name, beside, traces)
    if gone := sorted(set(began) - set(traces)):
        who = ", ".join(f"worker {id}" for id in gone)
        raise WorkerLost(f"gt.debug.trace({name!r}): {who} is gone, and what it wrote down with it")


@contextlib.contextmanager
def _beside(name: str) -> Iterator[str]:
    """A file beside the path, which takes its place in the end: what was there is kept until there is more to show. It
    is made at once, so that nobody waits for a trace that cannot be written."""
    beside = f"{name}.{os.getpid()}.part"
    with _told_as(name):
        if os.path.isdir(name):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        open(beside, "w").close()
    try:
        yield beside
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


@contextlib.contextmanager
def _told_as(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"gt.debug.trace({name!r}): cannot be written: {error.strerror}") from None


def _told(now: Session, name: str, begin: bool) -> dict[int, bytes]:
    try:
        return now.trace(begin)
    except RemoteError as error:
        raise GtError(f"gt.debug.trace({name!r}): {error}") from None


def _write(name: str, beside: str, traces: dict[int, bytes]) -> None:
    import json
    import zlib

    told = {id: json.loads(zlib.decompress(data)) for id, data in sorted(traces.items()) if data}
    if not told:
        return
    began = min(trace["began"] for trace in told.values())
    events = [event for id, trace in told.items() for event in _events(id, trace, began)]
    with _told_as(name):
        with open(beside, "w") as file:
            json.dump({"displayTimeUnit": "ms", "baseTimeNanoseconds": began, "traceEvents": events}, file)
        os.replace(beside, name)


def _events(id: int, trace: dict[str, Any], began: int) -> Iterator[dict[str, Any]]:
    shift = (trace["began"] - began) / 1000
    process = id + 1  # 0 is the machine's own, for those who show traces
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"worker {id} ({trace['device']})"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": id}}
    for event in trace["events"]:
        event["pid"] = process
        if "ts" in event:
            event["ts"] = round(event["ts"] + shift, 3)
        if "id" in event:  # arrows: their numbers are a worker's own
            event["id"] = f"{id}.{event['id']}"
        yield event
