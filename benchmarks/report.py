"""A page for each machine from records of any suite: ``python report.py RECORD… --output-dir pages``.

The page is one HTML file that loads nothing. Records of an interrupted run are shown as far as they go.
Exit codes: 0 written, 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.core import environment, results
from benchmarks.core.ranks import BadInput
from benchmarks.reports import reading
from benchmarks.reports.report import report

DONE, BAD_INPUT = 0, 2


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    command_line.add_argument("paths", nargs="+", type=Path, metavar="RECORD", help="records, or folders of them")
    command_line.add_argument("--output-dir", type=Path, default=Path("."), metavar="DIR", help="folder of the pages")
    command_line.add_argument(
        "--machine", choices=reading.GROUPS, default="kind",
        help="what one machine is: all of equal hardware (kind), or each set of GPUs by UUID (card)",
    )  # fmt: skip
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        records, left_out = reading.gather(options.paths)
        folder = results.writable(options.output_dir)
        machines = reading.by_machine(records, options.machine)
        for path, machine in zip(_paths(folder, machines), machines, strict=True):
            path.write_text(report(machine, left_out), encoding="utf-8")
            print(f"written: {path} ({len(machine)} record{'s' if len(machine) != 1 else ''})")
    except (BadInput, results.Unwritable) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    return DONE


def _paths(folder: Path, machines: Sequence[Sequence[reading.Read]]) -> list[Path]:
    """One file a machine, by its name; a page that was made before is replaced, for it is made from records again."""
    names = [results.safe(f"report {reading.machine_name(machine[-1])}") for machine in machines]
    numbers = [names[:place].count(name) for place, name in enumerate(names)]
    return [folder / (f"{name}_{n + 1}.html" if n else f"{name}.html") for name, n in zip(names, numbers, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
