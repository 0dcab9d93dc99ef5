"""The batch size that fills a given share of memory, and out of memory with the batch size to try."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.core.batch_fit import Fit, NothingFits, Peak, steady_peak
from benchmarks.core.formulas import GIB
from benchmarks.core.gauge import is_out_of_memory
from benchmarks.core.ranks import World
from benchmarks.core.trainer import Engine
from benchmarks.transformer.dataset import InMemory, Spec
from benchmarks.transformer.loader import tensors
from benchmarks.transformer.options import Config
from benchmarks.transformer.problems import NoMemory


@contextlib.contextmanager
def fitting(batch: int) -> Iterator[None]:
    """Out of memory as a message with the batch size to try."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        smaller = "a smaller model, a shorter --seq-len, or --engine fsdp on more GPUs"
        advice = f"--batch-size {batch // 2}, or let --target-vram 0.9 choose" if batch > 1 else smaller
        raise NoMemory(f"out of memory with --batch-size {batch}: try {advice}") from error


def choose_batch(config: Config, world: World, make: Callable[[Config, World], Engine], spec: Spec) -> dict[str, Any]:
    """The batch size that fills ``--target-vram`` on the rank that needs most; its engine is closed afterwards."""
    source = InMemory(spec)
    with fitting(1):
        engine = make(config, world)
    target, capacity = config.target_vram, engine.memory()[0]["capacity_bytes"]
    assert target is not None
    if capacity is None:
        raise NoMemory("--target-vram: this engine does not tell the memory of its device; give --batch-size instead")

    def probe(batch: int) -> Peak:
        staged = engine.stage(tensors(source.read(0, batch * world.ranks_led)))
        return steady_peak(world, engine, batch, staged, alone=config.engine == "ddp" or world.alone)

    budget = _bytes(target, capacity)
    try:
        return Fit(probe, budget, most=spec.num_samples // world.size).choose()
    except NothingFits as error:
        raise too_small(budget, error.peak) from error
    finally:
        engine.close()


def _bytes(target: float | int, capacity: int) -> int:
    """A share is relative to the device's memory; more than all of it counts as all of it."""
    return min(capacity, int(target * capacity) if isinstance(target, float) else target)


def too_small(budget: int, peak: Peak) -> NoMemory:
    need = f"{peak.needed_bytes / GIB:.3f} GiB" if peak.needed_bytes else "more than there is"
    return NoMemory(
        f"--target-vram of {budget / GIB:.3f} GiB: a batch of one sample takes {need}; "
        f"give more, or try a smaller model or a shorter --seq-len"
    )
