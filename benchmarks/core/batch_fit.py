"""The largest batch that memory allows: fit peak(b) = a + c·b, predict, then run it, and lower it until it runs.

The line is fitted to the memory *needed*: the bytes of tensors and the gaps between them. A fit of tensors alone would
leave no room for the gaps. Both are counted from the same baseline, so the needed bytes are never less than the held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.core.formulas import Line, largest_batch, memory_fit
from benchmarks.core.gauge import is_out_of_memory, release
from benchmarks.core.ranks import World
from benchmarks.core.trainer import Engine

#: probing stops doubling the batch once this share of the budget is used, or after so many probes
ENOUGH, PROBES = 0.25, 16
#: a batch that proved too large is reduced by this factor, so many times
DOWN, TRIES = 0.95, 10
#: a resident set is less exact than an allocator's count
TOLERANCE = {"cuda": 1.0, "cpu": 1.25}


@dataclasses.dataclass(frozen=True)
class Peak:
    """The worst rank's peak in a step of a warm model; null if a rank was out of memory."""

    batch: int
    #: bytes of tensors
    peak_bytes: int | None = None
    #: bytes needed for them
    needed_bytes: int | None = None


class NothingFits(Exception):
    """Not even the first batch fits; ``peak`` is its peak."""

    def __init__(self, peak: Peak) -> None:
        super().__init__(f"a batch of {peak.batch} does not fit")
        self.peak = peak


@dataclasses.dataclass
class Fit:
    probe: Callable[[int], Peak]
    budget: int
    #: the first batch that is probed, and the largest one that is allowed
    first: int = 1
    most: int | None = None
    tolerance: float = 1.0
    peaks: dict[int, Peak] = dataclasses.field(default_factory=dict)

    def _peak(self, batch: int) -> Peak:
        if batch not in self.peaks:
            self.peaks[batch] = self.probe(batch)
        return self.peaks[batch]

    def _fits(self, batch: int) -> bool:
        needed = self._peak(batch).needed_bytes
        return needed is not None and needed <= self.budget * self.tolerance

    def choose(self) -> dict[str, Any]:
        """The largest batch that ran, and how it was found."""
        self.probe(self.first)  # discarded: it loads libraries and creates workspaces
        points = self._points()
        needed = [float(point.needed_bytes or 0) for point in points]
        line = memory_fit([point.batch for point in points], needed) if len(points) >= 3 else None
        predicted = largest_batch(line, self.budget) if line else points[-1].batch
        tries = self._tries(self._bounded(predicted))
        ran = tries[-1] if self._fits(tries[-1].batch) else points[-1]
        return {
            "budget_bytes": self.budget,
            "rows": [dataclasses.asdict(point) for point in points],
            "fit": line and {"intercept_bytes": line.intercept, "bytes_per_sample": line.slope, "r2": line.r2},
            "predicted": predicted,
            "ran": ran.batch,
            "verified": len(tries) == 1 and ran.batch == predicted,
            "limited": ran.batch == self.most,
            "measured_over_predicted": _ratio(tries[0], line),
            "tries": [dataclasses.asdict(each) for each in tries],
        }

    def _bounded(self, predicted: int | None) -> int:
        """A line that does not grow predicts nothing: then the largest batch there is, or that was probed."""
        most = self.most or max(self.peaks)
        return max(1, most if predicted is None else min(predicted, self.most or predicted))

    def _tries(self, batch: int) -> list[Peak]:
        tries = [self._peak(batch)]
        while not self._fits(tries[-1].batch) and len(tries) < TRIES and tries[-1].batch > 1:
            tries.append(self._peak(max(1, min(tries[-1].batch - 1, int(tries[-1].batch * DOWN)))))
        return tries

    def _points(self) -> list[Peak]:
        """Batches doubled until they use enough of the budget; the fit uses the last ones that ran."""
        batch = self.first
        if not self._fits(batch):
            raise NothingFits(self._peak(batch))
        while self._fits(batch) and len(self.peaks) < PROBES:
            enough = (self._peak(batch).needed_bytes or 0) >= ENOUGH * self.budget
            if (len(self.peaks) >= 3 and enough) or (self.most and batch * 2 > self.most):
                break
            batch *= 2
        return [peak for peak in self.peaks.values() if self._fits(peak.batch)][-3:]


def _ratio(peak: Peak, line: Line | None) -> float | None:
    """The needed bytes of the first try over those that the line predicts for it."""
    if line is None or peak.needed_bytes is None:
        return None
    return peak.needed_bytes / (line.intercept + line.slope * peak.batch)


def steady_peak(world: World, engine: Engine, batch: int, staged: Any, *, alone: bool, base: int = 0) -> Peak:
    """The peak of two steps, the second one with the optimizer's state, beyond ``base`` bytes; of the worst rank.

    Ranks do not wait for each other (``alone``), so that a rank out of memory cannot leave the others waiting.
    """
    own: tuple[int, int] | None
    release(world.device)
    engine.reset_memory()
    try:
        for _ in range(2):
            engine.begin()
            engine.step(staged, sync=not alone)
            engine.finish()
        reports = engine.memory()
        held = max(int(report["peak_bytes"]) for report in reports) - base
        own = held, max(int(report.get("reserved_bytes") or report["peak_bytes"]) for report in reports) - base
    except Exception as error:
        if not (is_out_of_memory(error) and alone):
            raise
        engine.recover()
        own = None
    by_rank = world.gather(own)
    return Peak(batch) if None in by_rank else Peak(batch, *map(max, zip(*by_rank, strict=True)))
