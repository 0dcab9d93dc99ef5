"""Choosing how an op is cut: axis by axis the row of its split that moves the fewest bytes.

Ties go to the row that comes first, which is to leave everything everywhere. What is written in place stays where it
is, if any row lets it. A row that would first move operands to make terms of a sum also pays for adding those up; a
row that gets them for nothing does not, so that sums stay open until somebody needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import LOCAL, START
from gt.errors import DimError, ShapeError
from gt.ops import Signature
from gt.ops.placement import Partial, Placement, R, Replicate, Shard, bounds
from gt.ops.split import Apart, Row, Split, rows
from gt.types import TensorType

#: the layouts each operand is to be had in, its own first
Held = Sequence[tuple[Layout, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    #: bytes moved, more or less
    cost: float


#: the types of one worker's blocks
Blocks = tuple[tuple[TensorType, ...], tuple[TensorType, ...]]


class _Cutting:
    """One call, cut axis by axis: the blocks' types so far, of the first worker and of all, and the placements."""

    def __init__(self, signature: Signature, held: Held, mesh: Mesh) -> None:
        self.signature, self.held, self.mesh = signature, held, mesh
        self.ins = [t for t in signature.ins if isinstance(t, TensorType)]
        self.outs = list(signature.outs)
        self.blocks: set[Blocks] = {(tuple(self.ins), tuple(self.outs))}
        self.placed: tuple[list[list[Placement]], list[list[Placement]]] = (
            [[] for _ in self.ins],
            [[] for _ in self.outs],
        )
        self.cost = 0.0
        self.split = split_of(signature)

    def parts(self) -> list[tuple[tuple[int, ...], tuple[int, ...], Split | None]]:
        """What is cut independently: operands, results, and how."""
        if isinstance(self.split, Apart):
            return list(self.split.parts)
        return [(tuple(range(len(self.ins))), tuple(range(len(self.outs))), self.split)]

    def cut(self, axis: int, wanted: Sequence[Placement | None]) -> None:
        n = self.mesh.shape[axis]
        done_ins: dict[int, Placement] = {}
        done_outs: dict[int, Placement] = {}
        for ins, outs, split in self.parts():
            legal = self._rows(split, ins, outs, n)
            costs = [self._cost(row, ins, outs, axis, n, wanted) for row in legal]
            best = min(range(len(legal)), key=costs.__getitem__)
            self.cost += costs[best]
            done_ins.update(zip(ins, legal[best].ins, strict=True))
            done_outs.update(zip(outs, legal[best].outs, strict=True))
        for placed, done in zip(self.placed, (done_ins, done_outs), strict=True):
            for i, placements in enumerate(placed):
                placements.append(done.get(i, R))
        ranks = {0, n - 1}  # the longest blocks, and the shortest
        self.blocks = {
            (_cut(here[0], done_ins, n, rank), _cut(here[1], done_outs, n, rank))
            for here in self.blocks
            for rank in ranks
        }
        self.ins, self.outs = list(_cut(self.ins, done_ins, n, 0)), list(_cut(self.outs, done_outs, n, 0))

    def _rows(self, split: Split | None, ins: tuple[int, ...], outs: tuple[int, ...], n: int) -> list[Row]:
        """Those that are legal whatever block is cut further."""
        if split is not None:
            with contextlib.suppress(*MISMATCH):
                first, *others = (
                    rows(split, [here[0][i] for i in ins], [here[1][o] for o in outs], n) for here in self.blocks
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
        moved = sum(self._bring(i, p, axis, n) for i, p in zip(ins, row.ins, strict=True))
        made_of_terms = any(isinstance(p, Partial) for p in row.ins)
        for o, placement in zip(outs, row.outs, strict=True):
            want = wanted[o]
            if want is not None:
                # to make it there at once is better than to make it all and keep a part
                nbytes = self.outs[o].nbytes
                moved += move_cost(nbytes, placement, want, n) + (nbytes * LOCAL if placement != want else 0)
            elif moved >= START and isinstance(placement, Partial) and not made_of_terms:
                moved += self.outs[o].nbytes * (n - 1) / n
        return moved

    def _bring(self, i: int, wanted: Placement, axis: int, n: int) -> float:
        nbytes = self.ins[i].nbytes
        return min(
            move_cost(nbytes, layout.placements[axis], wanted, n) + self._nested(layout, wanted, axis, nbytes)
            if layout.mesh is self.mesh
            else START + nbytes / (n if isinstance(wanted, Shard) and nbytes > START else 1)
            for layout in self.held[i]
        )

    def _nested(self, layout: Layout, wanted: Placement, axis: int, nbytes: int) -> float:
        """What comes on top where a later axis cuts inside of what changes: those blocks are joined, and cut anew."""
        now = layout.placements[axis]
        cut = {p for p in (now, wanted) if isinstance(p, Shard)} if now != wanted else set()
        return START + nbytes if any(p in cut for p in layout.placements[axis + 1 :]) else 0.0

    def choice(self) -> Choice:
        ins, outs = ([Layout(self.mesh, tuple(p)) for p in placed] for placed in self.placed)
        return Choice(tuple(ins), tuple(outs), self.cost)


def _cut(types: Sequence[TensorType], placed: dict[int, Placement], n: int, rank: int) -> tuple[TensorType, ...]:
    """One worker's blocks of these."""
    found = list(types)
    for i, placement in placed.items():
        if isinstance(placement, Shard):
            t, d = types[i], placement.dim
            found[i] = TensorType((*t.shape[:d], bounds(t.shape[d], n, rank)[1], *t.shape[d + 1 :]), t.dtype)
    return tuple(found)


#: What a rule raises on operands that inference takes and it was not made for.
MISMATCH = (ShapeError, DimError, IndexError, ValueError)


def split_of(signature: Signature) -> Split | Apart | None:
    with contextlib.suppress(*MISMATCH):
        if signature.op.split is not None:
            return signature.op.split(*signature.ins, **dict(signature.attrs))
    return None


def choose(signature: Signature, held: Held, mesh: Mesh, wanted: Sequence[Layout | None]) -> Choice:
    """The cheapest way on this mesh; ``wanted`` are the layouts results must end in."""
    cutting = _Cutting(signature, held, mesh)
    for axis in range(len(mesh.shape)):
        cutting.cut(axis, [w.placements[axis] if w is not None and w.mesh is mesh else None for w in wanted])
    return cutting.choice()


def everywhere(signature: Signature, mesh: Mesh) -> Choice:
    """The way that always works: everybody has everything and does it all."""
    whole = Layout(mesh)
    return Choice((whole,) * len(signature.offsets), (whole,) * len(signature.outs), 0.0)


def move_cost(nbytes: float, now: Placement, wanted: Placement, n: int) -> float:
    """Along one axis of n workers; ``nbytes`` is the size of the whole along it."""
    if now == wanted:
        return 0.0
    if nbytes <= START and isinstance(wanted, Shard):
        wanted = R  # joining it again would cost more than cutting saves
    share = nbytes * (n - 1) / n
    match now, wanted:
        case Replicate(), Shard() | Replicate():
            return 0.0
        case Replicate(), _:
            return nbytes * LOCAL
        case Shard(), Shard():
            return START + share / n
        case Partial(), Shard():
            return START + share
        case Shard(), Replicate():
            return START + share
        case Partial(), Replicate():
            return START + 2 * share
    return START + 2 * share + nbytes * LOCAL
