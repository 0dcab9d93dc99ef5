"""What uses the memory, and the largest batch: predicted by a line through small ones, then run.

The parts are read after loading, after the forward and the backward pass, after the first real optimizer step, and at
rest; the bytes of the tensors themselves are counted beside it. The figures are this rank's and the worst rank's; ranks
are never summed. Each batch runs under DDP without exchange, so that a rank out of memory keeps no other rank waiting.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.core import formulas, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.distributed.gauge import Gauge, settle
from benchmarks.distributed.trainer import Trainer
from benchmarks.distributed.training import Plan

PARTS = ["parameters", "activations", "gradients", "optimizer_state", "at_rest"]
#: multiples of the batch that the line is fitted to
MULTIPLES = [1, 2, 4]
RULES = ["shared_gpu", "allocation_retries"]
#: share of the free memory of a GPU; fragmentation and the libraries' workspaces use the rest
USABLE = 0.95
#: other processes use the memory of a CPU too: a budget instead of all of it
CPU_BUDGET = 512 * 2**20
#: how often a prediction that did not fit is lowered, and by how much
TRIES, LOWER = 6, 0.95
#: tolerance for a resident set, which is less exact than an allocator's count
TOLERANCE = {"cuda": 1.02, "cpu": 1.25}


@dataclass(frozen=True)
class Stages:
    """Bytes held after each stage, minus those held before the model was created.

    An engine changes what a model holds before the first step: FSDP keeps a shard of it, DDP adds the buckets for its
    gradients, which count as gradients.
    """

    load: int
    engine: int
    forward: int
    backward: int
    step: int
    rest: int
    peak: int

    def split(self, exact: bool) -> dict[str, int | None]:
        """A resident set says nothing about this stage, because freed memory stays in it."""
        if not exact:
            return dict.fromkeys(PARTS)
        parameters = min(self.load, self.engine)
        return {
            "parameters": parameters,
            "activations": self.forward - self.engine,
            "gradients": self.backward - parameters,
            "optimizer_state": self.step - self.backward,
            "at_rest": self.rest,
        }


def stages(world: World, plan: Plan, engine: str) -> tuple[Stages, dict[str, int]]:
    """One step of a new model, read at every stage."""
    gauge = Gauge(world.device)
    settle(world)
    base = gauge.now()
    gauge.reset()
    read: list[int] = []
    look = lambda: read.append(gauge.now())
    trainer = Trainer(world, plan.shape, engine=engine, batch=plan.batch, dtype=plan.dtype, seed=plan.seed, built=look)
    ids = trainer.batches.next()
    look()
    saved = Saved()
    with saved:
        loss = trainer.forward(ids)
    look()
    activations = saved.take(trainer.model.parameters())
    trainer.scaler.scale(loss).backward()
    del loss
    look()
    counted = count(trainer, activations)
    trainer.scaler.step(trainer.optimizer)
    look()
    counted["optimizer_state"] = state_bytes(trainer.optimizer)
    trainer.optimizer.zero_grad(set_to_none=True)
    look()
    read.append(gauge.peak())
    trainer.close()
    return Stages(*(value - base for value in read)), counted


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """The tensors that the forward pass keeps for the backward pass: each storage once."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage
        return tensor

    def take(self, parameters: Iterable[torch.Tensor]) -> int:
        """Count their bytes and release them, otherwise the backward pass could not free them.

        The parameters are kept too but exist anyway; those that FSDP gathered are freed by now.
        """
        parameter_storages = {local(p).untyped_storage().data_ptr() for p in parameters}
        total = sum(storage.nbytes() for place, storage in self._storages.items() if place not in parameter_storages)
        self._storages.clear()
        return total


def local(tensor: Any) -> torch.Tensor:
    """This rank's shard of a sharded tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def count(trainer: Trainer, activations: int) -> dict[str, int]:
    parameters = list(trainer.model.parameters())
    size = lambda tensors: sum(local(t).nbytes for t in tensors)
    return {
        "parameters": size(parameters),
        "activations": activations,
        "gradients": size(p.grad for p in parameters if p.grad is not None),
    }


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = (value for state in optimizer.state.values() for value in state.values())
    return sum(local(value).nbytes for value in states if isinstance(value, torch.Tensor))


def split(world: World, plan: Plan, engine: str) -> dict[str, Any]:
    """The figures of this rank and of the worst rank."""
    read, counted = stages(world, plan, engine)
    everyone = world.gather((asdict(read), read.split(exact=world.device.type == "cuda"), counted))
    worst = [{key: most(other[place][key] for other in everyone) for key in everyone[0][place]} for place in range(3)]
    return {
        "source": Gauge(world.device).source,
        "rank_0": {"stages_bytes": everyone[0][0], "split_bytes": everyone[0][1], "counted_bytes": everyone[0][2]},
        "worst_rank": {"stages_bytes": worst[0], "split_bytes": worst[1], "counted_bytes": worst[2]},
    }


def most(values: Iterable[int | None]) -> int | None:
    """The maximum over the ranks that know it."""
    return max((value for value in values if value is not None), default=None)


# -- the largest batch ---------------------------------------------------------------------


@dataclass(frozen=True)
class Peak:
    """The worst rank's peak in a step of a warm model, minus what was held before; null if a rank was out of memory."""

    batch: int
    #: bytes of tensors
    peak_bytes: int | None
    #: bytes needed for them
    needed_bytes: int | None


