"""The load of the processors by other programs, and the time that a hypervisor took: from /proc, on Linux."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

PROC = pathlib.Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
#: In a shorter time the ticks in which /proc counts, one of each process and core, are more than a few percent of it.
SHORTEST_S = 1.0


@dataclass(frozen=True)
class Reading:
    """Seconds of all processors since the start of the machine, and of some processes and their children."""

    at: float
    busy: float
    steal: float
    own: float


def cores(pids: Iterable[int]) -> set[int]:
    """The cores that these processes may run on: a neighbour on others takes nothing from them."""
    allowed: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError, AttributeError):  # the process has ended, or this is not Linux
            allowed |= os.sched_getaffinity(pid)
    return allowed


def read(pids: Iterable[int], on: Collection[int] = (), proc: pathlib.Path = PROC) -> Reading | None:
    """Of these cores, or of all of them. None where the system does not tell."""
    names = {f"cpu{core}" for core in on} or {"cpu"}
    try:
        lines = [line.split() for line in (proc / "stat").read_text().splitlines()]
        times = [[int(field) / TICK for field in line[1:9]] for line in lines if line[0] in names]
        user, nice, system, _, _, irq, softirq, steal = map(sum, zip(*times, strict=True))
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


def shares(before: Reading | None, after: Reading | None, count: int) -> dict[str, float | None] | None:
    """Of the time of ``count`` cores between two readings: what other programs used, and what a hypervisor took.

    Both are None if the time is too short to tell.
    """
    if before is None or after is None or after.at <= before.at:
        return None
    seconds = after.at - before.at
    if seconds < SHORTEST_S:
        return {"others": None, "steal": None, "seconds": seconds}
    others = (after.busy - before.busy) - (after.own - before.own)
    used = {"others": others, "steal": after.steal - before.steal}
    return {key: min(1.0, max(0.0, spent) / (seconds * count)) for key, spent in used.items()} | {"seconds": seconds}
