"""`DataLoader`: torch's, with batches of GT's tensors.

A dataset may return tensors of torch or GT, numpy arrays, numbers, or structures of them. A tensor of GT belongs to the
process that created it: if a dataset creates some in a loader's own processes, the loader says so once, and loads in
this process instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data import _utils

from gt.client.stream import connect
from gt.client.tensor import random_state
from gt.client.tensor.tensor import Tensor
from gt.data import to_device
from gt.errors import ClusterError
from gt.functions.joining import stack

__all__ = ["DataLoader", "default_collate"]

_NO_TENSORS = "a process of a DataLoader has no tensors of GT"


def _collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    return stack(list(batch))


#: torch's table of how samples become a batch, with a row for tensors of GT
COLLATE = {Tensor: _collate_tensors, **_utils.collate.default_collate_fn_map}


def default_collate(batch: Any) -> Any:
    """A batch of samples: each of their values stacked along a new first dim."""
    return _utils.collate.collate(batch, collate_fn_map=COLLATE)


class _Init:
    """What a loader's process runs first."""

    def __init__(self, init: Any) -> None:
        self._init = init

    def __call__(self, number: int) -> None:
        connect.refuse_to_start(_NO_TENSORS)
        if self._init is not None:
            self._init(number)


class DataLoader(torch_data.DataLoader):  # type: ignore[type-arg]
    """Batches of a dataset as tensors of GT. See `torch.utils.data.DataLoader`; `gt.manual_seed` sets its order too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        generator = kwargs.get("generator")
        if generator is not None and not isinstance(generator, torch.Generator):
            kwargs["generator"] = torch.Generator().manual_seed(generator.initial_seed() % 2**63)
        super().__init__(*args, **kwargs)
        if self.collate_fn is _utils.collate.default_collate:
            self.collate_fn = default_collate
        if self.num_workers:
            self.worker_init_fn = _Init(self.worker_init_fn)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # in this process the next sample is read when it is needed, as in torch; others are ahead in any case
        return iter(to_device(self._batches(), ahead=2 if self.num_workers else 0))

    def _batches(self) -> Iterator[Any]:
        try:
            first = True
            for batch in super().__iter__():
                yield batch
                first = False
        except ClusterError as error:
            if not first or _NO_TENSORS not in str(error):
                raise
            warnings.warn(
                f"DataLoader(num_workers={self.num_workers}): the dataset creates tensors of GT, which belong to this "
                "process; samples are loaded here. Return arrays or torch tensors to load in other processes",
                stacklevel=3,
            )
            self.num_workers, self.prefetch_factor = 0, None
            yield from super().__iter__()


def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed % 2**63)


# Samplers, `random_split` and torchvision's transforms draw from torch's random numbers.
random_state.followers.append(_seed_torch)
_seed_torch(random_state.initial_seed())
