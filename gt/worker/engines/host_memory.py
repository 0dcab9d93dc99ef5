"""The memory of a worker on the CPU: an instruction that needs more than there is fails, and the worker lives on.

Linux grants memory that it does not have. When the pages are used, it kills a process, and all users of that worker
lose their tensors. So two limits hold:

- Before an instruction with a large result runs, its size is compared with what the machine, its cgroup and
  ``--memory`` leave. A part, the headroom, stays free. This is the usual error.
- The process may not have more writable memory than all that (RLIMIT_DATA). This stops what kernels allocate for
  themselves: their allocation fails, and with it the instruction.

What is left is looked up only when the results since the last look may have used it up.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import resource
from collections.abc import Callable
from typing import Any

from gt.launch.cgroup import cgroup_free_bytes, cgroup_limits
from gt.ops import Signature

#: Results below this size are not checked, so that small instructions cost the same as without a check.
MIN_CHECKED_BYTES = 1 << 20
#: The part of all memory that stays free: an n-th, and at least so much, but never more than a quarter.
HEADROOM_PART, MIN_HEADROOM_BYTES = 32, 256 << 20

#: Smaller arrays are allocated on the heap, as glibc's own limit grows up to this size; the free bytes the heap keeps.
MAX_HEAP_BYTES, KEPT_FREE_BYTES = 32 << 20, 256 << 20
#: the names of glibc's <malloc.h>
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class NoHostMemory(MemoryError):
    """There is not enough memory for the result of an instruction."""


class HostMemory:
    """``limit``: the most bytes that the arrays and kernels of this process may take; None: what the machine has."""

    def __init__(self, limit: int | None = None) -> None:
        #: writable memory of this process before the first large result; None until there is one
        self._base: int | None = None
        self._limit = limit
        self._total = total = min(filter(None, (limit, _machine_bytes(), cgroup_limits()[1])), default=0)
        self.headroom = min(max(total // HEADROOM_PART, MIN_HEADROOM_BYTES), total // 4)
        #: no more than this may be granted without another look
        self._left = 0

    def check(self, nbytes: int) -> None:
        """Raises NoHostMemory if this many bytes more would use up the headroom."""
        if nbytes > self._left:
            self._left = self._look()
            if nbytes > self._left:
                free, needed = max(0, self._left) / 2**20, nbytes / 2**20
                kept = self.headroom / 2**20
                raise NoHostMemory(
                    f"this needs {needed:.0f} MiB, and {free:.0f} MiB are left ({kept:.0f} MiB stay free)"
                )
        self._left -= nbytes

    def guard(self, signature: Signature, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, with a check before it runs if its results are large."""
        nbytes = sum(t.nbytes for t in signature.outs)
        if nbytes < MIN_CHECKED_BYTES or signature.op.view or signature.into:
            return kernel
        check = self.check

        def guarded(*operands: Any) -> Any:
            check(nbytes)
            return kernel(*operands)

        return guarded

    def _look(self) -> int:
        """What is left besides the headroom."""
        if self._base is None:
            self._base = _data_bytes()
            self._limit_process(self._base + self._total - (self.headroom // 2 if self._limit is None else 0))
        left = [available] if (available := _available_bytes()) is not None else []
        if (free := cgroup_free_bytes()) is not None:
            left.append(free)
        if self._limit is not None:
            left.append(self._limit - (_data_bytes() - self._base))
        return min(left, default=1 << 62) - self.headroom

    def _limit_process(self, nbytes: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or nbytes < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))


def keep_freed_memory(most: int) -> None:
    """Let the heap of this process keep freed memory, at most so much, for the next step. By default glibc returns most
    of it to the kernel, and each page of the next step is a fault. Other C libraries are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and platform.libc_ver()[0] == "glibc":
        mallopt(M_MMAP_THRESHOLD, MAX_HEAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, min(KEPT_FREE_BYTES, most))


def _data_bytes() -> int:
    """The private writable memory of this process, as RLIMIT_DATA counts it; 0 if it is not known."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[5])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _machine_bytes() -> int:
    """All memory of the machine, with its swap space."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _meminfo().get("SwapTotal", 0)


def _available_bytes() -> int | None:
    """What the kernel can give to processes; None if it does not tell."""
    sizes = _meminfo()
    return sizes["MemAvailable"] + sizes.get("SwapFree", 0) if "MemAvailable" in sizes else None


def _meminfo() -> dict[str, int]:
    """What Linux reports about the memory, in bytes."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines) if rest}
