"""``python -m tests.support.small_worker SOCKET BYTES``: a worker whose device has this many bytes of memory.

It reports the memory that its process uses in addition to what it used at its start.
"""

from __future__ import annotations

import resource
import sys

from gt.launch.parent import end_with_parent
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.shell import Shell


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class SmallEngine(NumpyEngine):
    def __init__(self, total: int) -> None:
        self._total, self._start = total, resident()

    def memory(self, restart: bool = False) -> dict[str, int]:
        used = min(self._total, max(0, resident() - self._start))
        return {"used": used, "total": self._total, "peak": used}


if __name__ == "__main__":
    end_with_parent()
    Shell(f"unix:{sys.argv[1]}", None, SmallEngine(int(sys.argv[2])), 60.0).run()
