"""What a graph, or compiled code, takes for granted about the inputs, and must look at before each run.

Shapes and dtypes are the piece's own. How a tensor lies in memory is not, nor whether it shares memory with one that
the piece writes to. A tensor seen before is what it was: only new ones are looked at.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from typing import Any

Strides = list[tuple[int, ...]]


class Guard:
    def __init__(self, inputs: list[Any], mutated: frozenset[int]) -> None:
        self.strides: Strides = [x.stride() for x in inputs]
        self.mutated = mutated
        self._seen: list[Any] = [weakref.ref(x) for x in inputs]
        self._note_written(inputs)

    def changed(self, inputs: list[Any]) -> list[int]:
        """Which are not the tensors of the last run."""
        return [i for i, (ref, x) in enumerate(zip(self._seen, inputs, strict=True)) if ref() is not x]

    def fits(self, inputs: list[Any], changed: list[int]) -> bool:
        """Do these lie as those it was made for, and share nothing with what is written?"""
        strides = self.strides
        for i in changed:
            if inputs[i].stride() != strides[i]:
                return False
        if not self.mutated.isdisjoint(changed):
            return not shares_written(inputs, self.mutated)
        return not self.mutated or not any(self._is_written(inputs[i].data_ptr()) for i in changed)

    def remember(self, inputs: list[Any], changed: list[int]) -> None:
        for i in changed:
            self._seen[i] = weakref.ref(inputs[i])
        if not self.mutated.isdisjoint(changed):
            self._note_written(inputs)

    def _note_written(self, inputs: list[Any]) -> None:
        spans = sorted((address(x), x.untyped_storage().nbytes()) for x in (inputs[i] for i in self.mutated))
        self._starts, self._ends = [at for at, _ in spans], [at + nbytes for at, nbytes in spans]

    def _is_written(self, at: int) -> bool:
        k = bisect_right(self._starts, at) - 1
        return k >= 0 and at < self._ends[k]


def shares_written(inputs: list[Any], mutated: frozenset[int]) -> bool:
    """Is an input written to whose memory another input shows as well?"""
    owners: dict[int, int] = {}
    for i in mutated:
        at = address(inputs[i])
        if at and at in owners:
            return True
        owners[at] = i
    return any(i not in mutated and address(x) in owners and x.numel() for i, x in enumerate(inputs))


def address(x: Any) -> int:
    """Where the memory begins that a tensor is a part of."""
    return int(x.untyped_storage().data_ptr())


def spread(x: Any) -> Any:
    """The tensor with each element once: what is repeated by a stride of 0 is left out; None if any is shown twice."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1):
        if stride <= reach:
            return None
        reach += stride * (size - 1)
    return x
