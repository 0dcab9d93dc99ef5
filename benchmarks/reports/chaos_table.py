"""One table of all records of ``benchmarks/chaos.py`` in a folder.

python -m benchmarks.reports.chaos_table benchmarks/results/2cpu
python -m benchmarks.reports.chaos_table benchmarks/results/2cpu --since 20261118T2000
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import sys
from collections import Counter
from typing import Any

HEAD = "| fault | times | clients went on after, in s: median / worst | waits above 30 s without a printed cause |"


def reports(folder: pathlib.Path, since: str = "") -> list[dict[str, Any]]:
    """The reports of all records from this time on, oldest first."""
    paths = [path for path in sorted(folder.glob("chaos_*.json")) if path.stem.removeprefix("chaos_") >= since]
    records = [json.loads(path.read_text()) for path in paths]
    return [record["results"]["report"] for record in records if "report" in record["results"]]


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown. A wait counts for each kind of fault that happened during it, and once in the sum.

    The first two runs measured other times, and only the number of waits. Runs before 18 November 2026 wrote 0 for a
    fault that no client was there for.
    """
    counts: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    times: dict[str, list[float]] = {}
    for run in runs:
        counts.update(run["faults"])
        for kind, row in run.get("recovery_s", {}).items():
            times.setdefault(kind, []).extend(time for time in row.get("samples", []) if time > 0)
        for text in hangs(run):
            silent.update(set(re.findall(r"(\w+) at -?\d+ s", text)))
    rows = [HEAD, "| --- | --- | --- | --- |"]
    for kind, count in counts.most_common():
        after = times.get(kind)
        shown = f"{statistics.median(after):.2f} / {max(after):.1f}" if after else ""
        rows.append(f"| `{kind}` | {count} | {shown} | {silent[kind]} |")
    return [*rows, f"| together | {counts.total()} | | {sum(len(hangs(run)) for run in runs)} |"]


def hangs(run: dict[str, Any]) -> list[str]:
    """Descriptions of the waits; empty ones in the first runs."""
    return [""] * run["hangs"] if isinstance(run["hangs"], int) else list(run["hangs"])


def losses(runs: list[dict[str, Any]]) -> str:
    sums = {name: sum(run["losses"][name] for run in runs) for name in ("equal", "rounded", "wrong")}
    errors = sum(len(run["errors"]) for run in runs)
    explained = sum(run.get("explained_long_waits", 0) for run in runs)
    shown = f"{sums['equal']} losses were equal, {sums['rounded']} within rounding, {sums['wrong']} wrong"
    return f"{len(runs)} runs: {shown}; {errors} errors; {explained} waits above 30 s with a printed cause"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--since", default="", metavar="TIME", help="leave out records whose names have earlier times")
    options = parser.parse_args(argv)
    runs = reports(options.folder, options.since)
    if not runs:
        print("there are no records of chaos.py")
        return 2
    print(*table(runs), "", losses(runs), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
