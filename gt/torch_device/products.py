"""Gradients of products for which torch has no rules.

These are the gradient of `matmul`, where torch differentiates or vectorizes it in turn, and both products with complex
numbers. torch refuses the latter after it has called the kernel, so from the first complex tensor on, products are
recorded by kernels in Python. They cost more, so programs without complex numbers keep torch's.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from gt.torch_device import backend, handles
from gt.torch_device.compositions.layers import OVERLOADS
from gt.torch_device.kernels import functional

NAME = "matmul_backward"
_in_one_kernel = functional(OVERLOADS[NAME])


def register() -> None:
    backend.add_kernel(NAME, _backward, backend.AUTOGRAD_KEY)
    backend.add_kernel(NAME, _by_products, backend.VMAP_KEY)
    handles.BEFORE_COMPLEX.append(_record_in_python)


def _record_in_python() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, once, if it differentiates forward just now
        for name, backward in (("matmul", _matmul_gradients), ("linear", _linear_gradients)):
            backend.add_kernel(name, _recorded(backend.overload_packet(name), backward), backend.AUTOGRAD_KEY)
            backend.SEEING_FORWARD_MODE.add(name)


def _recorded(product: Any, backward: Any) -> backend.Kernel:
    """The kernel of a product that records it: as one node, or by its parts where a number is complex."""

    def kernel(*args: Any) -> Any:
        if any(x is not None and x.is_complex() for x in args) or backend.is_transformed():
            return product.decompose(*args)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in args):
            return _apply(product, backward, *args)
        with backend.below_autograd():
            return product(*args)

    return kernel


class _RecordedProduct(torch.autograd.Function):
    """A product of real numbers."""

    @staticmethod
    def forward(ctx: Any, product: Any, backward: Any, *args: Any) -> Any:
        ctx.save_for_backward(*args)
        ctx.backward_of = backward
        with backend.below_autograd():
            return product(*args)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, *ctx.backward_of(grad, *ctx.saved_tensors, mask=ctx.needs_input_grad[2:])


_apply = backend.without_transforms(_RecordedProduct)


def _matmul_gradients(grad: Any, a: Any, b: Any, mask: Any) -> Any:
    return torch.ops.aten.matmul_backward(grad, a, b, list(mask))


def _linear_gradients(grad: Any, x: Any, weight: Any, *bias: Any, mask: Any) -> Any:
    results = torch.ops.aten.linear_backward(x, grad, weight, [*mask, False][:3])
    return results[: len(mask)]


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
