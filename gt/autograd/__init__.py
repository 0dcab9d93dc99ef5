"""``gt.autograd``: gradients, user-defined functions, and numerical checks, as in torch. Most is re-exported."""

from typing import Any as _Any

from gt.autograd import function, functional, graph
from gt.client.grad.anomaly import detect_anomaly, set_detect_anomaly
from gt.client.grad.backward import (
    backward,
    enable_grad,
    grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from gt.client.grad.function import Function
from gt.client.grad.gradcheck import gradcheck, gradgradcheck
from gt.client.tensor.tensor import Tensor as _Tensor
from gt.functions.creation import as_tensor as _as_tensor
from gt.missing import absent as _absent

__all__ = [
    "Function", "Variable", "backward", "detect_anomaly", "enable_grad", "function", "functional", "grad",
    "gradcheck", "gradgradcheck", "graph", "inference_mode", "is_grad_enabled", "no_grad", "set_detect_anomaly",
    "set_grad_enabled",
]  # fmt: skip
_absent("autograd")


def Variable(data: _Any, requires_grad: bool = False) -> _Tensor:
    """The tensor itself, or a tensor with this data: torch's name from before tensors had gradients."""
    tensor = _as_tensor(data)
    return tensor.requires_grad_() if requires_grad else tensor
