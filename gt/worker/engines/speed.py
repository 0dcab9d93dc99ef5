"""How fast a worker computes: measured once, before it joins, by a matrix product on its device.

Meshes that balance by speed use the ratio of two workers' figures (`gt.dispatcher.plan.speeds`). The best of several
runs counts, because other work on the machine can only make a run slower.
"""

from __future__ import annotations

import time

from gt.ops import OPS, sign
from gt.types import TensorType, float32
from gt.worker.engines import Engine

#: Rows of the square matrices: on a GPU enough to keep all of it busy.
CPU_ROWS, GPU_ROWS = 256, 2048
#: The most runs that count, after one that does not. No more begin once this many seconds have passed.
RUNS, LIMIT_S = 8, 0.05


def measure_speed(engine: Engine) -> float:
    """Billions of float32 operations a second, with three digits; 0 if the product cannot be computed."""
    rows = GPU_ROWS if engine.gpu_id() else CPU_ROWS
    matrix = TensorType((rows, rows), float32)
    product = engine.link(sign(OPS["matmul"], (), (matrix, matrix)))
    seconds: list[float] = []
    try:
        x = engine.zeros(matrix)
        while len(seconds) < 2 or (len(seconds) <= RUNS and sum(seconds[1:]) < LIMIT_S):
            began = time.perf_counter()
            engine.to_host(product(x, x)[:1, :1])  # which waits for the device
            seconds.append(time.perf_counter() - began)
    except (RuntimeError, MemoryError):  # there is less memory than that; the worker may still be of use
        return 0.0
    return float(f"{2e-9 * rows**3 / max(min(seconds[1:]), 1e-9):.3g}")
