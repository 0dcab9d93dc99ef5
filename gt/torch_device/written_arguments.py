"""Overloads that write one of their later arguments: the statistics of a batch norm, the slopes that `rrelu` draws; and
rows of a table that are shortened."""

from __future__ import annotations

from typing import Any

import torch

from gt.functions import creation
from gt.nn._functional.embeddings import renormalise
from gt.torch_device.backend import Kernel
from gt.torch_device.compositions import layers
from gt.torch_device.kernels import functional, method
from gt.types import uint8


def _batch_norm_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return layers.batch_norm(x, weight, bias, None, None, training, momentum, eps)


def _batch_norm_with_update(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """The last result is for the kernels of cuDNN."""
    results = layers.batch_norm(x, weight, bias, mean, var, True, momentum, eps)
    return (*results, creation.zeros(0, dtype=uint8))


def _rrelu(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> torch.Tensor:  # fmt: skip
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slopes = torch.empty_like(x).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(x <= 0, slopes, torch.ones_like(slopes)))
    return x * noise


def _rrelu_(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return x.copy_(_rrelu(x, *args, **kwargs))


#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    "_batch_norm_with_update": functional(_batch_norm_with_update),
    "_native_batch_norm_legit": functional(layers.batch_norm),
    "_native_batch_norm_legit.no_stats": functional(_batch_norm_without_statistics),
    "embedding_renorm_": method(renormalise),
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": _rrelu_,
}
