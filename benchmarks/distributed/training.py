"""End-to-end training steps under DDP and FSDP: throughput, what takes the time, and the prediction.

Exposed communication is step(sync) - step(no_sync). The optimizer's part is the same in both and is left out of both:
without synchronisation FSDP has no gradients for it. Under FSDP both include the gathering of parameters, so only the
reduction of gradients counts as exposed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import formulas, peaks, timing, verdict
from benchmarks.core.environment import device_name
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.sampler import Watch
from benchmarks.distributed import comm
from benchmarks.distributed.gauge import Gauge, settle
from benchmarks.distributed.models import Shape
from benchmarks.distributed.trainer import Trainer

#: DDP's buckets: a small first one, then 25 MiB each
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
#: sizes of the short sweep for the prediction, if the communication benchmark did not run
SWEEP = [2**14, 2**18, 2**22, 2**24]
RULES = ["shared_gpu", "cv", "allocation_retries", "out_of_memory", "skipped_steps", "loss", "mfu", "launch_bound"]


@dataclass(frozen=True)
class Plan:
    model: str
    shape: Shape
    batch: int
    dtype: str
    warmup: int
    iters: int
    seed: int


def buckets(total: int) -> list[int]:
    """The buckets of DDP's gradients: sizes in bytes."""
    sizes: list[int] = []
    remaining = total
    while remaining > 0:
        sizes.append(min(remaining, BUCKET if sizes else FIRST_BUCKET))
        remaining -= sizes[-1]
    return sizes


def throughput(world: World, plan: Plan, time: dict[str, Any]) -> dict[str, Any]:
    """The throughput of the median step, of all ranks together and of each."""
    samples = plan.batch * world.size / time["p50_s"]
    tokens = samples * plan.shape.length
    return {
        "samples_per_s": samples,
        "tokens_per_s": tokens,
        "samples_per_s_per_rank": samples / world.size,
        "tokens_per_s_per_rank": tokens / world.size,
    }


def train(world: World, plan: Plan, engine: str, doubling: float | None) -> dict[str, Any]:
    """One engine: steps, then passes with and without synchronisation in turns."""
    settle(world)
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)
    trainer = Trainer(world, plan.shape, engine=engine, batch=plan.batch, dtype=plan.dtype, seed=plan.seed)
    trainer.steps(plan.warmup, 0)
    before = allocator(world)
    with Watch(world) as watch:
        samples = world.slowest(trainer.steps(0, plan.iters))
    time = timing.summary(samples, plan.seed)
    flops = plan.shape.training_flops() * plan.batch
    used = peaks.mfu(flops, time["p50_s"], device_name(world.device), peak_type(plan.dtype))
    joules = watch.joules()
    facts = {
        "cv": time["cv"],
        "loss": statistics.fmean(world.gather(float(trainer.loss))),
        "mfu": used["mfu"],
        "doubling": doubling,
        "skipped_steps": max(world.gather(trainer.skipped)),
        "ranks_per_gpu": world.ranks_per_gpu(),
        **{key: after - before[key] for key, after in allocator(world).items()},
    }
    result = {
        "timing": time,
        **throughput(world, plan, time),
        "data_wait_share": max(world.gather(sum(trainer.batches.waits))) / sum(samples),
        "loss": facts["loss"],
        "peak_memory_bytes": peak_memory(world),
        "joules_per_sample": joules and formulas.joules_per_sample(joules, plan.batch * world.size * plan.iters),
        "mfu": used,
        "gpu": watch.cards,
        "exposed": exposed(world, trainer, plan),
        "verdict": verdict.judge(facts, RULES, f"training {engine}"),
    }
    trainer.close()
    return result


def peak_type(dtype: str) -> str:
    """fp32 products run in TF32 where that is allowed; the peak must be that of the dtype that ran."""
    return "tf32" if dtype == "fp32" and torch.get_float32_matmul_precision() != "highest" else dtype


def allocator(world: World) -> dict[str, int]:
    """The worst rank's counts of retried and failed allocations; empty on a CPU, which does not count them."""
    if world.device.type != "cuda":
        return {}
    counts = Gauge(world.device).allocator()
    return {key: max(other[key] for other in world.gather(counts)) for key in ("allocation_retries", "ooms")}


