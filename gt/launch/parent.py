"""Ends a process when the one that started it ends, also if that one was killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

#: The interval of the checks.
CHECK_S = 0.25
#: How long a process may take to clean up.
TERMINATE_TIMEOUT_S = 2.0


def with_parent() -> tuple[str, str]:
    """The option with which a child of this process ends when this process ends, also if that was before it looked."""
    return "--with-parent", str(os.getpid())


def end_with_parent(clean_up: Callable[[], object] = bool, parent: int = 0) -> None:
    """Start a thread that ends this process as soon as its parent has ended; ``clean_up`` is its last step.

    ``parent``: the process that started this one; 0: the one that is the parent now.
    """
    parent = parent or os.getppid()

    def watch() -> None:
        # when a parent dies, even by kill -9, the process gets another parent
        while os.getppid() == parent:
            time.sleep(CHECK_S)
        clean_up()
        os._exit(0)

    threading.Thread(target=watch, name="gt-parent", daemon=True).start()


def end_with_stdin() -> None:
    """Start a thread that ends this process as soon as its standard input is closed: an ssh channel, or a pipe."""

    def watch() -> None:
        # the descriptor itself: a read of `sys.stdin` holds a lock, which would block the end of the process
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # its handler cleans up, unless the main thread is busy
        time.sleep(TERMINATE_TIMEOUT_S)
        os._exit(0)

    threading.Thread(target=watch, name="gt-stdin", daemon=True).start()
