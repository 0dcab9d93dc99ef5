"""Collectives and point-to-point transfers: time, bandwidth, exactness, and the fit of a sweep of sizes.

A row of `COLLECTIVES` creates the operation on buffers of S bytes (S as nccl-tests defines it: the larger of what a
rank sends and receives) and its exact result. Each of several slots has its own data and buffers. A round runs every
slot once, timed, and then compares all results element by element: so the result of every timed iteration is checked.

Two times are measured. *Back to back*, as nccl-tests does: the operations of a round are queued one after the other.
Bandwidths and the fit come from this one. *One at a time*: the ranks start together and the device is idle before; this
contains the launch, which for small messages takes longer than the transfer. The time of the launch itself is that of
the host, for one call of a queue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import formulas, outliers, timing, verdict
from benchmarks.core.environment import device_name
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.trainer import DTYPES
from benchmarks.distributed import expected
from benchmarks.distributed.algorithms import Algorithms

#: every integer up to this is exact in each of the dtypes, the largest value, and the ranks that add to one element
EXACT, LARGEST, ADDENDS = 256, 7, 128
#: elements made at a time
CHUNK = 2**24
#: slots of a row, and the most bytes of a row's messages in all of them; on a CPU a call ends with its operation
SLOTS, SLOT_BYTES = {"cuda": 17, "cpu": 3}, 64 * 2**20
#: a matrix of all pairs grows with the square of the ranks; beyond this only neighbours are measured
ALL_PAIRS = 16
PAIR_BYTES = 64 * 2**20
RULES = ["shared_gpu", "cv", "wrong_elements"]
#: one rank has no link: the results are checked, but no bandwidth is reported
ALONE = ["wrong_elements"]


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
    return Prepared(lambda: dist.all_reduce(buffer), lambda: buffer.copy_(source), [(buffer, total)])


def _summed(world: World, count: int, dtype: torch.dtype, repetition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's values, and the sum of all ranks'."""
    of = lambda rank: values(rank, count, world, dtype, repetition, world.size)
    own = of(world.rank)
    return own, sum((of(rank) for rank in range(world.size)), torch.zeros_like(own))


