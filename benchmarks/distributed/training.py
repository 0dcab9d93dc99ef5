"""End-to-end training steps under DDP and FSDP: throughput, what takes the time, and the prediction.

Throughput is of all samples over all of the time. What an exchange costs, and whether the device waits for its
instructions, is measured as in every suite (``core/sides.py``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import formulas, gauge, outliers, peaks, sides, timing, verdict
from benchmarks.core.environment import device_name
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.sampler import Watch
from benchmarks.core.trainer import Steps, series
from benchmarks.distributed import comm, operations, recording
from benchmarks.distributed.plans import Plan
from benchmarks.distributed.trainer import batches, trainer

#: DDP's buckets: a small first one, then 25 MiB each
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
#: sizes of the short sweep for the prediction, if the communication benchmark gave no fit
SWEEP = 6
RULES = ["shared_gpu", "cv", "allocation_retries", "out_of_memory", "skipped_steps", "loss", "mfu", "launch_bound"]


def buckets(total: int) -> list[int]:
    """The buckets of DDP's gradients: sizes in bytes."""
    sizes: list[int] = []
    remaining = total
    while remaining > 0:
        sizes.append(min(remaining, BUCKET if sizes else FIRST_BUCKET))
        remaining -= sizes[-1]
    return sizes


def train(world: World, plan: Plan, engine: str, doubling: dict[str, Any] | None) -> dict[str, Any]:
    """One engine: steps, then passes with and without synchronisation in turns."""
    gauge.settle(world)
    own = trainer(world, plan, engine)
    loader = batches(world, plan, own)
    series(own, plan.warmup, loader.first(plan.warmup))
    own.reset_memory()
    with Watch(world) as watch:
        steps = series(own, plan.iters, loader.first(plan.iters))
    peak, counts = own.gauge.held(), gauge.worst(world, own.gauge.counts())
    exposed = sides.exposed(world, own, loader.make(0), plan.iters, plan.seed)
    own.close()
    joules, used = watch.joules(), figures(world, plan, steps)
    result = {
        **used,
        "data_wait_share": max(world.gather(sum(loader.waited) / steps.wall)),
        # the worst rank's; a resident set would count the whole process
        "peak_memory_bytes": max(world.gather(peak)) if own.gauge.cuda else None,
        "joules_per_sample": joules and formulas.joules_per_sample(joules, used["samples"]),
        "gpu": watch.cards,
        "exposed": exposed,
    }
    facts = {
        **counts,
        "cv": used["timing"]["cv"],
        "loss": used["loss"],
        "mfu": used["mfu"]["mfu"],
        "doubling": sides.doubling_fact(doubling),
        "skipped_steps": max(world.gather(steps.skipped)),
        "ranks_per_gpu": world.ranks_per_gpu(),
        "slow": exposed and outliers.rank_words(exposed["slow"]),
    }
    rules = [*RULES, "slow"] if exposed else RULES
    return result | {"verdict": verdict.judge(facts, rules, f"training {engine}")}


def figures(world: World, plan: Plan, steps: Steps) -> dict[str, Any]:
    """Times, throughput and MFU of a series of steps, of all ranks."""
    wall, samples = max(world.gather(steps.wall)), plan.batch * world.size * plan.iters
    flops, gpu = plan.shape.training_flops() * samples, world.device if world.device.type == "cuda" else None
    return {
        "timing": timing.summary(world.slowest([seconds for _, seconds in steps.laps]), plan.seed),
        "wall_s": wall,
        "samples": samples,
        **formulas.throughput(samples, wall, plan.shape.length, world.size),
        "loss": statistics.fmean(world.gather(steps.losses[-1])),
        "mfu": peaks.mfu(flops, wall, device_name(world.device), peaks.ran_in(plan.dtype), world.size, gpu),
    }


# -- what was predicted --------------------------------------------------------------------


