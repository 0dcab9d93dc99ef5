"""Layers that torch calls as one op: those of a transformer in evaluation, and a weight with its norm apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.functions import pointwise, reduce, views
from gt.functions.matmul import matmul
from gt.nn.functional import gelu, layer_norm, linear, relu, softmax
from gt.types import bool_, float32

#: What a mask of attention is for: pairs of positions, or the positions of each sequence that are padding.
OF_PAIRS, OF_PADDING = 0, 1


def _attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int, weight: Tensor, bias: Tensor,
    out_weight: Tensor, out_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The result of multi-head attention, and its weights."""
    if query._cell is key._cell is value._cell:
        projected = linear(query, weight, bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), weight.chunk(3, 0), bias.chunk(3, 0), strict=True)
        projected = tuple([linear(*part) for part in parts])
    q, k, v = (x.reshape(*x._type.shape[:2], heads, embed_dim // heads).transpose(1, 2) for x in projected)
    scores = matmul(q * (embed_dim // heads) ** -0.5, k.transpose(2, 3))
    weights = softmax(scores, -1) if mask is None else _masked_softmax(scores, mask, mask_type)
    result = matmul(weights, v).transpose(1, 2).reshape(query._type.shape)
    attended = linear(result, out_weight, out_bias)
    if not need_weights:
        return attended, None
    return attended, reduce.mean(weights, 1) if average_attn_weights else weights


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    """Without the positions where the mask is true, or not zero. A row without any position is 0."""
    masked = cast(mask, bool_)
    if mask_type == OF_PADDING:
        masked = views.unsqueeze(views.unsqueeze(masked, 1), 1)
    shape, dims = masked._type.shape, scores._type.ndim
    masked = views.expand(masked.reshape(*(1,) * (dims - len(shape)), *shape), scores._type.shape)
    return pointwise.masked_fill(softmax(pointwise.masked_fill(scores, masked, -float("inf")), -1), masked, 0)


def _encoder_layer(
    x: Tensor, embed_dim: int, heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor,
    norm_bias_2: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    def attend(x: Tensor) -> Tensor:
        arguments = embed_dim, heads, weight, bias, out_weight, out_bias, mask
        return _attention(x, x, x, *arguments, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        return linear((gelu if use_gelu else relu)(linear(x, weight_1, bias_1)), weight_2, bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(first_norm(x))
        return x + feed_forward(second_norm(x))
    x = first_norm(x + attend(x))
    return second_norm(x + feed_forward(x))


# -- a weight with its norm apart ------------------------------------------------------------


def _sum_of_others(x: Tensor, dim: int) -> Tensor:
    """The sums over all dims but one."""
    return reduce.sum(x, tuple(d for d in range(x._type.ndim) if d != dim % x._type.ndim), keepdim=True)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The weight, and the norms of v."""
    precise = v if v._type.dtype.itemsize > 2 else cast(v, float32)
    norms = pointwise.sqrt(_sum_of_others(precise * precise, dim))
    return cast(precise * (g / norms), v._type.dtype), norms


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    along = _sum_of_others(grad * v, dim) / norms
    return cast((grad - v * along / norms) * (g / norms), v._type.dtype), cast(along, g._type.dtype)


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "_weight_norm_interface": _weight_norm,
    "_weight_norm_interface_backward": _weight_norm_backward,
}
