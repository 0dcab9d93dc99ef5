"""What the commands share: how they find their server, and how they report errors in one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gt.errors import ConfigError, GtError
from gt.events.viewer import find_server
from gt.launch.command_name import option_type
from gt.launch.running import running_servers
from gt.wire.addresses import parse_port


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="where the server runs (default: the newest server of this user here)")
    parser.add_argument("-p", "--port", type=option_type(parse_port), help="the server's port (default 9000)")
    parser.add_argument("--unix", metavar="PATH", help="a local system on this machine, by its socket")


def chosen_server(options: argparse.Namespace) -> str:
    """The address of the server that the options name, or of the newest one. The others are listed on stderr."""
    named = (options.host, options.port, options.unix)
    address = find_server(*named)
    running = [] if any(option is not None for option in named) else running_servers()
    if len(running) > 1:
        chosen = next((server for server in running if server.address == address), address)
        print(f"{len(running)} GT systems of this user run here; this is the newest: {chosen}", file=sys.stderr)
        for server in running:
            if server is not chosen:
                print(f"  another one: {server}", file=sys.stderr)
        print("  --unix PATH, or --host and --port, choose one", file=sys.stderr, flush=True)
    return address


@contextlib.contextmanager
def written(path: str, mode: str = "w") -> Iterator[Any]:
    """A file that is written under another name first, so that a file with its final name is complete.

    A device or a pipe is written, never replaced.
    """
    part = path if os.path.exists(path) and not os.path.isfile(path) else f"{path}.part"
    try:
        with open(part, mode) as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        if part != path and os.path.lexists(part):
            os.unlink(part)
        raise GtError(f"{path}: cannot be written: {error.strerror}") from None


#: Exit codes, beside 0: the run failed; wrong options or input, as `argparse` has it; Ctrl-C, as shells have it.
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def run(name: str, command: Callable[[], int]) -> int:
    """Run a command; returns its exit code. An error is one line on stderr."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has ended; so do we, without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GtError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return WRONG_USE if isinstance(error, ConfigError) else FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {where}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED
