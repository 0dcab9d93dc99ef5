"""What to train, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.distributed.models import Shape


@dataclass(frozen=True)
class Plan:
    model: str
    shape: Shape
    #: samples of a step on each rank
    batch: int
    dtype: str
    warmup: int
    iters: int
    seed: int
