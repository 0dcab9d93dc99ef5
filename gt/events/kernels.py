"""Exposed communication on GPUs, from the kernels in a file of ``gt.debug.trace(path, kernels=True)``.

Over NCCL a collective is a kernel on a stream of its own, and the worker's stream waits for it on the GPU: no clock of
the host sees that wait. In the file it is the time in which a worker runs a kernel of NCCL, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

import numpy as np

from gt.errors import ConfigError
from gt.events.intervals import difference, length, union

#: the profiler's categories for what a GPU runs; its annotations of the same time have others
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
NCCL = "nccl"
_WORKER = re.compile(r"worker (\d+) ")


class DeviceWork(NamedTuple):
    """What the GPU of a worker ran, as arrays of (begin, end) in nanoseconds. They are unsorted and may overlap."""

    communicating: Any
    #: other kernels, copies and fills
    computing: Any

    @property
    def exposed(self) -> Any:
        """When it ran a kernel of NCCL and nothing else."""
        return difference(union(self.communicating), union(self.computing))


def device_work(trace: dict[str, Any]) -> dict[int, DeviceWork]:
    """Worker -> what its GPU ran; without the workers whose GPU ran nothing."""
    spans: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    workers = _workers(trace["traceEvents"])
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in DEVICE_CATEGORIES:
            communicating, computing = spans.setdefault(workers[event["pid"]], ([], []))
            chosen = communicating if NCCL in event["name"].lower() else computing
            begin = round(event["ts"] * 1000)
            chosen.append((begin, begin + round(event["dur"] * 1000)))
    return {worker: DeviceWork(*map(_array, both)) for worker, both in sorted(spans.items())}


def read_device_work(path: str | os.PathLike[str]) -> dict[int, DeviceWork]:
    """`device_work` of a file. Raises ConfigError if it cannot be read or has no kernel of a GPU."""
    name = os.fspath(path)
    try:
        with open(name) as file:
            work = device_work(json.load(file))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{name}: not a file of gt.debug.trace(path, kernels=True)") from None
    if not work:
        raise ConfigError(f"{name}: no kernel of a GPU; gt.debug.trace(path, kernels=True) records them")
    return work


def exposed_communication(path: str | os.PathLike[str]) -> dict[int, int]:
    """Worker -> the nanoseconds in which its GPU ran a kernel of NCCL and nothing else.

    Raises ConfigError if the file cannot be read, or has no kernel of a GPU.
    """
    return {worker: length(work.exposed) for worker, work in read_device_work(path).items()}


def _workers(events: list[dict[str, Any]]) -> dict[int, int]:
    """The number of a process in the file -> its worker."""
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    matches = {process: _WORKER.match(name) for process, name in names.items()}
    return {process: int(match[1]) for process, match in matches.items() if match}


def _array(spans: list[tuple[int, int]]) -> Any:
    return np.array(spans, dtype=np.int64).reshape(-1, 2)
