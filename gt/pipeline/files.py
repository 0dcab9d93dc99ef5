"""Schedules from files, and into files.

A CSV file has one line for each stage and one cell for each action. Empty cells and lines are ignored, so a table with
idle times can be read too. A YAML file has a list with one item for each stage: a list of actions, or one text.

    F0,F1,B0,B1                     - F0 F1 B0 B1
    F0,B0,F1,B1                     - [F0, B0, F1, B1]
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from io import StringIO
from typing import Any

from gt.errors import ConfigError
from gt.pipeline.actions import Schedule


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """The schedule in a CSV or YAML file.

    Example::

        gt.pipeline.read_schedule("schedule.csv")
    """
    source = os.fspath(path)
    suffix = os.path.splitext(source)[1].lower()
    if suffix not in READERS:
        raise ConfigError(f"{source}: the name of a schedule's file ends in {', '.join(READERS)}")
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:  # a spreadsheet may mark its files as UTF-8
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{source}: the schedule cannot be read: {reason}") from None
    try:
        return Schedule(READERS[suffix](text), os.path.basename(source))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def is_file(name: str) -> bool:
    """Whether the name of a schedule is the name of a file."""
    return os.path.splitext(name)[1].lower() in READERS


def to_csv(schedule: Schedule) -> str:
    """The schedule as a CSV file has it."""
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows([map(str, row) for row in schedule.rows])
    return file.getvalue()


def _csv_rows(text: str) -> list[list[str]]:
    rows = [[cell for cell in row if cell.strip()] for row in csv.reader(StringIO(text))]
    return [row for row in rows if row]


def _yaml_rows(text: str) -> list[Any]:
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    if not isinstance(tree, list):
        raise ConfigError(f"expected a list with one item for each stage, not {type(tree).__name__}")
    return tree


READERS: dict[str, Callable[[str], list[Any]]] = {".csv": _csv_rows, ".yaml": _yaml_rows, ".yml": _yaml_rows}
