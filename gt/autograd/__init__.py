"""``gt.autograd``: gradients, user-defined functions, and numerical checks, as in torch. It only re-exports."""

from gt.autograd import function
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
from gt.missing import absent as _absent

__all__ = [
    "Function", "backward", "enable_grad", "function", "grad", "gradcheck", "gradgradcheck", "inference_mode",
    "is_grad_enabled", "no_grad", "set_grad_enabled",
]  # fmt: skip
__getattr__ = _absent("autograd")
