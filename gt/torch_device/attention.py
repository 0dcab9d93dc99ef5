"""`scaled_dot_product_attention` as one instruction, with torch's choice of what it is put together from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gt.torch_device import backend
from gt.torch_device.compositions import layers
from gt.torch_device.kernels import functional

_FUSED: Any = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_PARTS: Any = torch.ops.aten._scaled_dot_product_attention_math.default


def register() -> None:
    # Under both keys: with and without gradients.
    for key in (backend.KEY, backend.AUTOGRAD_KEY):
        backend.add_kernel("scaled_dot_product_attention", attention, key)
    backend.add_kernel(_FUSED_BACKWARD, _backward, backend.AUTOGRAD_KEY)


def _heads_inside(function: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """The function for a query that is a view [batch, positions, heads, features] with two dims exchanged. As those of
    torch's kernels, its results are stored in that order too: what puts the heads together need not copy."""

    def run(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        for place in places:
            y = results[place]
            _, heads, positions, features = y._type.shape
            y._strides = (heads * positions * features, features, heads * features, 1)
        return results

    return run


_forward_plain, _backward_plain = functional(layers.attention), functional(layers.attention_backward)
_forward_inside = functional(_heads_inside(layers.attention, (0,)))
_backward_inside = functional(_heads_inside(layers.attention_backward, (0, 1, 2)))


def _is_exchanged(query: torch.Tensor) -> bool:
    return query.ndim == 4 and not query.is_contiguous() and query.numel() > 0


def _forward_kernel(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return (_forward_inside if _is_exchanged(query) else _forward_plain)(query, *args, **kwargs)


def _backward_kernel(grad: torch.Tensor, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return (_backward_inside if _is_exchanged(query) else _backward_plain)(grad, query, *args, **kwargs)


_FUSED_BACKWARD = "_scaled_dot_product_fused_attention_overrideable_backward"
#: overload -> kernel
KERNELS: dict[str, backend.Kernel] = {
    "_scaled_dot_product_fused_attention_overrideable": _forward_kernel,
    _FUSED_BACKWARD: _backward_kernel,
}


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    shape = query.shape[:-2]
    is_plain = shape == key.shape[:-2] == value.shape[:-2] or (enable_gqa and key.ndim > 2 and value.ndim > 2)
    needs_parts = dropout_p or (attn_mask is not None and (attn_mask.requires_grad or is_causal))
    if needs_parts or backend.is_forward_mode() or not is_plain or not shape or not query.is_floating_point():
        # from its parts: what is dropped, or the gradient of a mask, is not in the instruction
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _PARTS(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    return _FUSED(query, key, value, attn_mask, 0.0, is_causal, False, scale=scale)[0]


def _backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, mask: Any,
    *rest: Any, scale: float | None = None,
) -> Any:  # fmt: skip
    """The gradients. torch has no rule for their own gradients, so those come from the parts."""
    if not torch.is_grad_enabled() and not backend.is_transformed():
        return _backward_kernel(grad, q, k, v, bias, mask, *rest, scale=scale)
    factor, is_causal = q.shape[-1] ** -0.5 if scale is None else scale, rest[7]
    scores = q @ k.mT * factor
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if bias is not None and bias.numel():
        is_boolean = bias.dtype is torch.bool
        scores = scores.masked_fill(bias.logical_not(), -torch.inf) if is_boolean else scores + bias
    weights = scores.softmax(-1)
    slopes = grad @ v.mT
    of_scores = weights * (slopes - (slopes * weights).sum(-1, keepdim=True)) * factor
    return of_scores @ k, of_scores.mT @ q, weights.mT @ grad, None
