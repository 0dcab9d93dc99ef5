"""Moves from one layout to another: the steps, the cost of each in bytes, and what each worker does in it.

    R -> S(d)      block            each worker keeps its block; nothing is sent
    R -> P         term             the first worker keeps the value, the others a zero
    S(d) -> R      all_gather       P -> R     all_reduce
    S(d) -> S(e)   all_to_all       P -> S(d)  reduce_scatter
    other workers  exchange         regions go from the workers that have them to those that need them
                   broadcast        one worker sends the whole value to more than two workers
                   block            every worker of the target already has its block

On a mesh with several axes a move goes axis by axis. First partial axes are combined. Then sharded axes are gathered,
the last axis first. Then axes are sharded, the first axis first. So two axes that shard the same dim stay nested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gt.dispatcher.plan.layouts import Layout
from gt.ops.placement import Partial, Placement, R, Shard, block_lengths
from gt.types import Shape, TensorType

#: The cost of starting a collective, in bytes. It favours the route with fewer steps.
COLLECTIVE_START_BYTES = 2048.0
#: The cost of a byte that a worker only copies, compared with a byte that is sent.
COPIED_BYTE_COST = 0.001

#: Kinds of steps along one axis of a mesh.
ALONG_AN_AXIS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
#: Kinds that combine partial values.
REDUCTIONS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class MoveStep:
    kind: str
    source: Layout
    target: Layout
    axis: int = 0
    #: the workers in the order of the tensor's mesh, if the step has a mesh of its own (`gt.dispatcher.plan.hierarchy`)
    order: tuple[int, ...] = ()
    #: the blocks of the step's first axis consist of this many pieces each, which are not neighbours in the tensor
    interleave: int = 0

    @property
    def is_local(self) -> bool:
        """Each worker does it without the others, by an op of this name."""
        return self.kind in LOCAL_OPS

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that take part."""
        if self.source.mesh is self.target.mesh or self.is_local:
            return self.holders
        return tuple(dict.fromkeys((*self.source.workers, *self.target.workers)))

    @property
    def holders(self) -> tuple[int, ...]:
        """The workers that have the result."""
        return self.order or self.target.workers


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move of one operand or result of an instruction."""

    #: the offset of the operand's word, or the number of the result
    position: int
    source: Layout
    target: Layout
    type: TensorType


@lru_cache(1 << 16)
def route(t: TensorType, source: Layout, target: Layout) -> tuple[MoveStep, ...]:
    """The steps of a move; empty if the layouts are the same."""
    if source is target:
        return ()
    if source.mesh is target.mesh:
        return tuple(_steps_on_mesh(source, target))
    # partial values are combined before they leave their mesh
    start, end = source.combined(), target.combined()
    between = MoveStep(_kind_between_meshes(t, start, end), start, end)
    return (*_steps_on_mesh(source, start), between, *_steps_on_mesh(end, target))


def _kind_between_meshes(t: TensorType, source: Layout, target: Layout) -> str:
    if all(_already_has(t, source, target, w) for w in target.workers):
        return "block"
    return "broadcast" if source.single and target.replicated and len(target.workers) > 2 else "exchange"


def _already_has(t: TensorType, source: Layout, target: Layout, worker: int) -> bool:
    """The worker's target block is inside its source block."""
    if worker not in source.mesh.coordinates:
        return False
    (at, sizes), (wanted_at, wanted) = source.block(t.shape, worker), target.block(t.shape, worker)
    ends = zip(at, sizes, wanted_at, wanted, strict=True)
    return all(a <= w and w + m <= a + n for a, n, w, m in ends)


def _steps_on_mesh(source: Layout, target: Layout) -> Iterator[MoveStep]:
    """The steps between two layouts of one mesh."""
    current = source
    changed = _changed_axes(source.placements, target.placements) if source is not target else []

    def to(axis: int, placement: Placement) -> Iterator[MoveStep]:
        nonlocal current
        if current.placements[axis] != placement:
            after = current.with_placement(axis, placement)
            yield MoveStep(_kind(current.placements[axis], placement), current, after, axis)
            current = after

    for axis in changed:
        if isinstance(source.placements[axis], Partial):
            direct = isinstance(target.placements[axis], Shard) and _is_only_shard(axis, current, target)
            yield from to(axis, target.placements[axis] if direct else R)
    for axis in reversed(changed):
        if isinstance(current.placements[axis], Shard):
            direct = isinstance(target.placements[axis], Shard) and _is_only_shard(axis, source, target)
            yield from to(axis, target.placements[axis] if direct else R)
    for axis in changed:
        yield from to(axis, target.placements[axis])


