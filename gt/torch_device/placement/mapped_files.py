"""Tensors of the CPU whose memory is a file: the workers read the file, and the client never touches its pages.

Loaders of weights map files into memory: safetensors, Hugging Face's ``from_pretrained``, ``torch.load(mmap=True)``.
When such a tensor is copied to the device, Linux tells which file it is and where in it (``/proc/self/maps``), and
whether the program has written into the memory since (``/proc/self/pagemap``): then it is uploaded like any other.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np
import torch

from gt.client.tensor.emit import uploading
from gt.client.tensor.tensor import Tensor
from gt.saving.stored import SeenFile, read_on_workers, whole
from gt.types import TensorType

#: Smaller tensors are uploaded.
MIN_BYTES = 1 << 20
#: Bits of an entry of ``/proc/self/pagemap``. A page that was written is in memory or swapped out, and not the file's.
PRESENT, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


class MappedRange(NamedTuple):
    """Where in a file the memory of a tensor is."""

    path: str
    offset: int


def read_by_workers(x: torch.Tensor, type: TensorType) -> Tensor | None:
    """The value of a tensor on the CPU, read by the workers; None if its memory is no file that they can read."""
    if not x.is_contiguous() or x.is_conj() or x.is_neg():
        return None
    try:
        found = _find(x.data_ptr(), x.nbytes)
        if found is None or _is_changed(x.data_ptr(), x.nbytes):
            return None
        with open(found.path, "rb") as file:
            seen = SeenFile(file, found.path)
    except OSError:
        return None
    with uploading():  # the tensor is created where the signal places it, and each worker reads its block
        values = read_on_workers({"": whole(seen, type, found.offset)}, {})
    return None if values is None else values[""]


def _find(address: int, nbytes: int) -> MappedRange | None:
    """The file that is mapped at these addresses. Lines: ``begin-end permissions offset device inode path``."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            if begin <= address < end:
                break
        else:
            return None
    if len(fields) < 6 or not fields[5].startswith("/") or address + nbytes > end:
        return None
    path = fields[5]
    if os.stat(path).st_ino != int(fields[4]):
        return None  # another file has this name by now
    return MappedRange(path, address - begin + int(fields[2], 16))


def _is_changed(address: int, nbytes: int) -> bool:
    """Whether the program has written into one of these pages: then the page is its own, and no longer the file's."""
    first, last = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * (last - first + 1)), dtype=np.uint64)
    if len(pages) < last - first + 1:
        return True
    in_use = (pages & (PRESENT | SWAPPED)) != 0
    return bool(np.any(in_use & ((pages & OF_FILE) == 0)))
