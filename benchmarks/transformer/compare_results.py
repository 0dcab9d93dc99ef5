"""Compare results of ``benchmark.py``: ``python compare_results.py results/ --cost 3.00 5.50``.

Exit codes: 0 compared, 2 bad input (a file that is not a result, a price without a result), 3 the results are of
different work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.core import tables
from benchmarks.core.ranks import BadInput
from benchmarks.transformer.comparing import COLUMNS, Result, Unequal, check, gather, priced, table
from benchmarks.transformer.exporting import FORMATS

DONE, BAD_INPUT, UNEQUAL = 0, 2, 3
#: the columns of the table on a terminal, in two parts that fit; files have all columns in one table
PARTS = {
    "Throughput": (
        "result",
        "GPUs",
        "engine",
        "samples/s",
        "95 % interval",
        "runs",
        "against the first",
        "samples/s a GPU",
    ),
    "Details": ("result", "device", "tokens/s", "step p50 ms", "MFU %", "peak GiB", "J a sample"),
    "Time": ("result", "wall s", "kernel resident %"),
    "Cost": ("result", "$ a GPU-hour", "$ a million samples", "break-even $ a GPU-hour"),
}


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="compare_results.py", description=(__doc__ or "").splitlines()[0])
    command_line.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="result files, or folders of them")
    command_line.add_argument(
        "--cost", nargs="+", default=[], metavar="PRICE", help="$ for an hour of one GPU: one price a result in the "
        "order of the table, or NAME=PRICE with a word of the recorded GPU's name or a part of a result's name; the "
        "pairing is printed",
    )  # fmt: skip
    command_line.add_argument(
        "--allow-different", action="store_true", help="compare results of unequal configurations, with a warning"
    )
    for name in FORMATS:
        command_line.add_argument(
            f"--{name}", type=Path, metavar="FILE", help=f"write the comparison as {name} as well"
        )
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        results, skipped = gather(options.paths)
        results = priced(results, options.cost) if options.cost else results
        notes = [*skipped, *check(results, options.allow_different)]
        show(results, notes)
        for name, write in FORMATS.items():
            if getattr(options, name):
                _export(getattr(options, name), write, results, notes)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return UNEQUAL if isinstance(error, Unequal) else BAD_INPUT
    return DONE


def _export(path: Path, write: object, results: list[Result], notes: list[str]) -> None:
    assert callable(write)
    try:
        with open(path, "w", newline="") as file:
            write(file, results, notes)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
    print(f"written: {path}")


def show(results: list[Result], notes: list[str]) -> None:
    titles = [column.title for column in COLUMNS]
    rows = table(results)
    any_price = any(result.price is not None for result in results)
    if any_price:
        for result in results:
            price = "none" if result.price is None else f"${result.price:,.2f} a GPU-hour"
            print(f"price: {result.name} ({result.device}) = {price}")
    for name, columns in PARTS.items():
        if name == "Cost" and not any_price:
            continue
        tables.show(name, columns, [[row[titles.index(title)] for title in columns] for row in rows])
    for line in [*_verdicts(results), *notes]:
        print(line)
    if any(" ~" in row[titles.index("against the first")] for row in rows):
        print("~: the intervals overlap, so the two may as well be equally fast")


def _verdicts(results: list[Result]) -> list[str]:
    return [f"{r.name}: {line}" for r in results for line in tables.verdict_lines(r.data["verdict"])]


if __name__ == "__main__":
    sys.exit(main())