def gradient_allreduce(world: World, plan: Plan, fit: dict[str, Any] | None) -> dict[str, Any]:
    """The all-reduce of all gradients, bucket by bucket as in DDP, without any computation to overlap with."""
    total = 4 * plan.shape.parameters()
    sizes = buckets(total)
    if world.size == 1:
        return {"bytes": total, "buckets": len(sizes), "skipped": "one rank exchanges nothing"}
    sweep = None if fit else short_sweep(world, plan, sizes)
    known_fit = fit if sweep is None else sweep["fit"]
    buffer = torch.rand(min(total, BUCKET) // 4 + 1, device=world.device) - 0.5

    def act() -> None:
        requests = [dist.all_reduce(buffer[: size // 4], async_op=True) for size in sizes]
        for request in requests:
            request.wait()

    renew = lambda: buffer.uniform_(-0.5, 0.5)  # otherwise the sums of sums would overflow
    samples = timing.measure(act, warmup=2, iters=plan.iters, device=world.device, before=world.barrier, after=renew)
    time = timing.summary(world.slowest(samples), plan.seed)
    predicted = predict(known_fit, sizes)
    return {
        "bytes": total,
        "buckets": len(sizes),
        "predicted_s": predicted,
        "measured_s": time["p50_s"],
        "measured_over_predicted": time["p50_s"] / predicted if predicted else None,
        "fit": known_fit,
        "sweep": sweep,
        "timing": time,
    }


def predict(fit: dict[str, Any] | None, sizes: Sequence[int]) -> float | None:
    """The sum of the buckets' times by the fit; None if one of them is outside the measured sizes."""
    pieces = [formulas.Piece(**piece) for piece in fit["pieces"]] if fit else []
    times = [formulas.predicted(pieces, size) for size in sizes] if pieces else [None]
    return None if None in times else sum(time for time in times if time is not None)


def short_sweep(world: World, plan: Plan, sizes: Sequence[int]) -> dict[str, Any]:
    """A few sizes, from the smallest bucket to the largest, and their fit."""
    low, high = min(min(sizes), max(sizes) // 1024), max(sizes)
    swept = [round(low * (high / low) ** (k / (SWEEP - 1))) for k in range(SWEEP)]
    sweep = comm.Plan(swept, warmup=3, iters=max(5, plan.iters // 2), dtype="fp32")
    rows = [comm.measure(world, "allreduce", operations.allreduce, size, sweep) for size in swept]
    return {"rows": rows, "fit": comm.fitted(rows)}


# -- launch-bound --------------------------------------------------------------------------


def doubled(world: World, plan: Plan) -> dict[str, Any] | None:
    """How much longer the passes of twice the batch take, on each rank without any engine."""
    own = trainer(world, plan, "none")
    try:
        once, twice = (
            sides.passes(own, batches(world, plan, own, samples).make(0), sync=False)
            for samples in (plan.batch, 2 * plan.batch)
        )
        return sides.doubled(world, once, twice, max(5, plan.iters // 4), plan.seed)
    finally:
        own.close()


def recorded(world: World, plan: Plan, engine: str) -> dict[str, Any]:
    """The collectives of one step, after two others: DDP orders its buckets after the first one."""
    own = trainer(world, plan, engine)
    loader = batches(world, plan, own)
    series(own, 2, loader.first(2))
    with recording.Recorder() as recorder:
        own.step(loader.make(0))
    own.close()
    entries, left_out = zip(*world.gather((recorder.entries, dict(recorder.left_out))), strict=True)
    return {"left_out": left_out[0], "collectives": recording.merged(entries)}


def record_steps(world: World, plan: Plan, path: str) -> None:
    steps = {engine: recorded(world, plan, engine) for engine in ("ddp", "fsdp")}
    if world.first:
        source = f"{plan.model}, {plan.dtype}, {plan.batch} samples a rank"
        recording.write(path, world.size, source, steps)


def run(
    world: World, plan: Plan, put: Callable[..., None], fit: dict[str, Any] | None, record: str | None = None
) -> None:
    """Run every engine and put it into the record as soon as it is complete."""
    put("model", describe(plan))
    with Progress("training", 4, rank=world.rank) as bar:
        doubling = doubled(world, plan)
        put("doubling", doubling)
        bar.step("alone")
        put("gradient_allreduce", gradient_allreduce(world, plan, fit))
        bar.step("all-reduce")
        for engine in ("ddp", "fsdp"):
            put(engine, train(world, plan, engine, doubling))
            bar.step(engine)
    if record:
        record_steps(world, plan, record)


def describe(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.model,
        "parameters": plan.shape.parameters(),
        "training_flops_per_sample": plan.shape.training_flops(),
        "tokens_per_sample": plan.shape.length,
        "samples_per_rank": plan.batch,
        "dtype": plan.dtype,
    }
