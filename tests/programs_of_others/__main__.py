"""``python -m tests.programs_of_others --programs DIR [--rounds 3] [name …]``: run the programs, print their table."""

from __future__ import annotations

import argparse
import pathlib
import tempfile

from tests.programs_of_others.compare import ProgramFailed, compare, prepare, step_times
from tests.programs_of_others.table import PROGRAMS, Program


def row(program: Program, root: pathlib.Path, rounds: int) -> str:
    """A line of the table: program, lines changed, losses equal, step time against torch."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(program, root, folder)
        try:
            result = compare(program, folder)
            equal = "yes" if result.equal(program) else f"no: {result.printed or result.difference}"
            cells = [f"{equal} ({result.losses}, {result.difference:.0e})"]
            cells.append(shown_times(program, step_times(program, folder, rounds)) if rounds else "")
        except ProgramFailed as error:
            cells = [str(error), ""]
    return f"| {program.name} | {len(program.edits)} | {' | '.join(cells)} |"


def shown_times(program: Program, times: dict[str, float]) -> str:
    """The cell for step times."""
    if not times:
        return f"too short to time: fewer than {program.timed[1]} steps"
    return "{gt:.1f} ms, {torch:.1f} ms, {ratio:.2f}×".format(**times, ratio=times["gt"] / times["torch"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, help="a folder with checkouts: nanoGPT, minGPT, examples")
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each program in each world; 0: none")
    parser.add_argument("names", nargs="*", help="parts of names of programs; all if none is given")
    arguments = parser.parse_args()
    chosen = [
        (program, root)
        for program in PROGRAMS
        if (root := program.root(arguments.programs)) is not None
        and (not arguments.names or any(name in program.name for name in arguments.names))
    ]
    if arguments.programs is not None and not arguments.programs.is_dir():
        parser.error(f"--programs {arguments.programs}: there is no such folder")
    if not chosen:
        parser.error("no program is chosen: the names are " + ", ".join(program.name for program in PROGRAMS))
    print("| program | lines changed | losses equal (number, largest difference) | step: GT, torch, GT / torch |")
    print("| --- | --- | --- | --- |")
    for program, root in chosen:
        print(row(program, root, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
