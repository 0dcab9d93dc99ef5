"""The choice of how an op is split: for each mesh axis, the row of its split that moves the fewest bytes.

In a tie the first row wins, which takes all operands replicated. An operand that is written in place keeps its layout
if a row allows it. A row that has to move operands in order to produce partial sums also pays for their reduction. A
row whose operands need no move does not pay for it, so sums stay partial until their value is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import COLLECTIVE_START_BYTES, COPIED_BYTE_COST
from gt.errors import DimError, ShapeError
from gt.ops import Signature
from gt.ops.placement import Partial, Parts, Placement, R, Replicate, Shard, bounds, largest_rank
from gt.ops.split import Apart, Row, Split, rows
from gt.types import TensorType

#: for each operand the layouts it is available in, its home layout first
Held = Sequence[tuple[Layout, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The layouts in which an op takes its operands and produces its results."""

    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    #: the estimated cost of its moves, in bytes
    cost: float


#: the types of one worker's operand blocks and result blocks
BlockTypes = tuple[tuple[TensorType, ...], tuple[TensorType, ...]]


class _CallSplit:
    """One call, split axis by axis. It holds the types of the blocks and the placements chosen so far."""

    def __init__(self, signature: Signature, held: Held, mesh: Mesh) -> None:
        self.signature, self.held, self.mesh = signature, held, mesh
        #: the largest blocks
        self.ins = [t for t in signature.ins if isinstance(t, TensorType)]
        self.outs = list(signature.outs)
        #: the different blocks of all workers; a dict, because the order of a set is not the same in every process
        self.blocks: dict[BlockTypes, None] = {(tuple(self.ins), tuple(self.outs)): None}
        self.placements: tuple[list[list[Placement]], list[list[Placement]]] = (
            [[] for _ in self.ins],
            [[] for _ in self.outs],
        )
        self.cost = 0.0
        self.split = split_of(signature)

    def _independent(self) -> list[tuple[tuple[int, ...], tuple[int, ...], Split | None]]:
        """(operands, results, split) of each set of tensors that is split independently of the others."""
        if isinstance(self.split, Apart):
            return list(self.split.parts)
        return [(tuple(range(len(self.ins))), tuple(range(len(self.outs))), self.split)]

    def split_axis(self, axis: int, wanted: Sequence[Placement | None]) -> None:
        """Choose the placements on this axis; ``wanted`` are those in which results must end."""
        n, parts = self.mesh.shape[axis], self.mesh.parts[axis]
        ins_placements: dict[int, Placement] = {}
        outs_placements: dict[int, Placement] = {}
        for ins, outs, split in self._independent():
            legal = self._rows(split, ins, outs, parts)
            costs = [self._cost(row, ins, outs, axis, n, wanted) for row in legal]
            best = min(range(len(legal)), key=costs.__getitem__)
            self.cost += costs[best]
            ins_placements.update(zip(ins, legal[best].ins, strict=True))
            outs_placements.update(zip(outs, legal[best].outs, strict=True))
        for chosen, axis_placements in zip(self.placements, (ins_placements, outs_placements), strict=True):
            for i, placements in enumerate(chosen):
                placements.append(axis_placements.get(i, R))
        # without weights the first blocks are the longest and the last ones the shortest
        ranks = (0, n - 1) if isinstance(parts, int) else range(n)
        self.blocks = {
            (
                _local_types(block[0], ins_placements, parts, rank),
                _local_types(block[1], outs_placements, parts, rank),
            ): None
            for block in self.blocks
            for rank in ranks
        }
        largest = largest_rank(parts)
        self.ins = list(_local_types(self.ins, ins_placements, parts, largest))
        self.outs = list(_local_types(self.outs, outs_placements, parts, largest))

    def _rows(self, split: Split | None, ins: tuple[int, ...], outs: tuple[int, ...], parts: Parts) -> list[Row]:
        """The rows that are legal for every block."""
        if split is not None:
            with contextlib.suppress(*UNSUPPORTED):
                first, *others = (
                    rows(split, [block[0][i] for i in ins], [block[1][o] for o in outs], parts) for block in self.blocks
                )
                return [row for row in first if all(row in legal for legal in others)]
        return [Row((R,) * len(ins), (R,) * len(outs))]

    def _cost(
        self,
        row: Row,
        ins: tuple[int, ...],
        outs: tuple[int, ...],
        axis: int,
        n: int,
        wanted: Sequence[Placement | None],
    ) -> float:
        moved = sum(self._operand_cost(i, p, axis, n) for i, p in zip(ins, row.ins, strict=True))
        takes_partial = any(isinstance(p, Partial) for p in row.ins)
        for o, placement in zip(outs, row.outs, strict=True):
            want = wanted[o]
            if want is not None:
                if placement != want and self.signature.op.steps:
                    return inf  # a parameter keeps its placement, whatever the gradient's is
                # prefer to compute it in the wanted placement over computing all of it and keeping a block
                nbytes = self.outs[o].nbytes
                moved += move_cost(nbytes, placement, want, n) + (nbytes * COPIED_BYTE_COST if placement != want else 0)
            elif moved >= COLLECTIVE_START_BYTES and isinstance(placement, Partial) and not takes_partial:
                moved += self.outs[o].nbytes * (n - 1) / n
        return moved

    def _operand_cost(self, i: int, wanted: Placement, axis: int, n: int) -> float:
        """The cost of bringing an operand into a placement, from the cheapest of its layouts."""
        nbytes = self.ins[i].nbytes
        receivers = n if isinstance(wanted, Shard) and nbytes > COLLECTIVE_START_BYTES else 1
        return min(
            move_cost(nbytes, layout.placements[axis], wanted, n) + self._nested_cost(layout, wanted, axis, nbytes)
            if layout.mesh is self.mesh
            else COLLECTIVE_START_BYTES + nbytes / receivers
            for layout in self.held[i]
        )

    def _nested_cost(self, layout: Layout, wanted: Placement, axis: int, nbytes: int) -> float:
        """The extra cost if a later axis shards inside a changed shard: its blocks are gathered and sharded again."""
        source = layout.placements[axis]
        shards = {p for p in (source, wanted) if isinstance(p, Shard)} if source != wanted else set()
        return COLLECTIVE_START_BYTES + nbytes if any(p in shards for p in layout.placements[axis + 1 :]) else 0.0

    def choice(self) -> Choice:
        ins, outs = ([Layout(self.mesh, tuple(p)) for p in placements] for placements in self.placements)
        return Choice(tuple(ins), tuple(outs), self.cost)


