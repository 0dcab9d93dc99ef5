"""What GT says about itself: nothing, unless asked by GT_VERBOSE or GT_DEBUG_CLIENT|DISPATCHER|WORKER|COMPILE.

    if debug := topic("GT_DEBUG_WORKER"): debug(f"linked {signature}")

A topic that is off is None, so that building the text costs nothing either.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def topic(variable: str) -> Say | None:
    if os.environ.get(variable, "0") in ("", "0"):
        return None
    name = variable.removeprefix("GT_DEBUG_").removeprefix("GT_").lower()

    def say(text: str) -> None:
        print(f"[gt {name} {os.getpid()} {time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    return say


def warn(text: str) -> None:
    """For what a user must know unasked."""
    print(f"[gt] {text}", file=sys.stderr, flush=True)
