"""The gathers of a fragment start ahead of their use, by the size of one layer.

An instruction on a sharded parameter gathers it right before it runs, so all workers wait for the collective. The words
of a fragment are known in advance, so they can be reordered. The gathers for one instruction are a *layer*. While one
layer computes, the next ones are gathered: as many as fit into the bytes of the largest. Small ones, such as those of a
norm, do not count. Otherwise a large one behind them would be gathered only while the norm computes. Each is still
freed after its use, so gathered layers take about as much more memory as the largest of them takes, at most. The values
do not change. Neither does the order within a group: all its members get the same words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gt.dispatcher.replay.instructions import InstructionWords, parse
from gt.wire.fragments import InstructionFormat, NoFragment

#: A layer with at most this share of the bytes of the largest one does not count.
SMALL_LAYER = 1 / 16


class Prefetched(NamedTuple):
    words: list[Any]
    #: how many bytes more the gathered layers take at most
    nbytes: int = 0


@dataclass(slots=True)
class _Gather:
    #: its index among the instructions
    at: int
    nbytes: int
    #: the first instruction before which it may start
    ready: int


@dataclass(slots=True)
class _GatheredLayer:
    """Gathers with the same instruction as their first user. Gathers of what was computed just before are in none."""

    #: the index of that instruction
    user: int
    gathers: list[_Gather] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(gather.nbytes for gather in self.gathers)


def prefetch_gathers(
    words: list[Any], codes: Mapping[int, InstructionFormat], gathers: Mapping[int, int]
) -> Prefetched:
    """The same instructions with the gathers earlier; unchanged if they cannot be reordered.

    ``gathers`` are the codes of gathers, with the bytes of their results.
    """
    if not any(word in gathers for word in words if type(word) is int):
        return Prefetched(words)
    try:
        instructions = parse(words, codes)
    except (NoFragment, KeyError):
        return Prefetched(words)
    order = _order(len(instructions), _layers(instructions, gathers))
    reordered = [instructions[at] for at in order]
    more = _most_gathered(reordered, gathers) - _most_gathered(instructions, gathers)
    return Prefetched([word for one in reordered for word in one.words], more)


def _layers(instructions: list[InstructionWords], gathers: Mapping[int, int]) -> list[_GatheredLayer]:
    """The layers in the order of their use."""
    layers: dict[int, _GatheredLayer] = {}
    #: id -> the instruction after the last one that created, wrote or freed it
    changed: dict[int, int] = {}
    #: id -> the instruction after the last one that read it: a gather may write a new layout into it
    read: dict[int, int] = {}
    #: id -> the gather that created it, until its first use
    unused: dict[int, _Gather] = {}
    #: the instruction after the last one that computes
    computed = 0
    for at, one in enumerate(instructions):
        for id in one.operands:
            if (gather := unused.pop(id, None)) is not None:
                layers.setdefault(at, _GatheredLayer(at)).gathers.append(gather)
        for id in one.outs:
            unused.pop(id, None)
        if one.code in gathers:
            ready = max(changed.get(id, 0) for id in (*one.outs, *one.operands))
            ready = max(ready, *(read.get(id, 0) for id in one.outs))
            if ready < computed or ready == 0:  # others gather what was computed just before
                unused[one.outs[0]] = _Gather(at, gathers[one.code], ready)
        elif one.code >= 0:
            computed = at + 1
        changed.update(dict.fromkeys(one.outs, at + 1))
        read.update(dict.fromkeys(one.operands, at + 1))
    return list(layers.values())


def _order(count: int, layers: list[_GatheredLayer]) -> Iterable[int]:
    """The instructions in their new order."""
    limit = max((layer.nbytes for layer in layers), default=0)
    counted = [0 if layer.nbytes <= limit * SMALL_LAYER else layer.nbytes for layer in layers]
    waiting, ahead = deque(zip(layers, counted, strict=True)), 0
    #: instruction -> the gathers that start before it
    starts: dict[int, list[int]] = {}
    for before, used in ((0, 0), *zip([layer.user for layer in layers], counted, strict=True)):
        ahead -= used
        while waiting and ahead + waiting[0][1] <= limit:
            layer, nbytes = waiting.popleft()
            ahead += nbytes
            for gather in layer.gathers:
                starts.setdefault(min(gather.at, max(before, gather.ready)), []).append(gather.at)
    moved = {at for gathers in starts.values() for at in gathers}
    for at in range(count):
        yield from starts.get(at, ())
        if at not in moved:
            yield at


def _most_gathered(instructions: list[InstructionWords], gathers: Mapping[int, int]) -> int:
    """The most bytes that results of gathers take at the same time."""
    existing: dict[int, int] = {}
    total = most = 0
    for one in instructions:
        id = one.outs[0] if one.outs else 0
        if one.code in gathers:
            total += gathers[one.code] - existing.get(id, 0)
            existing[id] = gathers[one.code]
            most = max(most, total)
        elif one.code < 0:
            total -= existing.pop(id, 0)
    return most
