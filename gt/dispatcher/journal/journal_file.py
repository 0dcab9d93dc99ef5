"""An append-only file of records that survives the end of its process, also by kill -9.

The file is mapped into memory, so to append is to copy bytes: no system call, and no other thread in the hot path. What
was copied is in the kernel's cache, which outlives the process. A thread writes it to the disk once a second, for the
case that the machine ends as well.

    record   kind, number, time, checksum of the payload, 1 + length of the payload; the payload

The length is written last. A record without a length, or with a wrong checksum, is the end of the journal.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

_HEAD = struct.Struct("<IIqII")
_HEAD_BYTES, _write_head = _HEAD.size, _HEAD.pack_into
#: How often the file is written to the disk, in seconds.
SYNC_S = 1.0
#: Space that is reserved beyond what a new file contains; the file doubles when it is full.
FIRST_SPACE_BYTES = 1 << 20

#: kind, number, time, payload
Record = tuple[int, int, int, bytes]


def read_records(data: bytes) -> Iterator[Record]:
    """All complete records."""
    at = 0
    while at + _HEAD_BYTES <= len(data):
        kind, number, time, checksum, length = _HEAD.unpack_from(data, at)
        begin = at + _HEAD_BYTES
        at = begin + length - 1
        payload = data[begin:at]
        if not length or len(payload) < length - 1 or crc32(payload) != checksum:
            return
        yield kind, number, time, payload


class JournalFile:
    """A new file with these records. It replaces the one at ``path`` in one step. Raises OSError."""

    def __init__(self, path: Path, records: list[Record]) -> None:
        new = path.with_suffix(".new")
        self._size = FIRST_SPACE_BYTES + sum(_HEAD_BYTES + len(payload) for *_, payload in records)
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, self._size)
            self._map = mmap.mmap(self._fd, self._size)
            #: bytes that are written, and the most that the payload of the next record can have
            self.used, self.space = 0, self._size - 2 * _HEAD_BYTES
            for record in records:
                self.append(*record)
            os.fdatasync(self._fd)
            os.rename(new, path)
        except OSError:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        self._synced = self.used
        #: held while the descriptor is used by the thread, or closed
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._sync, name="journal", daemon=True).start()

    def append(self, kind: int, number: int, time: int, payload: bytes) -> None:
        """Raises OSError if there is no space left."""
        at, length = self.used, len(payload)
        if length > self.space:
            self._grow(length)
        begin = at + _HEAD_BYTES
        self.used = end = begin + length
        self.space -= _HEAD_BYTES + length
        self._map[begin:end] = payload
        _write_head(self._map, at, kind, number, time, crc32(payload), length + 1)

    def _grow(self, length: int) -> None:
        size = max(2 * self._size, self.used + length + 2 * _HEAD_BYTES)
        # reserves the blocks: writing to mapped memory on a full disk would end the process
        os.posix_fallocate(self._fd, 0, size)
        self._map.resize(size)
        self.space += size - self._size
        self._size = size

    def _sync(self) -> None:
        while not self._closed.wait(SYNC_S):
            with self._lock:
                used = self.used
                if not self._closed.is_set() and used != self._synced:
                    with contextlib.suppress(OSError):  # it is still in the cache, which is what a restart reads
                        os.fdatasync(self._fd)
                    self._synced = used

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._map.close()
            os.close(self._fd)
