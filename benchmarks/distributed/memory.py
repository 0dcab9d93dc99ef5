"""What uses the memory, and the largest batch: predicted by a line through small ones, then run.

The parts are read after loading, after the forward and the backward pass, after the first real optimizer step, and at
rest; the bytes of the tensors themselves are counted beside it. The figures are this rank's and the worst rank's; ranks
are never summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.core import verdict
from benchmarks.core.batch_fit import TOLERANCE, Fit, NothingFits, Peak, steady_peak
from benchmarks.core.gauge import Gauge, settle, worst
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.trainer import PHASES
from benchmarks.distributed.plans import Plan
from benchmarks.distributed.trainer import batches, trainer

PARTS = ["parameters", "activations", "gradients", "optimizer_state", "at_rest"]
RULES = ["shared_gpu", "allocation_retries"]
#: share of the free memory of a GPU; fragmentation and the libraries' workspaces use the rest
USABLE = 0.95
#: other processes use the memory of a CPU too: a budget instead of all of it
CPU_BUDGET = 512 * 2**20


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
    own_gauge, saved, read, counted = Gauge(world.device), Saved(), dict[str, int](), dict[str, int]()
    settle(world)
    base = own_gauge.now()
    own_gauge.reset()

    def look(phase: str) -> None:
        read[phase] = own_gauge.now()
        if phase == "forward":
            counted["activations"] = saved.take(own.module.parameters())
        elif phase == "backward":
            counted.update(count(list(own.module.parameters())))
        elif phase == "optimizer":
            counted["optimizer_state"] = state_bytes(own.optimizer)

    own = trainer(world, plan, engine, look=look)
    batch = batches(world, plan, own).make(0)
    with saved:
        own.step(batch)
    peak = own_gauge.held()
    own.close()
    return Stages(*(value - base for value in [*(read[phase] for phase in PHASES), peak])), counted


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


def count(parameters: list[torch.Tensor]) -> dict[str, int]:
    size = lambda tensors: sum(local(t).nbytes for t in tensors)
    return {
        "parameters": size(parameters),
        "gradients": size(p.grad for p in parameters if p.grad is not None),
    }


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = (value for state in optimizer.state.values() for value in state.values())
    return sum(local(value).nbytes for value in states if isinstance(value, torch.Tensor))


def split(world: World, plan: Plan, engine: str) -> dict[str, Any]:
    """The figures of this rank and of the worst rank."""
    read, counted = stages(world, plan, engine)
    everyone = world.gather((asdict(read), read.split(exact=world.device.type == "cuda"), counted))
    largest = [{key: most(other[place][key] for other in everyone) for key in everyone[0][place]} for place in range(3)]
    return {
        "source": Gauge(world.device).source,
        "rank_0": {"stages_bytes": everyone[0][0], "split_bytes": everyone[0][1], "counted_bytes": everyone[0][2]},
        "worst_rank": {"stages_bytes": largest[0], "split_bytes": largest[1], "counted_bytes": largest[2]},
    }


def most(values: Iterable[int | None]) -> int | None:
    """The maximum over the ranks that know it."""
    return max((value for value in values if value is not None), default=None)


# -- the largest batch ---------------------------------------------------------------------


def largest(world: World, plan: Plan, budget: int | None) -> dict[str, Any]:
    """Fit the memory needed by batch, predict the largest batch for the free memory, and run it under DDP.

    Its passes exchange nothing, so that a rank out of memory keeps no other rank waiting.
    """
    settle(world)
    own_gauge = Gauge(world.device)
    default = int(own_gauge.free() * USABLE / world.ranks_per_gpu()) if own_gauge.cuda else CPU_BUDGET
    allowed, base = min(world.gather(budget or default)), own_gauge.now()
    own = trainer(world, plan, "ddp")

    def probe(batch: int) -> Peak:
        staged = batches(world, plan, own, batch).make(0)
        return steady_peak(world, own, batch, staged, alone=True, base=base)

    found = {"budget_bytes": allowed, "capacity_bytes": own_gauge.capacity()}
    try:
        fit = Fit(probe, allowed, first=plan.batch, tolerance=TOLERANCE[world.device.type])
        return found | fit.choose()
    except NothingFits as error:
        return found | {"skipped": f"{error}; give a smaller --batch-size"}
    finally:
        own.close()


def run(world: World, plan: Plan, put: Callable[..., None], budget: int | None) -> None:
    whole = Gauge(world.device)
    whole.reset()
    with Progress("memory", 3, rank=world.rank) as bar:
        for engine in ("ddp", "fsdp"):
            put(engine, split(world, plan, engine))
            bar.step(engine)
        facts = {**worst(world, whole.counts()), "ranks_per_gpu": world.ranks_per_gpu()}
        put("allocator", {"worst_rank": facts, "verdict": verdict.judge(facts, RULES, "memory")})
        put("largest_batch", largest(world, plan, budget))
        bar.step("largest batch")
