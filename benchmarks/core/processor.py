"""The load of the processors by other programs, and the time that a hypervisor took: from /proc, on Linux."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

PROC = pathlib.Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """Seconds of all processors since the start of the machine, and of some processes and their children."""

    at: float
    busy: float
    steal: float
    own: float


def read(pids: Iterable[int], proc: pathlib.Path = PROC) -> Reading | None:
    """None where the system does not tell."""
    try:
        fields = (proc / "stat").read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = (int(field) / TICK for field in fields[:8])
    except (OSError, ValueError, IndexError):
        return None
    return Reading(time.monotonic(), user + nice + system + irq + softirq, steal, _own(set(pids), proc))


def _own(pids: set[int], proc: pathlib.Path) -> float:
    """Processor time of the processes and their descendants, also of those that have ended and were waited for."""
    times, parents = dict[int, float](), dict[int, int]()
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            times[int(folder.name)] = sum(map(int, fields[11:15])) / TICK
    return sum(seconds for pid, seconds in times.items() if _descends(pid, pids, parents))


def _descends(pid: int, ancestors: set[int], parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid not in ancestors and pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
    return pid in ancestors


def shares(before: Reading | None, after: Reading | None, cores: int) -> dict[str, float] | None:
    """Of all processor time between two readings: what other programs used, and what a hypervisor took."""
    if before is None or after is None or after.at <= before.at:
        return None
    whole = (after.at - before.at) * cores
    others = (after.busy - before.busy) - (after.own - before.own)
    return {"others": max(0.0, others) / whole, "steal": (after.steal - before.steal) / whole}
