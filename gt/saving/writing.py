"""Writing the values of a file: by the workers where they can, otherwise by the client.

The client creates the file and reserves its space, so a full disk is noticed before anything is written. Then every
worker writes its own blocks of the large tensors; the client's home worker writes the small ones. On a shared server
the workers open no files: the client reads each tensor and writes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from gt.client.tensor.emit import call_with, current
from gt.client.tensor.tensor import Tensor
from gt.errors import RemoteError
from gt.ops import OPS
from gt.ops.system.files import MARK
from gt.saving.headers import FilePlan, compose, is_large

SAVE, SAVE_BLOCK = OPS["save_file"], OPS["save_block"]

#: The most small tensors in one instruction.
MAX_TENSORS = 1000
#: Seconds after which a temporary file that nobody has locked is left over from a process that was killed.
ABANDONED_AFTER_S = 60.0


class TemporaryFile:
    """A new file in a folder, under a name that only this program knows. It gets its own name when it is complete."""

    def __init__(self, folder: str) -> None:
        self.secret = secrets.token_hex(16)
        self.path = os.path.join(folder, MARK + self.secret)
        self.file = open(self.path, "x+b")  # noqa: SIM115, closed by `close`
        with contextlib.suppress(OSError):  # a file system may have no locks; then nothing is removed as abandoned
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write_tensors(self, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        """Write a safetensors file."""
        plan = compose({name: x._type for name, x in tensors.items()}, metadata)
        _reserve(self.file, plan.nbytes)
        self.file.write((MARK + self.secret).encode())
        sync(self.file)
        if not _write_on_workers(self, tensors, plan):
            _write_from_client(self.file, tensors, plan)
        self.file.seek(0)
        self.file.write(plan.header)

    def publish(self, path: str) -> None:
        """Give the file its own name, in one step, when all its bytes are on disk. A device is only written."""
        sync(self.file)
        if os.path.exists(path) and not os.path.isfile(path):
            self.file.seek(0)
            with open(path, "wb") as device:
                shutil.copyfileobj(self.file, device)
            os.unlink(self.path)
        else:
            os.replace(self.path, path)

    def close(self) -> None:
        self.file.close()

    def remove(self) -> None:
        self.close()
        os.unlink(self.path)


def write_atomically(path: str, write: Callable[[TemporaryFile], None]) -> None:
    """Let ``write`` fill a new file, which then replaces the one at this path."""
    folder = os.path.dirname(path)
    remove_abandoned(folder)
    temporary = TemporaryFile(folder)
    try:
        write(temporary)
        temporary.publish(path)
    except BaseException:
        temporary.remove()
        raise
    temporary.close()
    sync_folder(folder)


def remove_abandoned(folder: str) -> None:
    """Remove temporary files of processes that were killed while they were saving."""
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(MARK)]
    for path in found:
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file.fileno()).st_mtime > ABANDONED_AFTER_S:
                    os.unlink(path)
        except OSError:  # another process is writing it, or has removed it
            continue


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _reserve(file: BinaryIO, nbytes: int) -> None:
    """Reserve the space of a file. Raises OSError if the disk is full; a file system may not be able to reserve."""
    try:
        os.posix_fallocate(file.fileno(), 0, nbytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        os.truncate(file.fileno(), nbytes)


def _write_on_workers(temporary: TemporaryFile, tensors: dict[str, Tensor], plan: FilePlan) -> bool:
    """Let the workers write their tensors; False if one of them could not."""
    if not tensors:
        return True
    session = next(iter(tensors.values()))._cell.session
    if session.connection.is_shared:
        return False

    def request(name: str) -> bytes:
        fields = {"path": temporary.path, "secret": temporary.secret, "offset": plan.offsets[name]}
        return json.dumps(fields).encode()

    written: Any = 0
    for name, x in tensors.items():
        if is_large(x._type):
            attrs = (("starts", (0,) * x.ndim), ("whole", x._type.shape))
            written = call_with(SAVE_BLOCK, request(name), (x,), attrs, session)[0] + written
    small = sorted((name for name in tensors if not is_large(tensors[name]._type)), key=plan.offsets.__getitem__)
    for first in range(0, len(small), MAX_TENSORS):
        batch = small[first : first + MAX_TENSORS]
        written = call_with(SAVE, request(batch[0]), tuple(tensors[n] for n in batch), (), session)[0] + written
    try:
        return int(written.item()) == plan.nbytes - len(plan.header)
    except RemoteError:
        return False


def _write_from_client(file: BinaryIO, tensors: dict[str, Tensor], plan: FilePlan) -> None:
    """Read each tensor and write it in this process."""
    for name, x in tensors.items():
        file.seek(plan.offsets[name])
        file.write(value_of(x))


def value_of(x: Tensor) -> Any:
    """The bytes of a tensor's value."""
    if not x._type.nbytes:
        return b""
    current(x)
    return x._cell.session.read(x._cell.id, x._type)
