"""`scaled_dot_product_attention` as one instruction, with torch's choice of what it is put together from."""

from __future__ import annotations

from typing import Any

import torch

from gt.torch_device import backend

_FUSED = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
_PARTS = torch.ops.aten._scaled_dot_product_attention_math


def register() -> None:
    # Under both keys: with and without gradients.
    for key in (backend.KEY, backend.AUTOGRAD_KEY):
        backend.add_kernel("scaled_dot_product_attention", _attention, key)


def _attention(
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
    tensors = (query, key, value)
    is_plain = len({x.shape[:-2] for x in tensors}) == 1 or enable_gqa
    needs_parts = dropout_p or (attn_mask is not None and (attn_mask.requires_grad or is_causal))
    if needs_parts or not is_plain or min(x.ndim for x in tensors) < 3 or not query.is_floating_point():
        # from its parts: what is dropped, or the gradient of a mask, is not in the instruction
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _PARTS(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    return _FUSED(query, key, value, attn_mask, 0.0, is_causal, False, scale=scale)[0]
