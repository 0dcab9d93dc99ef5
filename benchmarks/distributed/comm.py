"""Collectives and point-to-point transfers: time, bandwidth, exactness, and the fit of a sweep of sizes.

A row of ``OPERATIONS`` creates the operation on buffers of S bytes (S as nccl-tests defines it: the larger of what a
rank sends and receives) and its exact result, which is compared element by element outside the timed loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import formulas, timing, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.distributed.algorithms import Algorithms

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: every integer up to this is exact in each of the dtypes
EXACT = 256
#: a matrix of all pairs grows with the square of the ranks; beyond this only neighbours are measured
ALL_PAIRS = 16
PAIR_BYTES = 64 * 2**20
RULES = ["shared_gpu", "cv", "wrong_elements"]
#: one rank has no link: the results are checked, but no bandwidth is reported
ALONE = ["wrong_elements"]


def values(rank: int, count: int, world: World, dtype: torch.dtype) -> torch.Tensor:
    """Small integers that differ by rank and position: their sum over all ranks is exact in every dtype and order."""
    modulus = max(2, min(8, EXACT // world.size + 1))
    return ((torch.arange(count, dtype=torch.int32, device=world.device) + rank) % modulus).to(dtype)


@dataclass
class Prepared:
    """One operation on its buffers."""

    run: Callable[[], Any]
    #: restores what the operation overwrote, outside the timed part
    restore: Callable[[], Any]
    #: pairs of a result and its exact value; empty on a rank that receives nothing
    results: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]


Make = Callable[[World, int, torch.dtype], Prepared]


def allreduce(world: World, count: int, dtype: torch.dtype) -> Prepared:
    source = values(world.rank, count, world, dtype)
    buffer = source.clone()
    expected = lambda: sum((values(r, count, world, dtype) for r in range(world.size)), torch.zeros_like(source))
    return Prepared(lambda: dist.all_reduce(buffer), lambda: buffer.copy_(source), lambda: [(buffer, expected())])


def allgather(world: World, count: int, dtype: torch.dtype) -> Prepared:
    source = values(world.rank, count // world.size, world, dtype)
    out = torch.full((count,), -1, dtype=dtype, device=world.device)
    expected = lambda: torch.cat([values(r, len(source), world, dtype) for r in range(world.size)])
    # torch 2.13 changed the name
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Prepared(lambda: gather(out, source), lambda: out.fill_(-1), lambda: [(out, expected())])


def reducescatter(world: World, count: int, dtype: torch.dtype) -> Prepared:
    source, part = values(world.rank, count, world, dtype), count // world.size
    out = torch.full((part,), -1, dtype=dtype, device=world.device)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def expected() -> torch.Tensor:
        total = sum((values(r, count, world, dtype) for r in range(world.size)), torch.zeros_like(source))
        return total[world.rank * part : (world.rank + 1) * part]

    return Prepared(lambda: scatter(out, source), lambda: out.fill_(-1), lambda: [(out, expected())])


def alltoall(world: World, count: int, dtype: torch.dtype) -> Prepared:
    source, part = values(world.rank, count, world, dtype), count // world.size
    out = torch.full((count,), -1, dtype=dtype, device=world.device)
    own_part = slice(world.rank * part, (world.rank + 1) * part)
    expected = lambda: torch.cat([values(r, count, world, dtype)[own_part] for r in range(world.size)])
    run = lambda: dist.all_to_all_single(out, source)
    return Prepared(run, lambda: out.fill_(-1), lambda: [(out, expected())])


def broadcast(world: World, count: int, dtype: torch.dtype) -> Prepared:
    source = values(world.rank, count, world, dtype)
    buffer = source.clone()
    expected = lambda: values(0, count, world, dtype)
    return Prepared(lambda: dist.broadcast(buffer, 0), lambda: buffer.copy_(source), lambda: [(buffer, expected())])


def transfer(*pairs: tuple[int, int]) -> Make:
    """From the first of each pair of ranks to the second, all pairs at once; the other ranks do nothing."""

    def make(world: World, count: int, dtype: torch.dtype) -> Prepared:
        source = values(world.rank, count, world, dtype)
        outs = {a: torch.full_like(source, -1) for a, b in pairs if b == world.rank}

        def run() -> None:
            sends = [dist.P2POp(dist.isend, source, b) for a, b in pairs if a == world.rank]
            receives = [dist.P2POp(dist.irecv, out, a) for a, out in outs.items()]
            for request in dist.batch_isend_irecv(sends + receives) if sends or receives else []:
                request.wait()

        results = lambda: [(out, values(a, count, world, dtype)) for a, out in outs.items()]
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
    """One row: warmed up at this size, timed, and checked on fresh data after the timed loop."""
    dtype = DTYPES[plan.dtype]
    count = elements(size, world.size, dtype)
    actual = count * dtype.itemsize
    operation = make(world, count, dtype)
    samples = timing.measure(
        operation.run,
        warmup=plan.warmup,
        iters=plan.iters,
        device=world.device,
        before=world.barrier,
        after=operation.restore,
        events=True,
    )
    time = timing.summary(world.slowest(samples))
    wrong = wrong_elements(world, operation)
    facts = {"cv": time["cv"], "wrong_elements": wrong, "ranks_per_gpu": world.ranks_per_gpu()}
    alone = world.size == 1
    return {
        "asked_bytes": size,
        "size_bytes": actual,
        "latency_us": time["p50_s"] * 1e6,
        "algbw_gb_per_s": None if alone else formulas.algorithm_bandwidth(actual, time["p50_s"]),
        "busbw_gb_per_s": formulas.bus_bandwidth(name, actual, time["p50_s"], world.size),
        "wrong_elements": wrong,
        "timing": time,
        "verdict": verdict.judge(facts, ALONE if alone else RULES, f"{name} of {actual} bytes"),
    }


def wrong_elements(world: World, operation: Prepared) -> int:
    """Wrong elements over all ranks, after one more run on restored buffers."""
    operation.restore()
    world.barrier()
    operation.run()
    timing.synchronize(world.device)
    wrong = sum(int((got != expected).sum()) for got, expected in operation.results())
    return sum(world.gather(wrong))


def sweep(world: World, name: str, make: Make, plan: Plan, bar: Progress, logs: Algorithms) -> dict[str, Any]:
    """All sizes of one operation, and their fit."""
    rows = []
    for size in plan.sizes:
        rows.append({**measure(world, name, make, size, plan), "algorithm": logs.since_last()})
        bar.step(f"{name} {size}")
    return {"rows": rows, "fit": fitted(rows) if world.size > 1 else None}


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    fit = formulas.alpha_beta([row["size_bytes"] for row in rows], [row["timing"]["p50_s"] for row in rows])
    return asdict(fit) if fit else None


def pairs(ranks: int) -> list[tuple[int, int]]:
    if ranks > ALL_PAIRS:
        return [(a, (a + 1) % ranks) for a in range(ranks)]
    return [(a, b) for a in range(ranks) for b in range(ranks) if a != b]


def pair_matrix(world: World, plan: Plan, bar: Progress) -> dict[str, Any]:
    """One-way bandwidth from each rank to each, one pair at a time, in GB/s."""
    size = min(PAIR_BYTES, max(plan.sizes))
    matrix: list[list[float | None]] = [[None] * world.size for _ in range(world.size)]
    wrong = 0
    for a, b in pairs(world.size):
        row = measure(world, "p2p", transfer((a, b)), size, plan)
        matrix[a][b], wrong = row["algbw_gb_per_s"], wrong + row["wrong_elements"]
        bar.step(f"{a} to {b}")
    return {
        "size_bytes": size,
        "gb_per_s": matrix,
        "wrong_elements": wrong,
        "verdict": verdict.judge({"wrong_elements": wrong}, ["wrong_elements"], "pairs"),
    }


def run(world: World, plan: Plan, put: Callable[..., None], logs: Algorithms) -> None:
    """Run every operation and put it into the record as soon as it is complete."""
    moves = {} if world.size == 1 else TRANSFERS
    many = len(plan.sizes) * (len(COLLECTIVES) + len(moves)) + (len(pairs(world.size)) if moves else 0)
    put("backend", world.backend)
    put("dtype", plan.dtype)
    with Progress("communication", many, rank=world.rank) as bar:
        for name, make in {**COLLECTIVES, **moves}.items():
            put(name, sweep(world, name, make, plan, bar, logs))
        for name in () if moves else TRANSFERS:
            put(name, {"skipped": "a transfer needs two ranks"})
        put("pairs", pair_matrix(world, plan, bar) if moves else {"skipped": "a pair needs two ranks"})
    put("algorithm", logs.all())
