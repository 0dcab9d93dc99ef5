"""The limits of a container: the processor time and the memory that its cgroup allows, in either version of cgroups."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

#: Version 1 writes a number near 2**63 if there is no limit.
NO_LIMIT_BYTES = 1 << 60


def cgroup_limits(
    root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"), own: pathlib.Path = pathlib.Path("/proc/self/cgroup")
) -> tuple[float | None, int | None]:
    """(cores, bytes) that this process may use at most; None: no limit. ``own`` lists the groups of the process."""
    cores: list[float] = []
    memory: list[int] = []
    for folder in _folders(root, own):
        quota, period = _two(_read(folder / "cpu.max"))  # version 2: "200000 100000" or "max 100000"
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # version 1 writes -1 if there is no limit
            cores.append(int(quota) / int(period))
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < NO_LIMIT_BYTES:
            memory.append(int(limit))
    return min(cores, default=None), min(memory, default=None)


def cgroup_free_bytes(
    root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"), own: pathlib.Path = pathlib.Path("/proc/self/cgroup")
) -> int | None:
    """How much memory the cgroup of this process leaves; None: it has no limit. Cached files can be dropped."""
    free: list[int] = []
    for folder in _folders(root, own):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit() and int(limit) < NO_LIMIT_BYTES:
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            free.append(int(limit) - int(used) + (int(cached[1]) if cached else 0))
    return min(free, default=None)


def _folders(root: pathlib.Path, own: pathlib.Path) -> Iterator[pathlib.Path]:
    """The groups of the process and all groups above them; a limit of any of these holds."""
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)  # "0::/user.slice" in version 2, "4:memory:/docker/1" in version 1
        base = root / controllers if controllers else root
        folder = base / path.strip("/")
        while folder != base:
            yield folder
            folder = folder.parent
        yield base


def _two(text: str) -> tuple[str, str]:
    first, _, second = text.partition(" ")
    return first, second


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