def _kind(a: Placement, b: Placement) -> str:
    """The kind of the step from one placement to another along an axis."""
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


def _changed_axes(source: tuple[Placement, ...], target: tuple[Placement, ...]) -> list[int]:
    """The axes that differ, and later axes that shard a dim which a changed axis shards."""
    different = [i for i, (a, b) in enumerate(zip(source, target, strict=True)) if a != b]
    dims = {p.dim for i in different for p in (source[i], target[i]) if isinstance(p, Shard)}
    first = different[0]
    nested = [i for i, p in enumerate(source) if i > first and isinstance(p, Shard) and p.dim in dims]
    return sorted({*different, *nested})


def _is_only_shard(axis: int, *layouts: Layout) -> bool:
    """No other axis of these layouts shards a dim that this axis shards."""
    dims = {p.dim for layout in layouts if isinstance(p := layout.placements[axis], Shard)}
    others = [p for layout in layouts for i, p in enumerate(layout.placements) if i != axis]
    return not any(isinstance(p, Shard) and p.dim in dims for p in others)


# -- costs ---------------------------------------------------------------------------------


@lru_cache(1 << 16)
def cost(t: TensorType, source: Layout, target: Layout) -> float:
    """The estimated cost in bytes: about what a worker receives, plus a fixed cost for each collective."""
    return sum(_step_cost(t, step) for step in route(t, source, target))


def _step_cost(t: TensorType, step: MoveStep) -> float:
    before, after = step.source.largest(t).nbytes, step.target.largest(t).nbytes
    n = step.source.mesh.shape[step.axis] if step.kind in ALONG_AN_AXIS else 1
    return COSTS[step.kind](before, after, (n - 1) / n)


#: kind -> a function of the block's bytes before and after, and the fraction that the other workers hold
COSTS: dict[str, Callable[[int, int, float], float]] = {
    "block": lambda before, after, others: 0.0,
    "term": lambda before, after, others: after * COPIED_BYTE_COST,
    "exchange": lambda before, after, others: COLLECTIVE_START_BYTES + after,
    "broadcast": lambda before, after, others: COLLECTIVE_START_BYTES + after,
    "all_reduce": lambda before, after, others: COLLECTIVE_START_BYTES + 2 * before * others,
    "reduce_scatter": lambda before, after, others: COLLECTIVE_START_BYTES + before * others,
    "all_gather": lambda before, after, others: COLLECTIVE_START_BYTES + after * others,
    "all_to_all": lambda before, after, others: COLLECTIVE_START_BYTES + after * others,
}


# -- what each worker does -----------------------------------------------------------------

#: (members of the group in the order of their ranks, attributes of the collective)
WorkerShare = tuple[tuple[int, ...], dict[str, Any]]


def _term_attributes(step: MoveStep, t: TensorType, worker: int) -> dict[str, Any]:
    return {"mine": step.target.mesh.coordinates[worker][step.axis] == 0}


def _block_attributes(step: MoveStep, t: TensorType, worker: int) -> dict[str, Any]:
    have, _ = step.source.block(t.shape, worker)
    want, sizes = step.target.block(t.shape, worker)
    return {"starts": _difference(want, have), "sizes": sizes}


#: Kinds that a worker does by an op of that name -> the op's attributes.
LOCAL_OPS: dict[str, Callable[[MoveStep, TensorType, int], dict[str, Any]]] = {
    "block": _block_attributes,
    "term": _term_attributes,
}


