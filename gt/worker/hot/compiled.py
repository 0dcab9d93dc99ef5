"""Compiles a program with inductor, the compiler of `torch.compile`: traced to an FX graph of torch ops, then compiled.

The result is one callable for fixed shapes, strides and constants, which `gt.worker.hot.guard` checks before each run.
Tensors that the section creates and frees are not results. What it writes in place is written into the inputs.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from gt.worker.hot.pads import remove_pads
from gt.worker.hot.program import Program
from gt.worker.hot.traced_forms import TracedForms
from gt.worker.hot.verdicts import verdict_key

#: With how many of the nodes that use the same tensor inductor compares a node. All updates of an optimizer read its
#: numbers: with inductor's own 64, a seventh of the time for a training step is spent on pairs of updates.
COMPARED_NODES = 16

#: held while torch traces: its tracer is not thread-safe
_tracing = threading.Lock()


@dataclass
class CompiledProgram:
    """A program and its compiled code. A call returns the results of the section."""

    program: Program
    call: Callable[..., Any]
    #: for each result the inputs and results that it shares memory with when it is interpreted (see `memory_sharing`)
    expected_sharing: list[set[int]]
    #: the strides of the inputs that it was compiled for
    strides: list[tuple[int, ...]]
    #: how long compiling took
    seconds: float
    #: names the code in `Verdicts`
    key: str = ""
    has_run: bool = False
    #: whether it was compared with the interpreter, now or by an earlier process, or there was not enough memory for it
    tried: bool = False
    #: results that share memory in the compiled code only; each run clones them. None before the first run
    cloned: list[int] | None = None
    #: seconds of an interpreted and of a compiled run; 0 where not measured
    run_seconds: tuple[float, float] = field(default=(0.0, 0.0))
    #: the same as graphs
    graph_seconds: tuple[float, float] = field(default=(0.0, 0.0))

    def __call__(self, inputs: list[Any], floats: Any, ints: Any) -> list[Any]:
        results = list(self.call(*inputs, floats, ints))
        if self.program.checks_positions and results.pop():
            raise IndexError("a position is out of range")
        if self.cloned is None:
            sharing = memory_sharing(inputs, results)
            together = memory_sharing([], inputs)  # for each input ~k of the others that share its memory
            expected = [{*own, *(~k for i in own if i >= 0 for k in together[i])} for own in self.expected_sharing]
            self.cloned = [i for i, (actual, legal) in enumerate(zip(sharing, expected, strict=True)) if actual - legal]
        for i in self.cloned:
            results[i] = results[i].clone()
        for i, k in self.program.donated.items():
            results[i] = inputs[k]  # the input itself: a view of it would hold a second reference to its memory
        self.has_run = True
        return results


@dataclass(frozen=True, slots=True)
class StridedSpec:
    """Shape, strides, dtype and device of a tensor, without its memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    def stride(self) -> tuple[int, ...]:
        return self.strides


def strided_spec(x: Any) -> StridedSpec:
    return StridedSpec(x.shape, x.stride(), x.dtype, x.device)


def build(program: Program, inputs: list[StridedSpec]) -> CompiledProgram:
    """Compile a program for inputs with these shapes and strides."""
    started = time.monotonic()
    with _tracing, torch.no_grad(), silence_compiler():
        call, expected, key = _compile(program, inputs)
    return CompiledProgram(program, call, expected, [x.stride() for x in inputs], time.monotonic() - started, key)


def _compile(program: Program, inputs: list[StridedSpec]) -> tuple[Any, list[set[int]], str]:
    """The compiled callable, and `CompiledProgram.expected_sharing` and `key`."""
    import torch._inductor.config as inductor
    from torch._guards import TracingContext, tracing
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    inductor.max_fusion_buffer_group_pairwise_attempts = COMPARED_NODES
    if program.device.type == "cpu":
        inductor.compile_threads = 1  # one is enough; more would start processes that keep running
    else:
        AsyncCompile.wakeup()  # Triton's processes start while this thread traces
    expected: list[set[int]] = []

    def run(*operands: Any) -> list[Any]:
        inputs, cells = list(operands[:-2]), operands[-2:]
        with TracedForms("cuda") as forms:
            results = program(inputs, *cells)
        expected[:] = memory_sharing(inputs, results[: len(program.section.results)])
        # what shares memory stays as it is
        return [x if shared else forms.in_usual_order(x) for x, shared in zip_longest(results, expected)]

    # with a ShapeEnv inductor keeps its results on disk
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        cells = [torch.empty(program.cell_count, dtype=t, device=program.device) for t in (torch.float64, torch.int64)]
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs] + cells
        graph = make_fx(run)(*fakes)
        remove_pads(graph)
    key = verdict_key(program, graph, inputs)
    with tracing(TracingContext(mode)):
        return compile_fx(graph, fakes), expected, key


def make_cells(program: Program, numbers: list[Any]) -> tuple[Any, Any]:
    """The numbers of a run in memory, viewed as float64 and as int64."""
    cells = torch.zeros(program.cell_count, dtype=torch.float64)
    program.cells.pack_into(cells.numpy().data, 0, *program.cell_values(numbers))
    cells = cells.to(program.device)
    return cells, cells.view(torch.int64)


class silence_compiler:  # noqa: N801, a context manager
    """Suppresses the compiler's warnings and logs: they are about generated code."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("torch._inductor").setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        self._caught.__exit__(None, None, None)


def memory_sharing(inputs: list[Any], results: list[Any]) -> list[set[int]]:
    """For each result the inputs (k for input k) and the other results (~k for result k) with the same memory."""
    users: dict[int, set[int]] = {}
    for i, x in enumerate(inputs):
        users.setdefault(x.untyped_storage()._cdata, set()).add(i)
    for i, x in enumerate(results):
        users.setdefault(x.untyped_storage()._cdata, set()).add(~i)
    return [users[x.untyped_storage()._cdata] - {~i} for i, x in enumerate(results)]
