"""The same product for a minute on every device at once: its rate, clock, power and temperature over time."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.core import achievable, timing
from benchmarks.core.ranks import World
from benchmarks.node.figures import figure

SIDE, DTYPE = {"cuda": 8192, "cpu": 1024}, {"cuda": "bf16", "cpu": "fp32"}
#: seconds of a run, and between two points of its curve
SECONDS, POINT = 60.0, 1.0
QUICK_SIDE, QUICK_SECONDS, QUICK_POINT = 128, 0.5, 0.05


def run(world: World, put: Callable[..., None], quick: bool) -> None:
    kind = world.device.type
    side, length, point = (QUICK_SIDE, QUICK_SECONDS, QUICK_POINT) if quick else (SIDE[kind], SECONDS, POINT)
    points = rates(world, DTYPE[kind], side, length, point)
    work = 2 * side**3 / 1e12
    name = f"sustained {DTYPE[kind]} {side} x {side}"
    # the ranks stop after a time, not after a number of points
    count = min(world.gather(len(points)))
    put("product", figure(world, name, work, "TFLOP/s", [seconds for _, seconds in points[:count]]))
    put("curves", [{"rank": rank, "seconds": [at for at, _ in own], "tflop_per_s": [work / s for _, s in own]}
                   for rank, own in enumerate(world.gather(points))])  # fmt: skip
    put("end_over_beginning", min(world.gather(timing.end_over_beginning([seconds for _, seconds in points]))))


def rates(world: World, dtype: str, side: int, length: float, point: float) -> list[tuple[float, float]]:
    """(seconds since the beginning, mean seconds of a product since the last point)."""
    act = achievable.product(world.device, dtype, (side, side, side))
    once = timing.percentile(timing.measure(act, warmup=3, iters=3, device=world.device, events=True), 50)
    repeats = max(1, round(point / once))
    points: list[tuple[float, float]] = []
    world.barrier()
    timing.synchronize(world.device)
    begun = last = time.perf_counter()
    while last - begun < length:
        for _ in range(repeats):
            act()
        timing.synchronize(world.device)
        now = time.perf_counter()
        points.append((now - begun, (now - last) / repeats))
        last = now
    return points
