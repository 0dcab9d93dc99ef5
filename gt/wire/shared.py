"""Memory that two processes of one user on one host share, without a name that could outlive them.

The sender of large values makes an anonymous memory file, a *lane*, and uses it as a ring: parts go in at the head and
leave at the tail in the same order. The receiver opens it through ``/proc/<pid>/fd``. When the last of both lets go, by
closing or by dying in whatever way, the kernel frees it: nothing has to be cleaned up. A lane is used again and again
because fresh shared memory costs several times as much as the copy itself.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from functools import cache

from gt.wire.messages import Place


@cache
def host_identity() -> str:
    """Equal for two processes exactly if they can open each other's memory: same boot, user and process namespace."""
    if not hasattr(os, "memfd_create") or os.environ.get("GT_SHM", "1") == "0":
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return ""


class Lane:
    """The sender's side. Not thread-safe: its owner holds a lock where it must."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._fd = os.memfd_create("gt", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self._memory = mmap.mmap(self._fd, size)
        self._view = memoryview(self._memory)
        #: [start, length] of what is under way, oldest first; a part never wraps around the end
        self._taken: deque[tuple[int, int]] = deque()

    def put(self, data: memoryview) -> Place | None:
        """Copy the bytes in; None if they find no room before something is released."""
        at = self._room(data.nbytes)
        if at is None:
            return None
        self._taken.append((at, data.nbytes))
        self._view[at : at + data.nbytes] = data
        return Place(os.getpid(), self._fd, self.size, at)

    def release(self) -> None:
        """The oldest part was taken."""
        self._taken.popleft()

    def _room(self, nbytes: int) -> int | None:
        if not self._taken:
            return 0 if nbytes <= self.size else None
        tail, (start, length) = self._taken[0][0], self._taken[-1]
        head = start + length
        if start >= tail:  # the free space is the end and, before the tail, the beginning
            if head + nbytes <= self.size:
                return head
            return 0 if nbytes < tail else None
        return head if head + nbytes < tail else None

    def close(self) -> None:
        self._view.release()
        self._memory.close()
        os.close(self._fd)


class Lanes:
    """The receiver's side: the lanes of its peers, opened once each."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[mmap.mmap, memoryview]] = {}

    def read(self, place: Place, nbytes: int) -> memoryview:
        """The bytes of one part. Raises OSError or ValueError if they are not there."""
        key = place.pid, place.fd
        if key not in self._open:
            self._open[key] = _opened(place)
        view = self._open[key][1]
        if not 0 <= place.at <= place.at + nbytes <= view.nbytes:
            raise ValueError(f"a part of {nbytes} bytes at {place.at} lies outside its lane of {view.nbytes}")
        return view[place.at : place.at + nbytes]

    def forget(self, pid: int) -> None:
        for key in [k for k in self._open if k[0] == pid]:
            memory, view = self._open.pop(key)
            view.release()
            memory.close()


def _opened(place: Place) -> tuple[mmap.mmap, memoryview]:
    fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(fd, place.size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    return memory, memoryview(memory)
