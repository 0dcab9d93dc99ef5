"""Training in stages on real workers: on two CPU workers against one, and with several workers on one GPU."""

from __future__ import annotations

import os
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import gt
from benchmarks.autoshard.system import System
from benchmarks.core.formulas import largest_difference
from benchmarks.core.rows import Row
from benchmarks.pipelines import moves
from benchmarks.pipelines.sizes import Sizes
from gt import nn
from gt.pipeline import Action, Pipeline, make_schedule
from gt.pipeline.timing import merged_order

MICROBATCHES = 8
GPU_STEPS = 20


class Mlp:
    """Four layers as two or four parts, and their training."""

    def __init__(self, width: int, rows: int, parts: int, workers: list[int], schedule: str = "1f1b") -> None:
        gt.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)]
        size = len(layers) // parts
        stages = [nn.Sequential(*layers[i * size : (i + 1) * size]) for i in range(parts)]
        self.pipeline = Pipeline(stages, schedule, MICROBATCHES, workers=workers)
        self.optimizer = gt.optim.AdamW(self.pipeline.parameters(), lr=1e-3)
        self.x, self.y = gt.randn(rows, width), gt.randn(rows, width)

    def step(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.pipeline.step(self.x, self.y, nn.functional.mse_loss)
        self.optimizer.step()
        return loss

    def seconds(self) -> float:
        """Seconds of a step, until all parameters are updated."""
        started = time.perf_counter()
        self.step()
        self.wait()
        return time.perf_counter() - started

    def wait(self) -> None:
        """Wait until the first and the last parameter are updated: each stage updates its own in order."""
        for p in self.pipeline.parameters()[:: len(self.pipeline.parameters()) - 1]:
            p.detach().sum().item()


def scaling(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    """The same parts on one worker and on two, in turns on one system, and what the machine and the schedule allow."""
    with System(2, sizes.port):
        sides = {n: Mlp(sizes.width, sizes.rows, 2, [0, n - 1]) for n in (1, 2)}
        other = Mlp(sizes.width, sizes.rows, 2, [1, 1])
        losses = {n: [side.step().item() for _ in range(3)] for n, side in sides.items()}
        other.step().item()
        times = [{n: side.seconds() for n, side in sides.items()} for _ in range(sizes.rounds)]
        independent = [(sides[1].seconds(), _both_seconds(sides[1], other)) for _ in range(sizes.rounds)]
        gt.load_config(None)
    difference = largest_difference(losses[1], losses[2])
    ratios = [t[1] / t[2] for t in times]
    details = {"seconds_1": times[-1][1], "seconds_2": times[-1][2], "losses_differ": difference}
    limits = [2 * alone / both for alone, both in independent]
    machine, schedule = statistics.median(limits), schedule_limit()
    details |= {
        "machine": machine,
        "schedule": schedule,
        "of_both": statistics.median(ratios) / (machine * schedule / 2),
    }
    yield Row("2 workers that compute for themselves", limits, "x 1 worker", formula=2.0)
    name = f"2 stages, {MICROBATCHES} microbatches, 2 CPU workers"
    yield Row(name, ratios, "x 1 worker", ">=", 1.5, details, formula=schedule)


def _both_seconds(first: Mlp, second: Mlp) -> float:
    """Seconds of a step of two models that share nothing but the machine."""
    started = time.perf_counter()
    first.step()
    second.step()
    first.wait()
    second.wait()
    return time.perf_counter() - started


def schedule_limit() -> float:
    """How much faster two stages are than one worker if products are all that takes time, and moves take none.

    A stage has two layers, each one product for F, one for the gradient of the weight, and one for the gradient of the
    input. The batch needs no gradient, so stage 0 has one product less, and waits for stage 1.
    """
    schedule = make_schedule("1f1b", 2, MICROBATCHES)
    products = {("F", 0): 2, ("B", 0): 3, ("F", 1): 2, ("B", 1): 4}
    ends: dict[Action, int] = {}
    free = [0, 0]
    for action in merged_order(schedule):
        start = max([free[action.part], *[ends[needed] for needed in schedule.needs(action)]])
        ends[action] = free[action.part] = start + products[action.kind, action.part]
    return sum(products.values()) * MICROBATCHES / max(free)


def gpu(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    """2 and 4 workers that share one GPU, in both ways of moving: the losses must equal those of one worker."""
    os.environ["GT_SHARE_GPUS"] = "1"
    yield from moves.both_ways(sizes)
    for way in moves.WAYS:
        with moves.moving(way), System(4, sizes.port):
            yield from _on_one_gpu(sizes, way, folder / f"pipeline_gpu_trace_{way.replace(' ', '_')}.json")
            gt.load_config(None)


def _on_one_gpu(sizes: Sizes, way: str, trace: pathlib.Path) -> Iterator[Row]:
    expected = [loss.item() for loss in _losses(Mlp(sizes.width, sizes.rows, 4, [0] * 4))]
    for workers in ([0, 0, 1, 1], [0, 1, 2, 3]):
        for schedule in ("1f1b", "zb_h1"):
            model = Mlp(sizes.width, sizes.rows, 4, workers, schedule)
            losses = [loss.item() for loss in _losses(model)]
            differ = largest_difference(losses, expected)
            times = [model.seconds() for _ in range(sizes.rounds)]
            name = f"{schedule}, 4 parts on {len(set(workers))} workers of one GPU, {way}"
            yield Row(f"{name}: losses", [differ], "largest difference from 1 worker", "<=", 1e-4)
            yield Row(f"{name}: step", [t * 1e3 for t in times], "ms")
    with gt.debug.trace(trace):
        model.seconds()


def _losses(model: Mlp) -> list[Any]:
    return [model.step() for _ in range(GPU_STEPS)]
