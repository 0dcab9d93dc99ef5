"""Several arrays that are reduced as one: they are copied into one flat array, and the result is split again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from gt.worker.collectives.interface import CollectiveHandle

#: Each array starts at a multiple of this. No kernel needs a larger alignment.
ALIGNMENT_BYTES = 128


class Bucket:
    """Several arrays in one collective."""

    def __init__(self, arrays: Sequence[torch.Tensor], empty: Callable[[Sequence[int], torch.dtype], Any]) -> None:
        dtype = arrays[0].dtype
        step = ALIGNMENT_BYTES // dtype.itemsize
        self._shapes = [tuple(x.shape) for x in arrays]
        self._starts, end = [], 0
        for shape in self._shapes:
            self._starts.append(end)
            end += -(-prod(shape) // step) * step
        #: all arrays, one after the other; the caller starts the reduction, sets ``handle`` and clears this
        self.flat: torch.Tensor | None = empty((end,), dtype)
        targets = [self._slice(self.flat, k) for k in range(len(arrays))]
        torch._foreach_copy_(targets, list(arrays))
        self.handle: CollectiveHandle | None = None
        self._reduced: Any = None

    def _slice(self, flat: Any, index: int) -> Any:
        shape, start = self._shapes[index], self._starts[index]
        return flat[start : start + prod(shape)].reshape(shape)

    def result(self, index: int) -> Any:
        """The reduced array of this index."""
        if self._reduced is None:
            assert self.handle is not None
            self._reduced = self.handle.result()
        return self._slice(self._reduced, index)


class BucketHandle:
    """The handle of one array in a bucket."""

    __slots__ = ("_bucket", "_index", "_taken")

    def __init__(self, bucket: Bucket, index: int) -> None:
        self._bucket, self._index, self._taken = bucket, index, False

    def done(self) -> bool:
        assert self._bucket.handle is not None
        return self._bucket.handle.done()

    def wait_on_device(self) -> None:
        pass  # the bucket has a copy of the array

    def note(self) -> int:
        raise AssertionError("a reduction carries no note")

    def result(self) -> Any:
        assert not self._taken, "the result of this array of a bucket was taken already"
        result = self._bucket.result(self._index)
        self._taken = True
        return result
