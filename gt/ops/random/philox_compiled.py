"""The draws of `philox` for compiled code on a CPU: the key is 0-d tensors, read when it runs."""

from __future__ import annotations

from typing import Any

import torch

from gt.ops.random import philox


def _drawn(key: list[torch.Tensor], draw: str, start: int, count: int, dtype: str) -> torch.Tensor:
    if key[0].is_cuda:
        raise RuntimeError("random numbers in compiled code on a GPU need Triton")
    seed, stream, *limits = (int(k) for k in key)
    if limits:
        low, size = limits
        return torch.from_numpy(philox.integers(seed, stream, low, low + (size & philox.MASK), start, count))
    return torch.from_numpy(getattr(philox, draw)(seed, stream, start, count, dtype))


def _shape(key: list[torch.Tensor], draw: str, start: int, count: int, dtype: str) -> torch.Tensor:
    drawn = torch.float64 if dtype == "float64" else torch.float32
    return torch.empty(count, dtype=torch.int64 if len(key) > 2 else drawn, device=key[0].device)


#: opaque to a compiler, which sees a function of the key
drawn: Any = torch.library.custom_op(
    "gt::philox_drawn",
    _drawn,
    mutates_args=(),
    schema="(Tensor[] key, str draw, int start, int count, str dtype) -> Tensor",
)
drawn.register_fake(_shape)
