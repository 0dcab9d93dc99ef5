"""The memory of this process: from the allocator on a GPU, the resident set on a CPU.

A resident set is what the system provided, not what tensors use: freed memory may stay in it. Records name the source.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import pathlib
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core.ranks import World

#: seconds until NCCL's watchdog has noticed that its work is complete
WATCHDOG = 0.5
NOTICE = "resident set of the process, in which freed memory stays: no split is read from it; the counted one is exact"
#: error texts of torch on a CPU, and of cuBLAS if its workspace does not fit
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


class Gauge:
    """Bytes held now, and the peak since ``reset``."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.source = "torch's CUDA allocator" if self.cuda else NOTICE
        self._floor = 0
        self._counters = dict.fromkeys(("num_alloc_retries", "num_ooms"), 0)

    def now(self) -> int:
        if self.cuda:
            torch.cuda.synchronize(self.device)
            return torch.cuda.memory_allocated(self.device)
        trim()
        return kernel("/proc/self/status", "VmRSS")

    def reset(self) -> None:
        """Forget the peak and the counts so far."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            stats = torch.cuda.memory_stats(self.device)
            self._counters = {name: stats.get(name, 0) for name in self._counters}
            return
        try:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._floor = self.now()  # then VmHWM is that of the whole run, and too high

    def held(self) -> int:
        """The most bytes of tensors since ``reset``."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            return torch.cuda.max_memory_allocated(self.device)
        return max(self._floor, kernel("/proc/self/status", "VmHWM"))

    def needed(self) -> int:
        """The most bytes needed for them since ``reset``: on a GPU with the gaps between tensors, so never less."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else self.held()

    def capacity(self) -> int:
        if self.cuda:
            return torch.cuda.get_device_properties(self.device).total_memory
        return kernel("/proc/meminfo", "MemTotal")

    def free(self) -> int:
        """The bytes that tensors of this process could still take on its GPU: free ones, and its own empty gaps."""
        torch.cuda.empty_cache()
        gaps = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + gaps

    def counts(self) -> dict[str, int]:
        """Allocations that were retried and that failed since ``reset``; empty on a CPU, which does not count them."""
        if not self.cuda:
            return {}
        stats = torch.cuda.memory_stats(self.device)
        retries, ooms = (stats.get(name, 0) - before for name, before in self._counters.items())
        return {"allocation_retries": retries, "ooms": ooms}

    def report(self) -> dict[str, Any]:
        """What a record says of the memory of one rank since ``reset``."""
        capacity = {"capacity_bytes": self.capacity()}
        if not self.cuda:
            return {"peak_bytes": self.held(), "kind": "process (resident)", **capacity}
        reserved = {"reserved_bytes": self.needed()}
        return {
            "peak_bytes": self.held(), "kind": "allocated by tensors", **reserved, **capacity, **self.counts()
        }  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def worst(world: World, counts: dict[str, int]) -> dict[str, int]:
    """The largest of each count over the ranks."""
    everyone = world.gather(counts)
    return {key: max(other[key] for other in everyone) for key in counts}


def settle(world: World) -> None:
    """Release the memory of earlier work before a reading, on all ranks together.

    NCCL's group keeps the tensors of a collective that the program did not wait for, such as DDP's, until its watchdog
    has seen the end and another collective is called.
    """
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
        time.sleep(WATCHDOG)
        dist.barrier()
        torch.cuda.synchronize(world.device)
        torch.cuda.empty_cache()


def release(device: torch.device) -> None:
    """Return the memory of deleted tensors to the device; an engine and its model refer to each other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def trim() -> None:
    """Return freed memory to the system, if the C library can; otherwise it counts as held."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def kernel(path: str, name: str) -> int:
    """A line of the kernel's status file, in bytes."""
    lines = pathlib.Path(path).read_text().splitlines()
    fields = next(line.split() for line in lines if line.startswith(f"{name}:"))
    return int(fields[1]) * 1024
