"""The memory of this process: from the allocator on a GPU, the resident set on a CPU.

A resident set is what the system provided, not what tensors use: freed memory may stay in it. Records name the source.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import pathlib
import time

import torch
import torch.distributed as dist

from benchmarks.core.ranks import World

#: seconds until NCCL's watchdog has noticed that its work is complete
WATCHDOG = 0.5
NOTICE = "resident set of the process, in which freed memory stays: no split is read from it; the counted one is exact"


class Gauge:
    """Bytes held now, and the peak since ``reset``."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.source = "torch's CUDA allocator" if self.cuda else NOTICE
        self._floor = 0

    def now(self) -> int:
        if self.cuda:
            torch.cuda.synchronize(self.device)
            return torch.cuda.memory_allocated(self.device)
        trim()
        return kernel("/proc/self/status", "VmRSS")

    def reset(self) -> None:
        """Forget the peak so far."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._floor = self.now()  # then VmHWM is that of the whole run, and too high

    def peak(self) -> int:
        if self.cuda:
            torch.cuda.synchronize(self.device)
            return torch.cuda.max_memory_allocated(self.device)
        return max(self._floor, kernel("/proc/self/status", "VmHWM"))

    def needed(self) -> int:
        """The peak memory needed since ``reset``: on a GPU with the gaps between tensors."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else self.peak()

    def capacity(self) -> int:
        if self.cuda:
            return torch.cuda.get_device_properties(self.device).total_memory
        return kernel("/proc/meminfo", "MemTotal")

    def free(self) -> int:
        """The bytes this process could still allocate on its GPU."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def allocator(self) -> dict[str, int]:
        """The counters of the CUDA allocator; empty on a CPU."""
        if not self.cuda:
            return {}
        stats = torch.cuda.memory_stats(self.device)
        return {
            "max_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            "allocation_retries": stats.get("num_alloc_retries", 0),
            "ooms": stats.get("num_ooms", 0),
        }


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


def trim() -> None:
    """Return freed memory to the system, if the C library can; otherwise it counts as held."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def kernel(path: str, name: str) -> int:
    """A line of the kernel's status file, in bytes."""
    lines = pathlib.Path(path).read_text().splitlines()
    fields = next(line.split() for line in lines if line.startswith(f"{name}:"))
    return int(fields[1]) * 1024
