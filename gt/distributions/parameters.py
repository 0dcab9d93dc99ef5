"""What distributions share to prepare parameters: broadcasting, probabilities and logits, properties computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from numbers import Number
from typing import Any

from gt.client.grad.backward import enable_grad
from gt.client.tensor.tensor import Tensor
from gt.functions import pointwise
from gt.functions.composite import finfo, get_default_dtype
from gt.functions.creation import full
from gt.functions.joining import broadcast_tensors
from gt.nn.functional import log_softmax, softmax

#: `gt.where` with three arguments
where: Callable[..., Tensor] = pointwise.where


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """The values as tensors of one shape. Numbers take the dtype of the first tensor, or the default one."""
    if not all(isinstance(value, Tensor | Number) for value in values):
        raise ValueError("Input arguments must all be instances of Number or Tensor.")
    dtype = next((value.dtype for value in values if isinstance(value, Tensor)), get_default_dtype())
    tensors = [value if isinstance(value, Tensor) else full((), float(value), dtype=dtype) for value in values]
    return tuple(broadcast_tensors(*tensors))


def one_of(**options: Any) -> tuple[str, Any]:
    """The name and the value of the only argument that is not None."""
    chosen = [(name, value) for name, value in options.items() if value is not None]
    if len(chosen) != 1:
        names = " or ".join(f"`{name}`" for name in options)
        raise ValueError(f"Either {names} must be specified, but not both.")
    return chosen[0]


def eps_of(x: Tensor) -> float:
    return float(_limits(x.dtype).eps)


def tiny_of(x: Tensor) -> float:
    return float(_limits(x.dtype).tiny)


_limits = cache(finfo)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities away from 0 and 1, so that their logits are finite."""
    eps = eps_of(probs)
    return probs.clamp(eps, 1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities from log odds, or along the last dim from log probabilities."""
    return logits.sigmoid() if is_binary else softmax(logits, -1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """The inverse of `logits_to_probs`."""
    safe = clamp_probs(probs)
    return safe.log() - (-safe).log1p() if is_binary else safe.log()


def normalized_logits(logits: Tensor) -> Tensor:
    return log_softmax(logits, -1)


def sum_rightmost(value: Tensor, count: int) -> Tensor:
    """The sum over the last dims."""
    return value if count == 0 else value.reshape((*value.shape[: value.ndim - count], -1)).sum(-1)


def safe_log(x: Tensor) -> Tensor:
    """log x, with a gradient of 0 where x is 0."""
    zero = x == 0
    return where(zero, -float("inf"), where(zero, 1.0, x).log())


class lazy_property:  # noqa: N801, torch's name
    """A property that is computed at its first use and then kept."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Tensor:
        if instance is None:
            return self  # type: ignore[return-value]
        with enable_grad():
            value: Tensor = self.function(instance)
        instance.__dict__[self.function.__name__] = value
        return value
