"""Whether a machine has cores for processes that look for messages instead of blocking; see `gt.wire.spinning`.

The process may use `MIN_CORES` or more, and at most half of the machine's are busy.
"""

from __future__ import annotations

import os

from gt.launch.cgroup import cgroup_limits
from gt.wire.spinning import Spinning

#: A client, a server and a worker may spin at the same time; one core is for everything else.
MIN_CORES = 4


def make_spinning() -> Spinning | None:
    """None where no wait may spin: too few cores, or ``GT_SPIN=0``. With ``GT_SPIN=1`` cores do not matter."""
    setting = os.environ.get("GT_SPIN", "")
    if setting == "0" or not hasattr(os, "sched_getaffinity"):
        return None
    if setting:
        return Spinning(lambda: False)
    return Spinning(_machine_is_busy) if usable_cores() >= MIN_CORES else None


def usable_cores() -> float:
    """The number of cores that this process may use, according to its affinity and its cgroup."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, cgroup_limits()[0] or cores) if cores >= MIN_CORES else cores


def _machine_is_busy() -> bool:
    """Are threads running, or waiting for a core, on more than half of the cores of this machine?"""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return True
    return running > (os.cpu_count() or 1) // 2
