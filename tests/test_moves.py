"""Every move from one layout to another, run on real blocks: the value does not change."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import LOCAL_OPS, MoveStep, cost, route, worker_share
from gt.ops.placement import P, Partial, Placement, R, Shard
from gt.types import TensorType
from gt.worker.collectives.local import LocalNetwork, LocalPlane

MESHES = [Mesh((0,)), Mesh((1,)), Mesh((0, 1)), Mesh((2, 1, 3)), Mesh((2, 3)), Mesh((0, 1, 2, 3), (2, 2))]
WEIGHTED = [Mesh((0, 1), ((3, 1),)), Mesh((2, 1, 3), ((1, 2, 4),)), Mesh((0, 1, 2, 3), ((1, 3), 2))]
PAIRS = [
    *itertools.product(MESHES, MESHES),
    *((mesh, mesh) for mesh in WEIGHTED),
    *itertools.permutations([MESHES[2], *WEIGHTED[:2]], 2),
    *((WEIGHTED[0], WEIGHTED[2]), (WEIGHTED[2], MESHES[3])),
]
SHAPES = [(5, 4), (1, 3), (0, 2)]
Blocks = dict[int, Any]


def placements(mesh: Mesh, terms: str) -> list[tuple[Placement, ...]]:
    each: list[Placement] = [R, Shard(0), Shard(1), Partial(terms)]
    return list(itertools.product(each, repeat=len(mesh.shape)))


def cut(whole: Any, layout: Layout, rng: Any) -> Blocks:
    """Each worker's block; partial terms are noise that adds up to the value."""
    blocks = {}
    for worker in layout.workers:
        starts, sizes = layout.block(whole.shape, worker)
        blocks[worker] = whole[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))].copy()
    for axis, placement in enumerate(layout.placements):
        if placement == P:
            lines = {layout.mesh.line(axis, worker) for worker in layout.workers}
            for line in lines:
                for worker in line[1:]:
                    noise = rng.integers(-9, 9, blocks[worker].shape).astype(whole.dtype)
                    blocks[line[0]] = blocks[line[0]] - noise
                    blocks[worker] = noise
    return blocks


def joined(blocks: Blocks, layout: Layout, shape: tuple[int, ...]) -> Any:
    """The value that the blocks represent; replicas must be equal."""
    whole = np.full(shape, -(10**6))
    totals: dict[Any, Any] = {}
    for worker in layout.workers:
        at = tuple(
            c
            for c, p in zip(layout.mesh.coordinates[worker], layout.placements, strict=True)
            if not isinstance(p, Partial)
        )
        totals[at] = totals.get(at, 0) + blocks[worker]
    for worker in layout.workers:
        at = tuple(
            c
            for c, p in zip(layout.mesh.coordinates[worker], layout.placements, strict=True)
            if not isinstance(p, Partial)
        )
        starts, sizes = layout.block(shape, worker)
        region = tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
        assert (whole[region] == -(10**6)).all() or (whole[region] == totals[at]).all()
        whole[region] = totals[at]
    return whole


def run(step: MoveStep, t: TensorType, blocks: Blocks) -> Blocks:
    if step.is_local:
        return {w: run_local(step, t, w, blocks[w]) for w in step.target.workers}
    network, flights = LocalNetwork(), {}
    groups = {worker_share(step, t, w)[0] for w in step.workers}
    for number, members in enumerate(sorted(groups)):
        for rank, worker in enumerate(members):
            plane = LocalPlane(network, worker)
            plane.join(number, members, rank, f"local:{members[0]}", "gloo")
            flights[worker] = plane.start(number, step.kind, blocks.get(worker), worker_share(step, t, worker)[1])
    return {w: flights[w].result() for w in step.target.workers}


def run_local(step: MoveStep, t: TensorType, worker: int, block: Any) -> Any:
    attrs = LOCAL_OPS[step.kind](step, t, worker)
    if "mine" in attrs:
        return block if attrs["mine"] else block * 0
    return block[tuple(slice(s, s + n) for s, n in zip(attrs["starts"], attrs["sizes"], strict=True))]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_moves_keep_values(source: Mesh, target: Mesh) -> None:
    rng = np.random.default_rng(0)
    for shape, a, b in itertools.product(SHAPES, placements(source, "sum"), placements(target, "sum")):
        t, start, end = TensorType(shape), Layout(source, a), Layout(target, b)
        whole = rng.integers(-9, 9, shape).astype(np.float64)
        now, blocks = start, cut(whole, start, rng)
        np.testing.assert_array_equal(joined(blocks, start, shape), whole)
        steps = route(t, start, end)
        for step in steps:
            assert step.source is now
            blocks, now = run(step, t, blocks), step.target
            for worker in now.workers:
                assert blocks[worker].shape == now.local(t, worker).shape
        assert now is end
        np.testing.assert_array_equal(joined(blocks, end, shape), whole, err_msg=f"{start} -> {end}")
        assert (cost(t, start, end) > 0) >= any(not step.is_local for step in steps)
