"""The gradient of `matmul`, where torch differentiates or vectorizes it in turn: it has no rules for that."""

from __future__ import annotations

from typing import Any

import torch

from gt.torch_device import backend
from gt.torch_device.compositions.layers import OVERLOADS
from gt.torch_device.kernels import functional

NAME = "matmul_backward"
_in_one_kernel = functional(OVERLOADS[NAME])


def register() -> None:
    backend.add_kernel(NAME, _backward, backend.AUTOGRAD_KEY)
    backend.add_kernel(NAME, _by_products, backend.VMAP_KEY)


def _backward(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mask: Any) -> Any:
    if torch.is_grad_enabled() or backend.is_transformed():
        return _by_products(grad, a, b, mask)
    return _in_one_kernel(grad, a, b, mask)


def _by_products(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mask: Any) -> Any:
    """The gradients of both operands from products that torch can differentiate; None if not needed."""
    left, right = a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b
    grad = grad.unsqueeze(-1) if b.ndim == 1 else grad
    grad = grad.unsqueeze(-2) if a.ndim == 1 else grad
    of_a = (grad @ right.mH).sum_to_size(left.shape).reshape(a.shape) if mask[0] else None
    of_b = (left.mH @ grad).sum_to_size(right.shape).reshape(b.shape) if mask[1] else None
    return of_a, of_b
