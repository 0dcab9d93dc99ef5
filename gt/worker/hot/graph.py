"""A program as a CUDA graph: its kernels, with all their arguments, launched at once.

A graph reads and writes the addresses of its capture. So

- an input that is the same tensor in each run (a parameter, an optimizer's state, a result of another graph) is
  captured at its address, and each run checks that it is still there. Any other input is copied into a buffer of the
  graph, and back again if the section writes to it;
- numbers that change are in a buffer that is written before each run;
- results are at the addresses of the run before. If a result of that run is still in use when the section runs again,
  the worker's store gets a copy of it first, and from then on that result is copied after each run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from gt.worker.hot.donation import exclusive
from gt.worker.hot.graph_outputs import GraphOutputs
from gt.worker.hot.guard import (
    INPUT_IN_USE,
    LAYOUT_CHANGED,
    NUMBERS_CHANGED,
    RESULT_IN_USE,
    Guard,
    without_repeats,
)
from gt.worker.hot.program import NotTranslatable, Program
from gt.worker.hot.section import PartialRun

#: Rows of numbers on the host. The host waits for the device before it has written this many rows ahead.
NUMBER_ROWS = 64
#: An input that has changed its address this often is copied in all later runs.
MAX_ADDRESS_CHANGES = 2
#: The interval of a review: an input that was copied from the beginning, and that was the same tensor in all runs since
#: the last review, is captured at its address.
REVIEW_INTERVAL_RUNS = 32

#: (inputs, numbers as float64, the same as int64) -> results: a `Program` or a `CompiledProgram`
Function = Callable[[list[Any], Any, Any], list[Any]]
#: (function to capture, its operands) -> the results, and a function that computes them again
Capture = Callable[[Callable[..., list[Any]], list[Any]], tuple[list[Any], Callable[[], None]]]


class CudaGraphs:
    """Captures graphs on a device. A capture computes nothing; each replay does."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[..., list[Any]], operands: list[Any]) -> tuple[list[Any], Callable[[], None]]:
        """The results, and a function that computes them again from the same addresses. It keeps no operand alive."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._capture_stream.wait_stream(current)
        try:
            # thread_local: calls of the compiler's thread do not break this capture
            with (
                torch.no_grad(),
                torch.cuda.graph(graph, stream=self._capture_stream, capture_error_mode="thread_local"),
            ):
                # aliases: what a kernel has noted on an operand, or notes on a result, is not part of the graph
                results = [x.detach() for x in run([x.detach() for x in operands])]
        except BaseException:  # torch leaves the capture stream current, and that stream is not usable any more
            torch.cuda.set_stream(current)
            self._capture_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            raise
        current.wait_stream(self._capture_stream)
        return results, graph.replay


class CapturedGraph:
    """Runs a section as a graph, which it captures again where addresses change."""

    def __init__(
        self, program: Program, call: Function, level: str, inputs: list[Any], copied: frozenset[int], capture: Capture
    ) -> None:
        """``copied``: the inputs that are other tensors in each run."""
        self.level, self.program = level, program
        self._call, self.constants, self._capture_call = call, program.constants, capture
        self._numbers = NumberBuffer(program)
        self._copied = set(copied)
        #: inputs that were other tensors in the last run than in the one before
        self.fresh: Collection[int] = copied
        #: inputs that changed in any run since the last review
        self._changed_since_review: set[int] = set()
        self._runs = 0
        self._address_changes: dict[int, int] = {}
        self._outputs: GraphOutputs | None = None
        self._capture(inputs)

    # -- capturing -----------------------------------------------------------------------

    def _capture(self, inputs: list[Any]) -> None:
        self._usable = False
        self.guard = Guard(inputs, self.program.mutated)
        if not self.guard.fits(inputs, list(range(len(inputs)))):
            raise NotTranslatable("an input shares memory that the section writes")
        self._addresses = [(x.data_ptr(), x.stride()) for x in inputs]
        self._copied_order = sorted(self._copied)
        still_copied = self._outputs.copied if self._outputs is not None else set()
        self.close()  # before the capture, which can then have the memory of the one before
        buffers = {i: _buffer(inputs[i]) for i in self._copied_order}
        operands = [*(buffers.get(i, x) for i, x in enumerate(inputs)), self._numbers.floats]
        call, ints = self._call, self._numbers.ints
        results, self._replay = self._capture_call(lambda values: call(values[:-1], values[-1], ints), operands)
        self._buffers = [without_repeats(buffers[i]) for i in self._copied_order]
        # whether a buffer has dims that a stride of 0 repeats; it holds each element once
        self._repeats = any(buffers[i].shape != x.shape for i, x in zip(self._copied_order, self._buffers, strict=True))
        self._copy_back = [k for k, i in enumerate(self._copied_order) if i in self.program.mutated]
        for index in self.program.donated:
            results[index] = None
        private = {*self._copied_order, len(inputs)}
        self._outputs = GraphOutputs(results, operands, private, still_copied, self.program.donated)
        self._usable = True

    def _address_changed(self, inputs: list[Any], changed: list[int]) -> bool:
        """Whether an input that was captured at its address has another one in this run. Counts the changes."""
        moved = [
            i
            for i in changed
            if i not in self._copied and (inputs[i].data_ptr(), inputs[i].stride()) != self._addresses[i]
        ]
        for i in moved:
            self._address_changes[i] = self._address_changes.get(i, 0) + 1
            if self._address_changes[i] >= MAX_ADDRESS_CHANGES:
                self._copied.add(i)
        return bool(moved)

    def _review_copied(self, inputs: list[Any]) -> None:
        """Stop copying inputs that are the same tensors in each run."""
        stable = {
            i
            for i in self._copied - self._changed_since_review
            if self._address_changes.get(i, 0) < MAX_ADDRESS_CHANGES
        }
        if stable:
            self._copied -= stable
            self._capture(inputs)
        self._changed_since_review = set()

    # -- running -------------------------------------------------------------------------

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | str:
        """The results, or why the run was not possible."""
        if not self.constants.hold(numbers):
            return NUMBERS_CHANGED
        if self.program.donated and not exclusive(inputs, self.program.donated.values()):
            return INPUT_IN_USE
        if not self._usable:
            raise NotTranslatable("it could not be captured again")
        changed = self.fresh = self.guard.changed(inputs)
        if changed:
            if not self.guard.fits(inputs, changed):
                return LAYOUT_CHANGED
            if not self._copied.issuperset(changed) and self._address_changed(inputs, changed):
                self._capture(inputs)
            self.guard.remember(inputs, changed)
            self._changed_since_review.update(changed)
        self._runs += 1
        if self._runs % REVIEW_INTERVAL_RUNS == 0 and self._copied:
            self._review_copied(inputs)
        outputs = self._outputs
        assert outputs is not None
        if not outputs.unused() and not outputs.release(store):
            return RESULT_IN_USE
        self._numbers.write(numbers)
        if self._copied_order:
            sources = [inputs[i] for i in self._copied_order]
            torch._foreach_copy_(self._buffers, [without_repeats(x) for x in sources] if self._repeats else sources)
        try:
            self._replay()
            for k in self._copy_back:
                inputs[self._copied_order[k]].copy_(self._buffers[k])
            return outputs.take(inputs)
        except Exception as error:
            if self.program.mutated:
                raise PartialRun(error) from None
            raise

    def close(self) -> None:
        self._outputs, self._buffers, self._replay = None, [], lambda: None


def _buffer(x: Any) -> Any:
    buffer = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    elements = without_repeats(buffer)
    if elements is None:
        raise NotTranslatable("elements of an input overlap")
    elements.zero_()
    return buffer


class NumberBuffer:
    """The numbers that change. The host writes them into pinned rows; a copy brings them into the graph's memory."""

    def __init__(self, program: Program) -> None:
        self._program, self._count = program, program.cell_count
        self.floats = torch.zeros(self._count, dtype=torch.float64, device=program.device)
        self.ints = self.floats.view(torch.int64)
        self._last: Any = None
        self._row = 0
        if self._count:
            self._on_gpu = program.device.type == "cuda"
            self._rows = torch.empty((NUMBER_ROWS, self._count), dtype=torch.float64, pin_memory=self._on_gpu)
            self._memory, self._row_views = self._rows.numpy().data, list(self._rows)
            # one event for each half of the rows: a half is reused once all copies from it are complete
            self._half_copied = [torch.cuda.Event() for _ in range(2 * self._on_gpu)]  # type: ignore[no-untyped-call]

    def write(self, numbers: list[Any]) -> None:
        if not self._count:
            return
        values = self._program.cell_values(numbers)
        if values == self._last:
            return
        self._last = values
        row = self._row
        self._program.cells.pack_into(self._memory, row * self._count * 8, *values)
        self.floats.copy_(self._row_views[row], non_blocking=True)
        self._row = row = (row + 1) % NUMBER_ROWS
        if self._on_gpu and row % (NUMBER_ROWS // 2) == 0:
            half = row // (NUMBER_ROWS // 2)
            self._half_copied[1 - half].record()
            self._half_copied[half].synchronize()
