"""The measured operations, each on buffers of its own, with the exact result.

A row of `COLLECTIVES` creates the operation on buffers of S bytes (S as nccl-tests defines it: the larger of what a
rank sends and receives). As in nccl-tests there are two ways: *out of place*, from one buffer into another, and *in
place*, where the two are one buffer or one is a part of the other. torch reduces and broadcasts in place only; out of
place it copies first, as its functional collectives do, and the copy is part of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core.ranks import World

#: every integer up to this is exact in each of the dtypes, the largest value, and the ranks that add to one element
EXACT, LARGEST, ADDENDS = 256, 7, 128
#: elements made at a time
CHUNK = 2**24
IN_PLACE, OUT_OF_PLACE = "in place", "out of place"


def values(rank: int, count: int, world: World, dtype: torch.dtype, repetition: int = 0, addends: int = 1) -> Any:
    """Small integers from a hash of rank, index and repetition; their sum over ``addends`` ranks is exact in any order.

    If many ranks add up, an element is zero on all but every ``share``-th rank.
    """
    share = math.ceil(addends / ADDENDS)
    largest = min(LARGEST, EXACT // math.ceil(addends / share))
    out = torch.empty(count, dtype=dtype, device=world.device)
    for start in range(0, count, CHUNK):
        index = torch.arange(start, min(count, start + CHUNK), device=world.device)
        numbers = _mixed(index + (rank << 40) + (repetition << 52)) % (largest + 1)
        if share > 1:
            numbers *= (_mixed(index + (repetition << 52)) + rank) % share == 0
        out[start : start + CHUNK] = numbers
    return out


def _mixed(keys: torch.Tensor) -> torch.Tensor:
    """The hash of splitmix64, without its sign. Products wrap around; the masks make its shifts unsigned."""
    x = keys * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (x ^ ((x >> 31) & 0x1FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF


@dataclass
class Prepared:
    """One operation on its buffers."""

    run: Callable[[], Any]
    #: restores what the operation overwrote, outside the timed part
    restore: Callable[[], Any]
    #: pairs of a result and its exact value; empty on a rank that receives nothing
    results: list[tuple[torch.Tensor, torch.Tensor]]


#: (world, elements, dtype, repetition) -> the operation on data of its own
Make = Callable[[World, int, torch.dtype, int], Prepared]


def allreduce(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, total = _summed(world, count, dtype, repetition)
    buffer = source.clone()
    run = lambda: dist.all_reduce(buffer, group=world.group)
    return Prepared(run, lambda: buffer.copy_(source), [(buffer, total)])


def allreduce_out_of_place(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, total = _summed(world, count, dtype, repetition)
    out = _out(world, count, dtype)
    run = lambda: dist.all_reduce(out.copy_(source), group=world.group)
    return Prepared(run, lambda: out.fill_(-1), [(out, total)])


def _summed(world: World, count: int, dtype: torch.dtype, repetition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's values, and the sum of all ranks'."""
    of = lambda rank: values(rank, count, world, dtype, repetition, world.size)
    own = of(world.rank)
    return own, sum((of(rank) for rank in range(world.size)), torch.zeros_like(own))


