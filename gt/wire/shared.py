"""Memory that two processes of one user on one host share, without a path that could outlive them.

The sender of large values makes an anonymous memory file, a *lane*, and uses it as a ring: parts go in at the head and
leave at the tail in the same order. The receiver opens it through ``/proc/<pid>/fd``. When the last of both lets go, by
closing or by dying in whatever way, the kernel frees it: nothing has to be cleaned up. A lane is used again and again
because fresh shared memory costs several times as much as the copy itself.

A place that came by wire is not to be trusted. Each lane has a name nobody can guess, so that whoever names one was
given it: no client reads another's lane, or a file. And a lane is sealed against shrinking, so that no sender can pull
the memory away from under a reader.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from functools import cache

from gt.wire.messages import SharedRange


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
    """The sender's side. One thread may put while another releases."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.name = f"gt-{os.urandom(16).hex()}"
        self._fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(self._fd, size)
        self._view = memoryview(self._memory)
        #: [start, length] of what is under way, oldest first; a part never wraps around the end
        self._taken: deque[tuple[int, int]] = deque()

    def put(self, data: memoryview) -> SharedRange | None:
        """Copy the bytes in; None if they find no room before something is released."""
        at = self._room(data.nbytes)
        if at is None:
            return None
        self._taken.append((at, data.nbytes))
        self._view[at : at + data.nbytes] = data
        return SharedRange(os.getpid(), self._fd, self.name, self.size, at)

    def release(self) -> None:
        """The oldest part was taken."""
        self._taken.popleft()

    def _room(self, nbytes: int) -> int | None:
        taken = list(self._taken)  # what is released meanwhile is found at the next try
        if not taken:
            return 0 if nbytes <= self.size else None
        tail, (start, length) = taken[0][0], taken[-1]
        head = start + length
        if start >= tail:  # the free space is the end and, before the tail, the beginning
            if head + nbytes <= self.size:
                return head
            return 0 if nbytes < tail else None
        return head if head + nbytes < tail else None

    def close(self) -> None:
        """Who has opened it may go on reading."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._view.release()
            self._memory.close()
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_view", None) is not None:
            self.close()


class Lanes:
    """The receiver's side: the lanes of its peers, opened once each."""

    def __init__(self) -> None:
        self._open: dict[str, memoryview] = {}

    def read(self, place: SharedRange, nbytes: int) -> memoryview:
        """The bytes of one part. Raises OSError, ValueError or OverflowError if they are not there."""
        view = self._open.get(place.name)
        if view is None:
            view = self._open[place.name] = memoryview(_opened(place))
        if not 0 <= place.at <= place.at + nbytes <= view.nbytes:
            raise ValueError(f"a part of {nbytes} bytes at {place.at} lies outside its lane of {view.nbytes}")
        return view[place.at : place.at + nbytes]

    def forget(self, name: str) -> None:
        """The memory goes when the last piece of it that somebody looks at has gone."""
        self._open.pop(name, None)


def _opened(place: SharedRange) -> mmap.mmap:
    # without blocking: what is opened may turn out to be a pipe
    fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if os.readlink(f"/proc/self/fd/{fd}").partition(" ")[0] != f"/memfd:{place.name}":
            raise ValueError(f"{place.name} does not lie there")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError(f"{place.name} is no lane: it may shrink")
        return mmap.mmap(fd, place.size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
