"""One row of a result table: a figure with its samples, its goal and its verdict. Every suite writes its rows here."""

from __future__ import annotations

import statistics
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.core import tables, timing, verdict
from benchmarks.core.ranks import DONE, FAILED, BadInput, Problem
from benchmarks.core.results import Record

COLUMNS = ("figure", "value", "unit", "formula", "goal", "reached", "details")


@dataclass
class Row:
    """``goal`` is ">=" or "<=", and ``bound`` the value to reach; both are left out if there is no goal."""

    name: str
    #: all samples; a figure that was measured once is one sample; with an error there are none
    samples: list[float]
    unit: str
    goal: str = ""
    bound: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    #: the value by theory, beside the measured one
    formula: float | None = None
    #: why there is no value
    error: str | None = None

    def __post_init__(self) -> None:
        self.samples = list(self.samples) if isinstance(self.samples, Sequence) else [float(self.samples)]

    @property
    def value(self) -> float | None:
        return None if self.error is not None else statistics.median(self.samples)

    @property
    def reached(self) -> bool | None:
        if self.bound is None or self.value is None:
            return None
        return self.value >= self.bound if self.goal == ">=" else self.value <= self.bound

    def record(self) -> dict[str, Any]:
        """The row in a record. The spread of a ratio makes it doubtful, as for a time."""
        if self.error is not None:
            judged = verdict.failed(self.error, self.name)
        else:
            judged = verdict.judge({"cv": timing.variation(self.samples)}, ["cv"], self.name)
        return {**asdict(self), "value": self.value, "reached": self.reached, "verdict": judged}

    def cells(self) -> list[Any]:
        """The cells of `COLUMNS`."""
        goal = "" if self.bound is None else f"{self.goal} {self.bound:.4g}"
        formula = "" if self.formula is None else f"{self.formula:.4f}"
        details = self.error or "  ".join(f"{key}={value:.4g}" for key, value in self.details.items())
        return [self.name, self.value, self.unit, formula, goal, self.reached, details]

    def line(self) -> str:
        """The row as one line of text."""
        if self.value is None:
            return f"{self.name:42} {self.error}"
        goal = "" if self.bound is None else f"{self.goal} {self.bound:g} {'reached' if self.reached else 'MISSED'}"
        details = "  ".join(f"{key}={value:.1f}" for key, value in self.details.items())
        return f"{self.name:42} {self.value:12,.2f} {self.unit:26} {goal:18} {details}"


def quotient(name: str, value: float, base: float, unit: str, goal: str = "", bound: float | None = None) -> Row:
    """A row with ``value / base``; with an error if the base is 0."""
    if not base:
        return Row(name, [], unit, goal, bound, error=f"{value:.4g} against 0: there is no quotient")
    return Row(name, [value / base], unit, goal, bound)


def run_all(record: Record, title: str, measurements: Mapping[str, Iterable[Row]]) -> int:
    """Put each row into the record as soon as it is measured; a table of all of them at the end. Returns the exit code.

    A measurement that raises ends with a row that has the error, and the others go on. What the user must change
    (`BadInput`, `Problem`) ends the run.
    """
    rows: list[Row] = []
    try:
        for name, measured in measurements.items():
            for number, row in enumerate(_with_error(name, measured)):
                rows.append(row)
                record.put(name, str(number), value=row.record())
                shown = row.error if row.value is None else f"{row.value:.4g} {row.unit}"
                print(f"{row.name}: {shown}", file=sys.stderr, flush=True)
    except (BadInput, Problem) as error:
        record.finish("failed", str(error))
        raise
    wrong = [f"{row.name}: {row.error}" for row in rows if row.error is not None]
    record.finish("failed" if wrong else "complete", "; ".join(wrong) or None)
    tables.show(title, COLUMNS, [row.cells() for row in rows])
    print(f"record: {record.path}")
    return FAILED if wrong else DONE


def _with_error(name: str, measured: Iterable[Row]) -> Iterator[Row]:
    """The rows of a measurement, and one with the error if it raises."""
    try:
        yield from measured
    except (BadInput, Problem):
        raise
    except Exception as error:
        traceback.print_exc()
        yield Row(name, [], "", error=f"{type(error).__name__}: {error}")
