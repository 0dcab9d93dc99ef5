"""Converts between an engine's arrays and the tensors that a backend reads and writes.

numpy arrays become torch tensors. gloo cannot read GPU memory, so a GPU's tensors are copied to the host for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from gt.worker.collectives import ipc
from gt.worker.collectives.bucket import Bucket
from gt.worker.collectives.collective import ProcessCollective
from gt.worker.collectives.membership import Membership
from gt.worker.collectives.noted import GLOO_KINDS
from gt.worker.collectives.operations import KINDS, CollectiveCall

#: From this size on numpy allocates: it requests large pages, which takes a quarter of the time.
NUMPY_ALLOCATION_BYTES = 4 << 20
#: Collectives are numbered up to this. Far fewer are pending at a time, and gloo's tags are ints.
MAX_NUMBER = 1 << 24

#: engine -> converts a host tensor to the engine's array
_TO_ENGINE: dict[str, Callable[[torch.Tensor], Any]] = {"torch": lambda x: x, "numpy": lambda x: x.numpy()}


class ArrayAdapter:
    """The conversions of one group."""

    def __init__(self, m: Membership, engine: str) -> None:
        self._names = f"workers {', '.join(map(str, m.members))}"
        self._rank, self._size = m.rank, len(m.members)
        on_gpu = torch.device(m.device).type == "cuda"
        over_gloo = m.backend != "nccl"
        #: whether arrays are copied to the host first
        self._staged = on_gpu and over_gloo
        #: see `CollectiveCall.exact`
        self._exact = over_gloo
        self._kinds = GLOO_KINDS if over_gloo else KINDS
        #: moves arrays without the host; None: it cannot
        self._blocks: ipc.BlockMapper | None = ipc.CudaBlocks(m.device) if m.backend == "ipc" and on_gpu else None
        self._numbers = itertools.count()
        #: whether several arrays can be reduced as one with the same bits: gloo's order of additions depends on an
        #: element's position in the array, which matters from three terms on
        self.can_bucket = self._size == 2 or not self._exact
        self._empty, self._to_engine = _host_empty, _TO_ENGINE[engine]
        if self._staged:
            self._empty, self._to_engine = _pinned_empty, lambda x: x.to(m.device, non_blocking=True)
        elif on_gpu:
            self._empty = lambda shape, dtype: torch.empty(shape, dtype=dtype, device=m.device)
        self._device, self._on_gpu = m.device, on_gpu

    def collective(
        self, kind: str, array: Any, options: dict[str, Any], note: int
    ) -> tuple[ProcessCollective, Callable[[], None] | None]:
        """A collective, and a function that waits until it can be issued; None if it can be issued at once."""
        ready = None
        array = _as_torch(array)
        number = next(self._numbers) % MAX_NUMBER
        if self._blocks is not None and kind == "exchange":
            call = CollectiveCall(array, options, self._rank, self._size, self._device_empty, True, note, number)
            plan = partial(ipc.exchange, call, self._blocks)
            return ProcessCollective(kind, self._names, plan, lambda x: x), None
        if self._staged and array is not None:
            array, ready = _copy_to_host(array)
            options = {**options, "overwrite": True}
        call = CollectiveCall(array, options, self._rank, self._size, self._empty, self._exact, note, number)
        return ProcessCollective(kind, self._names, partial(self._kinds[kind], call), self._to_engine), ready

    def int_array(self, value: int) -> torch.Tensor:
        """One int64 on the engine's device."""
        return torch.tensor([value], dtype=torch.int64, device=self._device)

    def bucket(self, arrays: list[Any]) -> Bucket:
        """The arrays, copied into a bucket on the engine's device."""
        return Bucket([_as_torch(array) for array in arrays], self._device_empty)

    def copy(self, array: Any) -> torch.Tensor:
        """A contiguous copy on the engine's device."""
        source = _as_torch(array)
        target: torch.Tensor = self._device_empty(source.shape, source.dtype).copy_(source)
        return target

    def _device_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised memory on the engine's device."""
        if self._on_gpu:
            return torch.empty(shape, dtype=dtype, device=self._device)
        return _host_empty(shape, dtype)


def _as_torch(array: Any) -> Any:
    if isinstance(array, np.ndarray | np.generic):
        return torch.from_numpy(np.require(array, requirements=("C", "W")))
    return array


def _host_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < NUMPY_ALLOCATION_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(nbytes, dtype=np.uint8)).view(dtype).view(tuple(shape))


def _pinned_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _copy_to_host(array: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """The copy, and a function that waits until it is complete."""
    host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
    host.copy_(array, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return host, event.synchronize
