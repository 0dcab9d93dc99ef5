"""The reductions of a fragment start as soon as their operands are computed, several at a time.

Only the optimizer needs a gradient in full, long after `backward` has computed each worker's term of it. The words of a
fragment are known in advance, so they can be reordered. A reduction moves up to the instruction that last touched its
operand. There it waits for other reductions until they have enough bytes to be worth a collective. So the first
gradients are sent while `backward` still computes, as in DDP. The values do not change. Neither does the order within a
group: all its members get the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gt.wire.fragments import InstructionFormat, NoFragment
from gt.wire.words import FIRST_CODE

#: The bytes after which a bucket of reductions starts. The first bucket is smaller, so that its transfer starts early.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


@dataclass(slots=True)
class _Reduction:
    words: list[Any]
    nbytes: int
    #: the instruction after which it may run; -1: it may run before all
    ready: int
    #: its position among the instructions of the original order
    at: int


def bucket_reductions(
    words: list[Any], codes: Mapping[int, InstructionFormat], reductions: Mapping[int, int]
) -> list[Any]:
    """The same instructions with the reductions in buckets; unchanged if they cannot be reordered.

    ``reductions`` are the codes of reductions, with their bytes.
    """
    if not any(word in reductions for word in words if type(word) is int):
        return words
    try:
        return _Reordering(words, codes, reductions).words()
    except (NoFragment, KeyError):
        return words


class _Reordering:
    """The instructions of a fragment, and the earliest position of each reduction."""

    def __init__(self, words: list[Any], codes: Mapping[int, InstructionFormat], reductions: Mapping[int, int]) -> None:
        self.instructions: list[list[Any]] = []
        self.reductions: dict[int, _Reduction] = {}
        #: id -> the last instruction that names it
        touched: dict[int, int] = {}
        #: id -> the reduction that created it, if nothing else has named it since
        reduced: dict[int, _Reduction] = {}
        i, end = 0, len(words)
        while i < end:
            code, at = words[i], len(self.instructions)
            if code < 0:
                ids, width = [-code], 1
            elif code < FIRST_CODE:
                raise NoFragment
            else:
                format = codes[code]
                width = format.width
                ids = [*words[i + 2 : i + format.start], *[words[i + offset] for offset in format.offsets]]
            self.instructions.append(words[i : i + width])
            if code in reductions:
                ready, before = max(touched.get(id, -1) for id in ids), reduced.get(ids[-1])
                if before is not None and ready <= before.at:  # the next step of the same move
                    ready = before.ready
                reduction = self.reductions[at] = _Reduction(words[i : i + width], reductions[code], ready, at)
                reduced[ids[0]] = reduction
            for id in ids:
                touched[id] = at
                if code not in reductions:
                    reduced.pop(id, None)
            i += width

    def words(self) -> list[Any]:
        """The reordered words. A bucket starts when it is full, or where its first reduction stood originally."""
        by_ready: dict[int, list[_Reduction]] = {}
        for reduction in self.reductions.values():
            by_ready.setdefault(reduction.ready, []).append(reduction)
        result: list[Any] = []
        bucket: dict[int, _Reduction] = {}
        limit, nbytes = FIRST_BUCKET_BYTES, 0

        def flush() -> None:
            nonlocal limit, nbytes
            for reduction in bucket.values():
                result.extend(reduction.words)
            bucket.clear()
            limit, nbytes = BUCKET_BYTES, 0

        for at in range(-1, len(self.instructions)):
            if at in self.reductions:
                if at in bucket:
                    flush()
            elif at >= 0:
                result += self.instructions[at]
            for reduction in by_ready.get(at, ()):
                bucket[reduction.at] = reduction
                nbytes += reduction.nbytes
            if nbytes >= limit:
                flush()
        return result
