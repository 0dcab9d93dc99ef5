"""Memory that two processes of one user on one host share, without a file path that could remain after them.

The sender of large values creates an anonymous memory file and uses it as a ring: chunks enter at the head and leave
at the tail in the same order. The receiver opens it through ``/proc/<pid>/fd``. The kernel frees it when both sides
have closed it or died, so nothing has to be cleaned up. A ring is reused, because new shared memory costs several
times as much as the copy itself.

A `SharedRange` that arrives in a message is not trusted. Each ring has a secret random name, so a client can name only
its own rings: no client can read another client's ring, or a file. A ring is sealed against shrinking,
so no sender can remove memory that a receiver reads.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from functools import cache

from gt.wire.copying import copy_bytes
from gt.wire.structures import SharedRange


@cache
def host_identity() -> str:
    """Two processes have the same identity exactly if they can open each other's memory.

    That needs the same boot, user and process namespace. Empty if shared memory is not available.
    """
    if not hasattr(os, "memfd_create") or os.environ.get("GT_SHM", "1") == "0":
        return ""
    return f"{namespace} {os.getuid()}" if (namespace := _process_namespace()) else ""


def process_identity() -> str:
    """Names this process among those of all hosts; see `process_state`. Empty if it has no such name."""
    return f"{namespace} {os.getpid()}" if (namespace := _process_namespace()) else ""


def process_state(process: str) -> str:
    """ "stopped", by Ctrl-Z or a debugger, or "running". Empty if the process with this identity has ended, and if it
    cannot be seen from here: it is on another host, or in another process namespace."""
    namespace, _, pid = process.rpartition(" ")
    if not namespace or namespace != _process_namespace() or not (pid.isascii() and pid.isdigit()):
        return ""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:  # it has ended, or /proc shows no processes of other users
        return ""
    return "stopped" if letter in "Tt" else "" if letter in "ZX" else "running"


@cache
def _process_namespace() -> str:
    """Two processes have the same one if their process ids are of one boot and one namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


class SharedRing:
    """The sender's side. One thread may put while another releases.

    ``size`` is the size of the memory file. No more than ``limit`` bytes of it are used, so that no more are allocated.
    """

    def __init__(self, size: int, limit: int | None = None) -> None:
        self.size = size
        self._limit = size if limit is None else min(limit, size)
        self.name = f"gt-{os.urandom(16).hex()}"
        self._fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(self._fd, size)
        self._view = memoryview(self._memory)
        #: (start, length) of each chunk in use, oldest first; a chunk never wraps around the end
        self._used: deque[tuple[int, int]] = deque()

    def grow(self, nbytes: int) -> None:
        """Use this many bytes, or as many as there are."""
        self._limit = max(self._limit, min(nbytes, self.size))

    def put(self, data: memoryview) -> SharedRange | None:
        """Copy the bytes into the ring; None if there is no room until a chunk is released."""
        offset = self._free_offset(data.nbytes)
        if offset is None:
            return None
        self._used.append((offset, data.nbytes))
        copy_bytes(self._view[offset : offset + data.nbytes], data)
        return self.range(offset)

    def range(self, offset: int) -> SharedRange:
        """Where other processes find the bytes from ``offset`` on."""
        return SharedRange(os.getpid(), self._fd, self.name, self.size, offset)

    def release(self) -> None:
        """Free the oldest chunk."""
        self._used.popleft()

    def _free_offset(self, nbytes: int) -> int | None:
        """An offset with room for this many bytes; None if there is no room."""
        used = list(self._used)  # another thread may release meanwhile; the next call sees it
        if not used:
            return 0 if nbytes <= self._limit else None
        tail, (start, length) = used[0][0], used[-1]
        head = start + length
        if start >= tail:  # free: from the head to the limit, and from its beginning to the tail
            if head + nbytes <= self._limit:
                return head
            return 0 if nbytes < tail else None
        return head if head + nbytes < tail else None

    def close(self) -> None:
        """Release the sender's memory. A receiver that has opened the ring can still read it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._view.release()
            self._memory.close()
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_view", None) is not None:
            self.close()


class SharedRings:
    """The receiver's side: the rings of its peers. Each is opened once."""

    def __init__(self) -> None:
        self._open: dict[str, memoryview] = {}

    def read(self, memory: SharedRange, nbytes: int) -> memoryview:
        """The bytes of one chunk. Raises OSError, ValueError or OverflowError if the range is not valid."""
        view = self._open.get(memory.name)
        if view is None:
            view = self._open[memory.name] = memoryview(_open_ring(memory))
        start = memory.offset
        if not 0 <= start <= start + nbytes <= view.nbytes:
            raise ValueError(
                f"a chunk of {nbytes} bytes at {start} is outside its shared memory of {view.nbytes} bytes"
            )
        return view[start : start + nbytes]

    def forget(self, name: str) -> None:
        """Drop the ring. Its memory is freed when the last view of it is gone."""
        self._open.pop(name, None)


def _open_ring(memory: SharedRange) -> mmap.mmap:
    """Raises OSError, ValueError or OverflowError if this is not a ring."""
    fd = open_memory(memory)
    try:
        return mmap.mmap(fd, memory.size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def open_memory(memory: SharedRange) -> int:
    """A descriptor of a ring; as long as it is open, the memory exists. Raises OSError, ValueError or OverflowError."""
    # O_NONBLOCK: the file may be a pipe, and opening must not block
    fd = os.open(f"/proc/{memory.pid}/fd/{memory.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if os.readlink(f"/proc/self/fd/{fd}").partition(" ")[0] != f"/memfd:{memory.name}":
            raise ValueError(f"the file is not the shared memory {memory.name}")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError(f"{memory.name} is not sealed against shrinking")
    except BaseException:
        os.close(fd)
        raise
    return fd
