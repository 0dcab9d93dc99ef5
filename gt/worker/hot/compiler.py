"""What the pieces of a worker share: the thread that compiles, and who may capture a graph."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from gt.say import topic
from gt.worker.engines import Engine
from gt.worker.hot.compiled import Compiled, build, trial
from gt.worker.hot.folder import settle
from gt.worker.hot.graph import CudaGraphs
from gt.worker.hot.piece import Piece, title
from gt.worker.hot.program import Program, Unfit

#: pieces that wait for the compiler; each holds a copy of its inputs
QUEUE = 4
#: seconds the worker's thread waits for the compiler's, at most, each time it comes back from a kernel
SHARE = 1e-4


def prepare(engine: Engine) -> None:
    """Before anything is compiled in this process, and before the compiler is imported: that settles its folder too."""
    on_gpu = torch.device(engine.device).type == "cuda"
    device = torch.cuda.get_device_name(engine.device) if on_gpu else "cpu"
    settle(device, torch.__version__, _triton())


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


#: errors that say little without the place they come from
SLIPS = (AttributeError, TypeError, LookupError, AssertionError)


@dataclass(slots=True)
class Work:
    """What the compiler is given."""

    piece: Piece
    program: Program
    inputs: list[Any]
    numbers: list[Any]
    #: are the inputs copies, that it may try its work on?
    tried: bool

    def do(self, capturing: Any) -> Compiled:
        made = build(self.program, self.inputs)
        if self.tried:
            with capturing:
                trial(self.piece, made, self.inputs, self.numbers, timed=True)
        self.inputs = []
        return made


class Shared:
    def __init__(self, engine: Engine, graphs: Any = None, notices: list[tuple[str, str]] | None = None) -> None:
        """``graphs``: what captures, if not the device itself. ``notices``: see `Levels`."""
        device = torch.device(engine.device)
        self.graphs: Any = graphs or (CudaGraphs(device) if device.type == "cuda" else None)
        self.debug = topic("GT_DEBUG_COMPILE")
        self.notices = [] if notices is None else notices
        #: held by whoever captures a graph, or tries what was compiled
        self.capturing = threading.RLock()
        self._waiting: list[tuple[Work, Future[Compiled]]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def capture(self, run: Any, operands: list[Any]) -> Any:
        with self.capturing:
            return self.graphs.capture(run, operands)

    def submit(self, work: Work, wait: bool) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        if wait:
            self._do(work, future)
            return future
        with self._wake:
            self._waiting.append((work, future))
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="gt-compile", daemon=True)
            self._thread.start()
        return future

    def busy(self) -> bool:
        return len(self._waiting) >= QUEUE

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                # the longest first: most of the time is there
                longest = max(range(len(self._waiting)), key=lambda k: len(self._waiting[k][0].piece.steps))
                work, future = self._waiting.pop(longest)
            before = sys.getswitchinterval()
            sys.setswitchinterval(SHARE)
            self._do(work, future)
            sys.setswitchinterval(before)

    def _do(self, work: Work, future: Future[Compiled]) -> None:
        try:
            future.set_result(work.do(self.capturing))
        except BaseException as error:
            future.set_exception(error)

    def detail(self, piece: Piece, error: BaseException) -> None:
        if self.debug and not isinstance(error, Unfit):
            self.debug(f"{title(piece)}:\n" + "".join(traceback.format_exception(error)))

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._waiting.clear()
            self._wake.notify()


def line(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:200] if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SLIPS) and frames:
        last = frames[-1]
        text += f" ({type(error).__name__} in {os.path.basename(last.filename)}:{last.lineno})"
    return text
