"""One row of a result table: a figure with its samples, its goal and its verdict. Every suite writes its rows here."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.core import tables, timing, verdict
from benchmarks.core.results import Record

COLUMNS = ("figure", "value", "unit", "formula", "goal", "reached", "details")


@dataclass
class Row:
    """``goal`` is ">=" or "<=", and ``bound`` the value to reach; both are left out if there is no goal."""

    name: str
    #: all samples; a figure that was measured once is one sample
    samples: list[float]
    unit: str
    goal: str = ""
    bound: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    #: the value by theory, beside the measured one
    formula: float | None = None

    def __post_init__(self) -> None:
        self.samples = list(self.samples) if isinstance(self.samples, Sequence) else [float(self.samples)]

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def reached(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.goal == ">=" else self.value <= self.bound

    def record(self) -> dict[str, Any]:
        """The row in a record. The spread of a ratio makes it doubtful, as for a time."""
        judged = verdict.judge({"cv": timing.variation(self.samples)}, ["cv"], self.name)
        return {**asdict(self), "value": self.value, "reached": self.reached, "verdict": judged}

    def cells(self) -> list[Any]:
        """The cells of `COLUMNS`."""
        goal = "" if self.bound is None else f"{self.goal} {self.bound:.4g}"
        formula = "" if self.formula is None else f"{self.formula:.4f}"
        details = "  ".join(f"{key}={value:.4g}" for key, value in self.details.items())
        return [self.name, self.value, self.unit, formula, goal, self.reached, details]

    def line(self) -> str:
        """The row as one line of text."""
        goal = "" if self.bound is None else f"{self.goal} {self.bound:g} {'reached' if self.reached else 'MISSED'}"
        details = "  ".join(f"{key}={value:.1f}" for key, value in self.details.items())
        return f"{self.name:42} {self.value:12,.2f} {self.unit:26} {goal:18} {details}"


def run_all(record: Record, title: str, measurements: Mapping[str, Iterable[Row]]) -> None:
    """Put each row into the record as soon as it is measured; a table of all of them at the end."""
    rows: list[Row] = []
    for name, measured in measurements.items():
        for number, row in enumerate(measured):
            rows.append(row)
            record.put(name, str(number), value=row.record())
            print(f"{row.name}: {row.value:.4g} {row.unit}", file=sys.stderr, flush=True)
    record.finish()
    tables.show(title, COLUMNS, [row.cells() for row in rows])
    print(f"record: {record.path}")
