"""Clock, power and temperature of each card over time, from the lines of the sampler."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

#: seconds between two points
STEP = 1.0
#: what a point has besides power, as the sampler names it
KEYS = ("sm_mhz", "memory_mhz", "temperature_c", "kernel_resident")


def curves(lines: Sequence[str], step: float = STEP) -> list[dict[str, Any]]:
    """One object per card: seconds since its first sample, and a list of the same length for each quantity.

    Power is the difference of the energy counter over the time since the last point, null where a card has no counter.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
            row = json.loads(line)
            if "uuid" in row and "time" in row:
                rows.setdefault(row["uuid"], []).append(row)
    return [{"uuid": uuid, **_curve(samples, step)} for uuid, samples in rows.items()]


def _curve(samples: Sequence[dict[str, Any]], step: float) -> dict[str, list[Any]]:
    points = list(samples[:1])
    for sample in samples[1:]:
        if sample["time"] - points[-1]["time"] >= step:
            points.append(sample)
    pairs = list(itertools.pairwise(points))
    return {
        "seconds": [later["time"] - points[0]["time"] for _, later in pairs],
        "power_w": [_power(*pair) for pair in pairs],
        **{key: [later.get(key) for _, later in pairs] for key in KEYS},
    }


def _power(first: dict[str, Any], later: dict[str, Any]) -> float | None:
    if first.get("energy_mj") is None or later.get("energy_mj") is None:
        return None
    return float((later["energy_mj"] - first["energy_mj"]) / 1e3 / (later["time"] - first["time"]))
