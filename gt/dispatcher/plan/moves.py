"""From one layout to another: the steps a tensor takes, what each costs in bytes, and what each worker does in it.

    R -> S(d)      block            each worker keeps its part: nothing moves
    R -> P         term             the first keeps the value, the others a zero
    S(d) -> R      all_gather       P -> R     all_reduce
    S(d) -> S(e)   all_to_all       P -> S(d)  reduce_scatter
    other workers  exchange         regions go from who has them to who needs them; or broadcast

Along a mesh of several axes it goes axis by axis: first what is to be combined, then what is joined, the last axis
first, then what is cut, the first axis first; so that two axes that cut the same dim do so like nested boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gt.dispatcher.plan.layouts import Layout
from gt.ops.placement import Partial, Placement, R, Shard, bounds
from gt.types import Shape, TensorType

#: What starting a collective costs, in bytes: between equal ways, the one of fewer steps.
START = 2048.0
#: What a byte costs that is only written anew.
LOCAL = 0.001

#: kinds along one axis of a mesh
AMONG = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
#: those that combine terms
REDUCTIONS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    source: Layout
    target: Layout
    axis: int = 0

    @property
    def alone(self) -> bool:
        """Does each worker do it by itself, by an op of this name?"""
        return self.kind in ALONE

    @property
    def workers(self) -> tuple[int, ...]:
        """Who takes part."""
        if self.source.mesh is self.target.mesh or self.alone:
            return self.target.workers
        return tuple(dict.fromkeys((*self.source.workers, *self.target.workers)))


@lru_cache(1 << 16)
def route(t: TensorType, source: Layout, target: Layout) -> tuple[Step, ...]:
    """How to get there; empty if it is there."""
    if source is target:
        return ()
    if source.mesh is target.mesh:
        return tuple(_along(source, target))
    start, end = _combined(source), _combined(target)
    return (*_along(source, start), Step(_between(t, start, end), start, end), *_along(end, target))


def _combined(layout: Layout) -> Layout:
    """The same without terms: those do not leave their mesh."""
    return Layout(layout.mesh, tuple(R if isinstance(p, Partial) else p for p in layout.placements))


def _between(t: TensorType, source: Layout, target: Layout) -> str:
    if all(_has(t, source, target, w) for w in target.workers):
        return "block"
    return "broadcast" if source.single and target.whole and len(target.workers) > 2 else "exchange"


def _has(t: TensorType, source: Layout, target: Layout, worker: int) -> bool:
    """Is what the worker needs inside of what it has?"""
    if worker not in source.mesh.places:
        return False
    (at, sizes), (wanted_at, wanted) = source.block(t.shape, worker), target.block(t.shape, worker)
    ends = zip(at, sizes, wanted_at, wanted, strict=True)
    return all(a <= w and w + m <= a + n for a, n, w, m in ends)


def _along(source: Layout, target: Layout) -> Iterator[Step]:
    """The steps on one mesh."""
    now = source
    changed = _changed(source.placements, target.placements) if source is not target else []

    def to(axis: int, placement: Placement) -> Iterator[Step]:
        nonlocal now
        if now.placements[axis] != placement:
            after = now.placed(axis, placement)
            yield Step(_kind(now.placements[axis], placement), now, after, axis)
            now = after

    for axis in changed:
        if isinstance(source.placements[axis], Partial):
            direct = isinstance(target.placements[axis], Shard) and _free(axis, now, target)
            yield from to(axis, target.placements[axis] if direct else R)
    for axis in reversed(changed):
        if isinstance(now.placements[axis], Shard):
            direct = isinstance(target.placements[axis], Shard) and _free(axis, source, target)
            yield from to(axis, target.placements[axis] if direct else R)
    for axis in changed:
        yield from to(axis, target.placements[axis])


def _kind(a: Placement, b: Placement) -> str:
    match a, b:
        case Partial(), Shard():
            return "reduce_scatter"
        case Partial(), _:
            return "all_reduce"
        case Shard(), Shard():
            return "all_to_all"
        case Shard(), _:
            return "all_gather"
        case _, Shard():
            return "block"
    return "term"


def _changed(source: tuple[Placement, ...], target: tuple[Placement, ...]) -> list[int]:
    """The axes that differ, and those whose cuts lie inside a cut that changes."""
    found = [i for i, (a, b) in enumerate(zip(source, target, strict=True)) if a != b]
    dims = {p.dim for i in found for p in (source[i], target[i]) if isinstance(p, Shard)}
    first = found[0]
    nested = [i for i, p in enumerate(source) if i > first and isinstance(p, Shard) and p.dim in dims]
    return sorted({*found, *nested})


def _free(axis: int, *layouts: Layout) -> bool:
    """Does no other axis, before or after, cut a dim that this one does?"""
    dims = {p.dim for layout in layouts if isinstance(p := layout.placements[axis], Shard)}
    others = [p for layout in layouts for i, p in enumerate(layout.placements) if i != axis]
    return not any(isinstance(p, Shard) and p.dim in dims for p in others)


# -- costs ---------------------------------------------------------------------------------


@lru_cache(1 << 16)
def cost(t: TensorType, source: Layout, target: Layout) -> float:
    """Bytes the busiest worker receives, more or less."""
    return sum(_step_cost(t, step) for step in route(t, source, target))


def _step_cost(t: TensorType, step: Step) -> float:
    before = step.source.local(t, step.source.worker).nbytes
    after = step.target.local(t, step.target.worker).nbytes
    n = step.source.mesh.shape[step.axis] if step.kind in AMONG else 1
    return COSTS[step.kind](before, after, (n - 1) / n)


#: kind -> bytes before, after, and the share of them that others have -> what it costs
COSTS: dict[str, Callable[[int, int, float], float]] = {
    "block": lambda before, after, share: 0.0,
    "term": lambda before, after, share: after * LOCAL,
    "exchange": lambda before, after, share: START + after,
    "broadcast": lambda before, after, share: START + after,
    "all_reduce": lambda before, after, share: START + 2 * before * share,
    "reduce_scatter": lambda before, after, share: START + before * share,
    "all_gather": lambda before, after, share: START + after * share,
    "all_to_all": lambda before, after, share: START + after * share,
}


# -- what each worker does -----------------------------------------------------------------

#: (the group, attributes); the group's members are in the order of their ranks
Share = tuple[tuple[int, ...], dict[str, Any]]


def _mine(step: Step, t: TensorType, worker: int) -> dict[str, Any]:
    return {"mine": step.target.mesh.places[worker][step.axis] == 0}


def _region(step: Step, t: TensorType, worker: int) -> dict[str, Any]:
    have, _ = step.source.block(t.shape, worker)
    want, sizes = step.target.block(t.shape, worker)
    return {"starts": _from(want, have), "sizes": sizes}


#: kinds that a worker does by an op of that name -> its attributes
ALONE: dict[str, Callable[[Step, TensorType, int], dict[str, Any]]] = {"block": _region, "term": _mine}


def share(step: Step, t: TensorType, worker: int) -> Share:
    """What a worker does together with others."""
    if step.kind == "broadcast":
        return step.workers, {"root": 0, "shape": t.shape, "dtype": t.dtype.name}
    if step.kind == "exchange":
        return step.workers, _exchange(t, step, worker)
    members = step.source.mesh.line(step.axis, worker)
    before, after = step.source.placements[step.axis], step.target.placements[step.axis]
    outer = step.source.placed(step.axis, R).local(t, worker).shape
    n = len(members)
    if isinstance(before, Partial):
        how: dict[str, Any] = {"op": before.op}
        if isinstance(after, Shard):
            how |= {"dim": after.dim, "sizes": _sizes(outer, after.dim, n)}
        return members, how
    assert isinstance(before, Shard)
    if isinstance(after, Shard):
        joined, cut = before.dim, after.dim
        return members, {
            "join": joined,
            "join_sizes": _sizes(outer, joined, n),
            "cut": cut,
            "cut_sizes": _sizes(outer, cut, n),
        }
    return members, {"dim": before.dim, "sizes": _sizes(outer, before.dim, n)}


def _sizes(shape: Shape, dim: int, n: int) -> tuple[int, ...]:
    return _lengths(shape[dim], n)


@lru_cache(1 << 12)
def _lengths(length: int, n: int) -> tuple[int, ...]:
    return tuple(bounds(length, n, rank)[1] for rank in range(n))


def _exchange(t: TensorType, step: Step, me: int) -> dict[str, Any]:
    ranks = {w: i for i, w in enumerate(step.workers)}
    sends, receives, keeps = [], [], []
    for giver, taker, at, sizes in _pieces(t, step.source, step.target):
        if me not in (giver, taker):
            continue
        mine = _from(at, step.source.block(t.shape, me)[0]) if giver == me else ()
        theirs = _from(at, step.target.block(t.shape, me)[0]) if taker == me else ()
        if giver == taker:
            keeps.append((mine, theirs, sizes))
        elif giver == me:
            sends.append((ranks[taker], mine, sizes))
        else:
            receives.append((ranks[giver], theirs, sizes))
    made = step.target.local(t, me).shape if me in step.target.mesh.places else None
    return {
        "sends": tuple(sends),
        "receives": tuple(receives),
        "keeps": tuple(keeps),
        "shape": made,
        "dtype": t.dtype.name,
    }


def _from(at: Shape, origin: Shape) -> Shape:
    return tuple(a - o for a, o in zip(at, origin, strict=True))


def _pieces(t: TensorType, source: Layout, target: Layout) -> Iterator[tuple[int, int, Shape, Shape]]:
    """(giver, taker, where, sizes) of every region somebody needs; from itself, if it has it."""
    blocks: dict[tuple[Shape, Shape], list[int]] = {}
    for w in source.workers:
        blocks.setdefault(source.block(t.shape, w), []).append(w)
    for number, taker in enumerate(target.workers):
        wanted_at, wanted = target.block(t.shape, taker)
        for (at, sizes), holders in blocks.items():
            low = tuple(map(max, at, wanted_at))
            high = tuple(min(a + n, w + m) for a, n, w, m in zip(at, sizes, wanted_at, wanted, strict=True))
            if all(lo < hi for lo, hi in zip(low, high, strict=True)):
                giver = taker if taker in holders else holders[number % len(holders)]
                yield giver, taker, low, _from(high, low)
