"""Breaks the network between two processes of this machine: packets get lost, and no connection is closed.

A socket filter that accepts nothing is attached to one end of each connection between them, from outside. The kernel
then drops what arrives there, also acknowledgements and answers to probes, so neither end hears from the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import socket

SO_ATTACH_FILTER, SYS_PIDFD_GETFD = 26, 438


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def cut(pid: int, other: int) -> int:
    """Break all TCP connections between two processes; returns how many there were."""
    table, ends = _connections(), _inodes(other)
    count = 0
    for inode, fd in _inodes(pid).items():
        addresses = table.get(inode)
        if addresses is not None and any(table.get(end) == addresses[::-1] for end in ends):
            _drop_everything(pid, fd)
            count += 1
    return count


def _connections() -> dict[int, tuple[str, str]]:
    """inode -> (local, remote) of the established connections."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[9]): (row[1], row[2]) for row in rows if row[3] == "01"}


def _inodes(pid: int) -> dict[int, int]:
    """inode -> descriptor of the sockets of a process."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found[int(target[8:-1])] = int(name)
    return found


def _drop_everything(pid: int, fd: int) -> None:
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    try:
        copy = libc.syscall(SYS_PIDFD_GETFD, process, fd, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(process)
    program = (_Instruction * 1)(_Instruction(0x06, 0, 0, 0))  # return 0: accept no byte
    with socket.socket(fileno=copy) as connection:
        connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(_Filter(1, program)))