def peak_memory(world: World) -> int | None:
    """The worst rank's peak since the model was created; ranks are not summed."""
    if world.device.type != "cuda":
        return None
    return max(world.gather(torch.cuda.max_memory_allocated(world.device)))


def exposed(world: World, trainer: Trainer, plan: Plan) -> dict[str, Any]:
    """Forward and backward with and without exchange of gradients, in turns, so that both run under the same load."""
    ids = trainer.batches.next()
    series: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 + plan.iters):
        for synced, samples in series.items():
            act = lambda synced=synced: trainer.passes(ids, synced=synced)
            one = timing.measure(act, warmup=0, iters=1, device=world.device, before=world.barrier)
            trainer.forget(ids, synced=synced)
            samples += one if turn >= 2 else []  # the first turns warm up
    with_, without = (timing.summary(world.slowest(series[key]), plan.seed) for key in (True, False))
    seconds = with_["p50_s"] - without["p50_s"]
    return {
        "seconds": seconds,
        "share_of_passes": seconds / with_["p50_s"],
        "synced": {"timing": with_},
        "unsynced": {"timing": without},
    }


# -- what was predicted --------------------------------------------------------------------


def gradient_allreduce(world: World, plan: Plan, fit: dict[str, float] | None) -> dict[str, Any]:
    """The all-reduce of all gradients, bucket by bucket as in DDP, without any computation to overlap with."""
    total = 4 * plan.shape.parameters()
    sizes = buckets(total)
    if world.size == 1:
        return {"bytes": total, "buckets": len(sizes), "skipped": "one rank exchanges nothing"}
    known_fit = fit or short_sweep(world, plan)
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
        "timing": time,
    }


def predict(fit: dict[str, float] | None, sizes: Sequence[int]) -> float | None:
    """The prediction: one latency per bucket, and the bytes at the fitted bandwidth."""
    return sum(fit["alpha_s"] + size / fit["beta_bytes_per_s"] for size in sizes) if fit else None


def short_sweep(world: World, plan: Plan) -> dict[str, float] | None:
    sweep = comm.Plan(SWEEP, warmup=3, iters=max(5, plan.iters // 2), dtype="fp32")
    rows = [comm.measure(world, "allreduce", comm.allreduce, size, sweep) for size in SWEEP]
    return comm.fitted(rows)


# -- launch-bound --------------------------------------------------------------------------


def doubled(world: World, plan: Plan) -> float | None:
    """How much longer the passes of twice the batch take, on each rank alone; None if it does not fit."""
    times: list[float | None] = []
    for batch in (plan.batch, 2 * plan.batch):
        try:
            times.append(alone(world, plan, batch))
        except torch.cuda.OutOfMemoryError:
            times.append(None)
    once, twice = times
    ratio = twice / once if once and twice else None
    ratios = world.gather(ratio)
    return None if None in ratios else min(ratios)


def alone(world: World, plan: Plan, batch: int) -> float:
    """The median of a few passes without any engine."""
    trainer = Trainer(world, plan.shape, engine="none", batch=batch, dtype=plan.dtype, seed=plan.seed)
    try:
        ids = trainer.batches.next()
        clear = lambda: trainer.optimizer.zero_grad(set_to_none=True)
        iters = max(3, plan.iters // 4)
        act = lambda: trainer.passes(ids)
        return timing.percentile(timing.measure(act, warmup=2, iters=iters, device=world.device, after=clear), 50)
    finally:
        trainer.close()


def run(world: World, plan: Plan, put: Callable[..., None], fit: dict[str, float] | None) -> None:
    """Run every engine and put it into the record as soon as it is complete."""
    put("model", describe(plan))
    with Progress("training", 4, rank=world.rank) as bar:
        doubling = doubled(world, plan)
        put("doubled_batch_ratio", doubling)
        bar.step("alone")
        put("gradient_allreduce", gradient_allreduce(world, plan, fit))
        bar.step("all-reduce")
        for engine in ("ddp", "fsdp"):
            put(engine, train(world, plan, engine, doubling))
            bar.step(engine)


def describe(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.model,
        "parameters": plan.shape.parameters(),
        "training_flops_per_sample": plan.shape.training_flops(),
        "tokens_per_sample": plan.shape.length,
        "samples_per_rank": plan.batch,
        "dtype": plan.dtype,
    }
