"""One piece's way up: from steps to a graph, and on to compiled code.

It is watched while it runs by steps: which numbers change, and which inputs are other tensors each time. What a faster
way of running it takes for granted is looked at before each run; where it does not hold, the piece runs by steps, and
after a few times that way is made anew without it.
"""

from __future__ import annotations

import time
import weakref
from concurrent.futures import Future
from typing import Any

import torch

from gt.worker.engines import Engine
from gt.worker.hot.compiled import Compiled, cells, lying, no_waits, snapshot
from gt.worker.hot.compiler import Shared, Work, line
from gt.worker.hot.donated import donations
from gt.worker.hot.graph import Graph
from gt.worker.hot.guard import shares_written
from gt.worker.hot.piece import Halfway, Piece, title
from gt.worker.hot.program import Program, Unfit, mutated
from gt.worker.hot.runner import HELD, LAYOUT, NUMBERS, SHARED, Runner
from gt.worker.space import DeviceBroken

#: runs before a piece is hot, and the operands of a single instruction that is worth it: an optimizer's step
HOT, WORK = 8, 8
#: how often it is made anew, and how often in a row its inputs may lie otherwise before it is
REMAKES, ODD_LAYOUTS = 4, 4
#: errors of compiled code before it is given up: an index out of range is one, and its piece then fails by steps
ERRORS = 3
#: how much quicker than the steps compiled code must be, on a CPU, to be worth its memory
WORTH = 1.0


