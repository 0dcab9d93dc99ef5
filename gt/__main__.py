"""The command ``gt``: one name for all commands of GT. ``python -m gt`` is the same."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

from gt.launch.command_name import PREFIX, unknown
from gt.version import VERSION


class Command(NamedTuple):
    #: has ``main(argv) -> exit code``
    module: str
    summary: str
    #: whether its process ends without waiting for the threads of torch and ZeroMQ
    ends_at_once: bool = False


#: All commands, in the order of the help.
COMMANDS = {
    "server": Command("gt.server", "run a server, which clients and workers connect to"),
    "worker": Command("gt.worker.__main__", "run a worker for a server: one for each device", ends_at_once=True),
    "up": Command("gt.scripts.up", "start a server, and workers on several hosts over ssh"),
    "down": Command("gt.scripts.down", "end what up started"),
    "slurm-worker": Command("gt.launch.slurm_worker", "run the workers of a Slurm job, and their server: with srun"),
    "token": Command("gt.scripts.token", "make, list and revoke the tokens of a server's users"),
    "run": Command("gt.run", "run a PyTorch program, unchanged, on GT"),
    "top": Command("gt.scripts.top", "show what the workers and clients of a running system do"),
    "trace": Command("gt.scripts.trace", "record what a running system does, into a file"),
    "visualize": Command("gt.scripts.visualize", "draw what trace recorded, as a picture"),
    "dashboard": Command("gt.dashboard.__main__", "show a running system as a web page"),
    "pipeline": Command("gt.pipeline.__main__", "draw a pipeline schedule"),
    "doctor": Command("gt.doctor.__main__", "check this machine: what it has, what is wrong, what to do"),
    "demo": Command("gt.scripts.demo", "run the demo (needs a clone of the repository)"),
    "bench": Command("gt.scripts.bench", "run a benchmark (needs a clone of the repository)"),
}


def help_text() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: gt COMMAND [options]",
            "       gt COMMAND --help    the options of a command",
            "       gt --version",
            "",
            "commands:",
            *lines,
        ]
    )


def run_command(words: list[str]) -> int:
    """Run the command that the words name; returns the exit code."""
    if not words:
        print(help_text(), file=sys.stderr)
        return 2
    name, options = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name == "--version":
        print(f"GT {VERSION}")
        return 0
    if name not in COMMANDS:
        print(f"gt: {unknown('command', name, COMMANDS)} (gt --help)", file=sys.stderr)
        return 2
    sys.argv[0] = PREFIX + name
    code: int = importlib.import_module(COMMANDS[name].module).main(options)
    return code


def main() -> None:
    """Run the command of this process, and end it."""
    words, code = sys.argv[1:], 0
    try:
        code = run_command(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has ended; nothing more is written at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if words and words[0] in COMMANDS and COMMANDS[words[0]].ends_at_once:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
