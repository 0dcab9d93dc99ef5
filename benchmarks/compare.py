"""Compare records of any suite: ``python compare.py results/ --cost H200=3.00 --baseline old.json``.

Exit codes: 0 compared, 1 a regression against the baseline, 2 bad input.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.core import environment, tables
from benchmarks.core.ranks import BadInput
from benchmarks.reports import comparing, reading, works
from benchmarks.transformer.comparing import Result, priced

DONE, REGRESSION, BAD_INPUT = 0, 1, 2
#: the share that two runs may differ by, where fewer than three say how much they do
VARIATION = 0.02


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    add = command_line.add_argument
    add("paths", nargs="+", type=Path, metavar="RECORD", help="records, or folders of them")
    add("--cost", nargs="+", default=[], metavar="NAME=PRICE", help="$ for an hour of one GPU, by a word of its name")
    add("--baseline", nargs="+", default=[], type=Path, metavar="RECORD", help="exit with 1 if a figure is worse")
    add("--variation", type=_share, default=VARIATION, metavar="SHARE",
        help=f"what runs may differ by where fewer than three are given (default {VARIATION})")  # fmt: skip
    add("--history", action="store_true", help="every run by itself, oldest first")
    add("--all", action="store_true", help="the details too: every size, every epoch")
    add("--csv", type=Path, metavar="FILE", help="write the figures as csv as well")
    add("--machine", choices=reading.GROUPS, default="kind",
        help="what one machine is: all of equal hardware (kind), or each set of GPUs by UUID (card)")  # fmt: skip
    return command_line


def _share(word: str) -> float:
    """Not NaN: no interval is apart from one that is not a number."""
    value = float(word)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{word}: from 0 to less than 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        old, _ = usable(options.baseline) if options.baseline else ([], [])
        known = {record.path.resolve() for record in old}
        records, left_out = usable(options.paths, known)
        prices = costs([*records, *old], options.cost)
        rows = show(records, options, prices)
        regressions = against(records, old, options) if old else 0
        if options.csv:
            export(options.csv, rows)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    for line in left_out:
        print(f"left out: {line}")
    return REGRESSION if regressions else DONE


def usable(paths: Sequence[Path], without: Iterable[Path] = ()) -> tuple[list[reading.Read], list[str]]:
    """The records whose figures follow from their samples. One that is named and does not is an error."""
    records, left_out = reading.gather(paths)
    named = {path.resolve() for path in paths if path.is_file()}
    found = []
    for record in (record for record in records if record.path.resolve() not in set(without)):
        why = comparing.refused(record)
        if why and record.path.resolve() in named:
            raise BadInput(why)
        if why:
            left_out.append(why)
        else:
            found.append(record)
    if not found:
        raise BadInput("\n".join(["no record to compare", *left_out]))
    return found, left_out


def costs(records: Sequence[reading.Read], words: Sequence[str]) -> dict[str, float]:
    """Name of a GPU -> its price."""
    if any("=" not in word for word in words):
        raise BadInput(
            f"--cost {' '.join(words)}: give NAME=PRICE with a word of the GPU's name, for example H200=3.00"
        )
    devices = sorted({record.device for record in records})
    by_device = [Result(device, {"config": {"device": device}}) for device in devices]
    return {r.name: r.price for r in priced(by_device, words) if r.price is not None} if words else {}


def show(records: Sequence[reading.Read], options: argparse.Namespace, prices: dict[str, float]) -> list[list[Any]]:
    """A section for each work; figures of different work are never beside each other. Returns all rows of figures."""
    every = []
    for group in works.by_work(records):
        machines = comparing.runs(group, options.machine, prices)
        rows = list(comparing.figure_rows(machines, options.all))
        title = works.common_title(group)
        every += [[title, *row] for row in rows]
        tables.show(f"\n{title}", comparing.FIGURES, rows)
        cost = list(comparing.cost_rows(machines))
        if cost:
            tables.show("Cost and energy", comparing.COSTS, cost)
        if options.history and any(len(machine.records) > 1 for machine in machines):
            tables.show("History", comparing.HISTORY, list(comparing.history_rows(machines)))
        elif options.history:
            print(f"only one run of {title}{' on each machine' if len(machines) > 1 else ''}: nothing to compare")
        for line in warnings(group):
            print(line)
    print(
        'of "runs": of their mean, by how much they differ; "within": of the runs themselves. ~: the intervals overlap.'
    )
    return every


def warnings(records: Sequence[reading.Read]) -> list[str]:
    """Versions that differ between records of one work, and cards that count as one machine."""
    lines = []
    for key in ("torch", "cuda", "nccl", "driver", "python"):
        values = dict.fromkeys(str(record.environment[key]) for record in records)
        if len(values) > 1:
            lines.append(f"warning: {key} differs: {', '.join(values)}")
    for record in records:
        if not record.data["verdict"]["valid"]:
            codes = dict.fromkeys(reason["code"] for reason in record.data["verdict"]["reasons"])
            lines.append(f"warning: {record.name} is not valid: {', '.join(codes)}")
    return lines


def against(records: Sequence[reading.Read], old: Sequence[reading.Read], options: argparse.Namespace) -> int:
    """The number of regressions."""
    count = compared = judged = 0
    for group, baseline in comparing.paired(records, old):
        machines, before = comparing.runs(group, options.machine), comparing.runs(baseline, options.machine)
        rows = list(comparing.changes(machines, before, options.variation))
        compared += sum(row[-1] != comparing.MISSING for row in rows)
        judged += sum(row[-1] not in (comparing.MISSING, comparing.UNJUDGED) for row in rows)
        count += sum(row[-1] == comparing.REGRESSION for row in rows)
        tables.show(f"\nAgainst the baseline: {works.common_title([*group, *baseline])}", comparing.CHANGES, rows)
    if not compared:
        raise BadInput("no figure is in both the records and the baseline: nothing was compared")
    if not judged:
        raise BadInput("no figure is valid in both the records and the baseline: nothing was judged")
    print(f"{count} regression{'s' if count != 1 else ''}; judged: {judged} of {compared} figures, the valid ones")
    return count


def export(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    try:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["work", *comparing.FIGURES])
            writer.writerows(rows)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
