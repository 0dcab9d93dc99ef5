"""``gt.nn.functional``: the activations of `gt.functions.activations`, and softmax with torch's default dim."""

from __future__ import annotations

import warnings
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, draw, pointwise, reduce, scan, views
from gt.functions.activations import ALPHA as ALPHA
from gt.functions.activations import SCALE as SCALE
from gt.functions.activations import (
    celu,
    celu_,
    elu,
    elu_,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    relu_,
    rrelu,
    selu,
    selu_,
    sigmoid,
    silu,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    threshold_,
)

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "log_softmax", "logsigmoid", "mish", "prelu", "relu",
    "relu6", "relu_", "rrelu", "selu", "selu_", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip


def _default_dim(name: str, x: Tensor, dim: int | None) -> int:
    """The dim; without one, torch's old choice and its warning."""
    if dim is not None:
        return dim
    text = f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument."
    warnings.warn(text, UserWarning, stacklevel=3)
    return 0 if x._type.ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """Exponentials along a dim, scaled so that their sum is 1."""
    return scan.softmax(input, _default_dim("softmax", input, dim), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax`."""
    return scan.log_softmax(input, _default_dim("log_softmax", input, dim), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """`softmax` of the negative."""
    return scan.softmax(-input, _default_dim("softmin", input, dim), dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """`softmax` of the logits plus Gumbel noise, divided by ``tau``; ``hard`` gives one-hot rows."""
    uniform = draw.rand_like(logits.detach())
    noise = -pointwise.log(-pointwise.log(uniform.clamp(min=1e-20)).clamp(min=1e-20))
    soft = scan.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    best = reduce.max(soft, dim, keepdim=True)[1]
    positions = creation.arange(soft._type.shape[dim])
    count = views.reshape(positions, [-1 if d == dim % soft.ndim else 1 for d in range(soft.ndim)])
    # the gradient is that of the soft rows
    result: Tensor = cast(pointwise.eq(count, best), soft._type.dtype) - soft.detach() + soft
    return result