def peak_of(world: World, plan: Plan, batch: int) -> Peak:
    gauge = Gauge(world.device)
    settle(world)
    gauge.reset()
    base = gauge.now(), gauge.needed()
    try:
        peaks: Any = [most - before for most, before in zip(_steady_peak(world, plan, batch, gauge), base, strict=True)]
    except (torch.cuda.OutOfMemoryError, MemoryError):
        peaks = None
    gc.collect()
    if gauge.cuda:
        torch.cuda.empty_cache()
    peaks_by_rank = world.gather(peaks)
    return Peak(batch, *([None, None] if None in peaks_by_rank else map(max, zip(*peaks_by_rank, strict=True))))


def _steady_peak(world: World, plan: Plan, batch: int, gauge: Gauge) -> tuple[int, int]:
    """The peak of the second step: during the first one there is no optimizer state yet."""
    trainer = Trainer(world, plan.shape, engine="ddp", batch=batch, dtype=plan.dtype, seed=plan.seed)
    try:
        for _ in range(2):
            gauge.reset()
            trainer.passes(trainer.batches.next(), synced=False)
            trainer.update()
        return gauge.peak(), gauge.needed()
    finally:
        trainer.close()


def batch_fit(world: World, plan: Plan, bar: Progress) -> tuple[dict[str, Any], formulas.Line | None]:
    """Fit peak(b) = a + c b of the memory needed; a fit of tensors alone would leave no room for the gaps."""
    batches = [plan.batch * multiple for multiple in MULTIPLES]
    # the first is discarded: it loads libraries and creates workspaces
    measured = [peak_of(world, plan, batch) for batch in [batches[0], *batches]][1:]
    bar.step("fit", len(batches))
    rows = [asdict(peak) for peak in measured]
    failed = next((peak.batch for peak in measured if peak.needed_bytes is None), None)
    if failed is not None:
        return {"rows": rows, "skipped": f"out of memory at a batch of {failed}; give a smaller --batch-size"}, None
    fit = formulas.memory_fit(batches, [float(peak.needed_bytes or 0) for peak in measured])
    named = {"intercept_bytes": fit.intercept, "bytes_per_sample": fit.slope, "r2": fit.r2}
    return {"rows": rows, "fit": named}, fit


def largest(world: World, plan: Plan, fit: formulas.Line, budget: int | None) -> dict[str, Any]:
    """Predict the largest batch for the free memory, and run it; lower it until it runs."""
    gauge = Gauge(world.device)
    default = int(gauge.free() * USABLE / world.ranks_per_gpu()) if gauge.cuda else CPU_BUDGET
    allowed = min(world.gather(budget or default))
    predicted = formulas.largest_batch(fit, allowed)
    result = {"budget_bytes": allowed, "capacity_bytes": gauge.capacity(), "predicted": predicted}
    if not predicted:
        why = "memory does not grow with the batch here" if predicted is None else "not even one sample fits the budget"
        return {**result, "verified": None, "skipped": why}
    tries: list[Peak] = []
    batch = predicted
    for _ in range(TRIES):
        tries.append(peak_of(world, plan, batch))
        peak = tries[-1].peak_bytes
        if peak is not None and peak <= allowed * TOLERANCE[world.device.type]:
            break
        batch = max(1, int(batch * LOWER))
    ran, first = tries[-1].peak_bytes is not None, tries[0].needed_bytes
    return {
        **result,
        "verified": len(tries) == 1 and ran,
        "ran": tries[-1].batch if ran else None,
        "measured_over_predicted": first / (fit.intercept + fit.slope * predicted) if first else None,
        "tries": [asdict(each) for each in tries],
    }


def allocator(world: World, since: dict[str, int]) -> dict[str, Any]:
    """Reserved bytes, and allocation problems since then; empty on a CPU, whose allocator does not count."""
    counts = {key: count - since.get(key, 0) for key, count in Gauge(world.device).allocator().items()}
    everyone = world.gather(counts)
    worst = {key: max(other[key] for other in everyone) for key in counts}
    facts = {**worst, "ranks_per_gpu": world.ranks_per_gpu()}
    return {"rank_0": everyone[0], "worst_rank": worst, "verdict": verdict.judge(facts, RULES, "memory")}


def run(world: World, plan: Plan, put: Callable[..., None], budget: int | None) -> None:
    gauge = Gauge(world.device)
    before = {**gauge.allocator(), "max_reserved_bytes": 0}
    with Progress("memory", 2 + len(MULTIPLES) + 1, rank=world.rank) as bar:
        for engine in ("ddp", "fsdp"):
            put(engine, split(world, plan, engine))
            bar.step(engine)
        rows, fit = batch_fit(world, plan, bar)
        put("batch_fit", rows)
        put("allocator", allocator(world, before))
        put("largest_batch", largest(world, plan, fit, budget) if fit else {"skipped": rows["skipped"]})
        bar.step("largest batch")
