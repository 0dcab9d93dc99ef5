"""Ops that draw random numbers: what they draw depends on a seed, a stream and the position, on nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import shown, sizes
from gt.ops.math.sort import find_numpy
from gt.ops.op import NumberRule, dtype_named, op
from gt.ops.random import philox, tensors
from gt.ops.shape.creation import creating
from gt.ops.signature import Signature
from gt.ops.split import Split, letters, placed, shaped_and_placed
from gt.types import OperandType, Shape, TensorType, int64


def _drawn(*operands: OperandType, shape: Shape, dtype: str, block: tensors.Block = None) -> TensorType:
    result = TensorType(sizes(shape), dtype_named(dtype))
    if block is not None:
        tensors.within(block, shape)
    return result


def _drawn_floating(*operands: OperandType, shape: Shape, dtype: str, block: tensors.Block = None) -> TensorType:
    if not dtype_named(dtype).is_floating_point:
        raise DTypeError(f"gives floating dtypes, not {dtype}; use randint")
    return _drawn(*operands, shape=shape, dtype=dtype, block=block)


def _draw_in_memory(signature: Signature, device: Any) -> Any:
    import torch

    attrs = dict(signature.attrs) | ({"device": device} if signature.op.creates else {})
    assert signature.op.torch is not None
    return partial(signature.op.torch, torch, **attrs)


def key_words(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key in 64 bits; of limits, the lower one and the number of values between them."""
    seed, stream, *limits = numbers
    words = (seed, stream, limits[0], philox.span(*limits)) if limits else (seed, stream)
    return tuple((n & philox.MASK) - ((n & philox.MASK) >> 63 << 64) for n in words)


#: the rule of ops that draw: the whole key is in memory
DRAWN = NumberRule(run=_draw_in_memory, derive=key_words)
#: what the ops that fill a new tensor share
NEW: dict[str, Any] = {
    "no_gradient": "it reads no tensor",
    "draws": True,
    "varying": DRAWN,
    "split": creating,
    "local": shaped_and_placed,
    "creates": True,
}

op(
    "rand",
    operands="ii",
    infer=_drawn_floating,
    **NEW,
    torch=lambda torch, *key, **how: tensors.on_torch(philox.uniform, *key, **how),
    kernel=lambda np, *key, device, **how: tensors.on_numpy(philox.uniform, *key, **how),
)

op(
    "randn",
    operands="ii",
    infer=_drawn_floating,
    **NEW,
    torch=lambda torch, *key, **how: tensors.on_torch(philox.normal, *key, **how),
    kernel=lambda np, *key, device, **how: tensors.on_numpy(philox.normal, *key, **how),
)

op(
    "randint",
    operands="iiii",
    infer=_drawn,
    **NEW,
    torch=lambda torch, *key, **how: tensors.on_torch(philox.integers, *key, **how),
    kernel=lambda np, *key, device, **how: tensors.on_numpy(philox.integers, *key, **how),
)


def _weighed(weights: TensorType, *_key: OperandType, num_samples: int, block: tensors.Block = None) -> TensorType:
    if weights.dtype.kind != "f":
        raise DTypeError(f"needs floating weights, not {weights.dtype.name}; use x.float()")
    if not weights.ndim or not weights.shape[-1]:
        raise ShapeError(f"there is nothing to draw from in {shown(weights.shape)}")
    result = TensorType(sizes((*weights.shape[:-1], num_samples)), int64)
    if block is not None:
        tensors.within(block, result.shape)
    return result


#: Up to this many weights in one row, numpy on a CPU draws in less time than torch: each of its calls takes less.
NUMPY_WEIGHTS = 1024


def _weigh_torch(torch: Any, weights: Any, *key: Any, num_samples: int, block: tensors.Block = None) -> Any:
    one_small_row = weights.numel() == weights.shape[-1] <= NUMPY_WEIGHTS and weights.device.type == "cpu"
    if one_small_row and type(key[0]) is int and weights.dtype is not torch.bfloat16:
        import numpy as np

        drawn = _weigh_numpy(np, weights.numpy(), *key, num_samples=num_samples, block=block)
        return torch.from_numpy(drawn)
    ends = weights.cumsum(-1, dtype=torch.float64).contiguous()
    how: dict[str, Any] = {"shape": (*ends.shape[:-1], num_samples), "dtype": "float64", "block": block}
    drawn = tensors.on_torch(philox.uniform, *key, **how, device=ends.device) * ends[..., -1:]
    return torch.searchsorted(ends, drawn, right=True).clamp(max=ends.shape[-1] - 1)


def _weigh_numpy(np: Any, weights: Any, *key: Any, num_samples: int, block: tensors.Block = None) -> Any:
    ends = weights.astype(np.float64).cumsum(-1)
    shape = (*ends.shape[:-1], num_samples)
    drawn = tensors.on_numpy(philox.uniform, *key, shape=shape, dtype="float64", block=block) * ends[..., -1:]
    return np.minimum(find_numpy(np, ends, drawn, right=True, out_int32=False), ends.shape[-1] - 1)


def _weighing(weights: TensorType, *_key: OperandType, num_samples: int) -> Split:
    rows = letters(weights.ndim - 1)
    return Split(f"{rows}.->{rows}.")


op(
    "multinomial",  # with replacement: each sample is the interval that a uniform number falls into
    no_gradient="it draws integers",
    draws=True,
    varying=DRAWN,
    operands="tii",
    infer=_weighed,
    split=_weighing,
    local=placed,
    torch=_weigh_torch,
    kernel=_weigh_numpy,
)