class Watch:
    """What changes from run to run."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._numbers: list[Any] | None = None
        self._seen: list[Any] = []
        self.varying: set[int] = set()
        #: inputs that were other tensors in the last run than in the one before
        self.fresh: frozenset[int] = frozenset(piece.freed)

    def note(self, inputs: list[Any], numbers: list[Any]) -> None:
        before, self._numbers = self._numbers, list(numbers)
        if before is not None and before != numbers:
            self.varying.update(k for k, (a, b) in enumerate(zip(before, numbers, strict=True)) if a != b)
        if self._seen:
            self.fresh = frozenset(
                i for i, (ref, x) in enumerate(zip(self._seen, inputs, strict=True)) if ref() is not x
            )
        self._seen = [weakref.ref(x) for x in inputs]


class Track:
    def __init__(self, piece: Piece, engine: Engine, at_once: bool, shared: Shared) -> None:
        self.piece, self.engine, self.at_once, self.shared = piece, engine, at_once, shared
        self.device = torch.device(engine.device)
        self.on_gpu = shared.graphs is not None
        self.watch = Watch(piece)
        #: runs in all, and since it was last made anew
        self.runs = self.since = 0
        self.fast = self.remakes = self.errors = self.odd = 0
        self.active: Graph | Runner | None = None
        self.job: Future[Compiled] | None = None
        #: compiled, but not yet the way it is run
        self.ready: Compiled | None = None
        small = len(piece.steps) < 2 and sum(len(step.operands) for step in piece.steps) < WORK
        self.ended = not piece.steps or (small and not at_once)
        self.graphed = False
        #: for the compiler, which had too much to do
        self.waits = False
        #: is it to become more than a graph?
        self.compiles = True
        #: may results be written over inputs that nobody else needs?
        self.donates = True
        self.reasons: list[str] = []
        self.seconds = self.by_steps = self.quick = 0.0

    @property
    def level(self) -> str:
        return "template" if self.active is None else self.active.level

    # -- a run ---------------------------------------------------------------------------

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | None:
        self.runs += 1
        self.since += 1
        if self.job is not None and self.job.done():
            self._take()
        if self.ready is not None:
            self._swap(inputs)
        if self.active is not None:
            if self.waits:
                self._begin(inputs, numbers, wait=False)
            return self._fast(self.active, inputs, numbers, store)
        if self.ended:
            return None
        self.watch.note(inputs, numbers)
        if self.at_once:
            self._begin(inputs, numbers, wait=True)
            if self.ready is not None:
                self._swap(inputs)
            if self.active is not None:
                return self._fast(self.active, inputs, numbers, store)
        elif self.since >= HOT:
            if self.on_gpu and not self.graphed:
                self._graph(inputs, numbers)
            if not self.compiles:
                self.ended = True
            elif self.job is None and self.ready is None:
                self._begin(inputs, numbers, wait=False)
        return None

    def _fast(
        self, active: Graph | Runner, inputs: list[Any], numbers: list[Any], store: dict[int, Any]
    ) -> list[Any] | None:
        try:
            made = active.run(inputs, numbers, store) if self.fast != 2 else self._timed(active, inputs, numbers, store)
        except Halfway as halfway:
            self._alive(halfway.error)
            self._wrong(halfway.error)
            raise
        except Exception as error:
            self._alive(error)
            self._wrong(error)
            return None
        if type(made) is list:
            self.fast += 1
            self.odd = 0
            return made
        if made is not HELD:
            if made == NUMBERS:
                self.watch.note(inputs, numbers)
                self.watch.varying.update(active.fixed.others(numbers))
            self.donates = self.donates and made != SHARED
            self._missed(str(made))
        return None

    def _timed(self, active: Any, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> Any:
        """The one run that is waited for, to know how long it takes."""
        self._settle()
        began = time.perf_counter()
        made = active.run(inputs, numbers, store)
        self._settle()
        self.quick = time.perf_counter() - began
        return made

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    # -- what did not hold ---------------------------------------------------------------

    def _missed(self, why: str) -> None:
        if why == LAYOUT:
            self.odd += 1
            if self.odd < ODD_LAYOUTS:
                return
        self._drop()
        self.remakes += 1
        if self.remakes > REMAKES:
            said = "its numbers" if why == NUMBERS else "where its inputs lie"
            self.end(f"compiled {self.remakes} times, and {said} changed again")
        elif not self.at_once:
            self.since = HOT // 2

    def _alive(self, error: Exception) -> None:
        """An error of a capture reads like one of the device's: but then the device goes on."""
        if self.engine.is_broken(error):
            try:
                torch.zeros(1, device=self.device).item()
            except Exception:
                raise DeviceBroken(line(error)) from error

    def _wrong(self, error: Exception) -> None:
        self.errors += 1
        self.shared.detail(self.piece, error)
        if self.errors >= ERRORS:
            self._drop()
            self.end(line(error))

    def _drop(self) -> None:
        self._rest()
        self.ready, self.job, self.graphed, self.fast, self.odd = None, None, False, 0, 0

    def end(self, reason: str, quiet: bool = False) -> None:
        """It stays at the level it has."""
        self.ended = True
        self.reasons.append(reason)
        text = f"a piece of {title(self.piece)} is not compiled: {reason}"
        if self.shared.debug:
            self.shared.debug(text)
        if not quiet:
            self.shared.notices.append((reason, text))

    # -- ways up -------------------------------------------------------------------------

    def _graph(self, inputs: list[Any], numbers: list[Any]) -> None:
        """A graph of the steps as they are: quick to make."""
        if not self.shared.capturing.acquire(blocking=False):
            return
        try:
            self.graphed = True
            program = self._program(inputs, numbers, compiled=False)
            copies, kept = snapshot(inputs), cells(program, numbers)
            if copies is None:
                raise Unfit("there is no room for a trial")
            with no_waits(self.device):
                program(copies, *kept)  # kernels are loaded in their first run, before a capture
            del copies
            self.active = Graph(program, program, "graph", inputs, self._copied(program), self.shared.capture)
            self._tell("a graph of")
        except Exception as error:
            self._alive(error)
            self.reasons.append(f"no graph: {line(error)}")
            self.shared.detail(self.piece, error)
        finally:
            self.shared.capturing.release()

    def _program(self, inputs: list[Any], numbers: list[Any], compiled: bool) -> Program:
        donated = donations(self.piece, inputs) if self.donates else {}
        return Program(self.piece, numbers, frozenset(self.watch.varying), self.device, compiled, donated)

    def _copied(self, program: Program) -> frozenset[int]:
        """Inputs to be copied into a graph's own buffers."""
        fresh = self.active.fresh if isinstance(self.active, Graph) else self.watch.fresh
        return frozenset(fresh) - program.mutated

    def _begin(self, inputs: list[Any], numbers: list[Any], wait: bool) -> None:
        self.waits = not wait and self.shared.busy()
        if self.waits:
            return
        if shares_written(inputs, mutated(self.piece)):
            self.end("an input shows memory that the piece writes to")
            return
        try:
            program = self._program(inputs, numbers, compiled=True)
            copies = snapshot(inputs)
        except Exception as error:
            self.shared.detail(self.piece, error)
            self.end(line(error))
            return
        shown = [lying(x) for x in inputs] if copies is None else copies  # the inputs themselves will not wait
        work = Work(self.piece, program, shown, list(numbers), copies is not None)
        self.job = self.shared.submit(work, wait)
        if wait:
            self._take()

    def _take(self) -> None:
        """What the compiler made."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            made = job.result()
        except BaseException as error:
            self.shared.detail(self.piece, error)
            self.end(line(error))
            return
        self.seconds += made.seconds
        self.by_steps = made.took[0]
        if not self.on_gpu and not self.at_once and made.took[0] and made.took[1] > WORTH * made.took[0]:
            self.end(f"no quicker: {made.took[1] * 1e6:.0f} us, by steps {made.took[0] * 1e6:.0f} us", quiet=True)
            return
        self.ready = made
        self._tell(f"compiled in {made.seconds:.1f} s:")

    def _tell(self, what: str) -> None:
        if self.shared.debug:
            self.shared.debug(f"{what} {title(self.piece)}")

    def _swap(self, inputs: list[Any]) -> None:
        """From the next call on: that is, from this one."""
        compiled = self.ready
        assert compiled is not None
        if [x.stride() for x in inputs] != compiled.strides or shares_written(inputs, compiled.program.mutated):
            self._missed(LAYOUT)  # it was made for others
            return
        if not self.on_gpu:
            self._activate(Runner(compiled, inputs))
        elif not compiled.warm:  # kernels are loaded in the first run, and none may be in a capture
            self._activate(Runner(compiled, inputs), stays=False)
            compiled.warm = True
        elif self.shared.capturing.acquire(blocking=self.at_once):
            copied = self._copied(compiled.program)
            self._rest()  # its memory may be needed
            try:
                graph = Graph(compiled.program, compiled, "compiled", inputs, copied, self.shared.capture)
                self._activate(graph)
            except Exception as error:
                self._alive(error)
                self.shared.detail(self.piece, error)
                self.reasons.append(f"no graph of what was compiled: {line(error)}")
                self._activate(Runner(compiled, inputs))
            finally:
                self.shared.capturing.release()

    def _rest(self) -> None:
        if self.active is not None:
            self.active.close()
            self.active = None

    def _activate(self, runner: Graph | Runner, stays: bool = True) -> None:
        self._rest()
        self.active, self.fast = runner, 0
        if stays:
            self.ready = None

    # -- from outside --------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        saved = self.fast * (self.by_steps - self.quick) if self.by_steps and self.quick else 0.0
        return {
            "length": len(self.piece.steps),
            "title": title(self.piece),
            "runs": self.runs,
            "level": self.level,
            "compile_seconds": self.seconds,
            "saved_seconds": max(0.0, saved),
            "reasons": list(self.reasons),
        }

    def close(self) -> None:
        self._drop()
        self.ended = True
