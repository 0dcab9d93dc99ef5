"""Compiled code as the worker calls it where there are no CUDA graphs: guards, numbers, call."""

from __future__ import annotations

from math import copysign
from typing import Any

from gt.worker.hot.compiled import Compiled, cells
from gt.worker.hot.donated import exclusive
from gt.worker.hot.guard import Guard
from gt.worker.hot.piece import Halfway
from gt.worker.hot.program import Program

#: why a run did not take place: what is constant in it was another number; it lies otherwise; somebody holds a
#: result; or an input that a result was to be written to
NUMBERS, LAYOUT, HELD, SHARED = "numbers", "layout", "held", "shared"


class Fixed:
    """The numbers a program has as constants."""

    def __init__(self, program: Program) -> None:
        self._at, self._values = program.fixed_at, program.fixed
        #: for Python -0.0 is 0.0, but not for whoever divides by it
        self._zeros = [k for k, n in zip(self._at, self._values, strict=True) if isinstance(n, float) and n == 0]
        self._signs = [copysign(1, n) for n in self._values if isinstance(n, float) and n == 0]

    def hold(self, numbers: list[Any]) -> bool:
        if self._zeros and [copysign(1, numbers[k]) for k in self._zeros] != self._signs:
            return False
        return not self._at or [numbers[k] for k in self._at] == self._values

    def others(self, numbers: list[Any]) -> set[int]:
        """Those that are not what they were."""
        turned = {k for k, sign in zip(self._zeros, self._signs, strict=True) if copysign(1, numbers[k]) != sign}
        return turned | {k for k, value in zip(self._at, self._values, strict=True) if numbers[k] != value}


class Runner:
    level = "compiled"

    def __init__(self, compiled: Compiled, inputs: list[Any]) -> None:
        self._compiled, self.fixed = compiled, Fixed(compiled.program)
        self._guard = Guard(inputs, compiled.program.mutated)
        self._kept: Any = None

    def run(self, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | str:
        if not self.fixed.hold(numbers):
            return NUMBERS
        changed = self._guard.changed(inputs)
        if changed:
            if not self._guard.fits(inputs, changed):
                return LAYOUT
            self._guard.remember(inputs, changed)
        program = self._compiled.program
        if program.donated and not exclusive(inputs, program.donated.values()):
            return SHARED
        if self._kept is None or program.count:
            self._kept = cells(program, numbers)
        try:
            return self._compiled(inputs, *self._kept)
        except Exception as error:
            if program.mutated:
                raise Halfway(error) from None
            raise

    def close(self) -> None:
        pass
