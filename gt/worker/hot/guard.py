"""What a graph or compiled code assumes about a run, checked before each run.

The section fixes shapes and dtypes. It does not fix the strides of an input, whether an input shares memory with one
that the section writes, or the numbers that are constants of the program. Inputs that are the same tensors as in the
last run are not checked again.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Sequence
from math import copysign
from typing import Any

#: Why a run was not possible: a constant number differs; an input has other strides, or shares memory with one that is
#: written; a result of the last run is still in use; an input that a result would overwrite is in use.
NUMBERS_CHANGED, LAYOUT_CHANGED, RESULT_IN_USE, INPUT_IN_USE = "numbers", "layout", "held", "shared"

Strides = list[tuple[int, ...]]


class Guard:
    """Checks the strides of the inputs, and that none shares memory with an input that is written."""

    def __init__(self, inputs: list[Any], mutated: frozenset[int]) -> None:
        self.strides: Strides = [x.stride() for x in inputs]
        self.mutated = mutated
        self._last: list[Any] = [weakref.ref(x) for x in inputs]
        self._note_written(inputs)

    def changed(self, inputs: list[Any]) -> list[int]:
        """The inputs that are not the tensors of the last run."""
        return [i for i, (ref, x) in enumerate(zip(self._last, inputs, strict=True)) if ref() is not x]

    def fits(self, inputs: list[Any], changed: list[int]) -> bool:
        """Whether the changed inputs have the expected strides and share no memory with an input that is written."""
        strides = self.strides
        for i in changed:
            if inputs[i].stride() != strides[i]:
                return False
        if not self.mutated.isdisjoint(changed):
            return not shares_written(inputs, self.mutated)
        return not self.mutated or not any(self._is_written(inputs[i].data_ptr()) for i in changed)

    def remember(self, inputs: list[Any], changed: list[int]) -> None:
        """The changed inputs are those of the last run, for the next check."""
        for i in changed:
            self._last[i] = weakref.ref(inputs[i])
        if not self.mutated.isdisjoint(changed):
            self._note_written(inputs)

    def _note_written(self, inputs: list[Any]) -> None:
        spans = sorted((address(x), x.untyped_storage().nbytes()) for x in (inputs[i] for i in self.mutated))
        self._starts, self._ends = [start for start, _ in spans], [start + nbytes for start, nbytes in spans]

    def _is_written(self, pointer: int) -> bool:
        k = bisect_right(self._starts, pointer) - 1
        return k >= 0 and pointer < self._ends[k]


class ConstantNumbers:
    """Checks the numbers that are constants of a program."""

    def __init__(self, indices: tuple[int, ...], values: Sequence[Any]) -> None:
        self.indices, self.values = indices, list(values)
        #: -0.0 == 0.0 in Python, but a division by them differs
        self._zeros = [k for k, n in zip(indices, values, strict=True) if isinstance(n, float) and n == 0]
        self._signs = [copysign(1, n) for n in values if isinstance(n, float) and n == 0]

    def hold(self, numbers: list[Any]) -> bool:
        """Whether the numbers of a run are those of the program."""
        if self._zeros and [copysign(1, numbers[k]) for k in self._zeros] != self._signs:
            return False
        return not self.indices or [numbers[k] for k in self.indices] == self.values

    def value(self, k: int) -> Any:
        """The value of number k in the program."""
        return self.values[self.indices.index(k)]

    def changed(self, numbers: list[Any]) -> set[int]:
        """The indices of the numbers that differ."""
        signs = {k for k, sign in zip(self._zeros, self._signs, strict=True) if copysign(1, numbers[k]) != sign}
        return signs | {k for k, value in zip(self.indices, self.values, strict=True) if numbers[k] != value}


def shares_written(inputs: list[Any], mutated: frozenset[int]) -> bool:
    """Whether an input that is written shares its memory with another input."""
    owners: dict[int, int] = {}
    for i in mutated:
        start = address(inputs[i])
        if start and start in owners:
            return True
        owners[start] = i
    return any(i not in mutated and address(x) in owners and x.numel() for i, x in enumerate(inputs))


def address(x: Any) -> int:
    """The start of the memory that a tensor is part of."""
    return int(x.untyped_storage().data_ptr())


def without_repeats(x: Any) -> Any:
    """The tensor without dims that a stride of 0 repeats; None if elements still overlap."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1):
        if stride <= reach:
            return None
        reach += stride * (size - 1)
    return x
