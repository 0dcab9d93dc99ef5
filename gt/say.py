"""Debug output and warnings. Output is off unless GT_VERBOSE or GT_DEBUG_CLIENT|DISPATCHER|WORKER|COMPILE is set.

    if debug := topic("GT_DEBUG_WORKER"): debug(f"linked {signature}")

A topic that is off is None, so that its texts are not even built.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def topic(variable: str) -> Say | None:
    """A function that prints a line of this topic; None if the environment variable is unset, empty or 0."""
    if os.environ.get(variable, "0") in ("", "0"):
        return None
    name = variable.removeprefix("GT_DEBUG_").removeprefix("GT_").lower()

    def say(text: str) -> None:
        print(f"[gt {name} {os.getpid()} {time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    return say


def startup_output(silent: bool) -> Say | None:
    """A function that prints what a server or a worker does when it starts; a silent one needs GT_VERBOSE for it."""
    return topic("GT_VERBOSE") if silent else lambda text: print(text, flush=True)


def warn(text: str) -> None:
    """Print a warning that every user should see."""
    print(f"[gt] {text}", file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Print what a wait of minutes waits for."""
    print(f"[gt] {text}", file=sys.stderr, flush=True)
