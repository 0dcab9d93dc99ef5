"""One case on the first n workers: creating, computing and retrieving timed separately, and all three together.

In GT only a read waits. So each part ends with a read in which all n workers take part: the sum of a small sharded
tensor. The workers run it after everything submitted before. It costs one scalar all-reduce, and is itself timed
(``barrier``). Together means without the reads in between: the parts may overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gt
from benchmarks.autoshard.cases import Case
from benchmarks.core import timing, verdict

#: elements of the tensor that a barrier sums: enough for auto-sharding to shard it
MARK = 16 << 10
#: rows and columns of a result that are compared with numpy's
SAMPLED = 16
#: the largest error of an element, relative to the largest element: float32 with sums of 16,384 products
ERROR = 1e-4
PARTS = ("create", "compute", "retrieve")
#: the timings behind rates and speedups, which may not vary; creating and retrieving often take a few milliseconds
JUDGED = ("compute", "together")


class Bench:
    """Use the first n workers, by auto-sharding."""

    def __init__(self, workers: Sequence[int]) -> None:
        gt.auto_shard(workers=list(workers))
        self.workers = len(workers)
        self._mark = gt.ones(MARK)
        self.barrier()

    def barrier(self) -> None:
        total = self._mark.sum().item()
        assert total == MARK, f"the barrier's sum is {total}"

    def measure(self, case: Case, iters: int, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Samples of ``iters`` passes, after one pass that is checked and not timed."""
        wrong = self._check(case)
        tick()
        apart: dict[str, list[float]] = {part: [] for part in PARTS}
        together, barriers = [], []
        for _ in range(iters):
            for part, seconds in zip(PARTS, self._apart(case), strict=True):
                apart[part].append(seconds)
            together.append(_timed(lambda: self._together(case)))
            barriers.append(_timed(self.barrier))
            tick()
        return result(case, self.workers, apart, together, barriers, wrong)

    def _apart(self, case: Case) -> tuple[float, ...]:
        values: dict[str, Any] = {}

        def create() -> None:
            values["operands"] = case.create()
            self.barrier()

        def compute() -> None:
            values["result"] = case.compute(values["operands"])
            self.barrier()

        return _timed(create), _timed(compute), _timed(lambda: values["result"].numpy())

    def _together(self, case: Case) -> None:
        case.compute(case.create()).numpy()

    def _check(self, case: Case) -> int:
        """The number of wrong elements in the sampled rows and columns."""
        operands = case.create()
        return wrong_elements(case, operands, case.compute(operands).numpy())


def wrong_elements(case: Case, operands: tuple[Any, ...], result: np.ndarray[Any, Any]) -> int:
    rows, columns = case.sampled(SAMPLED)
    expected = case.expected(operands, rows, columns)
    bound = ERROR * float(np.abs(expected).max())
    # not ">": a NaN is wrong too
    return int((~(np.abs(result[np.ix_(rows, columns)] - expected) <= bound)).sum())


def _timed(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def result(
    case: Case,
    workers: int,
    apart: dict[str, list[float]],
    together: list[float],
    barriers: list[float],
    wrong: int,
) -> dict[str, Any]:
    """The record of one case on n workers; rates come from median times."""
    timings = {part: {"timing": timing.summary(samples)} for part, samples in apart.items()}
    total = timing.summary(together)
    cvs = {part: each["timing"]["cv"] for part, each in (timings | {"together": {"timing": total}}).items()}
    most = max(JUDGED, key=lambda part: cvs[part] or 0.0)
    where = f"{case.name} on {workers}"
    judged = [
        verdict.judge({"cv": cvs[most]}, ["cv"], f"{where}: {most}"),
        verdict.judge({"wrong_elements": wrong}, ["wrong_elements"], where),
    ]
    return {
        "workers": workers,
        "dims": list(case.dims),
        "flops": case.flops,
        **timings,
        "together": {"timing": total},
        "barrier": {"timing": timing.summary(barriers)},
        "tflops": case.flops / total["p50_s"] / 1e12,
        "compute_tflops": case.flops / timings["compute"]["timing"]["p50_s"] / 1e12,
        "wrong_elements": wrong,
        "verdict": verdict.together(judged),
    }
