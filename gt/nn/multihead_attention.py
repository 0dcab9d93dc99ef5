"""Attention with several heads."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions.creation import empty, zeros
from gt.functions.joining import cat
from gt.nn import functional as F
from gt.nn import init
from gt.nn.linear import NonDynamicallyQuantizableLinear
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import float32

__all__ = ["MultiheadAttention"]


#: The parameters of the projections: one for all three if their inputs have the same width, else one for each.
COMBINED, SEPARATE = "in_proj_weight", ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class MultiheadAttention(Module):
    """Attention with several heads between queries, keys and values. See `torch.nn.MultiheadAttention`."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and "
                f"num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim == self.vdim
        dtype = dtype or float32
        self._make_projections(dtype)
        self.register_parameter("in_proj_bias", Parameter(empty(3 * embed_dim, dtype=dtype)) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, Parameter(empty((1, 1, embed_dim), dtype=dtype)) if add_bias_kv else None)
        self._reset_parameters()

    def _make_projections(self, dtype: Any) -> None:
        width = self.embed_dim
        if self._qkv_same_embed_dim:
            self.in_proj_weight = Parameter(empty((3 * width, width), dtype=dtype))
            for name in SEPARATE:
                self.register_parameter(name, None)
        else:
            for name, columns in zip(SEPARATE, (width, self.kdim, self.vdim), strict=True):
                self.register_parameter(name, Parameter(empty((width, columns), dtype=dtype)))
            self.register_parameter(COMBINED, None)

    def _reset_parameters(self) -> None:
        for name in (COMBINED, *SEPARATE):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
            init.constant_(self.out_proj.bias, 0.0)
        for name in ("bias_k", "bias_v"):
            if getattr(self, name) is not None:
                init.xavier_normal_(getattr(self, name))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise ShapeError(f"attention takes 2-D or 3-D tensors, not {query._type}, {key._type}, {value._type}")
        unbatched = query.ndim == 2
        q, k, v = (self._batch_first(x) for x in self._project(query, key, value))
        if unbatched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        # is_causal allows a fused kernel without a mask, if the mask serves no other purpose. As in torch, added keys
        # come after all others then, so queries do not attend to them.
        causal = is_causal and key_padding_mask is None and not need_weights
        q, k, v, mask = self._with_extras(q, k, v, None if causal else attn_mask, key_padding_mask, query)
        q, k, v = (self._heads(x) for x in (q, k, v))
        out, weights = self._attend(q, k, v, mask, causal, need_weights)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        out = out if self.batch_first and not unbatched else out.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if unbatched:
            return out.squeeze(1), None if weights is None else weights.squeeze(0)
        return out, weights

    # -- inputs ----------------------------------------------------------------------

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Any, ...]:
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key and key is value:
            return tuple(F.linear(query, self.in_proj_weight, bias).chunk(3, -1))
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = tuple(getattr(self, name) for name in SEPARATE)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        rows = zip((query, key, value), weights, biases, strict=True)
        return tuple(F.linear(x, w, b) for x, w, b in rows)

    def _batch_first(self, x: Tensor) -> Any:
        if x.ndim == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _with_extras(
        self, q: Any, k: Any, v: Any, attn_mask: Any, padding: Any, like: Tensor
    ) -> tuple[Any, Any, Any, Any]:
        """Append the learned and the zero key and value, and combine the masks into one that is added."""
        batch, extra = k.shape[0], 0
        if self.bias_k is not None:
            k = cat([k, self.bias_k.expand(batch, 1, -1)], 1)
            v = cat([v, self.bias_v.expand(batch, 1, -1)], 1)
            extra += 1
        if self.add_zero_attn:
            zero = zeros((batch, 1, self.embed_dim), dtype=k.dtype)
            k, v = cat([k, zero], 1), cat([v, zero], 1)
            extra += 1
        mask = None
        if attn_mask is not None:
            mask = _additive(attn_mask, "attn_mask", like)
            if mask.ndim == 3:
                mask = mask.unflatten(0, (batch, self.num_heads))
        if padding is not None:
            rows = _additive(padding, "key_padding_mask", like)[:, None, None, :]
            mask = rows if mask is None else mask + rows
        if mask is not None and extra:
            mask = F.pad(mask, (0, extra))
        return q, k, v, mask

    def _heads(self, x: Any) -> Any:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _attend(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, need_weights: bool) -> tuple[Any, Any]:
        drop = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, mask, drop, causal), None
        scores = (q * sqrt(1.0 / self.head_dim)) @ k.transpose(-2, -1)
        weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
        if drop:
            weights = F.dropout(weights, drop)
        return weights @ v, weights


def _additive(mask: Tensor, name: str, like: Tensor) -> Any:
    """A mask to be added to the scores. A mask of bools is true where a query must not attend."""
    if mask.dtype.kind == "b":
        return zeros(mask.shape, dtype=like.dtype).masked_fill(mask, float("-inf"))
    if mask.dtype.kind != "f":
        raise DTypeError(f"only bool and floating types of {name} are supported")
    return mask
