"""Reads of single elements, such as ``x[i].item()`` in a loop.

Each read is a round trip. The tensor is copied to the client when its single reads have taken about as long as the copy
takes; further elements come from the copy, until the tensor is written or freed. So a loop over all elements takes at
most about twice the time of the better way.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from gt.client.tensor.strides import PLACED, offset_of
from gt.client.tensor.tensor import Cell, Tensor

#: A tensor is copied after this many reads, and one more for each of these bytes.
FIRST_READS, BYTES_A_READ = 4, 256 << 10
#: The largest tensor that is copied.
MAX_BYTES = 16 << 20


class _ElementReads:
    """The reads of elements of one tensor."""

    __slots__ = ("copy", "reads", "version")

    def __init__(self, version: int) -> None:
        self.version, self.reads = version, 0
        self.copy: Any = None


_tensors: WeakKeyDictionary[Cell, _ElementReads] = WeakKeyDictionary()


def element(x: Tensor) -> Any:
    """The value of a view of one element as a numpy scalar, from the copy of its base; None if there is no copy."""
    view = x._view
    assert view is not None
    base = view.base
    if base._type.nbytes > MAX_BYTES or base._type.dtype is not x._type.dtype or x._type.dtype.name == "bfloat16":
        return None
    if base._type.numel == 1 or any(op is PLACED for op, _, _ in view.chain):
        return None
    cell = base._cell
    if cell.session.outbox.recorder is not None:  # a compiled function must not read
        return None
    known = _tensors.get(cell)
    if known is None or known.version != cell.version:
        known = _tensors[cell] = _ElementReads(cell.version)
    if known.copy is None:
        known.reads += 1
        if known.reads <= FIRST_READS + base._type.nbytes // BYTES_A_READ:
            return None
        known.copy = base._read().reshape(-1)
    return known.copy[offset_of(x)]
