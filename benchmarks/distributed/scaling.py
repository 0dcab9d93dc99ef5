"""How the same training scales from one rank to all: sub-groups of 1, 2, 4, ... ranks within one launch.

Weak scaling fixes the batch of a rank, strong scaling that of all ranks together; a figure always names its mode. Ranks
that take no part block on a CPU, in the call that collects the samples: spinning ranks would slow the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from benchmarks.core import formulas, timing, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World, powers_of_two
from benchmarks.core.trainer import series
from benchmarks.distributed.plans import Plan
from benchmarks.distributed.trainer import batches, trainer

RULES = ["shared_gpu", "cv", "efficiency", "loss"]


def samples_per_rank(mode: str, plan: Plan, sizes: Sequence[int]) -> dict[int, int]:
    """Size of the sub-group -> samples per rank. The global batch of strong scaling divides by every size."""
    if mode == "weak":
        return dict.fromkeys(sizes, plan.batch)
    step = math.lcm(*sizes)
    whole = math.ceil(plan.batch / step) * step
    return {size: whole // size for size in sizes}


def point(world: World, plan: Plan, group: Any, size: int, batch: int) -> dict[str, Any]:
    """The training step on the first ``size`` ranks; the others wait for its samples."""
    samples, wall, loss = None, 0.0, None
    if world.rank < size:
        own = trainer(world, plan, "ddp", group=group)
        loader = batches(world, plan, own, batch)
        series(own, plan.warmup, loader.first(plan.warmup))
        steps = series(own, plan.iters, loader.first(plan.iters))
        samples, wall, loss = [seconds for _, seconds in steps.laps], steps.wall, steps.losses[-1]
        own.close()
    time, seconds = timing.summary(world.slowest(samples), plan.seed), max(world.gather(wall))
    return {
        "ranks": size,
        "samples_per_rank": batch,
        "samples_per_step": batch * size,
        "wall_s": seconds,
        "samples_per_s": batch * size * plan.iters / seconds,
        "loss": world.gather(loss)[0],
        "timing": time,
    }


def judged(world: World, mode: str, row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """A point with its efficiency relative to one rank."""
    size, figures = row["ranks"], formulas.scaling_point(mode, row, base)
    facts = {
        "cv": row["timing"]["cv"],
        "efficiency": figures["efficiency"],
        "loss": row["loss"],
        "ranks_per_gpu": world.ranks_per_gpu(),
    }
    return row | figures | {"verdict": verdict.judge(facts, RULES, f"{mode} scaling on {size} rank(s)")}


def run(world: World, plan: Plan, put: Callable[..., None]) -> None:
    sizes = list(powers_of_two(world.size))
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    with Progress("scaling", 2 * len(sizes), rank=world.rank) as bar:
        for mode in ("weak", "strong"):
            rows: list[dict[str, Any]] = []
            for size, batch in samples_per_rank(mode, plan, sizes).items():
                row = point(world, plan, groups[size], size, batch)
                rows.append(judged(world, mode, row, rows[0] if rows else row))
                bar.step(f"{mode} {size}")
            put(mode, {"mode": mode, "rows": rows})
    for group in groups.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
