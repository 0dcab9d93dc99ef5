"""`linear` and `addmm` under `torch.autocast`: the casts of the operands and the product are one node of autograd.

torch casts each operand by an op of its own, which is one more node in the backward pass. For a layer those are eight
kernels in Python. Here they are two, which send the same instructions from plans. What is computed in lower precision
is returned beside the product: so the gradient has a gradient, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.ops import OPS
from gt.torch_device import backend
from gt.torch_device.gradients import gradients, present, vector
from gt.torch_device.kernels import functional
from gt.types import DType

LINEAR, ADDMM = OPS["linear"], OPS["addmm"]
_CASTABLE = frozenset((torch.float32, torch.bfloat16, torch.float16))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: DType) -> Any:
    low_x, low_weight = cast(x, dtype), cast(weight, dtype)
    y = call(LINEAR, (low_x, low_weight, *present(bias if bias is None else cast(bias, dtype))))
    return y, None if low_x is x else low_x, None if low_weight is weight else low_weight


def _addmm(x: Tensor, weight: Tensor, bias: Tensor, dtype: DType) -> Any:
    low_x, low_weight = cast(x, dtype), cast(weight, dtype)
    y = call(ADDMM, (cast(bias, dtype), low_x, low_weight, 1, 1))
    return y, None if low_x is x else low_x, None if low_weight is weight else low_weight


def _linear_back(grad: Tensor, x: Tensor, weight: Tensor, *dtypes: DType | None) -> Any:
    """The gradients of x, weight and bias in these dtypes; None if not needed."""
    operands = (x, weight, vector(weight._type.shape[0], weight))
    grads = gradients(LINEAR, [d is not None for d in dtypes], [grad], operands)
    return _cast_each(grads, dtypes)


def _addmm_back(grad: Tensor, x: Tensor, weight: Tensor, *dtypes: DType | None) -> Any:
    of_x, of_weight, of_bias = (d is not None for d in dtypes)
    operands = (vector(weight._type.shape[1], weight), x, weight, 1, 1)
    bias, *others = gradients(ADDMM, (of_bias, of_x, of_weight, False, False), [grad], operands)
    return _cast_each((*others[:2], bias), dtypes)


def _cast_each(grads: Any, dtypes: tuple[DType | None, ...]) -> Any:
    return tuple([None if d is None else cast(g, d) for g, d in zip(grads, dtypes, strict=True)])


class _Product(NamedTuple):
    """A product, its gradients, and the same gradients from ops that torch can differentiate."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    parts: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


_LINEAR = _Product(
    functional(_linear),
    functional(_linear_back),
    lambda g, x, w: (g @ w, g.flatten(0, -2).mT @ x.flatten(0, -2), g.flatten(0, -2).sum(0)),
)
_ADDMM = _Product(
    functional(_addmm), functional(_addmm_back), lambda g, x, w: (g @ w.mT, x.mT @ g, g.sum(0)),
)  # fmt: skip


class _ProductFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, product: _Product, dtype: Any
    ) -> Any:
        results = product.forward(x, weight, bias, dtype)
        _, low_x, low_weight = results
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if low_x is None else low_x, weight if low_weight is None else low_weight)
        ctx.how = product, x.dtype, weight.dtype, None if bias is None else bias.dtype
        return results

    @staticmethod
    def backward(ctx: Any, grad: Any, of_x: Any, of_weight: Any) -> Any:
        x, weight = ctx.saved_tensors
        product, *dtypes = ctx.how
        needed = [d if needs else None for d, needs in zip(dtypes, ctx.needs_input_grad, strict=False)]
        if grad is None or of_x is not None or of_weight is not None or torch.is_grad_enabled():
            return *_by_parts(product, (grad, of_x, of_weight), x, weight, needed), None, None
        return *product.backward(grad, x, weight, *needed), None, None


def _by_parts(product: _Product, grads: tuple[Any, ...], x: torch.Tensor, weight: torch.Tensor, needed: Any) -> Any:
    grad, of_x, of_weight = grads
    with torch.autocast(backend.NAME, enabled=False):
        parts = (None, None, None) if grad is None else product.parts(grad, x, weight)
    sums = [a if b is None else b if a is None else a + b for a, b in zip(parts, (of_x, of_weight, None), strict=True)]
    return [None if d is None or g is None else g.to(d) for g, d in zip(sums, needed, strict=True)]


_apply = backend.without_transforms(_ProductFunction)


def _is_cast(x: torch.Tensor) -> bool:
    return x.dtype in _CASTABLE and backend.is_plain(x)


def _is_node(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, columns: int
) -> bool:
    """Whether a product of these is recorded, with casts, and seen by nothing but autograd. The bias has the size of
    the dim ``columns`` of the weight."""
    return (
        torch.is_grad_enabled()
        and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad))
        and (x.dtype is not dtype or weight.dtype is not dtype)
        and weight.ndim == 2
        and x.ndim > 1
        and _is_cast(x)
        and _is_cast(weight)
        and (bias is None or (bias.shape == weight.shape[columns : columns + 1] and _is_cast(bias)))
        and not backend.is_transformed()
    )


def _linear_kernel(by_parts: backend.Kernel) -> backend.Kernel:
    """The kernel of ``linear`` under autocast. ``by_parts`` casts one operand after the other."""

    def kernel(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        dtype = torch.get_autocast_dtype(backend.NAME)
        if _is_node(x, weight, bias, dtype, 0):
            return _apply(x, weight, bias, _LINEAR, dtype)[0]
        return by_parts(x, weight, bias)

    return kernel


def _addmm_kernel(by_parts: backend.Kernel) -> backend.Kernel:
    def kernel(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        dtype = torch.get_autocast_dtype(backend.NAME)
        if beta == 1 and alpha == 1 and _is_node(x, weight, bias, dtype, 1):
            return _apply(x, weight, bias, _ADDMM, dtype)[0]
        return by_parts(bias, x, weight, beta=beta, alpha=alpha)

    return kernel


#: overload -> (the kernel that casts one operand after the other) -> the kernel under autocast
KERNELS: dict[str, Callable[[backend.Kernel], backend.Kernel]] = {"linear": _linear_kernel, "addmm": _addmm_kernel}
