"""Moves one section from level to level: interpreted, then a graph, then compiled code.

While a section is interpreted, the switch records which numbers change and which inputs are other tensors in each run.
A faster level relies on these records, and checks them before each run. If they do not hold, the section is interpreted
in this run. The faster level is then dropped, for another layout only after a few such runs, and built again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from gt.worker.engines import Engine
from gt.worker.engines.device_waits import no_device_waits
from gt.worker.hot.change_recorder import ChangeRecorder, Settling
from gt.worker.hot.changes import describe_layout, describe_miss
from gt.worker.hot.compiled import CompiledProgram, make_cells, strided_spec
from gt.worker.hot.compiler import CompileJob, Compiler, error_summary
from gt.worker.hot.donation import donations
from gt.worker.hot.graph import CapturedGraph
from gt.worker.hot.guard import INPUT_IN_USE, LAYOUT_CHANGED, NUMBERS_CHANGED, RESULT_IN_USE, shares_written
from gt.worker.hot.program import NotTranslatable, Program, mutated
from gt.worker.hot.runner import CompiledRunner, timed_run
from gt.worker.hot.section import PartialRun, Section, title
from gt.worker.hot.trial import has_memory, preserved, run_trial, slower

#: Runs after which a section is hot.
HOT_RUNS = 8
#: A section of a single instruction needs this many operands to be worth a faster level: then it is the step of an
#: optimizer.
MIN_SINGLE_OPERANDS = 8
#: How often the faster level is built again.
MAX_REBUILDS = 4
#: Runs in a row with another layout after which the faster level is dropped.
MAX_LAYOUT_MISSES = 4
#: Errors after which the section stays interpreted. An index out of range is such an error; the interpreter reports it.
MAX_ERRORS = 3

Active = CapturedGraph | CompiledRunner


class LevelSwitch:
    """Runs one section at the best level that is ready."""

    def __init__(
        self,
        section: Section,
        engine: Engine,
        at_once: bool,
        compiler: Compiler,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        """``at_once``: compile the section on its first run, and wait for it if ``may_wait`` allows that."""
        self.section, self.engine, self.at_once, self.compiler = section, engine, at_once, compiler
        self._may_wait = may_wait
        self.device = torch.device(engine.device)
        self.on_gpu = compiler.graphs is not None
        self.recorder = ChangeRecorder(section)
        self.settling = Settling(compiler.relocations)
        #: all runs; runs since the faster level was last dropped
        self.runs = self.runs_since_drop = 0
        #: runs at the active level; rebuilds; errors; runs in a row with another layout
        self.fast_runs = self.rebuilds = self.errors = self.layout_misses = 0
        #: what runs the section; None: the interpreter
        self.active: Active | None = None
        self.job: Future[CompiledProgram] | None = None
        #: compiled, but not active yet
        self.ready: CompiledProgram | None = None
        operands = sum(len(call.operands) for call in section.calls)
        small = len(section.calls) < 2 and operands < MIN_SINGLE_OPERANDS
        #: whether the section stays at its level for good
        self.final = not section.calls or (small and not at_once)
        self.graph_tried = False
        #: whether the compiler's queue was full
        self.must_resubmit = False
        #: whether it may be compiled, and not only become a graph
        self.compiles = True
        #: whether results may be written into inputs that are freed
        self.donates = True
        self.reasons: list[str] = []
        self.compile_seconds = self.interpreted_seconds = self.fast_seconds = 0.0

    @property
    def level(self) -> str:
        """The level's name in statistics, where "template" means interpreted."""
        return "template" if self.active is None else self.active.level

    # -- a run ---------------------------------------------------------------------------

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | None:
        """See `Levels.run`."""
        self.runs += 1
        self.runs_since_drop += 1
        self.settling.begin_run()
        if self.job is not None and self.job.done():
            self._take_compiled()
        if not isinstance(self.active, CapturedGraph) and (self.ready is not None or not (self.active or self.final)):
            self.recorder.record(inputs, numbers)
        if self.ready is not None:
            self._activate_compiled(inputs, numbers)
        if self.active is not None:
            if self.must_resubmit:
                self._submit(inputs, numbers, wait=False)
            return self._run_active(self.active, inputs, numbers, store)
        if self.final:
            return None
        if self.at_once:
            self._improve_at_once(inputs, numbers)
            if self.active is not None:
                return self._run_active(self.active, inputs, numbers, store)
        elif self.runs_since_drop >= HOT_RUNS:
            self._try_graph(inputs, numbers)
            if self.compiles and self.job is None and self.ready is None and (self.graph_tried or not self.on_gpu):
                self._submit(inputs, numbers, wait=False)
        return None

    def _improve_at_once(self, inputs: list[Any], numbers: list[Any]) -> None:
        if self.compiles and self.job is None:
            self._submit(inputs, numbers, wait=self._may_wait())
        if self.ready is not None:
            self._activate_compiled(inputs, numbers)
        if not self.compiles:
            self._try_graph(inputs, numbers)

    def _run_active(
        self, active: Active, inputs: list[Any], numbers: list[Any], store: dict[int, Any]
    ) -> list[Any] | None:
        try:
            if self.fast_runs == 2:
                outcome, self.fast_seconds = timed_run(active, self.device, inputs, numbers, store)
            else:
                outcome = active.run(inputs, numbers, store)
        except PartialRun as partial:
            self.compiler.check_device(partial.error)
            self._count_error(partial.error)
            raise
        except Exception as error:  # nothing was written: the section is interpreted, which reports the instruction
            self.compiler.check_device(error)
            self._count_error(error)
            return None
        if type(outcome) is list:
            self.fast_runs += 1
            self.layout_misses = 0
            return outcome
        if outcome is not RESULT_IN_USE:
            if outcome == NUMBERS_CHANGED:
                self.recorder.record(inputs, numbers)
                self.recorder.varying.update(active.constants.changed(numbers))
            self.donates = self.donates and outcome != INPUT_IN_USE
            constants, strides = active.constants, active.guard.strides
            self._drop_after_miss(
                str(outcome),
                lambda: describe_miss(str(outcome), self.section, constants, strides, inputs, numbers),
            )
        return None

    # -- runs that were not possible -----------------------------------------------------

    def _drop_after_miss(self, why: str, change: Callable[[], str]) -> None:
        """Drop the faster level because a run was not possible; after another layout only from the n-th time on.

        ``change()`` says what is different in this run.
        """
        if why == LAYOUT_CHANGED:
            self.layout_misses += 1
            if self.layout_misses < MAX_LAYOUT_MISSES:
                return
        self._drop()
        self.rebuilds += 1
        if self.rebuilds > MAX_REBUILDS:
            what = "its numbers" if why == NUMBERS_CHANGED else "the layout of its inputs"
            self.stay(f"compiled {self.rebuilds} times, and {what} changed again")
            return
        if self.compiler.debug:
            self.compiler.debug(f"Recompiling {title(self.section)}: {change()}")
        if not self.at_once:
            self.runs_since_drop = HOT_RUNS // 2

    def _count_error(self, error: Exception) -> None:
        self.errors += 1
        self.compiler.log_error(self.section, error)
        if self.errors >= MAX_ERRORS:
            self._drop()
            self.stay(error_summary(error))

    def _drop(self) -> None:
        self._deactivate()
        self.ready, self.job, self.graph_tried, self.fast_runs, self.layout_misses = None, None, False, 0, 0

    def stay(self, reason: str) -> None:
        """Keep the current level for good, and report why."""
        self._do_not_compile(reason)
        self.final = True

    def _do_not_compile(self, reason: str, quiet: bool = False) -> None:
        """The section may be a graph, but is not compiled. Report why, unless ``quiet``."""
        self.compiles, self.final = False, not self.on_gpu
        self.reasons.append(reason)
        text = f"a section of {title(self.section)} is not compiled: {reason}"
        if self.compiler.debug:
            self.compiler.debug(text)
        if not quiet:
            self.compiler.notices.append((reason, text))

    # -- faster levels -------------------------------------------------------------------

    def _try_graph(self, inputs: list[Any], numbers: list[Any]) -> None:
        if self.on_gpu and not self.graph_tried and (self.at_once or self._inputs_settled()):
            self._capture_graph(inputs, numbers)
            self.final = not self.compiles and self.active is None

    def _capture_graph(self, inputs: list[Any], numbers: list[Any]) -> None:
        """Capture the program without compiling it, which is quick."""
        self.graph_tried = True
        try:
            program = self._program(inputs, numbers, compiled=False)
            if not has_memory(self.section, inputs):
                raise NotTranslatable("there is not enough memory for a trial")
            cells = make_cells(program, numbers)
            # the first run loads the kernels, which a capture must not do
            with preserved([inputs[i] for i in program.mutated]), no_device_waits(self.device):
                program(inputs, *cells)
            copied = self._copied_inputs(program)
            self.active = CapturedGraph(program, program, "graph", inputs, copied, self._capture)
            self._log("a graph of")
        except Exception as error:  # a faster level is optional; the reason is reported
            self.compiler.check_device(error)
            self.reasons.append(f"no graph: {error_summary(error)}")
            self.compiler.log_error(self.section, error)

    def _program(self, inputs: list[Any], numbers: list[Any], compiled: bool) -> Program:
        donated = donations(self.section, inputs) if self.donates else {}
        return Program(self.section, numbers, frozenset(self.recorder.varying), self.device, compiled, donated)

    def _capture(self, run: Callable[..., list[Any]], operands: list[Any]) -> Any:
        """See `CudaGraphs.capture`."""
        self.settling.relocated()
        return self.compiler.graphs.capture(run, operands)

    def _fresh_inputs(self) -> Collection[int]:
        return self.active.fresh if isinstance(self.active, CapturedGraph) else self.recorder.fresh

    def _inputs_settled(self) -> bool:
        return self.settling.settled(self._fresh_inputs())

    def _copied_inputs(self, program: Program) -> frozenset[int]:
        """The inputs that a graph copies into its buffers: those that are other tensors in each run."""
        return frozenset(self._fresh_inputs()) - program.mutated

    def _submit(self, inputs: list[Any], numbers: list[Any], wait: bool) -> None:
        """Start compiling, unless the compiler's queue is full."""
        self.must_resubmit = not wait and self.compiler.busy()
        if self.must_resubmit:
            return
        if shares_written(inputs, mutated(self.section)):
            self.stay("an input shares memory that the section writes")
            return
        try:
            program = self._program(inputs, numbers, compiled=True)
        except Exception as error:  # a faster level is optional; the reason is reported
            self.compiler.log_error(self.section, error)
            self._do_not_compile(error_summary(error))
            return
        self.compiler.log_change(self.section)
        # not the inputs themselves: they may be freed before the compiler reads their strides
        job = CompileJob(self.section, program, [strided_spec(x) for x in inputs])
        self.job = self.compiler.submit(job, wait)
        if wait:
            self._take_compiled()

    def _take_compiled(self) -> None:
        """Take the result of the compiler; an error means that the section is not compiled."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            compiled = job.result()
        except BaseException as error:
            self.compiler.log_error(self.section, error)
            self._do_not_compile(error_summary(error))
            return
        self.compile_seconds += compiled.seconds
        self.ready = compiled
        self._log(f"{'loaded' if compiled.loaded else 'compiled'} in {compiled.seconds:.1f} s:")

    def _log(self, what: str) -> None:
        if self.compiler.debug:
            self.compiler.debug(f"{what} {title(self.section)}")

    def _passes_trial(self, compiled: CompiledProgram, inputs: list[Any], numbers: list[Any]) -> bool:
        """Compare the compiled code with the interpreter, once. If it is not good, the section stays interpreted."""
        if compiled.tried or not compiled.program.constants.hold(numbers):
            return True
        if (times := self.compiler.verdicts.find(compiled.key)) is not None:
            compiled.run_seconds, compiled.graph_seconds = times
            if not self._too_slow(compiled):
                compiled.tried, self.interpreted_seconds = True, compiled.run_seconds[0]
                self._log("passed its trial in an earlier process:")
                return True
        begun = time.perf_counter_ns()
        try:
            if has_memory(self.section, inputs):
                capture = self.compiler.graphs.capture if self.device.type == "cuda" else None
                plain = partial(self._program, inputs, numbers, compiled=False)
                run_trial(self.section, compiled, inputs, numbers, capture, plain, self._log)
                if not self._too_slow(compiled):
                    self.compiler.verdicts.keep(compiled.key, (compiled.run_seconds, compiled.graph_seconds))
        except NotTranslatable as error:
            self.ready = None
            self._do_not_compile(error_summary(error))
            return False
        except Exception as error:  # the interpreter reports it
            self.compiler.check_device(error)
            self._count_error(error)
            return False
        finally:
            self.compiler.waits.append((begun, time.perf_counter_ns()))
        compiled.tried = True
        self.interpreted_seconds = compiled.run_seconds[0]
        if reason := self._too_slow(compiled):
            self.ready = None
            self._do_not_compile(reason, quiet=True)
            return False
        return True

    def _too_slow(self, compiled: CompiledProgram) -> str:
        """Why it is not used, if it is slower than the section's own kernels."""
        return slower(compiled, self.on_gpu) if self.on_gpu or not self.at_once else ""

    def _activate_compiled(self, inputs: list[Any], numbers: list[Any]) -> None:
        """Use the compiled code from this run on."""
        compiled = self.ready
        assert compiled is not None
        if self.on_gpu and not self.at_once and not self._inputs_settled():
            return
        if [x.stride() for x in inputs] != compiled.strides or shares_written(inputs, compiled.program.mutated):
            # it was compiled for another layout
            self._drop_after_miss(LAYOUT_CHANGED, lambda: describe_layout(compiled.strides, inputs))
            return
        if not compiled.tried and isinstance(self.active, CapturedGraph):
            self.recorder.fresh = frozenset(self.active.fresh)
            self._deactivate()  # the trial needs its memory
        if not self._passes_trial(compiled, inputs, numbers):
            if self.active is None:
                self.graph_tried = False
                self._try_graph(inputs, numbers)
            return
        if not self.on_gpu:
            self._activate(CompiledRunner(compiled, inputs))
        elif not (compiled.has_run and self._inputs_settled()):  # a capture must not load the kernels
            self._activate(CompiledRunner(compiled, inputs), stays=False)
            compiled.has_run = True
        else:
            copied = self._copied_inputs(compiled.program)
            self._deactivate()  # the capture may need its memory
            try:
                self._activate(CapturedGraph(compiled.program, compiled, "compiled", inputs, copied, self._capture))
            except Exception as error:  # the compiled code runs without a graph; the reason is reported
                self.compiler.check_device(error)
                self.compiler.log_error(self.section, error)
                self.reasons.append(f"no graph of the compiled code: {error_summary(error)}")
                self._activate(CompiledRunner(compiled, inputs))

    def _deactivate(self) -> None:
        if self.active is not None:
            if isinstance(self.active, CapturedGraph):
                self.settling.relocated()
            self.active.close()
            self.active = None

    def _activate(self, runner: Active, stays: bool = True) -> None:
        self._deactivate()
        self.active, self.fast_runs = runner, 0
        if stays:
            self.ready = None

    # -- for `Levels` --------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        measured = self.interpreted_seconds and self.fast_seconds
        saved = self.fast_runs * (self.interpreted_seconds - self.fast_seconds) if measured else 0.0
        return {
            "length": len(self.section.calls),
            "title": title(self.section),
            "runs": self.runs,
            "level": self.level,
            "compile_seconds": self.compile_seconds,
            "saved_seconds": max(0.0, saved),
            "reasons": list(self.reasons),
        }

    def close(self) -> None:
        self._drop()
        self.final = True
