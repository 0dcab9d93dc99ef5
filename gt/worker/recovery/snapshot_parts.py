"""The parts of a snapshot: writing one to a file, and reading those of all workers, from files or shared memory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from msgspec.structs import replace

from gt.wire.recovery_messages import SavedPart
from gt.wire.shared import SharedRings

#: A snapshot leaves this much of the disk free, or a tenth of a small disk: others need it, a journal for example.
MIN_FREE_BYTES = 1 << 30


def write_file(path: str, nbytes: int, data: Iterable[memoryview]) -> None:
    """Write a new file to the disk; nothing remains of it if that fails. Raises OSError."""
    folder = os.path.dirname(path)
    try:
        disk = os.statvfs(folder)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        raise OSError(f"it does not see {folder}; all workers must see the --snapshots folder of the server") from None
    try:
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        if free - nbytes < min(MIN_FREE_BYTES, size // 10):
            raise OSError(errno.ENOSPC, f"the disk is almost full: {nbytes} bytes, and {free} are free", folder)
        for part in data:
            _write(fd, part)
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def _write(fd: int, data: memoryview) -> None:
    data = data.cast("B") if data.nbytes else data
    while data.nbytes:
        data = data[os.write(fd, data) :]


class PartReader:
    def __init__(self, parts: list[SavedPart]) -> None:
        self._parts = parts
        self._rings = SharedRings()

    def read(self, part: int, begin: int, nbytes: int) -> memoryview:
        """Raises OSError, ValueError or OverflowError if the bytes are not there."""
        where = self._parts[part]
        if where.memory is not None:
            return self._rings.read(replace(where.memory, offset=begin), nbytes)
        data = memoryview(bytearray(nbytes))
        with open(where.file, "rb", buffering=0) as file:
            file.seek(begin)
            at = 0
            while at < nbytes:
                count = file.readinto(data[at:])
                if not count:
                    raise ValueError(f"{where.file} ends after {begin + at} bytes")
                at += count
        return data