def _out(world: World, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((count,), -1, dtype=dtype, device=world.device)


#: torch 2.13 changed the names
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def allgather(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    whole = _gathered(world, count, dtype, repetition)
    source, out = _own_block(world, whole).clone(), _out(world, count, dtype)
    return Prepared(lambda: _gather(out, source, group=world.group), lambda: out.fill_(-1), [(out, whole)])


def allgather_in_place(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    """What a rank sends is its own block of the output."""
    whole, out = _gathered(world, count, dtype, repetition), _out(world, count, dtype)
    block = _own_block(world, out)

    def restore() -> None:
        out.fill_(-1)
        block.copy_(_own_block(world, whole))

    restore()
    return Prepared(lambda: _gather(out, block, group=world.group), restore, [(out, whole)])


def _gathered(world: World, count: int, dtype: torch.dtype, repetition: int) -> torch.Tensor:
    return torch.cat([values(r, count // world.size, world, dtype, repetition) for r in range(world.size)])


def _own_block(world: World, whole: torch.Tensor) -> torch.Tensor:
    return whole.view(world.size, -1)[world.rank]


def reducescatter(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, total = _summed(world, count, dtype, repetition)
    out, expected = _out(world, count // world.size, dtype), _own_block(world, total).clone()
    return Prepared(lambda: _scatter(out, source, group=world.group), lambda: out.fill_(-1), [(out, expected)])


def reducescatter_in_place(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    """What a rank receives replaces its own block of the input."""
    source, total = _summed(world, count, dtype, repetition)
    buffer, expected = source.clone(), _own_block(world, total).clone()
    block = _own_block(world, buffer)
    run = lambda: _scatter(block, buffer, group=world.group)
    return Prepared(run, lambda: buffer.copy_(source), [(block, expected)])


def alltoall(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    of = lambda rank: values(rank, count, world, dtype, repetition)
    source, out = of(world.rank), _out(world, count, dtype)
    expected = torch.cat([_own_block(world, of(rank)) for rank in range(world.size)])
    run = lambda: dist.all_to_all_single(out, source, group=world.group)
    return Prepared(run, lambda: out.fill_(-1), [(out, expected)])


def broadcast(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, expected = (values(rank, count, world, dtype, repetition) for rank in (world.rank, 0))
    buffer, root = source.clone(), _root(world)
    run = lambda: dist.broadcast(buffer, root, group=world.group)
    return Prepared(run, lambda: buffer.copy_(source), [(buffer, expected)])


def broadcast_out_of_place(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    """The root copies; the others have one buffer, in which they receive."""
    expected, out, root = values(0, count, world, dtype, repetition), _out(world, count, dtype), _root(world)
    source = expected.clone()
    run = lambda: dist.broadcast(out.copy_(source) if world.rank == 0 else out, root, group=world.group)
    return Prepared(run, lambda: out.fill_(-1), [(out, expected)])


def _root(world: World) -> int:
    """The first rank of the group, by its number among all ranks."""
    return dist.get_global_rank(world.group, 0) if world.group is not None else 0


def transfer(*pairs: tuple[int, int]) -> Make:
    """From the first of each pair of ranks to the second, all pairs at once; the other ranks do nothing."""

    def make(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
        of = lambda rank: values(rank, count, world, dtype, repetition)
        source = of(world.rank)
        outs = {a: _out(world, count, dtype) for a, b in pairs if b == world.rank}

        def run() -> None:
            sends = [dist.P2POp(dist.isend, source, b) for a, b in pairs if a == world.rank]
            receives = [dist.P2POp(dist.irecv, out, a) for a, out in outs.items()]
            for request in dist.batch_isend_irecv(sends + receives) if sends or receives else []:
                request.wait()

        results = [(out, of(a)) for a, out in outs.items()]
        return Prepared(run, lambda: [out.fill_(-1) for out in outs.values()], results)

    return make


#: name -> its ways; the figures of a row are those of the first one. An all-to-all has no way in place.
COLLECTIVES: dict[str, dict[str, Make]] = {
    "allreduce": {IN_PLACE: allreduce, OUT_OF_PLACE: allreduce_out_of_place},
    "allgather": {OUT_OF_PLACE: allgather, IN_PLACE: allgather_in_place},
    "reducescatter": {OUT_OF_PLACE: reducescatter, IN_PLACE: reducescatter_in_place},
    "alltoall": {OUT_OF_PLACE: alltoall},
    "broadcast": {IN_PLACE: broadcast, OUT_OF_PLACE: broadcast_out_of_place},
}
#: these need two ranks
TRANSFERS: dict[str, dict[str, Make]] = {
    "p2p": {OUT_OF_PLACE: transfer((0, 1))},
    "p2p_bidirectional": {OUT_OF_PLACE: transfer((0, 1), (1, 0))},
}
