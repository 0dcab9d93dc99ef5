"""The batch size that fills a given share of memory: fit peak(b) = a + c·b, predict, then try it.

Out of memory is also reported here, with the batch size to try.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.core.formulas import GIB, largest_batch, memory_fit
from benchmarks.core.ranks import World
from benchmarks.transformer.dataset import InMemory, Spec
from benchmarks.transformer.engines import Engine
from benchmarks.transformer.loader import tensors
from benchmarks.transformer.options import Config
from benchmarks.transformer.problems import NoMemory

#: probing stops doubling the batch once this share of the budget is used
ENOUGH = 0.25
#: a batch that proved too large is reduced by this factor
DOWN = 0.95
TRIES = 10
#: error texts of torch on a CPU, and of cuBLAS if its workspace does not fit
SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


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


@dataclasses.dataclass
class Fit:
    """Peak bytes by batch size, and the fit; ``probe`` returns None if the batch does not fit."""

    probe: Callable[[int], int | None]
    budget: int
    most: int
    peaks: dict[int, int | None] = dataclasses.field(default_factory=dict)

    def _peak(self, batch: int) -> int | None:
        if batch not in self.peaks:
            self.peaks[batch] = self.probe(batch)
        return self.peaks[batch]

    def _fits(self, batch: int) -> bool:
        peak = self._peak(batch)
        return peak is not None and peak <= self.budget

    def choose(self) -> dict[str, Any]:
        """The chosen batch size, and how it was found."""
        points = self._points()
        line = memory_fit(list(points), list(points.values())) if len(points) >= 3 else None
        predicted = largest_batch(line, self.budget) if line else max(points)
        # a line that does not grow predicts nothing: then use the largest batch there is
        batch = tried = max(1, min(self.most, self.most if predicted is None else predicted))
        for _ in range(TRIES):
            if self._fits(batch):
                break
            batch = max(1, min(batch - 1, int(batch * DOWN)))
        else:
            batch = max(b for b in points if self._fits(b))
        return {
            "budget_bytes": self.budget,
            "batch_size": batch,
            "predicted_batch_size": predicted,
            "tried_first": tried,
            "limited_by_samples": batch == self.most,
            "fit": dataclasses.asdict(line) if line else None,
            "predicted_peak_bytes": line.intercept + line.slope * batch if line else None,
            "measured_peak_bytes": self.peaks[batch],
            "peaks_bytes": {str(b): peak for b, peak in self.peaks.items()},
        }

    def _points(self) -> dict[int, float]:
        """Batch sizes doubled until they use enough of the budget; the fit uses the last ones that ran."""
        batch = 1
        while self._fits(batch):
            enough = len(self.peaks) >= 3 and (self._peak(batch) or 0) >= ENOUGH * self.budget
            if enough or batch * 2 > self.most:
                break
            batch *= 2
        points = {b: float(peak) for b, peak in self.peaks.items() if peak is not None and peak <= self.budget}
        if not points:
            need = f"{self.peaks[1] / GIB:.3f} GiB" if self.peaks[1] else "more than there is"
            raise NoMemory(
                f"--target-vram of {self.budget / GIB:.3f} GiB: a batch of one sample takes {need}; "
                f"give more, or try a smaller model or a shorter --seq-len"
            )
        return dict(list(points.items())[-3:])


def choose_batch(config: Config, world: World, make: Callable[[Config, World], Engine], spec: Spec) -> dict[str, Any]:
    """The batch size that fills ``--target-vram`` on the rank that needs most; its engine is closed afterwards."""
    source = InMemory(spec)
    with fitting(1):
        engine = make(config, world)
    target, capacity = config.target_vram, engine.memory()[0]["capacity_bytes"]
    assert target is not None
    if capacity is None:
        raise NoMemory("--target-vram: this engine does not tell the memory of its device; give --batch-size instead")

    def probe(batch: int) -> int | None:
        staged = engine.stage(tensors(source.read(0, batch * world.ranks_led)))
        peaks = world.gather(_peak(engine, staged, alone=config.engine == "ddp" or world.alone))
        return None if None in peaks else max(peaks)

    try:
        return Fit(probe, _bytes(target, capacity), spec.num_samples // world.size).choose()
    finally:
        engine.close()


def _bytes(target: float | int, capacity: int) -> int:
    """A share is relative to the device's memory; more than all of it counts as all of it."""
    return min(capacity, int(target * capacity) if isinstance(target, float) else target)


def _peak(engine: Engine, batch: Any, alone: bool) -> int | None:
    """The peak of two steps, the second one with the optimizer's state; None if they do not fit.

    Ranks do not wait for each other (``alone``), so that a rank out of memory cannot leave the others waiting.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    engine.reset_memory()
    try:
        for _ in range(2):
            engine.begin()
            engine.step(batch, sync=not alone)
            engine.finish()
    except Exception as error:
        if not (is_out_of_memory(error) and alone):
            raise
        engine.recover()
        return None
    return max(int(report.get("reserved_bytes") or report["peak_bytes"]) for report in engine.memory())
