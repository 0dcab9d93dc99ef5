"""Between an engine's arrays and what the wire reads and writes: numpy's as torch's, a GPU's on the host for gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from gt.worker.collectives.bucket import Bucket
from gt.worker.collectives.groups import Departure, Membership
from gt.worker.collectives.operations import KINDS, Call

#: Bytes from which numpy's memory is better: it asks for large pages, which are there in a quarter of the time.
LARGE = 4 << 20

#: from the wire's memory to the engine's arrays
_BRING: dict[str, Callable[[torch.Tensor], Any]] = {"torch": lambda x: x, "numpy": lambda x: x.numpy()}


class Passage:
    """One group's way to the wire and back."""

    def __init__(self, m: Membership, engine: str) -> None:
        self._names = f"workers {', '.join(map(str, m.members))}"
        self._rank, self._size = m.rank, len(m.members)
        on_gpu = torch.device(m.device).type == "cuda"
        #: gloo reads no GPU's memory
        self._staged = on_gpu and m.backend == "gloo"
        self._exact = m.backend == "gloo"
        # gloo adds in an order that depends on where in its array a number lies, which matters from three terms on
        self.bundles = self._size == 2 or not self._exact
        self._empty, self._bring = _on_host, _BRING[engine]
        if self._staged:
            self._empty, self._bring = _pinned, lambda x: x.to(m.device, non_blocking=True)
        elif on_gpu:
            self._empty = lambda shape, dtype: torch.empty(shape, dtype=dtype, device=m.device)
        self._device, self._on_gpu = m.device, on_gpu

    def departure(self, kind: str, array: Any, how: dict[str, Any]) -> tuple[Departure, Callable[[], None] | None]:
        """A flight, and what to wait for before it can be issued."""
        ready = None
        array = _as_torch(array)
        if self._staged and array is not None:
            array, ready = _staged(array)
            how = {**how, "own": True}
        plan = partial(KINDS[kind], Call(array, how, self._rank, self._size, self._empty, self._exact))
        return Departure(kind, self._names, plan, self._bring), ready

    def bucket(self, arrays: list[Any]) -> Bucket:
        return Bucket([_as_torch(array) for array in arrays], self._beside)

    def copy(self, array: Any) -> torch.Tensor:
        given = _as_torch(array)
        made: torch.Tensor = self._beside(given.shape, given.dtype).copy_(given)
        return made

    def _beside(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Where the arrays themselves are."""
        if self._on_gpu:
            return torch.empty(shape, dtype=dtype, device=self._device)
        return _on_host(shape, dtype)


def _as_torch(array: Any) -> Any:
    if isinstance(array, np.ndarray | np.generic):
        return torch.from_numpy(np.require(array, requirements=("C", "W")))
    return array


def _on_host(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < LARGE:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(nbytes, dtype=np.uint8)).view(dtype).view(tuple(shape))


def _pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _staged(array: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """On its way to the host."""
    host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
    host.copy_(array, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return host, event.synchronize
