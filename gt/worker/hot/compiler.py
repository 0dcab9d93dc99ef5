"""What the sections of a worker share: the thread that compiles, and what captures graphs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from gt.say import topic
from gt.worker.engines import Engine
from gt.worker.engines.device_waits import repeated
from gt.worker.errors import DeviceBroken
from gt.worker.hot.cache_folder import set_cache_folder
from gt.worker.hot.change_recorder import Relocations
from gt.worker.hot.changes import CompiledCalls
from gt.worker.hot.compiled import CompiledProgram, StridedSpec, build, load_compiler
from gt.worker.hot.graph import CudaGraphs
from gt.worker.hot.kept_code import KeptCode
from gt.worker.hot.program import NotTranslatable, Program
from gt.worker.hot.section import Section, title
from gt.worker.hot.verdicts import Verdicts

#: Sections that may wait for the compiler.
MAX_QUEUED_JOBS = 4
#: While the compiler's thread runs, the worker's thread waits at most this long for the interpreter lock.
SWITCH_INTERVAL_S = 1e-4
#: Errors whose text says little without the position in the code.
PROGRAMMING_ERRORS = (AttributeError, TypeError, LookupError, AssertionError)


def prepare(engine: Engine) -> str:
    """Set the cache folder and return it, see `set_cache_folder`.

    Called before the compiler is imported, because the import reads the folder.
    """
    on_gpu = torch.device(engine.device).type == "cuda"
    device = torch.cuda.get_device_name(engine.device) if on_gpu else "cpu"
    return set_cache_folder(device, torch.__version__, _triton_version())


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


@dataclass(slots=True)
class CompileJob:
    """A section to compile, for inputs like these."""

    section: Section
    program: Program
    inputs: list[StridedSpec]


class Compiler:
    def __init__(self, engine: Engine, graphs: Any = None, notices: list[tuple[str, str]] | None = None) -> None:
        """``graphs`` captures graphs instead of `CudaGraphs`, for tests. ``notices``: see `Levels`."""
        self._engine, self._device = engine, torch.device(engine.device)
        #: None if the device has no graphs
        self.graphs: Any = graphs or (CudaGraphs(self._device) if self._device.type == "cuda" else None)
        self.relocations = Relocations()
        self.verdicts, self.kept = Verdicts(""), KeptCode("")
        self.debug = topic("GT_DEBUG_COMPILE")
        self._compiled_calls = CompiledCalls()
        self.notices = [] if notices is None else notices
        #: when the worker's thread waited for code, in nanoseconds
        self.waits: list[tuple[int, int]] = []
        self._queue: list[tuple[CompileJob, Future[CompiledProgram]]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def use_folder(self, folder: str) -> None:
        """Keep code and verdicts in this cache folder: see `prepare`."""
        if self.debug and not folder:
            self.debug("compiled code is not kept: the cache folder cannot be written, or others may write to it")
        self.verdicts, self.kept = Verdicts(folder), KeptCode(folder)

    def load_ahead(self) -> threading.Thread:
        """Load the compiler in the background."""
        thread = threading.Thread(target=self._load, name="gt-compile-load", daemon=True)
        thread.start()
        return thread

    def _load(self) -> None:
        with contextlib.suppress(Exception):  # compiling reports why
            load_compiler(self._device)

    def submit(self, job: CompileJob, wait: bool) -> Future[CompiledProgram]:
        """Compile in the background; or, with ``wait``, in this thread before returning."""
        future: Future[CompiledProgram] = Future()
        if wait:
            begun = time.perf_counter_ns()
            self._run(job, future)
            self.waits.append((begun, time.perf_counter_ns()))
            return future
        with self._wake:
            self._queue.append((job, future))
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="gt-compile", daemon=True)
            self._thread.start()
        return future

    def busy(self) -> bool:
        """Whether the queue is full."""
        return len(self._queue) >= MAX_QUEUED_JOBS

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                # the longest section first: it takes most of the time of a run
                longest = max(range(len(self._queue)), key=lambda k: len(self._queue[k][0].section.calls))
                job, future = self._queue.pop(longest)
            before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._run(job, future)
            sys.setswitchinterval(before)

    def _run(self, job: CompileJob, future: Future[CompiledProgram]) -> None:
        try:
            future.set_result(repeated(lambda: build(job.program, job.inputs, self.kept)))
        except BaseException as error:
            future.set_exception(error)

    def check_device(self, error: Exception) -> None:
        """An error of a capture looks like one of the device. Raises DeviceBroken only if the device is not usable."""
        if self._engine.is_broken(error):
            try:
                torch.zeros(1, device=self._device).item()
            except Exception:
                raise DeviceBroken(error_summary(error)) from error

    def log_change(self, section: Section) -> None:
        """Say what is different if a section with the same ops was compiled before."""
        if self.debug and (change := self._compiled_calls.change(section)):
            self.debug(f"Recompiling {title(section)}: {change}")

    def log_error(self, section: Section, error: BaseException) -> None:
        if self.debug and not isinstance(error, NotTranslatable):
            self.debug(f"{title(section)}:\n" + "".join(traceback.format_exception(error)))

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._queue.clear()
            self._wake.notify()


def error_summary(error: BaseException) -> str:
    """The first line of an error that is not empty; for a programming error with its position."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:200] if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, PROGRAMMING_ERRORS) and frames:
        last = frames[-1]
        text += f" ({type(error).__name__} in {os.path.basename(last.filename)}:{last.lineno})"
    return text
