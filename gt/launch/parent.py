"""Ends a process when its parent ends, for whatever reason."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    parent = os.getppid()

    def watch() -> None:
        # when a parent dies, even by kill -9, the process gets another parent
        while os.getppid() == parent:
            time.sleep(0.25)
        os._exit(0)

    threading.Thread(target=watch, name="gt-parent", daemon=True).start()
