"""The cross entropy of logits and class numbers, one instruction each way.

The gradient is computed from the logits again, so no probabilities are kept from forward to backward: for a language
model they would be its largest tensor. On a GPU a kernel of its own reads the logits once each way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.gradient_rules import differentiated, one
from gt.ops.nn.layer_norm import floating_input, statistic
from gt.ops.nn.nll import nll_back_numpy, nll_back_torch, nll_numpy, nll_torch, picked
from gt.ops.op import Types, op
from gt.ops.positions import Positions
from gt.ops.splits_nn import choosing, choosing_back
from gt.types import DTYPES, OperandType, TensorType

#: On a GPU, from this number of classes on, GT's kernel is used.
MIN_CLASSES = 1024


def _compared(
    x: TensorType, target: OperandType, *, reduction: str, ignore_index: int, dtype: str | None
) -> TensorType | Types:
    """``dtype``: that of the log probabilities before they are added up; None: that of the logits."""
    floating_input(x)
    if x.ndim != 2:
        raise ShapeError(f"the logits have two dims, and {x} has not")
    if dtype is not None and DTYPES[dtype] is not statistic(x.dtype):
        raise DTypeError(f"log probabilities of {x.dtype.name} are not added up in {dtype}")
    logs = TensorType(x.shape, x.dtype if dtype is None else DTYPES[dtype])
    return picked(logs, target, reduction=reduction, ignore_index=ignore_index)


@cache
def _gpu() -> Any:
    """The kernels for GPUs; None without Triton."""
    try:
        from gt.ops.nn import cross_entropy_gpu
    except ImportError:
        return None
    return cross_entropy_gpu


def _on_gpu(x: Any) -> Any:
    long_rows = x.is_cuda and x.shape[1] >= MIN_CLASSES and x.itemsize <= 4 and x.stride(1) == 1
    return _gpu() if long_rows else None


def _logs(torch: Any, x: Any, dtype: str | None) -> Any:
    return torch.log_softmax(x, 1).to(getattr(torch, dtype) if dtype else x.dtype)


def _compare_torch(torch: Any, x: Any, target: Any, *, reduction: str, ignore_index: int, dtype: str | None) -> Any:
    if (gpu := _on_gpu(x)) is None:
        return nll_torch(torch, _logs(torch, x, dtype), target, reduction=reduction, ignore_index=ignore_index)
    each = gpu.losses(x, target, ignore_index)
    if reduction == "none":
        return each.to(getattr(torch, dtype) if dtype else x.dtype)
    return each.sum(), (target != ignore_index).sum(dtype=torch.float32)


def _compare_numpy(np: Any, x: Any, target: Any, *, reduction: str, ignore_index: int, dtype: str | None) -> Any:
    return nll_numpy(np, _logs_numpy(np, x, dtype), target, reduction=reduction, ignore_index=ignore_index)


def _logs_numpy(np: Any, x: Any, dtype: str | None) -> Any:
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    most = np.max(wide, axis=1, keepdims=True, initial=-np.inf)
    logs = wide - most - np.log(np.sum(np.exp(wide - most), axis=1, keepdims=True))
    return logs.astype(x.dtype).astype(dtype or x.dtype)


def _compare_vjp(g: Any, _y: Any, x: Any, target: Any, **attrs: Any) -> Any:
    grad = g[0] if isinstance(g, tuple) else g
    return None if grad is None else one("cross_entropy_backward", grad, x, target, **attrs)


def _classes(at: int, x: TensorType, ignore_index: int) -> tuple[Positions, ...]:
    return (Positions(at, x.shape[1], ignored=ignore_index),)


op(
    "cross_entropy",
    autocast="float32_result",
    operands="tt",
    infer=_compared,
    positions=lambda x, target, *, ignore_index, **attrs: _classes(1, x, ignore_index),
    split=choosing,
    vjp=(_compare_vjp, None),
    torch=_compare_torch,
    kernel=_compare_numpy,
)


def _compared_back(g: TensorType, x: TensorType, target: TensorType, **attrs: Any) -> TensorType:
    result = _compared(x, target, **attrs)
    if g is not (result[0] if isinstance(result, tuple) else result):
        raise ShapeError(f"{g} is not the gradient of this loss")
    return x


def _back_torch(
    torch: Any, g: Any, x: Any, target: Any, *, reduction: str, ignore_index: int, dtype: str | None
) -> Any:
    if (gpu := _on_gpu(x)) is not None:
        return gpu.gradient(g, x, target, ignore_index)
    logs = torch.log_softmax(x, 1)
    wide = logs.to(getattr(torch, dtype)) if dtype else logs
    back = nll_back_torch(torch, g, wide, target, reduction=reduction, ignore_index=ignore_index)
    return torch._log_softmax_backward_data(back.to(x.dtype), logs, 1, x.dtype)


def _back_numpy(np: Any, g: Any, x: Any, target: Any, *, reduction: str, ignore_index: int, dtype: str | None) -> Any:
    logs = _logs_numpy(np, x, dtype)
    back = nll_back_numpy(np, g, logs, target, reduction=reduction, ignore_index=ignore_index)
    back, logs = (y.astype(np.float32) if y.dtype == np.float16 else y for y in (back.astype(x.dtype), logs))
    return (back - np.exp(logs) * np.sum(back, axis=1, keepdims=True)).astype(x.dtype)


def _formula(g: Any, x: Any, target: Any, *, reduction: str, ignore_index: int, dtype: str | None) -> Any:
    logs = one("log_softmax", x, dim=1, dtype=dtype)
    back = one("nll_loss_backward", g, logs, target, reduction=reduction, ignore_index=ignore_index)
    narrow = None if dtype is None else str(x.dtype.name)
    return one("log_softmax_backward", back, logs, dim=1, dtype=narrow)


op(
    "cross_entropy_backward",
    operands="ttt",
    infer=_compared_back,
    positions=lambda g, x, target, *, ignore_index, **attrs: _classes(2, x, ignore_index),
    split=choosing_back,
    vjp=differentiated(_formula),
    torch=_back_torch,
    kernel=_back_numpy,
)