def _local_types(
    types: Sequence[TensorType], placements: dict[int, Placement], parts: Parts, rank: int
) -> tuple[TensorType, ...]:
    """The types of one worker's blocks."""
    local = list(types)
    for i, placement in placements.items():
        if isinstance(placement, Shard):
            t, d = types[i], placement.dim
            local[i] = TensorType((*t.shape[:d], bounds(t.shape[d], parts, rank)[1], *t.shape[d + 1 :]), t.dtype)
    return tuple(local)


#: What a split rule raises for operands that inference accepts and the rule does not support.
UNSUPPORTED = (ShapeError, DimError, IndexError, ValueError)


def split_of(signature: Signature) -> Split | Apart | None:
    """The split rule of the op for this call; None if it has none."""
    with contextlib.suppress(*UNSUPPORTED):
        if signature.op.split is not None:
            return signature.op.split(*signature.ins, **dict(signature.attrs))
    return None


def choose(signature: Signature, held: Held, mesh: Mesh, wanted: Sequence[Layout | None]) -> Choice:
    """The cheapest choice on this mesh; ``wanted`` are the layouts in which results must end."""
    split = _CallSplit(signature, held, mesh)
    for axis in range(len(mesh.shape)):
        split.split_axis(axis, [w.placements[axis] if w is not None and w.mesh is mesh else None for w in wanted])
    return split.choice()


def replicated(signature: Signature, mesh: Mesh) -> Choice:
    """The choice that always works: every worker has all operands and computes everything."""
    layout = Layout(mesh)
    return Choice((layout,) * len(signature.offsets), (layout,) * len(signature.outs), 0.0)


def move_cost(nbytes: float, source: Placement, wanted: Placement, n: int) -> float:
    """The cost in bytes along one axis of n workers; ``nbytes`` is the size before this axis splits it."""
    if source == wanted:
        return 0.0
    if nbytes <= COLLECTIVE_START_BYTES and isinstance(wanted, Shard):
        wanted = R  # gathering it again would cost more than sharding saves
    share = nbytes * (n - 1) / n
    match source, wanted:
        case Replicate(), Shard() | Replicate():
            return 0.0
        case Replicate(), _:
            return nbytes * COPIED_BYTE_COST
        case Shard(), Shard():
            return COLLECTIVE_START_BYTES + share / n
        case Partial(), Shard():
            return COLLECTIVE_START_BYTES + share
        case Shard(), Replicate():
            return COLLECTIVE_START_BYTES + share
        case Partial(), Replicate():
            return COLLECTIVE_START_BYTES + 2 * share
    return COLLECTIVE_START_BYTES + 2 * share + nbytes * COPIED_BYTE_COST