def same_shares(step: MoveStep, t: TensorType) -> Iterable[Sequence[int]]:
    """The workers of a collective step; those that are known to have the same share are together.

    Comparing the shares of n workers takes quadratic time: each names all members of the group.
    """
    if step.kind == "broadcast":
        root = step.source.worker
        return (root,), tuple(w for w in step.workers if w != root)
    if step.kind not in ALONG_AN_AXIS:
        return ((w,) for w in step.workers)
    lines = step.source.mesh.lines(step.axis)
    if step.source.is_even(t.shape) and step.target.is_even(t.shape):
        return lines
    alike: dict[Any, list[int]] = {}
    for number, line in enumerate(lines):
        for w in line:
            alike.setdefault((number, step.source.local(t, w), step.target.local(t, w)), []).append(w)
    return alike.values()


def worker_share(step: MoveStep, t: TensorType, worker: int) -> WorkerShare:
    """What one worker does in a collective step."""
    if step.kind == "broadcast":
        return step.workers, {"root": 0, "shape": t.shape, "dtype": t.dtype.name}
    if step.kind == "exchange":
        return step.workers, _exchange(t, step, worker)
    members = step.source.mesh.line(step.axis, worker)
    before, after = step.source.placements[step.axis], step.target.placements[step.axis]
    outer = step.source.with_placement(step.axis, R).local(t, worker).shape
    parts = step.source.mesh.parts[step.axis]
    interleave = {"interleave": step.interleave} if step.interleave else {}
    if isinstance(before, Partial):
        attributes: dict[str, Any] = {"op": before.op, **interleave}
        if isinstance(after, Shard):
            attributes |= {"dim": after.dim, "sizes": block_lengths(outer[after.dim], parts)}
        return members, attributes
    assert isinstance(before, Shard)
    if isinstance(after, Shard):
        return members, {
            "join": before.dim,
            "join_sizes": block_lengths(outer[before.dim], parts),
            "cut": after.dim,
            "cut_sizes": block_lengths(outer[after.dim], parts),
        }
    return members, {"dim": before.dim, "sizes": block_lengths(outer[before.dim], parts), **interleave}


def _exchange(t: TensorType, step: MoveStep, worker: int) -> dict[str, Any]:
    """The regions that one worker sends, receives and keeps, with starts counted from its blocks."""
    ranks = {w: i for i, w in enumerate(step.workers)}
    sends, receives, keeps = [], [], []
    for sender, receiver, at, sizes in _regions(t, step.source, step.target):
        if worker not in (sender, receiver):
            continue
        in_source = _difference(at, step.source.block(t.shape, worker)[0]) if sender == worker else ()
        in_target = _difference(at, step.target.block(t.shape, worker)[0]) if receiver == worker else ()
        if sender == receiver:
            keeps.append((in_source, in_target, sizes))
        elif sender == worker:
            sends.append((ranks[receiver], in_source, sizes))
        else:
            receives.append((ranks[sender], in_target, sizes))
    return {
        "sends": tuple(sends),
        "receives": tuple(receives),
        "keeps": tuple(keeps),
        "shape": step.target.local(t, worker).shape if worker in step.target.mesh.coordinates else None,
        "dtype": t.dtype.name,
        "sources": tuple(ranks[w] for w in step.source.workers),
        "targets": tuple(ranks[w] for w in step.target.workers),
    }


def _difference(at: Shape, origin: Shape) -> Shape:
    return tuple(a - o for a, o in zip(at, origin, strict=True))


def _regions(t: TensorType, source: Layout, target: Layout) -> Iterator[tuple[int, int, Shape, Shape]]:
    """(sender, receiver, start, sizes) of every region that a worker needs; a worker that already has it is also
    its sender."""
    blocks: dict[tuple[Shape, Shape], list[int]] = {}
    for w in source.workers:
        blocks.setdefault(source.block(t.shape, w), []).append(w)
    for number, receiver in enumerate(target.workers):
        wanted_at, wanted = target.block(t.shape, receiver)
        for (at, sizes), holders in blocks.items():
            low = tuple(map(max, at, wanted_at))
            high = tuple(min(a + n, w + m) for a, n, w, m in zip(at, sizes, wanted_at, wanted, strict=True))
            if all(lo < hi for lo, hi in zip(low, high, strict=True)):
                sender = receiver if receiver in holders else holders[number % len(holders)]
                yield sender, receiver, low, _difference(high, low)
