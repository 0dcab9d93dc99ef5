"""Views of reduced tensors are taken as late as possible.

A worker waits for a reduction where an instruction first uses its result. With sharded parameters that is right after
the reduction starts: the gradient is placed as its parameter is, which is a view, and nobody needs it before the
optimizer. So such views, and the frees of what they were taken of, move down to the first instruction that needs them
done. The values do not change, and no tensor is kept longer than its view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from typing import Any

from gt.dispatcher.replay.instructions import InstructionWords, parse
from gt.wire.fragments import InstructionFormat, NoFragment


def defer_views(
    words: list[Any],
    codes: Mapping[int, InstructionFormat],
    reductions: Container[int],
    views: Container[int],
) -> list[Any]:
    """The same instructions with the views of reduced tensors later; unchanged if they cannot be reordered.

    ``reductions`` and ``views`` are codes.
    """
    if not any(word in views for word in words if type(word) is int):
        return words
    try:
        instructions = parse(words, codes)
    except (NoFragment, KeyError):
        return words
    return _Deferral(reductions, views).words(instructions)


class _Deferral:
    def __init__(self, reductions: Container[int], views: Container[int]) -> None:
        self._reductions, self._views = reductions, views
        self._result: list[Any] = []
        #: tensors that a reduction has produced, and no other instruction has used
        self._reduced: set[int] = set()
        self._deferred: deque[InstructionWords] = deque()
        #: how many were deferred and are not any more
        self._released = 0
        #: id -> the number of the last deferred instruction that changes it, and of the last one that reads it
        self._changed: dict[int, int] = {}
        self._read: dict[int, int] = {}

    def words(self, instructions: list[InstructionWords]) -> list[Any]:
        for one in instructions:
            if self._may_wait(one):
                self._defer(one)
            else:
                self._release(self._last_before(one))
                self._result += one.words
                self._reduced.difference_update(one.operands, one.outs)
                if one.code in self._reductions:
                    self._reduced.update(one.outs)
        self._release(self._released + len(self._deferred) - 1)
        return self._result

    def _may_wait(self, one: InstructionWords) -> bool:
        """Whether it is a view of a reduced tensor or of a deferred view, or frees the operand of one."""
        if one.code < 0:
            return self._read.get(one.outs[0], -1) >= self._released
        is_deferred = [self._changed.get(id, -1) >= self._released for id in one.operands]
        known = zip(one.operands, is_deferred, strict=True)
        return one.code in self._views and all(deferred or id in self._reduced for id, deferred in known)

    def _defer(self, one: InstructionWords) -> None:
        number = self._released + len(self._deferred)
        self._deferred.append(one)
        self._changed.update(dict.fromkeys(one.outs, number))
        self._read.update(dict.fromkeys(one.operands, number))

    def _last_before(self, one: InstructionWords) -> int:
        """The last deferred instruction that must run before this one: one of them changes what the other names."""
        changed = [self._changed.get(id, -1) for id in (*one.outs, *one.operands)]
        return max((*changed, *[self._read.get(id, -1) for id in one.outs]), default=-1)

    def _release(self, last: int) -> None:
        """Emit the deferred instructions up to this number, in their order."""
        while self._released <= last:
            self._result += self._deferred.popleft().words
            self._released += 1
