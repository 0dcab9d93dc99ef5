"""The 2-CPU machine's file from quick measurements of a real system of two workers; and a real run to check against.

Single ops are measured, on both workers at once: a product, an addition, small instructions, a sum over workers. The
time of a training step is then predicted from these alone, and compared with a real one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

import gt
from benchmarks.simulation.machine import Machine, Wire
from benchmarks.simulation.workloads import Workload

WORKERS = 2
#: rows and widths of the product; elements of the addition and of the large and the small sum
ROWS, WIDTH, ELEMENTS, LARGE, SMALL = 1024, 1024, 4 << 20, 1 << 20, 2048


def _median(act: Callable[[], Any], rounds: int) -> float:
    act()
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        act()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def _repeated(act: Callable[[], Any], times: int, rounds: int) -> float:
    """Seconds of one action among many, with one read at the end."""

    def run() -> None:
        for _ in range(times):
            result = act()
        result.sum().item()

    return _median(run, rounds) / times


def in_turns(
    machine: Machine, workloads: Mapping[str, tuple[Workload, int]], rounds: int = 5
) -> tuple[Machine, dict[str, list[float]]]:
    """The machine as calibrated here, and seconds of real steps of each workload with its batch.

    Both come from the same rounds, so that a varying load of the machine affects both.
    """
    gt.auto_shard(workers=WORKERS)
    try:
        states = {name: workload.setup(batch) for name, (workload, batch) in workloads.items()}
        machines, step_seconds = [], []
        for _ in range(rounds):
            machines.append(calibrated(machine))
            step_seconds.append({name: real_step(workload, states[name]) for name, (workload, _) in workloads.items()})
        del states
    finally:
        gt.auto_shard(False)
    return _between(machines), {name: [t[name] for t in step_seconds] for name in workloads}


def _between(machines: Sequence[Machine]) -> Machine:
    """The median of each rate."""

    def of(rate: Callable[[Machine], float]) -> float:
        return statistics.median(map(rate, machines))

    wire = Wire(of(lambda m: m.link.bandwidth), of(lambda m: m.link.latency_us))
    return replace(
        machines[0],
        flops={"float32": of(lambda m: m.flops["float32"])},
        memory_bandwidth=of(lambda m: m.memory_bandwidth),
        launch_us=of(lambda m: m.launch_us),
        view_us=of(lambda m: m.view_us),
        link=wire,
        network=wire,
    )


def calibrated(machine: Machine, rounds: int = 3) -> Machine:
    """The machine with the rates measured here, on two workers under auto-sharding."""
    x, w = gt.randn(ROWS, WIDTH), gt.nn.Parameter(gt.randn(WIDTH, WIDTH)).detach()
    product = _repeated(lambda: x @ w, 4, rounds)
    flat = gt.randn(ELEMENTS)
    added = _repeated(lambda: flat + flat, 4, rounds)
    tiny = gt.ones(16)
    launch = _repeated(lambda: tiny + tiny, 500, rounds)
    read = _median(lambda: tiny.sum().item(), 3 * rounds)
    sums = {n: _sum(n, rounds) for n in (SMALL, LARGE)}
    bandwidth = 3 * 4 * ELEMENTS / WORKERS / max(1e-9, added - launch)
    latency = max(1e-6, sums[SMALL] - read)
    # each row is read and written by the first sum and by relu, and read by the second
    moved = max(1e-9, sums[LARGE] - sums[SMALL] - 5 * 4 * (LARGE - SMALL) / bandwidth)
    wire = Wire(4 * (LARGE - SMALL) / moved, latency / 2 * 1e6)
    return replace(
        machine,
        name=f"{machine.name} (calibrated)",
        flops={"float32": 2 * ROWS * WIDTH * WIDTH / WORKERS / max(1e-9, product - launch)},
        efficiency=1.0,
        memory_bandwidth=bandwidth,
        launch_us=launch * 1e6,
        view_us=launch * 1e6 / 2,
        link=wire,
        network=wire,
    )


def _sum(elements: int, rounds: int) -> float:
    """Seconds of a sum over workers: each has one row, and relu needs the whole."""
    rows = gt.ones(WORKERS, elements)
    return _median(lambda: gt.relu(rows.sum(0)).sum().item(), rounds)


def real_step(workload: Workload, state: Any, steps: int = 3) -> float:
    """Seconds of a step, after the setup of the workload."""

    def run() -> None:
        for _ in range(steps):
            loss = workload.step(state)
        loss.item()

    return _median(run, 1) / steps