def _out(world: World, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((count,), -1, dtype=dtype, device=world.device)


def allgather(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    blocks = [values(r, count // world.size, world, dtype, repetition) for r in range(world.size)]
    source, out = blocks[world.rank].clone(), _out(world, count, dtype)
    # torch 2.13 changed the name
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Prepared(lambda: gather(out, source), lambda: out.fill_(-1), [(out, torch.cat(blocks))])


def reducescatter(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, total = _summed(world, count, dtype, repetition)
    expected = total.chunk(world.size)[world.rank].clone()
    out = _out(world, count // world.size, dtype)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Prepared(lambda: scatter(out, source), lambda: out.fill_(-1), [(out, expected)])


def alltoall(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    of = lambda rank: values(rank, count, world, dtype, repetition)
    source, out = of(world.rank), _out(world, count, dtype)
    expected = torch.cat([of(rank).chunk(world.size)[world.rank] for rank in range(world.size)])
    return Prepared(lambda: dist.all_to_all_single(out, source), lambda: out.fill_(-1), [(out, expected)])


def broadcast(world: World, count: int, dtype: torch.dtype, repetition: int) -> Prepared:
    source, expected = (values(rank, count, world, dtype, repetition) for rank in (world.rank, 0))
    buffer = source.clone()
    return Prepared(lambda: dist.broadcast(buffer, 0), lambda: buffer.copy_(source), [(buffer, expected)])


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


#: name -> its function; transfers need two ranks
COLLECTIVES: dict[str, Make] = {
    "allreduce": allreduce,
    "allgather": allgather,
    "reducescatter": reducescatter,
    "alltoall": alltoall,
    "broadcast": broadcast,
}
TRANSFERS: dict[str, Make] = {"p2p": transfer((0, 1)), "p2p_bidirectional": transfer((0, 1), (1, 0))}


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int]
    warmup: int
    iters: int
    dtype: str


def elements(size: int, ranks: int, dtype: torch.dtype) -> int:
    """The number of elements that fit in the size and divide by the ranks, at least one per rank."""
    return max(ranks, size // dtype.itemsize // ranks * ranks)


def measure(world: World, name: str, make: Make, size: int, plan: Plan) -> dict[str, Any]:
    """One row: warmed up at this size, timed in both ways, and every timed result checked."""
    dtype = DTYPES[plan.dtype]
    count = elements(size, world.size, dtype)
    actual = count * dtype.itemsize
    number = max(2, min(SLOTS[world.device.type], SLOT_BYTES // actual))
    own = rounds(world, [make(world, count, dtype, repetition) for repetition in range(number)], plan)
    singles, queued, launches, wrong = zip(*world.gather(own), strict=True)
    single, queue = (timing.summary([max(at) for at in zip(*each, strict=True)]) for each in (singles, queued))
    facts = {"cv": queue["cv"], "wrong_elements": sum(wrong), "ranks_per_gpu": world.ranks_per_gpu()}
    alone = world.size == 1
    return {
        "asked_bytes": size,
        "size_bytes": actual,
        "latency_us": queue["p50_s"] * 1e6,
        "single_us": single["p50_s"] * 1e6,
        "launch_us": max(launches) * 1e6 if world.device.type == "cuda" else None,
        "algbw_gb_per_s": None if alone else formulas.algorithm_bandwidth(actual, queue["p50_s"]),
        "busbw_gb_per_s": formulas.bus_bandwidth(name, actual, queue["p50_s"], world.size),
        "wrong_elements": sum(wrong),
        "timing": {**queue, "steps_per_sample": number - 1},
        "single": {"timing": single},
        "single_by_rank_us": [timing.percentile(each, 50) * 1e6 for each in singles],
        "verdict": verdict.judge(facts, ALONE if alone else RULES, f"{name} of {actual} bytes"),
    }


def rounds(world: World, slots: list[Prepared], plan: Plan) -> tuple[list[float], list[float], float, int]:
    """This rank's seconds one at a time and back to back, of a launch, and the wrong elements of all timed results."""
    single: list[float] = []
    queued: list[tuple[float, float]] = []
    wrong = torch.zeros((), dtype=torch.int64, device=world.device)
    for number in range(plan.warmup):
        slots[number % len(slots)].run()
    restore(slots)
    for number in range(plan.iters):
        alone = slots[number % len(slots)]
        single.append(one_at_a_time(world, alone))
        wrong += wrong_elements([alone])
        alone.restore()
        queued.append(back_to_back(world, slots))
        wrong += wrong_elements(slots)
        restore(slots)
    seconds, launches = zip(*queued, strict=True)
    return single, list(seconds), timing.percentile(launches, 50), int(wrong)


def one_at_a_time(world: World, slot: Prepared) -> float:
    return timing.measure(slot.run, warmup=0, iters=1, device=world.device, before=world.barrier, events=True)[0]


def back_to_back(world: World, slots: list[Prepared]) -> tuple[float, float]:
    """Seconds of one operation of a queue, and of the host for one call. The first one only makes the device busy."""
    first, *others = slots
    world.barrier()
    timing.synchronize(world.device)
    first.run()
    marks = [timing.mark(world.device)]
    started = time.perf_counter()
    for slot in others:
        slot.run()
    launch = time.perf_counter() - started
    marks.append(timing.mark(world.device))
    timing.synchronize(world.device)
    return timing.between(*marks) / len(others), launch / len(others)


def restore(slots: list[Prepared]) -> None:
    for slot in slots:
        slot.restore()


def wrong_elements(slots: list[Prepared]) -> Any:
    """The elements of this rank's results that are not exact."""
    return sum((result != expected).sum() for slot in slots for result, expected in slot.results)


def sweep(world: World, name: str, make: Make, plan: Plan, bar: Progress, logs: Algorithms) -> dict[str, Any]:
    """All sizes of one operation, and their fit."""
    rows = []
    for size in plan.sizes:
        rows.append({**measure(world, name, make, size, plan), "algorithm": logs.since_last()})
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
    size = min(PAIR_BYTES, max(plan.sizes))
    matrix: list[list[float | None]] = [[None] * world.size for _ in range(world.size)]
    wrong = 0
    for a, b in pairs(world.size):
        row = measure(world, "p2p", transfer((a, b)), size, plan)
        matrix[a][b], wrong = row["algbw_gb_per_s"], wrong + row["wrong_elements"]
        bar.step(f"{a} to {b}")
    slow = outliers.slow_pairs(matrix, world.members)
    facts = {"wrong_elements": wrong, "slow": outliers.pair_words(slow)}
    return {
        "size_bytes": size,
        "gb_per_s": matrix,
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
    with Progress("communication", many, rank=world.rank) as bar:
        for name, make in {**COLLECTIVES, **moves}.items():
            measured[name] = sweep(world, name, make, plan, bar, logs)
            put(name, measured[name])
        for name in () if moves else TRANSFERS:
            put(name, {"skipped": "a transfer needs two ranks"})
        put("pairs", pair_matrix(world, plan, bar) if moves else {"skipped": "a pair needs two ranks"})
    put("algorithm", logs.all())
    put("expected", expected.compared(measured, device_name(world.device), world.size, world.nodes()))
