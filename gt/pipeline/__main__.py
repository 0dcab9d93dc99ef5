"""``python -m gt.pipeline show 1f1b --stages 4 --microbatches 8``: draws a schedule, with its bubble and its memory."""

from __future__ import annotations

import argparse
import sys

from gt.launch.command_name import command_name, make_parser
from gt.pipeline.actions import Schedule
from gt.pipeline.drawing import draw, draw_png, summary
from gt.pipeline.files import is_file, read_schedule, to_csv
from gt.pipeline.schedules import SCHEDULES, make_schedule
from gt.scripts.command import run


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.pipeline", __doc__)
    commands = parser.add_subparsers(required=True, metavar="show")
    show = commands.add_parser("show", help="draw a schedule")
    show.add_argument("schedule", help=f"{', '.join(SCHEDULES)}, or a .csv or .yaml file")
    show.add_argument("--stages", type=int, default=4, help="default 4")
    show.add_argument("--microbatches", type=int, default=8, help="default 8")
    show.add_argument("--chunks", type=int, help="parts on each stage (default: as the schedule has it)")
    show.add_argument("--png", metavar="FILE", help="also write a picture")
    show.add_argument("--csv", action="store_true", help="print the actions as a CSV file instead")
    options = parser.parse_args(argv)
    return run(command_name("gt.pipeline"), lambda: _show(_schedule(options), options))


def _schedule(options: argparse.Namespace) -> Schedule:
    if is_file(options.schedule):
        return read_schedule(options.schedule)
    return make_schedule(options.schedule, options.stages, options.microbatches, options.chunks)


def _show(schedule: Schedule, options: argparse.Namespace) -> int:
    if options.csv:
        print(to_csv(schedule), end="")
        return 0
    print(draw(schedule))
    print(summary(schedule))
    if options.png:
        draw_png(schedule, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
