"""The collectives of a recorded training step, one after the other without the computation between them.

Each has its own buffers and exact result, as in the sweep, and every timed result is checked. The time of a step is
what its communication takes if nothing overlaps with it; *exposed communication* in the training is what remains of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import timing, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.distributed import comm
from benchmarks.distributed.operations import COLLECTIVES, Prepared
from benchmarks.distributed.recording import NAMES, Entry, read


def groups(world: World, entries: Sequence[Entry]) -> dict[tuple[int, ...], World | None]:
    """Ranks -> this rank's world among them, or None if it is not one of them. Every rank creates every group."""
    found: dict[tuple[int, ...], World | None] = {}
    for ranks in dict.fromkeys(tuple(entry["group"]) for entry in entries):
        group = None if len(ranks) == world.size else dist.new_group(list(ranks))
        # new_group sorts its ranks
        member = world.rank in ranks
        found[ranks] = (
            replace(world, rank=sorted(ranks).index(world.rank), size=len(ranks), group=group) if member else None
        )
    return found


def prepare(world: World, entries: Sequence[Entry]) -> list[Prepared]:
    """This rank's operations in their order, each with data of its own, in the first way of the sweep."""
    worlds, slots = groups(world, entries), []
    for number, entry in enumerate(entries):
        own = worlds[tuple(entry["group"])]
        if own is not None:
            make, dtype = next(iter(COLLECTIVES[entry["op"]].values())), NAMES[entry["dtype"]]
            slots.append(make(own, entry["bytes"] // dtype.itemsize, dtype, number))
    return slots


def measure(world: World, name: str, entries: Sequence[Entry], plan: comm.Plan) -> dict[str, Any]:
    """All collectives of one step, timed as a whole."""
    slots = prepare(world, entries)
    act = lambda: comm.run_all(slots)
    for _ in range(max(plan.warmup, 1)):
        act()
    step = comm.captured(act) if plan.graphs else act
    samples, wrong = [], torch.zeros((), dtype=torch.int64, device=world.device)
    for _ in range(plan.iters):
        comm.restore(slots)
        samples += timing.measure(step, warmup=0, iters=1, device=world.device, before=world.barrier, events=True)
        wrong += comm.wrong_elements(slots)
    total, time = sum(world.gather(int(wrong))), timing.summary(world.slowest(samples))
    facts = {"cv": time["cv"], "wrong_elements": total, "ranks_per_gpu": world.ranks_per_gpu()}
    return {
        "collectives": len(entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "by_operation": by_operation(entries),
        "timing": time,
        "wrong_elements": total,
        "verdict": verdict.judge(facts, comm.ALONE if world.size == 1 else comm.RULES, f"replay of {name}"),
    }


def by_operation(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """How many, and of how many bytes in all."""
    counts: dict[tuple[str, str, int], list[int]] = {}
    for entry in entries:
        counts.setdefault((entry["op"], entry["dtype"], len(entry["group"])), []).append(entry["bytes"])
    return [
        {"op": op, "dtype": dtype, "ranks": ranks, "count": len(sizes), "bytes": sum(sizes)}
        for (op, dtype, ranks), sizes in counts.items()
    ]


def run(world: World, plan: comm.Plan, put: Callable[..., None], path: str) -> None:
    """Every step of the file."""
    data = read(path, world.size)
    put("source", data["source"])
    put("cuda_graphs", plan.graphs)
    with Progress("replay", len(data["steps"]), rank=world.rank) as bar:
        for name, recorded in data["steps"].items():
            if recorded["collectives"]:
                put(name, measure(world, name, recorded["collectives"], plan) | {"left_out": recorded["left_out"]})
            else:
                put(name, {"skipped": "no collectives were recorded"})
            bar.step(name)
