"""Both scripts: their command line, and the run."""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.core import environment, results, tables
from benchmarks.core.ranks import BAD_INPUT, BadInput
from benchmarks.hot import figures, rounds
from benchmarks.hot.rows import BASE, ROWS, WORKS, Row

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main(name: str, about: str, offered: Sequence[str], words: list[str] | None) -> int:
    """``offered``: the names of the available rows."""
    parser = argparse.ArgumentParser(environment.program(f"{name}.py"), description=about)
    works = [work.name for work in WORKS.values() if DEVICE == "cuda" or not work.gpu_only]
    add = parser.add_argument
    add("--quick", action="store_true", help="three short rounds instead of eleven, and less patience in warm-ups")
    add("--only", nargs="+", choices=list(WORKS), default=works, metavar="PROGRAM", help=f"of {', '.join(WORKS)}")
    add("--rows", nargs="+", choices=offered, default=list(offered), help="what to compare")
    add("--rounds", type=int, help="how often all rows are asked")
    add("--patience", type=float, help="seconds that a row's warm-up may take at the most")
    add("--cold", action="store_true", help="empty caches of compiled code, and a second start of each row with them")
    add(
        "--together", action="store_true", help="warm up all rows of all programs at the same time, where time is short"
    )
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    add("--json", metavar="FILE", help="write the record here as well")
    options = parser.parse_args(words)
    try:
        if options.cold and options.together:
            raise BadInput("--cold measures warm-ups, which --together does at the same time")
        return _run(name, options)
    except (BadInput, results.Unwritable) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _chosen(options: argparse.Namespace) -> list[Row]:
    """The chosen rows with the baseline first, which is always included."""
    rows = [row for row in ROWS.values() if DEVICE == "cuda" or not row.gpu_only]
    return [row for row in rows if row.name in {BASE, *options.rows}]


def _runnable(names: Sequence[str]) -> list[str]:
    """The programs that this machine can run."""
    runnable = [name for name in names if DEVICE == "cuda" or not WORKS[name].gpu_only]
    if not runnable:
        raise BadInput(f"--only {' '.join(names)}: nothing to measure, since this needs a GPU")
    for name in names:
        if name not in runnable:
            say(f"notice: {name} is left out: it needs a GPU")
    return runnable


def _effort(options: argparse.Namespace) -> rounds.Effort:
    chosen = asdict(rounds.QUICK if options.quick else rounds.FULL)
    for flag, key in (("rounds", "rounds"), ("patience", "patience")):
        if (value := getattr(options, flag)) is not None:
            if value <= 0:
                raise BadInput(f"--{flag} {value:g}: more than 0")
            chosen[key] = value
    return rounds.Effort(**chosen)


def _run(name: str, options: argparse.Namespace) -> int:
    rows, effort, works = _chosen(options), _effort(options), _runnable(options.only)
    device = environment.device_name(torch.device(DEVICE))
    record = results.Record(
        options.output_dir,
        suite=name,
        name=name,
        world_size=1,
        config={
            "device": device,
            "benchmark_iters": effort.rounds,
            "cold": options.cold,
            "together": options.together,
            **asdict(effort),
        },
        environment=environment.record({"all": 0}),
    )
    missed = 0
    try:
        if options.together:
            missed = _together(works, rows, effort, record)
        else:
            missed = sum(_work(work, rows, effort, options.cold, record) for work in works)
    except KeyboardInterrupt:
        record.finish("interrupted")
        raise
    record.finish()
    for line in tables.verdict_lines(record.data["verdict"]):
        print(line)
    print(f"{missed} goal(s) missed" if missed else "no goal missed")
    if options.json:
        shutil.copyfile(record.path, pathlib.Path(options.json))
    print(f"record: {record.path}")
    return 0


def _together(works: list[str], rows: list[Row], effort: rounds.Effort, record: results.Record) -> int:
    """Warm up the rows of all programs at the same time; then measure one program after the other."""
    all_of = [rounds.Measuring(WORKS[name], rows, effort, DEVICE == "cuda", "", say) for name in works]
    missed = 0
    try:
        with ThreadPoolExecutor(len(works) * 2 * len(rows)) as pool:
            list(pool.map(lambda measuring: measuring.start(), all_of))
            list(pool.map(lambda warm: warm(), [warm for measuring in all_of for warm in measuring.warmings()]))
        for measuring in all_of:
            measuring.measure()
            measuring.close()
            missed += _report(measuring, record)
    finally:
        for measuring in all_of:
            measuring.close()
    return missed


def _work(name: str, rows: list[Row], effort: rounds.Effort, cold: bool, record: results.Record) -> int:
    """The number of missed goals."""
    with tempfile.TemporaryDirectory() as folder:
        measuring = rounds.Measuring(WORKS[name], rows, effort, DEVICE == "cuda", folder if cold else "", say)
        measuring.run()
    return _report(measuring, record)


def _report(measuring: rounds.Measuring, record: results.Record) -> int:
    """Put the figures of a program into the record, and print them. The number of missed goals."""
    work, taken, steps = measuring.work, measuring.figures, measuring.steps
    name = work.name
    for row in taken.values():
        record.put(name, row.row.name, value=figures.record(name, row, taken, steps))
    values = figures.goals(DEVICE, name, taken)
    goals: list[dict[str, Any]] = [
        {**asdict(goal), "value": value, "reached": None if value is None else value <= goal.bound}
        for goal, value in values
    ]
    record.put(name, "goals", value=goals)
    tables.show(f"{work.about}: {steps} steps a sample", *figures.shown(taken))
    for goal, value in values:
        print(figures.goal_line(goal, value))
    return sum(goal["reached"] is False for goal in goals)
