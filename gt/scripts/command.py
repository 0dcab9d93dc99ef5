"""What the commands share: how they find their server, and how they report errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from gt.errors import GtError


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="where the server runs (default: the newest server of this user here)")
    parser.add_argument("-p", "--port", type=int, help="the server's port (default 9000)")


def run(name: str, command: Callable[[], int]) -> int:
    """Run a command. An error is one line on stderr, and the exit code 1."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has ended; so do we, without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GtError as error:
        print(f"{name}: {error}", file=sys.stderr)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {where}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1
