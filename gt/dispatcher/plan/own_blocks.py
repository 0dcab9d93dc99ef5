"""The layout in which an op runs whose workers each treat their own block (`Op.own_blocks`): reading and writing files.

An op that writes its tensor in place, by reading a file, keeps the layout: each worker reads what it holds. An op that
only reads the tensor, to write it to a file, gets every element in one worker's block: a worker that has the same
values as others takes a block of them, which needs no communication.
"""

from __future__ import annotations

from math import prod

from gt.dispatcher.plan.layouts import Layout
from gt.dispatcher.plan.planner import Choice
from gt.ops import Signature
from gt.ops.placement import P, Placement, Shard
from gt.types import TensorType

#: A block whose values are in shorter ranges of the whole than this is not written as it is.
MIN_RANGE_BYTES = 4096


def choose_own_blocks(signature: Signature, held: Layout) -> Choice:
    """The layouts of the one tensor and of the result."""
    if signature.into:
        layout = held.combined()
        return Choice((layout,), (layout,), 0.0)
    (t,) = [t for t in signature.ins if isinstance(t, TensorType)]
    layout = distinct_blocks(t, held)
    return Choice((layout,), (Layout(held.mesh, (P,) * len(held.placements)),), 0.0)


def distinct_blocks(t: TensorType, held: Layout) -> Layout:
    """A layout of the same mesh, near to this one, in which each element is in the block of one worker."""
    kept = [isinstance(p, Shard) and _range_bytes(t, held, p.dim) >= MIN_RANGE_BYTES for p in held.placements]
    placements: list[Placement] = []
    for axis, placement in enumerate(held.placements):
        later = {p.dim for p, k in zip(held.placements[axis + 1 :], kept[axis + 1 :], strict=True) if k}  # type: ignore[union-attr]
        # a dim that a later axis shards too would be split in another order: its values would have to move
        free = next((d for d in range(t.ndim) if d not in later), 0)
        placements.append(placement if kept[axis] else Shard(free))
    return Layout(held.mesh, tuple(placements))


def _range_bytes(t: TensorType, held: Layout, dim: int) -> int:
    """The bytes of a block that are together in the whole, if the block is split along this dim."""
    sizes = held.block(t.shape, held.worker)[1]
    return prod(sizes[dim:]) * t.dtype.itemsize if dim else MIN_RANGE_BYTES
