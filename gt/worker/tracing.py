"""Traces of a worker: the events of torch's profiler, and each move from its start to its completion.

A trace belongs to one client. The worker must serve no other client, because the trace would show its work. Without a
trace the clock is never read here. Times are wall-clock times, so that the traces of several workers can be combined;
`gt.client.stream.tracing` corrects clocks that are wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gt.worker.engines import Engine
from gt.worker.errors import first_line
from gt.worker.linked import LinkedMove

#: (name, details, begin, end); wall-clock times in nanoseconds
Span = tuple[str, dict[str, Any], int, int]
Event = dict[str, Any]
#: the kinds of the profiler's events that are kept: durations, and the arrows from a call to its kernel
KEPT_PHASES = ("X", "s", "t", "f")
#: the number of the first row of moves; rows of threads and streams are numbered from 1
FIRST_MOVE_ROW = 10_000

#: held while a profiler runs in this process; a second one would crash it
_profiling = threading.Lock()


class NoTrace(Exception):
    """The reason why there is no trace."""


class Tracer:
    """Records a trace, for one client at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: the client whose trace is running
        self._owner: int | None = None
        #: whether moves are recorded
        self.on = False
        #: whether another client joined during the trace
        self._shared = False
        self._profile: Any = None
        #: wall-clock time in nanoseconds
        self._began = 0
        self._spans: list[Span] = []

    def begin(self, client: int, alone: bool) -> bytes:
        """Start a trace. Returns the empty reply. ``alone``: the worker serves no other client. Raises NoTrace."""
        if self._owner is not None:
            raise NoTrace("is being traced already")
        if not alone:
            raise NoTrace("serves other clients, too: a trace would show their work")
        if self._engine.name == "torch":
            self._profile = _start_profiler(self._engine.device)
        self._owner, self.on, self._shared = client, True, False
        self._began, self._spans = time.time_ns(), []
        return b""

    def end(self, client: int) -> bytes:
        """The events as compressed JSON; empty if this client has no trace. Raises NoTrace."""
        if self._owner != client:
            return b""
        self._owner = None
        if self._shared:
            raise NoTrace("began to serve other clients, too: a trace would show their work")
        try:
            events = self._stop(keep=True)
        except (OSError, ValueError, RuntimeError) as error:  # for example a full disk
            if self._engine.is_broken(error):
                raise
            raise NoTrace(f"could not write its trace: {first_line(error)}") from None
        trace = {"device": self._engine.device, "began": self._began, "events": events}
        return zlib.compress(json.dumps(trace).encode(), 1)

    def client_joined(self) -> None:
        if self._owner is not None:
            self._shared = True
            self._stop(keep=False)

    def client_left(self, client: int) -> None:
        if self._owner == client:
            self._owner = None
            self._stop(keep=False)

    def span(self, moves: list[LinkedMove]) -> Callable[[], None]:
        """Record the start of moves that run as one. Returns a function that any thread calls when they end."""
        spans, begin = self._spans, time.time_ns()
        types = [[t for t in (move.before, move.after) if t is not None] for move in moves]
        nbytes = sum(max((t.nbytes for t in each), default=0) for each in types)
        details = {"bytes": nbytes, "types": ", ".join(" -> ".join(map(str, each)) for each in types)}
        return lambda: spans.append((str(moves[0]), details, begin, time.time_ns()))

    def _stop(self, keep: bool) -> list[Event]:
        self.on = False
        profile, self._profile = self._profile, None
        spans, self._spans = self._spans, []
        events = [] if profile is None else _stop_profiler(profile, self._engine.device, self._began, keep)
        return [*events, *_move_rows(spans, self._began)] if keep else []


# -- the profiler ------------------------------------------------------------------------------


def _start_profiler(device: str) -> Any:
    """Profiles all threads if torch can do that, so that the threads that move tensors are visible."""
    from torch import _C, profiler

    kinds = [profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        kinds.append(profiler.ProfilerActivity.CUDA)
    config = None
    with contextlib.suppress(AttributeError, TypeError):
        config = _C._profiler._ExperimentalConfig(profile_all_threads=True)
    # without acc_events torch 2.11 warns
    profile = profiler.profile(activities=kinds, experimental_config=config, acc_events=True)
    if not _profiling.acquire(blocking=False):
        raise NoTrace("cannot be traced: another worker in its process is")
    try:
        profile.start()
    except RuntimeError as error:
        _profiling.release()
        raise NoTrace(f"cannot be traced: {first_line(error)}") from None
    return profile


def _stop_profiler(profile: Any, device: str, began: int, keep: bool) -> list[Event]:
    """The events, with times in microseconds since ``began`` (nanoseconds)."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    try:
        profile.stop()
        trace = _export(profile) if keep else {"traceEvents": []}
    finally:
        _profiling.release()
    shift = (trace.get("baseTimeNanoseconds", 0) - began) / 1000
    return list(_kept_events(trace["traceEvents"], shift))


def _export(profile: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gt-") as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path, errors="replace") as file:
            trace: dict[str, Any] = json.load(file)
    return trace


def _kept_events(events: list[Event], shift: float) -> Iterator[Event]:
    """The events to show, in rows numbered from 1. ``shift`` is added to their times (microseconds)."""
    pid = os.getpid()  # the profiler gives the streams of a GPU another pid: the number of the GPU
    names = {(pid, t.native_id): t.name for t in threading.enumerate()}
    names[pid, threading.get_native_id()] = "instructions"
    row_names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    rows: dict[tuple[Any, Any], int] = {}
    for event in events:
        if event["ph"] not in KEPT_PHASES or isinstance(
            event["pid"], str
        ):  # a text as pid: events of the profiler itself
            continue
        row = event.pop("pid"), event["tid"]
        if row not in rows:
            rows[row] = len(rows) + 1
            yield _row(rows[row], names.get(row) or row_names.get(row, "").strip() or f"thread {row[1]}")
        yield event | {"tid": rows[row], "ts": event["ts"] + shift}


# -- moves -------------------------------------------------------------------------------------


def _move_rows(spans: list[Span], began: int) -> Iterator[Event]:
    """The moves as events. Moves that overlap in time are on different rows."""
    row_ends: list[int] = []
    for name, details, begin, end in sorted(spans, key=lambda span: span[2]):
        row = next((k for k, end_of_row in enumerate(row_ends) if end_of_row <= begin), len(row_ends))
        if row == len(row_ends):
            row_ends.append(0)
            yield _row(FIRST_MOVE_ROW + row, "collectives" if row == 0 else f"collectives {row + 1}")
        row_ends[row] = end
        times = {"ts": (begin - began) / 1000, "dur": (end - begin) / 1000}
        yield {"ph": "X", "cat": "collective", "name": name, "tid": FIRST_MOVE_ROW + row, "args": details} | times


def _row(number: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}}
