"""Several arrays that are reduced as one: they are laid behind each other, and what comes back is taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from gt.worker.collectives import Flight

#: Bytes an array's beginning is a multiple of: what kernels ask for, and more.
ALIGNED = 128


class Bucket:
    """One flight of several arrays."""

    def __init__(self, arrays: Sequence[torch.Tensor], empty: Callable[[Sequence[int], torch.dtype], Any]) -> None:
        dtype = arrays[0].dtype
        step = ALIGNED // dtype.itemsize
        self._shapes = [tuple(x.shape) for x in arrays]
        self._starts, end = [], 0
        for shape in self._shapes:
            self._starts.append(end)
            end += -(-prod(shape) // step) * step
        self.flat: torch.Tensor | None = empty((end,), dtype)
        places = [self.part(self.flat, k) for k in range(len(arrays))]
        torch._foreach_copy_(places, list(arrays))
        self.flight: Flight | None = None
        self._made: Any = None

    def part(self, flat: Any, index: int) -> Any:
        shape, start = self._shapes[index], self._starts[index]
        return flat[start : start + prod(shape)].reshape(shape)

    def result(self, index: int) -> Any:
        if self._made is None:
            assert self.flight is not None
            self._made = self.flight.result()
        return self.part(self._made, index)


class Share:
    """One array's part of a bucket's flight."""

    __slots__ = ("_bucket", "_index", "_taken")

    def __init__(self, bucket: Bucket, index: int) -> None:
        self._bucket, self._index, self._taken = bucket, index, False

    def done(self) -> bool:
        assert self._bucket.flight is not None
        return self._bucket.flight.done()

    def result(self) -> Any:
        assert not self._taken, "the result of a part of a bucket was taken already"
        made = self._bucket.result(self._index)
        self._taken = True
        return made
