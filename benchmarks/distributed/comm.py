"""Collectives and point-to-point transfers: time, bandwidth, exactness, and the fit of a sweep of sizes.

Each of several slots has its own data and buffers (``operations.py``). A round runs every slot once, timed, and then
compares all results element by element: so the result of every timed iteration is checked. Operations that can run in
place and out of place are measured both ways.

Two times are measured. *Back to back*, as nccl-tests does: the operations of a round are queued one after the other.
Bandwidths and the fit come from this one. *One at a time*: the ranks start together and the device is idle before; this
contains the launch, which for small messages takes longer than the transfer. The time of the launch itself is that of
the host, for one call of a queue. With ``--cuda-graph`` the queue of a round is one CUDA graph, and a single operation
another; the launch is then that of the graph, divided by its operations.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.core import formulas, outliers, timing, verdict
from benchmarks.core.environment import device_name
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.trainer import DTYPES
from benchmarks.distributed import expected
from benchmarks.distributed.algorithms import Algorithms
from benchmarks.distributed.operations import COLLECTIVES, TRANSFERS, Make, Prepared, transfer

#: slots of a row, and the most bytes of a row's messages in all of them; on a CPU a call ends with its operation
SLOTS, SLOT_BYTES = {"cuda": 17, "cpu": 3}, 64 * 2**20
#: a matrix of all pairs grows with the square of the ranks; beyond this only neighbours are measured
ALL_PAIRS = 16
PAIR_BYTES = 64 * 2**20
RULES = ["shared_gpu", "cv", "wrong_elements"]
#: one rank has no link: the results are checked, but no bandwidth is reported
ALONE = ["wrong_elements"]


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int]
    warmup: int
    iters: int
    dtype: str
    #: capture the operations in CUDA graphs
    graphs: bool = False


def measure(world: World, name: str, make: Make, size: int, plan: Plan) -> dict[str, Any]:
    """One row: warmed up at this size, timed back to back and one at a time, and every timed result checked."""
    dtype = DTYPES[plan.dtype]
    count = formulas.message_elements(size, world.size, dtype.itemsize)
    actual = count * dtype.itemsize
    number = max(2, min(SLOTS[world.device.type], SLOT_BYTES // actual))
    own = rounds(world, [make(world, count, dtype, repetition) for repetition in range(number)], plan)
    singles, queued, launches, wrong = zip(*world.gather(own), strict=True)
    single, queue = (timing.summary([max(at) for at in zip(*each, strict=True)]) for each in (singles, queued))
    # of the rank that launches slowest; on a CPU a call ends with its operation
    launch = max(launches, key=statistics.median) if world.device.type == "cuda" else None
    facts = {"cv": queue["cv"], "wrong_elements": sum(wrong), "ranks_per_gpu": world.ranks_per_gpu()}
    alone = world.size == 1
    return {
        "asked_bytes": size,
        "size_bytes": actual,
        "latency_us": queue["p50_s"] * 1e6,
        "single_us": single["p50_s"] * 1e6,
        "launch_us": statistics.median(launch) * 1e6 if launch else None,
        "launch": {"median": statistics.median(launch), "seconds": launch} if launch else None,
        "algbw_gb_per_s": None if alone else formulas.algorithm_bandwidth(actual, queue["p50_s"]),
        "busbw_gb_per_s": formulas.bus_bandwidth(name, actual, queue["p50_s"], world.size),
        "wrong_elements": sum(wrong),
        "timing": {**queue, "steps_per_sample": number - 1},
        "single": {"timing": single},
        "single_by_rank_us": [timing.percentile(each, 50) * 1e6 for each in singles],
        "verdict": verdict.judge(facts, ALONE if alone else RULES, f"{name} of {actual} bytes"),
    }


def both_ways(world: World, name: str, ways: dict[str, Make], size: int, plan: Plan) -> dict[str, Any]:
    """The row of the first way, and within it that of the other one, under its name."""
    rows = {way: measure(world, name, make, size, plan) for way, make in ways.items()}
    (way, row), *others = rows.items()
    judged = verdict.together(each["verdict"] for each in rows.values())
    return row | {"buffers": way, "verdict": judged} | {other.replace(" ", "_"): each for other, each in others}


def rounds(world: World, slots: list[Prepared], plan: Plan) -> tuple[list[float], list[float], list[float], int]:
    """This rank's seconds one at a time, back to back and of launches, and the wrong elements of all timed results."""
    single: list[float] = []
    queued: list[tuple[float, float]] = []
    wrong = torch.zeros((), dtype=torch.int64, device=world.device)
    # a capture must not be the first time
    for number in range(max(plan.warmup, plan.graphs)):
        slots[number % len(slots)].run()
    queue = captured(lambda: run_all(slots[1:])) if plan.graphs else lambda: run_all(slots[1:])
    if plan.graphs:
        slots = [replace(slot, run=captured(slot.run)) for slot in slots]
    restore(slots)
    for number in range(plan.iters):
        alone = slots[number % len(slots)]
        single.append(one_at_a_time(world, alone))
        wrong += wrong_elements([alone])
        alone.restore()
        queued.append(back_to_back(world, slots[0], queue, len(slots) - 1))
        wrong += wrong_elements(slots)
        restore(slots)
    seconds, launches = zip(*queued, strict=True)
    return single, list(seconds), list(launches), int(wrong)


