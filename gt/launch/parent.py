"""No orphans: a process that belongs to another ends when that one does, however it ended."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    parent = os.getppid()

    def watch() -> None:
        # a process whose parent died has a new one, even after kill -9
        while os.getppid() == parent:
            time.sleep(0.25)
        os._exit(0)

    threading.Thread(target=watch, name="gt-parent", daemon=True).start()
