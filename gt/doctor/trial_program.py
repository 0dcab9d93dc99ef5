"""``python -m gt.doctor.trial_program round_trip|collective``: runs one trial and prints its figures as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

#: How often a time is taken; the median counts.
REPEATS = 20
#: Elements (float32) of a large value: it goes through shared memory, in several chunks.
LARGE = 4 << 20
#: Elements that each of two workers adds to a sum.
REDUCED = 1 << 20


def round_trip() -> dict[str, Any]:
    import numpy as np

    import gt

    started = time.perf_counter()
    (worker, *_) = gt.workers()
    start_s = time.perf_counter() - started
    x = gt.ones(2)
    milliseconds = _median_ms(lambda: _check((x + 1).sum().item(), 4.0))
    large = np.arange(LARGE, dtype=np.float32)
    large_ms = _median_ms(lambda: _check(bool(np.array_equal((gt.tensor(large) + 0).numpy(), large)), True), 3)
    return {
        "device": worker.device,
        "backend": worker.backend,
        "start_s": start_s,
        "round_trip_ms": milliseconds,
        "large_value_bytes": large.nbytes,
        "large_value_ms": large_ms,
    }


def collective() -> dict[str, Any]:
    import gt

    started = time.perf_counter()
    gt.gpu_workers(2)
    start_s = time.perf_counter() - started
    gt.register_config("both", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with gt.signal.context("both"):
        parts = gt.ones(2, REDUCED)
    started = time.perf_counter()
    _check(_combine(parts), 2.0 * REDUCED)
    first_ms = (time.perf_counter() - started) * 1e3
    milliseconds = _median_ms(lambda: _check(_combine(parts), 2.0 * REDUCED))
    gpus = {worker.gpu for worker in gt.workers()}
    return {
        "devices": [worker.device for worker in gt.workers()],
        "transport": "nccl" if len(gpus) == 2 and "" not in gpus else "gloo",
        "start_s": start_s,
        "first_ms": first_ms,
        "collective_ms": milliseconds,
        "collective_bytes": 4 * REDUCED,
    }


def _combine(parts: Any) -> float:
    """The parts of two workers are added; relu needs the sum, so they exchange data."""
    import gt

    return float(gt.relu(parts.sum(0)).sum().item())


def _check(value: Any, expected: Any) -> None:
    if value != expected:
        raise SystemExit(f"a wrong result: {value} instead of {expected}")


def _median_ms(run: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


TRIALS = {"round_trip": round_trip, "collective": collective}

if __name__ == "__main__":
    print(json.dumps(TRIALS[sys.argv[1]]()))
