"""The activations that each stage holds, counted on the workers, beside the number that follows from the schedule.

The system runs in one thread. After every message the workers' tensors with the shape of an activation are counted.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import gt
from benchmarks.core.rows import Row
from benchmarks.pipelines.sizes import Sizes
from gt import nn
from gt.pipeline import Pipeline, peak_activations
from gt.pipeline.schedules import SCHEDULES, chunks_of
from gt.testing import Cluster

STAGES, MICROBATCHES = 4, 8
#: an activation inside a part; no other tensor has this shape
SHAPE, WIDTH = (2, 7), 4


def held_activations(schedule: str, evaluate: bool = False) -> tuple[list[int], list[int]]:
    """For each stage the most activations that its worker held in one step, and `peak_activations`."""
    cluster = Cluster(STAGES, backend="numpy")
    held = [0] * STAGES

    def count(cluster: Cluster) -> None:
        for worker in cluster.workers.values():
            for space in worker.spaces.values():
                shapes = [getattr(value, "shape", None) for value in space.store.values()]
                held[worker.id] = max(held[worker.id], shapes.count(SHAPE))

    with cluster.client():
        parts = [
            nn.Sequential(nn.Linear(WIDTH, SHAPE[1]), nn.Tanh(), nn.Linear(SHAPE[1], WIDTH))
            for _ in range(STAGES * chunks_of(schedule))
        ]
        pipeline = Pipeline(parts, schedule, MICROBATCHES)
        x = gt.ones(SHAPE[0] * MICROBATCHES, WIDTH)
        step: Any = pipeline.evaluate if evaluate else pipeline.step
        for _ in range(3):  # until each action is a fragment
            step(x, x, nn.functional.mse_loss).item()
        cluster.settle()
        cluster.after_step = count
        step(x, x, nn.functional.mse_loss).item()
        cluster.settle()
        gt.load_config(None)
    return held, peak_activations(pipeline.schedule)


def memory(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    for schedule in SCHEDULES:
        held, expected = held_activations(schedule)
        details = {f"stage_{stage}": float(count) for stage, count in enumerate(held)}
        name = f"activations held under {schedule}, {STAGES} stages, {MICROBATCHES} microbatches"
        yield Row(name, [float(max(held))], "microbatches of a part", details=details, formula=float(max(expected)))
