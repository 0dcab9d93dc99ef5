"""Where a read came from: ``read_bytes`` of /proc/self/io counts what the storage delivered."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: from the first share of its bytes on an epoch is cold, up to the second it is warm
COLD, WARM = 0.9, 0.1


def storage_bytes() -> int | None:
    """Bytes this process has read from storage so far, read-ahead included; None if the system does not report it."""
    try:
        with open("/proc/self/io") as file:
            rows = dict(line.split(": ") for line in file)
        return int(rows["read_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def drop(paths: Iterable[Path]) -> None:
    """Drop files from the page cache. Dirty pages would stay in it, so they are written first."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def label(logical: int, physical: int | None) -> str | None:
    """cold, warm or mixed; None if unknown."""
    if physical is None or logical == 0:
        return None
    share = physical / logical
    return "cold" if share >= COLD else "warm" if share <= WARM else "mixed"
