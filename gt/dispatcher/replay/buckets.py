"""Reductions of a fragment are begun as soon as what they reduce is there, and several at a time.

A gradient is needed in full only by the optimizer, long after `backward` has made the worker's own part of it. Known
words can be put into a better order: a reduction goes up to where its operand was last touched, and waits there for
others until there are enough bytes to be worth a collective. So the first gradients are on their way while the rest of
`backward` computes, as DDP does it. Values do not change by that, nor does the order among a group's members: all of
them get the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gt.wire.fragments import InstructionFormat, NoFragment
from gt.wire.messages import FIRST_CODE

#: Bytes that are sent together; fewer the first time, so that the wire is busy soon.
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20


@dataclass(slots=True)
class _Reduction:
    words: list[Any]
    nbytes: int
    #: after which instruction it may be done, and before which it was; -1: before all
    ready: int
    at: int


def gathered(words: list[Any], codes: Mapping[int, InstructionFormat], reductions: Mapping[int, int]) -> list[Any]:
    """The same words in another order. ``reductions`` are the codes of such, with their bytes."""
    if not any(word in reductions for word in words if type(word) is int):
        return words
    try:
        return _Order(words, codes, reductions).words()
    except (NoFragment, KeyError):
        return words


class _Order:
    def __init__(self, words: list[Any], codes: Mapping[int, InstructionFormat], reductions: Mapping[int, int]) -> None:
        self.instructions: list[list[Any]] = []
        self.found: dict[int, _Reduction] = {}
        #: id -> the last instruction that names it
        touched: dict[int, int] = {}
        #: id -> where it was made by a reduction that may move
        moved: dict[int, _Reduction] = {}
        i, end = 0, len(words)
        while i < end:
            code, at = words[i], len(self.instructions)
            if code < 0:
                named, width = [-code], 1
            elif code < FIRST_CODE:
                raise NoFragment
            else:
                shape = codes[code]
                width = shape.width
                named = [*words[i + 2 : i + shape.start], *[words[i + offset] for offset in shape.offsets]]
            self.instructions.append(words[i : i + width])
            if code in reductions:
                ready, before = max(touched.get(id, -1) for id in named), moved.get(named[-1])
                if before is not None and ready <= before.at:  # the next step of the same move
                    ready = before.ready
                one = self.found[at] = _Reduction(words[i : i + width], reductions[code], ready, at)
                moved[named[0]] = one
            for id in named:
                touched[id] = at
                if code not in reductions:
                    moved.pop(id, None)
            i += width

    def words(self) -> list[Any]:
        by_ready: dict[int, list[_Reduction]] = {}
        for one in self.found.values():
            by_ready.setdefault(one.ready, []).append(one)
        made: list[Any] = []
        waiting: dict[int, _Reduction] = {}
        limit, nbytes = FIRST_BUCKET, 0

        def send() -> None:
            nonlocal limit, nbytes
            for one in waiting.values():
                made.extend(one.words)
            waiting.clear()
            limit, nbytes = BUCKET, 0

        for at in range(-1, len(self.instructions)):
            if at in self.found:
                if at in waiting:
                    send()
            elif at >= 0:
                made += self.instructions[at]
            for one in by_ready.get(at, ()):
                waiting[one.at] = one
                nbytes += one.nbytes
            if nbytes >= limit:
                send()
        return made
