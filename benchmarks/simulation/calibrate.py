"""The 2-CPU machine's file from quick measurements of a real system of two workers; and a real run to check against.

Single ops are measured, on both workers at once: a product, an addition, small instructions, a sum over workers. What a
training step takes is then predicted from these alone, and compared with a real one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gt
from benchmarks.simulation.machine import Machine, Wire
from benchmarks.simulation.workloads import Workload

WORKERS = 2
#: rows and widths of the product; elements of the addition and of the large and the small sum
ROWS, WIDTH, ELEMENTS, LARGE, SMALL = 1024, 1024, 4 << 20, 1 << 20, 256


def _median(act: Callable[[], Any], rounds: int) -> float:
    act()
    samples = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def _repeated(act: Callable[[], Any], times: int, rounds: int) -> float:
    """Seconds of one act among many, with one read behind all of them."""

    def run() -> None:
        for _ in range(times):
            made = act()
        made.sum().item()

    return _median(run, rounds) / times


def calibrated(machine: Machine, rounds: int = 5) -> Machine:
    """The machine with its rates as measured here, on the current session's first two workers."""
    gt.auto_shard(workers=WORKERS)
    x, w = gt.randn(ROWS, WIDTH), gt.nn.Parameter(gt.randn(WIDTH, WIDTH)).detach()
    product = _repeated(lambda: x @ w, 4, rounds)
    flat = gt.randn(ELEMENTS)
    added = _repeated(lambda: flat + flat, 4, rounds)
    tiny = gt.ones(16)
    launch = _repeated(lambda: tiny + tiny, 500, rounds)
    read = _median(lambda: tiny.sum().item(), 3 * rounds)
    sums = {n: _sum(n, rounds) for n in (SMALL, LARGE)}
    gt.auto_shard(False)
    bandwidth = 3 * 4 * ELEMENTS / WORKERS / max(1e-9, added - launch)
    latency = max(1e-6, sums[SMALL] - read)
    # a block is summed and relu reads and writes: 4 times its bytes go through memory
    moved = max(1e-9, sums[LARGE] - sums[SMALL] - 4 * 4 * LARGE / bandwidth)
    wire = Wire(4 * LARGE / moved, latency / 2 * 1e6)
    changed = {
        "name": f"{machine.name} (calibrated)",
        "flops": {"float32": 2 * ROWS * WIDTH * WIDTH / WORKERS / max(1e-9, product - launch)},
        "efficiency": 1.0,
        "memory_bandwidth": bandwidth,
        "launch_us": launch * 1e6,
        "view_us": launch * 1e6 / 2,
        "link": wire,
        "network": wire,
    }
    return Machine(**{name: changed.get(name, getattr(machine, name)) for name in Machine.__struct_fields__})


def _sum(elements: int, rounds: int) -> float:
    """Seconds of a sum over workers: each has one row, and relu needs all of it."""
    rows = gt.ones(WORKERS * 16, max(elements, 512))[:, :elements]
    return _median(lambda: gt.relu(rows.sum(0)).sum().item(), rounds)


def real_step(workload: Workload, batch: int, workers: int, rounds: int = 5, steps: int = 3) -> float:
    """Seconds of a step on the current session's first workers."""
    gt.auto_shard(workers=workers)
    try:
        made = workload.setup(batch)

        def run() -> None:
            for _ in range(steps):
                loss = workload.step(made)
            loss.item()

        return _median(run, rounds) / steps
    finally:
        gt.auto_shard(False)