def one_at_a_time(world: World, slot: Prepared) -> float:
    return timing.measure(slot.run, warmup=0, iters=1, device=world.device, before=world.barrier, events=True)[0]


def back_to_back(world: World, first: Prepared, queue: Callable[[], Any], count: int) -> tuple[float, float]:
    """Seconds of one of the ``count`` operations of a queue, and of the host for one call.

    The first operation, which is not timed, only makes the device busy.
    """
    world.barrier()
    timing.synchronize(world.device)
    first.run()
    marks = [timing.mark(world.device)]
    started = time.perf_counter()
    queue()
    launch = time.perf_counter() - started
    marks.append(timing.mark(world.device))
    timing.synchronize(world.device)
    return timing.between(*marks) / count, launch / count


def run_all(slots: Sequence[Prepared]) -> None:
    for slot in slots:
        slot.run()


def captured(act: Callable[[], Any]) -> Callable[[], Any]:
    """The kernels of an action as one CUDA graph: every rank must capture the same operations.

    The graph has addresses only, so what it returns keeps the action, and with it the buffers.
    """
    graph: Any = torch.cuda.CUDAGraph()
    # NCCL's own threads may call CUDA meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        act()
    return functools.partial(_replay, graph, act)


def _replay(graph: Any, action: Callable[[], Any]) -> None:
    graph.replay()


def restore(slots: list[Prepared]) -> None:
    for slot in slots:
        slot.restore()


def wrong_elements(slots: list[Prepared]) -> Any:
    """The elements of this rank's results that are not exact."""
    return sum((result != expected).sum() for slot in slots for result, expected in slot.results)


def sweep(
    world: World, name: str, ways: dict[str, Make], plan: Plan, bar: Progress, logs: Algorithms
) -> dict[str, Any]:
    """All sizes of one operation, and their fit."""
    rows = []
    for size in plan.sizes:
        rows.append({**both_ways(world, name, ways, size, plan), "algorithm": logs.since_last()})
        bar.step(f"{name} {size}")
    return {"rows": rows, "fit": fitted(rows) if world.size > 1 else None}


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The fit, which is as valid as its rows."""
    fit = formulas.alpha_beta([row["size_bytes"] for row in rows], [row["timing"]["p50_s"] for row in rows])
    return asdict(fit) | {"valid": all(row["verdict"]["valid"] for row in rows)} if fit else None


def pairs(ranks: int) -> list[tuple[int, int]]:
    if ranks > ALL_PAIRS:
        return [(a, (a + 1) % ranks) for a in range(ranks)]
    return [(a, b) for a in range(ranks) for b in range(ranks) if a != b]


def pair_matrix(world: World, plan: Plan, bar: Progress) -> dict[str, Any]:
    """One-way bandwidth from each rank to each, one pair at a time, in GB/s; and the slow ones."""
    size = actual = min(PAIR_BYTES, max(plan.sizes))
    matrix: list[list[float | None]] = [[None] * world.size for _ in range(world.size)]
    samples: list[list[list[float] | None]] = [[None] * world.size for _ in range(world.size)]
    wrong = 0
    for a, b in pairs(world.size):
        row = measure(world, "p2p", transfer((a, b)), size, plan)
        matrix[a][b], samples[a][b] = row["algbw_gb_per_s"], row["timing"]["samples_s"]
        actual, wrong = row["size_bytes"], wrong + row["wrong_elements"]
        bar.step(f"{a} to {b}")
    slow = outliers.slow_pairs(matrix, world.members)
    facts = {"wrong_elements": wrong, "slow": outliers.pair_words(slow)}
    return {
        "size_bytes": actual,
        "gb_per_s": matrix,
        "samples_s": samples,
        "slow": slow,
        "wrong_elements": wrong,
        "verdict": verdict.judge(facts, ["wrong_elements", "slow"], "pairs"),
    }


def run(world: World, plan: Plan, put: Callable[..., None], logs: Algorithms) -> None:
    """Run every operation and put it into the record as soon as it is complete."""
    moves = {} if world.size == 1 else TRANSFERS
    many = len(plan.sizes) * (len(COLLECTIVES) + len(moves)) + (len(pairs(world.size)) if moves else 0)
    measured: dict[str, Any] = {}
    put("backend", world.backend)
    put("dtype", plan.dtype)
    put("cuda_graphs", plan.graphs)
    with Progress("communication", many, rank=world.rank) as bar:
        for name, ways in {**COLLECTIVES, **moves}.items():
            measured[name] = sweep(world, name, ways, plan, bar, logs)
            put(name, measured[name])
        for name in () if moves else TRANSFERS:
            put(name, {"skipped": "a transfer needs two ranks"})
        put("pairs", pair_matrix(world, plan, bar) if moves else {"skipped": "a pair needs two ranks"})
    put("algorithm", logs.all())
    machine = device_name(world.device), world.size, world.nodes(), world.ranks_per_gpu()
    put("expected", expected.compared(measured, *machine))
