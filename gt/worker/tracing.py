"""What happened on a worker, and when: torch's profiler, and moves from their start to their landing.

A trace is one client's, on a worker that is its alone: what others do is not for it to see. Nothing is asked of a clock
while none is running. Times are those of the wall clock, so that the traces of several workers fit together.
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
from gt.worker.space import MoveEntry, first_line

#: (what, details, begin, end), in nanoseconds
Span = tuple[str, dict[str, Any], int, int]
Event = dict[str, Any]
#: of the profiler's events: what took its time, and the arrows from a call to its kernel
KEPT = ("X", "s", "t", "f")
#: the number of the first row of moves: those of threads and streams are counted from 1 on
MOVES = 10_000

#: held by who profiles this process; a second profiler would crash it
_profiling = threading.Lock()


class Untraced(Exception):
    """Why there is no trace."""


class Tracer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: whose trace is running
        self._owner: int | None = None
        #: are moves written down?
        self.on = False
        self._spoiled = False
        self._profile: Any = None
        self._began = 0
        self._spans: list[Span] = []

    def begin(self, client: int, alone: bool) -> bytes:
        if self._owner is not None:
            raise Untraced("is being traced already")
        if not alone:
            raise Untraced("serves other clients, too: a trace would show their work")
        if self._engine.name == "torch":
            self._profile = _profiler(self._engine.device)
        self._owner, self.on, self._spoiled = client, True, False
        self._began, self._spans = time.time_ns(), []
        return b""

    def end(self, client: int) -> bytes:
        """All of it, compressed; nothing if there is no trace of this client's."""
        if self._owner != client:
            return b""
        self._owner = None
        if self._spoiled:
            raise Untraced("began to serve other clients, too: a trace would show their work")
        try:
            events = self._stop(wanted=True)
        except (OSError, ValueError, RuntimeError) as error:  # a full disk, say
            if self._engine.is_broken(error):
                raise
            raise Untraced(f"could not write down what it did: {first_line(error)}") from None
        told = {"device": self._engine.device, "began": self._began, "events": events}
        return zlib.compress(json.dumps(told).encode(), 1)

    def joined(self) -> None:
        """Another client is here now."""
        if self._owner is not None:
            self._spoiled = True
            self._stop(wanted=False)

    def left(self, client: int) -> None:
        if self._owner == client:
            self._owner = None
            self._stop(wanted=False)

    def span(self, entries: list[MoveEntry]) -> Callable[[], None]:
        """A move begins, or several as one; what is given back is called when it ends, by whatever thread."""
        spans, begun = self._spans, time.time_ns()
        types = [[t for t in (entry.before, entry.after) if t is not None] for entry in entries]
        nbytes = sum(max((t.nbytes for t in each), default=0) for each in types)
        details = {"bytes": nbytes, "types": ", ".join(" -> ".join(map(str, each)) for each in types)}
        return lambda: spans.append((str(entries[0]), details, begun, time.time_ns()))

    def _stop(self, wanted: bool) -> list[Event]:
        self.on = False
        profile, self._profile = self._profile, None
        spans, self._spans = self._spans, []
        events = [] if profile is None else _profiled(profile, self._engine.device, self._began, wanted)
        return [*events, *_rows(spans, self._began)] if wanted else []


# -- the profiler ------------------------------------------------------------------------------


def _profiler(device: str) -> Any:
    """One that runs. With all threads, so that those that move tensors are seen, where torch can do that."""
    from torch import _C, profiler

    kinds = [profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        kinds.append(profiler.ProfilerActivity.CUDA)
    config = None
    with contextlib.suppress(AttributeError, TypeError):
        config = _C._profiler._ExperimentalConfig(profile_all_threads=True)
    made = profiler.profile(activities=kinds, experimental_config=config, acc_events=True)  # torch 2.11 warns otherwise
    if not _profiling.acquire(blocking=False):
        raise Untraced("cannot be traced: another worker in its process is")
    try:
        made.start()
    except RuntimeError as error:
        _profiling.release()
        raise Untraced(f"cannot be traced: {first_line(error)}") from None
    return made


def _profiled(profile: Any, device: str, began: int, wanted: bool) -> list[Event]:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    try:
        profile.stop()
        told = _exported(profile) if wanted else {"traceEvents": []}
    finally:
        _profiling.release()
    shift = (told.get("baseTimeNanoseconds", 0) - began) / 1000
    return list(_kept(told["traceEvents"], shift))


def _exported(profile: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gt-") as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path, errors="replace") as file:
            told: dict[str, Any] = json.load(file)
    return told


def _kept(events: list[Event], shift: float) -> Iterator[Event]:
    """What is worth showing, in rows numbered from 1 on, with times since the beginning."""
    mine = os.getpid()  # a GPU's streams are those of a process with the GPU's number
    names = {(mine, t.native_id): t.name for t in threading.enumerate()}
    names[mine, threading.get_native_id()] = "instructions"
    known = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    rows: dict[tuple[Any, Any], int] = {}
    for event in events:
        if event["ph"] not in KEPT or isinstance(event["pid"], str):  # text: the profiler's account of itself
            continue
        row = event.pop("pid"), event["tid"]
        if row not in rows:
            rows[row] = len(rows) + 1
            yield _row(rows[row], names.get(row) or known.get(row, "").strip() or f"thread {row[1]}")
        yield event | {"tid": rows[row], "ts": event["ts"] + shift}


# -- moves -------------------------------------------------------------------------------------


def _rows(spans: list[Span], began: int) -> Iterator[Event]:
    """A row holds what does not overlap: what is under way at the same time has rows of its own."""
    free: list[int] = []
    for what, details, begin, end in sorted(spans, key=lambda span: span[2]):
        row = next((k for k, until in enumerate(free) if until <= begin), len(free))
        if row == len(free):
            free.append(0)
            yield _row(MOVES + row, "collectives" if row == 0 else f"collectives {row + 1}")
        free[row] = end
        times = {"ts": (begin - began) / 1000, "dur": (end - begin) / 1000}
        yield {"ph": "X", "cat": "collective", "name": what, "tid": MOVES + row, "args": details} | times


def _row(number: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}}
