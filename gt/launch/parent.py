"""Ends a process when its parent ends, also if the parent was killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

#: The interval of the checks.
CHECK_S = 0.25


def end_with_parent(clean_up: Callable[[], object] = bool) -> None:
    """Start a thread that ends this process as soon as its parent has ended; ``clean_up`` is its last step."""
    parent = os.getppid()

    def watch() -> None:
        # when a parent dies, even by kill -9, the process gets another parent
        while os.getppid() == parent:
            time.sleep(CHECK_S)
        clean_up()
        os._exit(0)

    threading.Thread(target=watch, name="gt-parent", daemon=True).start()
