"""``python -m tests.support.busy_worker SOCKET FILE``: a worker whose kernels sleep, and that writes how long they did.

So the share of time in which it is busy is known without the event stream.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from typing import Any

import numpy as np

from gt.launch.parent import end_with_parent
from gt.ops import Signature
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.shell import Shell

KERNEL_S = 0.005


class SleepingEngine(NumpyEngine):
    """Each kernel sleeps; the nanoseconds of all of them are in the first 8 bytes of a file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._total = mmap.mmap(file.fileno(), 8)

    def link(self, signature: Signature) -> Any:
        zeros = tuple(np.broadcast_to(self.zeros(type).dtype.type(0), type.shape) for type in signature.outs)
        results = zeros if len(zeros) > 1 else zeros[0]

        def kernel(*_: Any) -> Any:
            begun = time.perf_counter_ns()
            time.sleep(KERNEL_S)
            (total,) = struct.unpack("q", self._total[:8])
            self._total[:8] = struct.pack("q", total + time.perf_counter_ns() - begun)
            return results

        return kernel


if __name__ == "__main__":
    end_with_parent()
    shell = Shell(f"unix:{sys.argv[1]}", None, SleepingEngine(sys.argv[2]), 60.0)
    print("registered", flush=True)
    shell.run()
