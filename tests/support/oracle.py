"""The expected result of an op, computed by torch: functions of the operands and GT's attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gt.types import TensorType
from tests.support.samples import Sample


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def _tensor(x: Any, other: Any) -> torch.Tensor:
    """A number as a tensor beside another operand, where torch's function accepts only tensors."""
    if isinstance(x, torch.Tensor):
        return x
    like = other if isinstance(other, torch.Tensor) else torch.tensor(other)
    return torch.tensor(x).to(torch.result_type(x, like))


def _both(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, **attrs: call(_tensor(a, b), _tensor(b, a), **attrs)


def _over_dims(call: Callable[..., Any]) -> Callable[..., Any]:
    """Here torch folds one dim at a time."""

    def fold(x: torch.Tensor, *, dim: tuple[int, ...], keepdim: bool, dtype: str | None) -> torch.Tensor:
        result = x.clone() if dim else call(x, dtype=_dtype(dtype))
        for d in sorted(dim, reverse=True):
            result = call(result, dim=d, keepdim=keepdim, dtype=_dtype(dtype))
        return result

    return fold


def _with_dtype(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, dtype, **attrs: call(x, dtype=_dtype(dtype), **attrs)


def _clamp(x: torch.Tensor, *limits: Any, has_min: bool, has_max: bool) -> torch.Tensor:
    if any(isinstance(v, torch.Tensor) for v in limits):
        limits = tuple(_tensor(v, x) for v in limits)
    return torch.clamp(x, min=limits[0] if has_min else None, max=limits[-1] if has_max else None)


def _copy(target: torch.Tensor, source: Any) -> torch.Tensor:
    result = target.clone()
    result[...] = source
    return result


def _upload(data: bytes, *, shape: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def _arange(start: Any, step: Any, *, n: int, dtype: str) -> torch.Tensor:
    return torch.arange(start, start + n * step, step, dtype=_dtype(dtype))


def _draw(call: Callable[..., Any]) -> Callable[..., Any]:
    """numpy's numbers instead of torch's: the raw words, and one simple formula per element."""

    def drawn(seed: int, stream: int, *limits: int, shape: Any, dtype: str) -> torch.Tensor:
        mask = 2**64 - 1
        n = int(np.prod(shape))
        words = [int(w) for w in np.random.Philox(key=(seed & mask) | (stream & mask) << 64).random_raw(n + 1)]
        halves = [h for w in words for h in (w & 0xFFFFFFFF, w >> 32)]
        values = torch.tensor([call(words, halves, i, dtype, *limits) for i in range(n)], dtype=torch.float64)
        return values.to(_dtype(dtype)).reshape(shape)

    return drawn


def _fraction(words: list[int], halves: list[int], i: int, dtype: str) -> float:
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    return (words[i] >> 11 if dtype == "float64" else halves[i] >> (32 - bits)) / 2**bits


def _bell(words: list[int], halves: list[int], i: int, dtype: str) -> float:
    precise = "float64" if dtype == "float64" else "float32"
    u, v = (_fraction(words, halves, i // 2 * 2 + k, precise) for k in (0, 1))
    return float(np.sqrt(-2 * np.log(1 - u)) * (np.sin if i % 2 else np.cos)(2 * np.pi * v))


def _randint(seed: int, stream: int, low: int, high: int, *, shape: Any, dtype: str) -> torch.Tensor:
    words = np.random.Philox(key=seed | stream << 64).random_raw(int(np.prod(shape)))
    return torch.tensor([low + int(w) % (high - low) for w in words]).to(_dtype(dtype)).reshape(shape)


F = torch.nn.functional

ORACLES: dict[str, Callable[..., Any]] = {
    "upload": _upload,
    "full": lambda value, *, shape, dtype: torch.full(shape, value, dtype=_dtype(dtype)),
    "arange": _arange,
    "rand": _draw(_fraction),
    "randn": _draw(_bell),
    "randint": _randint,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _both(torch.div),
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fmod": _both(torch.fmod),
    "pow": lambda a, b: a**b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    **{name: _both(getattr(torch, name)) for name in ("maximum", "minimum", "atan2")},
    **{name: _both(getattr(torch, f"logical_{name[8:]}")) for name in ("logical_and", "logical_or", "logical_xor")},
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "silu": F.silu,
    "gelu": F.gelu,
    "clamp": _clamp,
    "to": lambda x, *, dtype: x.to(_dtype(dtype)),
    "copy": _copy,
    "sum": _with_dtype(torch.sum),
    "mean": _with_dtype(torch.mean),
    "prod": _over_dims(torch.prod),
    "softmax": _with_dtype(torch.softmax),
    "log_softmax": _with_dtype(torch.log_softmax),
    "max_dim": torch.max,
    "min_dim": torch.min,
    "view": lambda x, *, shape: x.view(shape),
    "expand": lambda x, *, shape: x.expand(shape),
    "cat": lambda *xs, dim: torch.cat(xs, dim),
    "split": lambda x, *, sizes, dim: torch.split(x, sizes, dim),
    "repeat": lambda x, *, repeats: x.repeat(repeats),
    "nonzero": lambda x, *, n: torch.nonzero(x),
}


#: (relative, absolute): how far results may differ by rounding
TOLERANCES = {
    "float64": (1e-11, 1e-12),
    "float32": (2e-5, 1e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (2e-2, 2e-2),
    "complex128": (1e-11, 1e-11),
    "complex64": (2e-5, 2e-5),
}
_STATISTICS = (2e-2, 2e-2)  # in float32 on a GPU; on a CPU they are rounded to bfloat16 in between
_PRODUCTS = (2e-2, 1e-1)  # rounded to bfloat16 before the sum
_RECURRENT = (1e-3, 5e-4)  # cudnn's backward pass of a layer
_SIXTH = (1e-7, 2e-7)  # torch's kernels have 1/6 in float32
#: the same for a GPU, by op and by the dtype of its first operand
TOLERANCES_ON_A_GPU = {
    ("layer_norm", "bfloat16"): _STATISTICS,
    ("batch_norm", "bfloat16"): _STATISTICS,
    ("batch_norm_tracked", "bfloat16"): _STATISTICS,
    ("batch_norm_backward", "bfloat16"): _PRODUCTS,
    ("group_norm_backward", "bfloat16"): _PRODUCTS,
    **{(f"{name}_backward", "float32"): _RECURRENT for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    ("hardsigmoid", "float64"): _SIXTH,
    ("hardswish", "float64"): _SIXTH,
}

#: the same for numpy: log probabilities are rounded to half precision before they are added up in float32
TOLERANCES_OF_NUMPY = {("cross_entropy", "float16"): TOLERANCES["float16"]}

#: torch's kernels themselves differ: that of a CPU ignores a scale that does not change a size, that of a GPU uses it
DIFFERENT_ON_A_GPU = {"interpolate", "interpolate_backward"}


def _signs(columns: torch.Tensor) -> torch.Tensor:
    """The sign of each column's largest element."""
    return columns.gather(-2, columns.abs().argmax(-2, keepdim=True)).sign()


def _eigen(values: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return values, vectors * _signs(vectors)


def _singular(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, ...]:
    signs = _signs(u)
    return u * signs, s, vh * signs.mT


#: results that are not unique, in one canonical form
SETTLED: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {"eigh": _eigen, "svd": _singular}


def expected(sample: Sample, operands: list[Any]) -> tuple[torch.Tensor, ...]:
    call = ORACLES.get(sample.op) or getattr(torch, sample.op, None) or getattr(torch.special, sample.op, None)
    results = sample.like(*operands) if sample.like else call(*operands, **sample.attrs)
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def infers_as(op: Any, types: tuple[Any, ...], attrs: Any) -> tuple[TensorType, ...] | None:
    """The types GT infers, or None if it refuses."""
    from gt.errors import GtError

    try:
        return op.result_types(types, attrs)
    except GtError:
        return None
