"""The cross entropy of rows of logits and class numbers as one instruction each way.

torch would put it together from `log_softmax` and `nll_loss`, which write several tensors of the size of the logits to
memory. The gradient is computed from the logits again, so nothing of that size is kept. torch's own way stays for what
the instruction does not have: weights of classes, smoothed labels, images, probabilities as targets, and what torch
traces or transforms.
"""

from __future__ import annotations

from typing import Any

import torch

from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.nn._losses import REDUCTIONS
from gt.ops import OPS, Attrs
from gt.torch_device import backend
from gt.torch_device.kernels import functional
from gt.types import DTYPES, float32

NAME = "cross_entropy_loss"
CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD = OPS["cross_entropy"], OPS["cross_entropy_backward"]


def register() -> None:
    for key in (backend.KEY, backend.AUTOGRAD_KEY):  # with and without gradients
        backend.add_kernel(NAME, _cross_entropy, key)


def _cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    if weight is not None or label_smoothing or not _are_rows(x, target) or backend.is_transformed():
        parts: Any = backend.overload_packet(NAME).decompose
        return parts(x, target, weight, reduction, ignore_index, label_smoothing)  # type: ignore[no-any-return]
    dtype = "float32" if x.itemsize < 4 and torch.is_autocast_enabled(backend.NAME) else None
    how = (REDUCTIONS[reduction], ignore_index, dtype)
    if torch.is_grad_enabled() and x.requires_grad:
        return _RowsFunction.apply(x, target, how)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(x, target, *how)[0]  # type: ignore[no-any-return]


def _are_rows(x: torch.Tensor, target: torch.Tensor) -> bool:
    return (
        x.ndim == 2
        and x.shape[:1] == target.shape
        and x.numel() > 0
        and x.is_floating_point()
        and target.dtype is torch.int64
        and backend.is_on_device(x)
        and backend.is_on_device(target)
    )


def _attrs(reduction: str, ignore_index: int, dtype: str | None) -> Attrs:
    how = "none" if reduction == "none" else "sum"
    return ("reduction", how), ("ignore_index", ignore_index), ("dtype", dtype)


def _losses(x: Tensor, target: Tensor, *how: Any) -> tuple[Tensor, Tensor | None]:
    """The loss, and what its sum was divided by."""
    reduction, _, dtype = how
    if reduction == "none":
        return call(CROSS_ENTROPY, (x, target), _attrs(*how)), None
    total, count = call_many(CROSS_ENTROPY, (x, target), _attrs(*how))
    loss = total / count if reduction == "mean" else total
    return cast(loss, x._type.dtype if dtype is None else DTYPES[dtype]), count


def _gradient(grad: Tensor, x: Tensor, target: Tensor, count: Tensor | None, *how: Any) -> Tensor:
    reduction, _, _ = how
    if reduction != "none" and x._type.dtype.itemsize < float32.itemsize:
        grad = cast(grad, float32)
    if reduction == "mean":
        grad = grad / count
    return call(CROSS_ENTROPY_BACKWARD, (grad, x, target), _attrs(*how))


_forward, _backward = functional(_losses), functional(_gradient)


class _RowsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, target: torch.Tensor, how: tuple[Any, ...]) -> torch.Tensor:
        loss, count = _forward(x, target, *how)
        ctx.save_for_backward(x, target, count)
        ctx.how = how
        return loss  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, target, count = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient is differentiated in turn
            reduction, ignore_index, dtype = ctx.how
            with torch.autocast(backend.NAME, enabled=False):
                logs = torch.log_softmax(x, 1).to(x.dtype if dtype is None else torch.float32)
                loss = torch.nn.functional.nll_loss(logs, target, ignore_index=ignore_index, reduction=reduction)
            return *torch.autograd.grad(loss, x, grad, create_graph=True), None, None
        return _backward(grad, x, target, count, *ctx.how), None, None
