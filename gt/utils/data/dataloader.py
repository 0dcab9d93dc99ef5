"""`DataLoader`: torch's, with batches of GT's tensors.

A dataset may return tensors of torch or GT, numpy arrays, numbers, or structures of them. A tensor of GT belongs to the
process that created it: if a dataset creates or uses some in a loader's own processes, the loader says so once, and
loads in this process instead.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data import _utils

from gt.client.stream import connect
from gt.client.tensor import random_state
from gt.client.tensor.tensor import Tensor
from gt.data import batches_ahead, loads_in_processes
from gt.errors import ClusterError
from gt.functions.joining import stack

__all__ = [
    "DataLoader", "DistributedSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler",
    "default_collate", "random_split",
]  # fmt: skip

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


class _Collate:
    """A loader's ``collate_fn``, where processes load.

    It refuses a batch with tensors of GT. Pickling would refuse it too, but in a thread that reports nothing, and the
    loader would wait forever.
    """

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if torch_data.get_worker_info() is not None and _holds_tensors(batch):
            raise ClusterError(_NO_TENSORS)
        return batch


def _holds_tensors(batch: Any, depth: int = 4) -> bool:
    """Is there a tensor of GT in a batch, at most ``depth`` levels deep in containers and objects?"""
    if isinstance(batch, Tensor) or depth == 0:
        return isinstance(batch, Tensor)
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif not isinstance(batch, list | tuple):
        batch = list(getattr(batch, "__dict__", {}).values())
    return any(_holds_tensors(item, depth - 1) for item in batch)


# -- generators ----------------------------------------------------------------------------


def _torch_generator(x: Any) -> Any:
    """For a `gt.Generator`, one of torch with a seed drawn from it; anything else as it is."""
    if not isinstance(x, random_state.Generator):
        return x
    digest = hashlib.blake2b(struct.pack("<qq", *random_state.key(x)), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) % 2**63)


class _Seeded:
    """Lets one of torch's classes take a `gt.Generator`, from which it draws a seed when it is created."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*map(_torch_generator, args), **{k: _torch_generator(x) for k, x in kwargs.items()})


class _SamplerClass(type):
    """`isinstance` is true for torch's samplers too, because torch's loader creates them."""

    def __instancecheck__(cls, x: Any) -> bool:
        return super().__instancecheck__(x) or (cls.__module__ == __name__ and isinstance(x, cls.__bases__[-1]))


class RandomSampler(_Seeded, torch_data.RandomSampler, metaclass=_SamplerClass):
    """Numbers of samples in a random order. See `torch.utils.data.RandomSampler`."""


class SubsetRandomSampler(_Seeded, torch_data.SubsetRandomSampler, metaclass=_SamplerClass):
    """Given numbers of samples in a random order. See `torch.utils.data.SubsetRandomSampler`."""


class WeightedRandomSampler(_Seeded, torch_data.WeightedRandomSampler, metaclass=_SamplerClass):
    """Numbers of samples drawn with probabilities. See `torch.utils.data.WeightedRandomSampler`."""


class DistributedSampler(torch_data.DistributedSampler):  # type: ignore[type-arg]
    """The samples of one of several processes. There is one process, so its default is all samples."""

    def __init__(self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, **options: Any) -> None:
        super().__init__(dataset, 1 if num_replicas is None else num_replicas, 0 if rank is None else rank, **options)


def random_split(dataset: Any, lengths: Any, generator: Any = None) -> list[Any]:
    """Subsets of a dataset, of these lengths or fractions, drawn at random."""
    if generator is None:
        return torch_data.random_split(dataset, lengths)
    return torch_data.random_split(dataset, lengths, _torch_generator(generator))


# -- the loader ----------------------------------------------------------------------------


class DataLoader(_Seeded, torch_data.DataLoader):  # type: ignore[type-arg]
    """Batches of a dataset as tensors of GT. See `torch.utils.data.DataLoader`; `gt.manual_seed` sets its order too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.collate_fn is _utils.collate.default_collate:
            self.collate_fn = default_collate
        if self.num_workers:
            self.worker_init_fn = _Init(self.worker_init_fn)
            self.collate_fn = _Collate(self.collate_fn)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # in this process the next sample is read when it is needed, as in torch; others are ahead in any case
        return batches_ahead(self._batches(), 2 if self.num_workers else 0, lambda: loads_in_processes(self))

    def _batches(self) -> Iterator[Any]:
        try:
            batches = super().__iter__()
            yield from islice(batches, 1)
        except ClusterError as error:
            if not any(reason in str(error) for reason in (_NO_TENSORS, connect.FORKED)):
                raise
            warnings.warn(
                f"DataLoader(num_workers={self.num_workers}): the dataset has tensors of GT, which belong to this "
                "process; samples are loaded here. Return arrays or torch tensors to load in other processes",
                stacklevel=3,
            )
            self.num_workers, self.prefetch_factor = 0, None
            batches = super().__iter__()
        yield from batches


def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed % 2**63)


# Samplers, `random_split` and torchvision's transforms draw from torch's random numbers.
random_state.followers.append(_seed_torch)
_seed_torch(random_state.initial_seed())
