"""Runs compiled code without a CUDA graph: on a CPU, before the first capture, and if the capture failed."""

from __future__ import annotations

import time
from typing import Any

import torch

from gt.worker.hot.compiled import CompiledProgram, make_cells
from gt.worker.hot.donation import exclusive
from gt.worker.hot.guard import INPUT_IN_USE, LAYOUT_CHANGED, NUMBERS_CHANGED, Guard
from gt.worker.hot.section import PartialRun


class CompiledRunner:
    """Runs compiled code directly. It has the interface of `CapturedGraph`."""

    level = "compiled"

    def __init__(self, compiled: CompiledProgram, inputs: list[Any]) -> None:
        self._compiled, self.constants = compiled, compiled.program.constants
        self.guard = Guard(inputs, compiled.program.mutated)
        self._cells: Any = None

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | str:
        """The results, or why the run was not possible."""
        if not self.constants.hold(numbers):
            return NUMBERS_CHANGED
        changed = self.guard.changed(inputs)
        if changed:
            if not self.guard.fits(inputs, changed):
                return LAYOUT_CHANGED
            self.guard.remember(inputs, changed)
        program = self._compiled.program
        if program.donated and not exclusive(inputs, program.donated.values()):
            return INPUT_IN_USE
        if self._cells is None or program.cell_count:
            self._cells = make_cells(program, numbers)
        try:
            return self._compiled(inputs, *self._cells)
        except Exception as error:
            if program.mutated:
                raise PartialRun(error) from None
            raise

    def close(self) -> None:
        pass


def timed_run(
    active: Any, device: Any, inputs: list[Any], numbers: list[Any], store: dict[int, Any]
) -> tuple[list[Any] | str, float]:
    """What ``active.run`` returns, and its seconds. Waits for the device before and after."""
    wait = torch.cuda.current_stream(device).synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    outcome = active.run(inputs, numbers, store)
    wait()
    return outcome, time.perf_counter() - started
