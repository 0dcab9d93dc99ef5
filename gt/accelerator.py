"""``gt.accelerator``: as ``torch.accelerator`` on a machine without one. The client has no GPU; the workers have."""

from __future__ import annotations

from typing import Any

from gt.cuda import device_count, empty_cache, is_available, set_device, synchronize
from gt.cuda.memory import (
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    reset_peak_memory_stats,
)
from gt.missing import absent as _absent

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "device_count", "empty_cache", "is_available",
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "reset_peak_memory_stats",
    "set_device_idx", "set_device_index", "synchronize",
]  # fmt: skip
_absent("accelerator")


def current_accelerator(check_available: bool = False) -> Any:
    """Always None: the client has no accelerator."""
    return None


def current_device_index() -> int:
    """Always 0: device numbers are ignored."""
    return 0


current_device_idx = current_device_index
set_device_index = set_device_idx = set_device
