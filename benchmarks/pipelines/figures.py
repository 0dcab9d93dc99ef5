"""What the suite measures: its sizes, and one line of its table."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from benchmarks.core import timing, verdict


class Sizes(NamedTuple):
    """The sizes of a run; ``--quick`` uses smaller ones."""

    #: seconds of an op on the timed workers
    op_seconds: float
    #: measured steps of a schedule
    steps: int
    #: rounds of a comparison
    rounds: int
    #: the MLP of ``scaling``
    width: int
    rows: int
    port: int


@dataclass
class Figure:
    """One line of the table. The goal is the largest value, or the smallest if ``at_least``."""

    name: str
    samples: list[float]
    unit: str
    formula: float | None = None
    goal: float | None = None
    at_least: bool = False
    details: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def record(self) -> dict[str, Any]:
        judged = verdict.judge({"cv": timing.variation(self.samples)}, ["cv"], self.name)
        return {**asdict(self), "value": self.value, "reached": self.reached, "verdict": judged}

    def cells(self) -> list[Any]:
        goal = "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:.4g}"
        details = "  ".join(f"{key}={value:.4g}" for key, value in self.details.items())
        formula = "" if self.formula is None else f"{self.formula:.4f}"
        return [self.name, self.value, self.unit, formula, goal, self.reached, details]
