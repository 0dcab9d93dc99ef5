"""How much memory this process holds: the allocator's word on a GPU, the resident set on a CPU.

A resident set is what the system gave, not what tensors take: freed memory may stay in it. Records say which was read.
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

#: seconds until NCCL's watchdog has looked at what is done
WATCHDOG = 0.5
NOTICE = "resident set of the process, in which freed memory stays: no split is read from it; the counted one is exact"


class Gauge:
    """Bytes held now, and the most since ``reset``."""

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
        """The most that had to be there since ``reset``: on a GPU with the gaps between tensors."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else self.peak()

    def capacity(self) -> int:
        if self.cuda:
            return torch.cuda.get_device_properties(self.device).total_memory
        return kernel("/proc/meminfo", "MemTotal")

    def free(self) -> int:
        """What this process could still take on its GPU."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def allocator(self) -> dict[str, int]:
        """What the CUDA allocator counts; nothing on a CPU."""
        if not self.cuda:
            return {}
        stats = torch.cuda.memory_stats(self.device)
        return {
            "max_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            "allocation_retries": stats.get("num_alloc_retries", 0),
            "ooms": stats.get("num_ooms", 0),
        }


def settle(world: World) -> None:
    """What earlier work held is given back before something is read: all ranks together.

    NCCL's group keeps the tensors of a collective nobody waited for, as DDP's are, until its watchdog has seen the end
    and then another collective is called.
    """
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
        time.sleep(WATCHDOG)
        dist.barrier()
        torch.cuda.synchronize(world.device)
        torch.cuda.empty_cache()


def trim() -> None:
    """Freed memory back to the system, where the C library can: or it counts as held."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def kernel(path: str, name: str) -> int:
    """A line of the kernel's, in bytes."""
    lines = pathlib.Path(path).read_text().splitlines()
    found = next(line.split() for line in lines if line.startswith(f"{name}:"))
    return int(found[1]) * 1024
