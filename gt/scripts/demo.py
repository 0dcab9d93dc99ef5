"""``gt demo``: what GT does, in ten seconds. It is ``examples/demo.py`` of the repository."""

from __future__ import annotations

import sys

from gt.launch.command_name import command_name, make_parser
from gt.scripts.checkout import programs, replace_process
from gt.scripts.command import run


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.demo", __doc__)
    parser.parse_args(argv)
    return run(command_name("gt.scripts.demo"), lambda: replace_process(programs("examples")["demo"], []))


if __name__ == "__main__":
    sys.exit(main())
