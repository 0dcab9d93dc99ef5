"""What the commands share: how they find their server, and how they report errors in one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gt.errors import ConfigError, GtError


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="where the server runs (default: the newest server of this user here)")
    parser.add_argument("-p", "--port", type=int, help="the server's port (default 9000)")


@contextlib.contextmanager
def written(path: str, mode: str = "w") -> Iterator[Any]:
    """A file that is written under another name first, so that a file with its final name is complete."""
    part = f"{path}.part"
    try:
        with open(part, mode) as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        if os.path.lexists(part):
            os.unlink(part)
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def run(name: str, command: Callable[[], int], error_code: int = 1) -> int:
    """Run a command. An error is one line on stderr, and this exit code."""
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
    return error_code
