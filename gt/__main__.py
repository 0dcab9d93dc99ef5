"""``gt server`` and ``gt worker``: the same as ``python -m gt.server`` and ``python -m gt.worker``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from gt.version import VERSION

#: command -> (its module, which has a ``main(argv)``; what it does)
COMMANDS = {
    "server": ("gt.server", "run a server: python -m gt.server"),
    "worker": ("gt.worker.__main__", "run a worker for a server: python -m gt.worker"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name}    {text}" for name, (_, text) in COMMANDS.items()),
    )
    parser.add_argument("--version", action="version", version=f"GT {VERSION}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help=", ".join(COMMANDS))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the command's own; gt COMMAND --help lists them")
    arguments = parser.parse_args(argv)
    module = importlib.import_module(COMMANDS[arguments.command][0])
    code: int = module.main(arguments.options)
    sys.stderr.flush()
    os._exit(code)  # a worker does not wait for the threads of torch and ZeroMQ


if __name__ == "__main__":
    main()
