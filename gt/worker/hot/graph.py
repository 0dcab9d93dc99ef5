"""A piece as a CUDA graph: its kernels, with all their arguments, launched at once.

A graph reads and writes where it did when it was captured. So

- an input that is the same tensor in each run (a parameter, an optimizer's state, a result of another graph) is
  captured where it lies, and each run looks whether it is still there. Any other is copied into a buffer of the
  graph's own, and back again if the piece writes to it;
- numbers that change lie in a buffer, written before each run;
- results lie where they did in the run before. If anybody still holds one of those when the piece runs again, what
  the worker's store has of it moves to a copy first, and from then on that result is copied after each run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

import torch

from gt.worker.hot.donated import exclusive
from gt.worker.hot.guard import Guard, address, spread
from gt.worker.hot.piece import Halfway
from gt.worker.hot.program import Program, Unfit
from gt.worker.hot.runner import HELD, LAYOUT, NUMBERS, SHARED, Fixed

#: rows of numbers on their way to the device; the host is never that many runs ahead without waiting
ROWS = 64
#: how often an input may be another tensor before it is copied; runs after which one that is the same is no longer
MOVES, REVIEW = 2, 32

Function = Callable[[list[Any], Any, Any], list[Any]]
#: (what is captured, its operands) -> the results, and what computes them anew
Capture = Callable[[Callable[..., list[Any]], list[Any]], tuple[list[Any], Callable[[], None]]]


class CudaGraphs:
    """The device's own: what is run in a capture is not computed then, but in each replay."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[..., list[Any]], operands: list[Any]) -> tuple[list[Any], Callable[[], None]]:
        """The results, and what computes them anew where the ``operands`` lie: it does not hold them."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        try:
            # another thread may compile meanwhile: its calls are none of this capture's business
            with torch.no_grad(), torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"):
                made = run(operands)
        except BaseException:  # torch leaves its stream as it was in the capture, and that one is of no more use
            torch.cuda.set_stream(current)
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            raise
        current.wait_stream(self._side)
        return made, graph.replay


class Graph:
    def __init__(
        self, program: Program, call: Function, level: str, inputs: list[Any], copied: frozenset[int], capture: Capture
    ) -> None:
        """``copied``: the inputs that are other tensors in each run."""
        self.level, self.program = level, program
        self._call, self.fixed, self._captured = call, Fixed(program), capture
        self._numbers = Numbers(program)
        self._copied = set(copied)
        #: inputs that were other tensors in the last run than in the one before; and in any since the last review
        self.fresh: Collection[int] = copied
        self._moving: set[int] = set()
        self._runs = 0
        self._moves: dict[int, int] = {}
        self._outputs: Outputs | None = None
        self._capture(inputs)

    # -- capturing -----------------------------------------------------------------------

    def _capture(self, inputs: list[Any]) -> None:
        self._whole = False
        self._guard = Guard(inputs, self.program.mutated)
        if not self._guard.fits(inputs, list(range(len(inputs)))):
            raise Unfit("an input shows memory that the piece writes to")
        self._places = [(x.data_ptr(), x.stride()) for x in inputs]
        self._at = sorted(self._copied)
        buffers = {i: _buffer(inputs[i]) for i in self._at}
        operands = [*(buffers.get(i, x) for i, x in enumerate(inputs)), self._numbers.floats]
        call, ints = self._call, self._numbers.ints
        made, self._replay = self._captured(lambda given: call(given[:-1], given[-1], ints), operands)
        self._buffers = [spread(buffers[i]) for i in self._at]
        # those that show elements again and again; a buffer holds each once
        self._repeated = any(buffers[i].shape != x.shape for i, x in zip(self._at, self._buffers, strict=True))
        self._back = [k for k, i in enumerate(self._at) if i in self.program.mutated]
        sticky = self._outputs.copied if self._outputs is not None else set()
        for at in self.program.donated:
            made[at] = None
        self._outputs = Outputs(made, operands, {*self._at, len(inputs)}, sticky, self.program.donated)
        self._whole = True

    def _moved(self, inputs: list[Any], changed: list[int]) -> bool:
        """Is one that was captured where it lies elsewhere now?"""
        moved = [
            i
            for i in changed
            if i not in self._copied and (inputs[i].data_ptr(), inputs[i].stride()) != self._places[i]
        ]
        for i in moved:
            self._moves[i] = self._moves.get(i, 0) + 1
            if self._moves[i] >= MOVES:
                self._copied.add(i)
        return bool(moved)

    def _review(self, inputs: list[Any]) -> None:
        """What is no other tensor from run to run need not be copied."""
        calm = {i for i in self._copied - self._moving if self._moves.get(i, 0) < MOVES}
        if calm:
            self._copied -= calm
            self._capture(inputs)
        self._moving = set()

    # -- running -------------------------------------------------------------------------

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | str:
        if not self.fixed.hold(numbers):
            return NUMBERS
        if self.program.donated and not exclusive(inputs, self.program.donated.values()):
            return SHARED
        if not self._whole:
            raise Unfit("it could not be captured anew")
        changed = self.fresh = self._guard.changed(inputs)
        if changed:
            if not self._guard.fits(inputs, changed):
                return LAYOUT
            if not self._copied.issuperset(changed) and self._moved(inputs, changed):
                self._capture(inputs)
            self._guard.remember(inputs, changed)
            self._moving.update(changed)
        self._runs += 1
        if self._runs % REVIEW == 0 and self._copied:
            self._review(inputs)
        outputs = self._outputs
        assert outputs is not None
        if not outputs.free() and not outputs.freed(store):
            return HELD
        self._numbers.write(numbers)
        if self._at:
            given = [inputs[i] for i in self._at]
            torch._foreach_copy_(self._buffers, [spread(x) for x in given] if self._repeated else given)
        try:
            self._replay()
            for k in self._back:
                inputs[self._at[k]].copy_(self._buffers[k])
            return outputs.take(inputs)
        except Exception as error:
            if self.program.mutated:
                raise Halfway(error) from None
            raise

    def close(self) -> None:
        self._outputs, self._replay = None, lambda: None


def _buffer(x: Any) -> Any:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    once = spread(made)
    if once is None:
        raise Unfit("an input shows elements twice")
    once.zero_()
    return made


class Numbers:
    """The numbers that change: written by the host into pinned rows, and copied from there into the graph's own."""

    def __init__(self, program: Program) -> None:
        self._program, self.count = program, program.count
        self.floats = torch.zeros(self.count, dtype=torch.float64, device=program.device)
        self.ints = self.floats.view(torch.int64)
        self._last: Any = None
        self._row = 0
        if self.count:
            self._on_gpu = program.device.type == "cuda"
            self._rows = torch.empty((ROWS, self.count), dtype=torch.float64, pin_memory=self._on_gpu)
            self._memory, self._each = self._rows.numpy().data, list(self._rows)
            # one for each half: a half is written to again once all copies from it are done
            self._marks = [torch.cuda.Event() for _ in range(2 * self._on_gpu)]  # type: ignore[no-untyped-call]

    def write(self, numbers: list[Any]) -> None:
        if not self.count:
            return
        made = self._program.numbers(numbers)
        if made == self._last:
            return
        self._last = made
        row = self._row
        self._program.cells.pack_into(self._memory, row * self.count * 8, *made)
        self.floats.copy_(self._each[row], non_blocking=True)
        self._row = row = (row + 1) % ROWS
        if self._on_gpu and row % (ROWS // 2) == 0:
            half = row // (ROWS // 2)
            self._marks[1 - half].record()
            self._marks[half].synchronize()


class Outputs:
    """The graph's results, which it writes to again in each run."""

    def __init__(
        self, made: list[Any], operands: list[Any], own: set[int], sticky: set[int], donated: dict[int, int]
    ) -> None:
        """``own``: the operands that are the graph's own, and change in each run. ``donated``: results, None among
        those made, that are inputs."""
        shown = {address(x): i for i, x in enumerate(operands) if x.numel()}
        places = [donated[i] if i in donated else shown.get(address(x), -1) for i, x in enumerate(made)]
        self.donated = donated
        #: results that are copied after each run
        self.copied = {
            i
            for i, (x, k) in enumerate(zip(made, places, strict=True))
            if i not in donated and (k in own or (k < 0 and i in sticky) or (k >= 0 and x.dtype != operands[k].dtype))
        }
        #: views of inputs, by (result, input, shape, strides, offset): made anew, so as to hold nobody's memory
        self.views = [
            (i, k, x.shape, x.stride(), x.storage_offset() - operands[k].storage_offset())
            for i, (x, k) in enumerate(zip(made, places, strict=True))
            if k >= 0 and i not in self.copied and i not in donated
        ]
        self.made = made
        for i, *_ in self.views:
            made[i] = None
        self.own: list[tuple[int, Any]] = [(i, made[i].untyped_storage()) for i, k in enumerate(places) if k < 0]
        self._counts = self._count()

    def _count(self) -> list[tuple[int, int]]:
        """Who holds each: Python's references to the tensor, and the tensors that show its memory."""
        use, refs, made = torch._C._storage_Use_Count, sys.getrefcount, self.made
        return [(refs(made[i]), use(storage._cdata)) for i, storage in self.own]

    def free(self) -> bool:
        """Does nobody hold any of them?"""
        return self._count() == self._counts

    def freed(self, store: dict[int, Any]) -> bool:
        """What the store holds moves away. Is nobody left then?"""
        for (i, storage), now, before in zip(self.own, self._count(), self._counts, strict=True):
            if now != before:
                self.copied.add(i)
                _move(store, storage)
        return self.free()

    def take(self, inputs: list[Any]) -> list[Any]:
        copied = self.copied
        taken = [x.clone() if i in copied else x for i, x in enumerate(self.made)] if copied else self.made.copy()
        for i, k, shape, strides, offset in self.views:
            taken[i] = inputs[k].as_strided(shape, strides, inputs[k].storage_offset() + offset)
        for i, k in self.donated.items():
            taken[i] = inputs[k]
        return taken


def _move(store: dict[int, Any], storage: Any) -> None:
    """Whatever shows this memory shows a copy of it from now on."""
    at, copy = storage.data_ptr(), None
    for id, x in store.items():
        if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() == at and x.numel():
            copy = copy if copy is not None else storage.clone()
            fresh = torch.empty(0, dtype=x.dtype, device=x.device)
            store[id] = fresh.set_(copy, x.storage_offset(), x.shape, x.stride())
