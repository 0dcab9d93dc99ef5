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

from gt.ops.operators import register_operators
from gt.worker.hot.kept_code import KeptCode, Sharing, key_for_torch, stand_in
from gt.worker.hot.pads import remove_pads
from gt.worker.hot.program import Program
from gt.worker.hot.traced_forms import TracedForms
from gt.worker.hot.verdicts import section_key

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
    expected_sharing: Sharing
    #: the strides of the inputs that it was compiled for
    strides: list[tuple[int, ...]]
    #: how long compiling took, or loading
    seconds: float
    #: names the code in `Verdicts`
    key: str = ""
    #: whether an earlier process compiled it
    loaded: bool = False
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


def build(program: Program, inputs: list[StridedSpec], kept: KeptCode | None = None) -> CompiledProgram:
    """Compile a program for inputs with these shapes and strides, or load the code that an earlier process has kept."""
    started, kept = time.monotonic(), kept or KeptCode("")
    with _tracing, torch.no_grad(), silence_compiler():
        _configure_compiler(program.device)
        key = section_key(program, inputs)
        call, expected = _load(program, inputs, key, kept)
        loaded = call is not None
        if not loaded:
            call, expected, key = _compile(program, inputs, key)
            kept.keep(key, expected)
    seconds = time.monotonic() - started
    return CompiledProgram(program, call, expected, [x.stride() for x in inputs], seconds, key, loaded)


def load_compiler(device: torch.device) -> None:
    """Compile something small. The first time imports the compiler and fills its tables, which takes seconds."""
    with _tracing, torch.no_grad(), silence_compiler():
        _configure_compiler(device)
        mode, fakes = _fakes([StridedSpec((16, 16), (16, 1), torch.float32, device)], 0, device)
        _compile_graph(_trace(lambda x, *cells: [torch.softmax(x @ x, 0)], mode, fakes), mode, fakes)


def _configure_compiler(device: torch.device) -> None:
    import torch._inductor.config as inductor

    inductor.max_fusion_buffer_group_pairwise_attempts = COMPARED_NODES
    if device.type == "cpu":
        inductor.compile_threads = 1  # one is enough; more would start processes that keep running
    from torch._inductor.async_compile import AsyncCompile

    if device.type != "cpu":
        AsyncCompile.wakeup()  # Triton's processes start while this thread traces


def _load(program: Program, inputs: list[StridedSpec], key: str, kept: KeptCode) -> tuple[Any, Sharing]:
    """The code that an earlier process has kept, or None, and `CompiledProgram.expected_sharing`."""
    expected = kept.find(key, len(program.section.results))
    if expected is None:
        return None, []
    register_operators()  # tracing would have imported those that the code calls
    mode, fakes = _fakes(inputs, program.cell_count, program.device)
    try:
        with key_for_torch(key, kept=True):
            return _compile_graph(stand_in(len(fakes)), mode, fakes), expected
    except (
        Exception
    ):  # torch has no such code, or cannot use it: tracing the section reports what is wrong, if anything
        return None, []


def _compile(program: Program, inputs: list[StridedSpec], key: str) -> tuple[Any, Sharing, str]:
    """The compiled callable, and `CompiledProgram.expected_sharing` and `key`."""
    mode, fakes = _fakes(inputs, program.cell_count, program.device)
    expected: Sharing = []

    def run(*operands: Any) -> list[Any]:
        inputs, cells = list(operands[:-2]), operands[-2:]
        with TracedForms("cuda") as forms:
            results = program(inputs, *cells)
        expected[:] = memory_sharing(inputs, results[: len(program.section.results)])
        # what shares memory stays as it is
        return [x if shared else forms.in_usual_order(x) for x, shared in zip_longest(results, expected)]

    graph = _trace(run, mode, fakes)
    remove_pads(graph)
    if any(node.op == "get_attr" for node in graph.graph.nodes):
        key = ""  # a tensor is a constant of the code
    with key_for_torch(key):
        return _compile_graph(graph, mode, fakes), expected, key


def _fakes(inputs: list[StridedSpec], cells: int, device: torch.device) -> tuple[Any, list[Any]]:
    """The operands of compiled code as tensors without memory, and the mode that they belong to."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())  # without a ShapeEnv inductor does not keep its results on disk
    with mode:
        tensors = [torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device=x.device) for x in inputs]
        return mode, [*tensors, *(torch.empty(cells, dtype=t, device=device) for t in (torch.float64, torch.int64))]


def _trace(run: Callable[..., list[Any]], mode: Any, fakes: list[Any]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode:
        return make_fx(run)(*fakes)


def _compile_graph(graph: torch.fx.GraphModule, mode: Any, fakes: list[Any]) -> Any:
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx

    with tracing(TracingContext(mode)):
        return compile_fx(graph, fakes)


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


def memory_sharing(inputs: list[Any], results: list[Any]) -> Sharing:
    """For each result the inputs (k for input k) and the other results (~k for result k) with the same memory."""
    users: dict[int, set[int]] = {}
    for i, x in enumerate(inputs):
        users.setdefault(x.untyped_storage()._cdata, set()).add(i)
    for i, x in enumerate(results):
        users.setdefault(x.untyped_storage()._cdata, set()).add(~i)
    return [users[x.untyped_storage()._cdata] - {~i} for i, x in enumerate(results)]
