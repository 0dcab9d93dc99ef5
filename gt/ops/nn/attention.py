"""Attention: softmax(q kᵀ) v, without ever holding the S × S matrix where the device has a kernel for that.

A second result holds the logarithm of the sum of each row's exponentials, from which the gradient can recompute any
part of the matrix. The plain form (float64 on a GPU, odd shapes, numpy) holds the matrix for a moment.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_flags, check_numbers
from gt.ops.gradient_rules import differentiated, many
from gt.ops.infer import broadcast_shapes, shown
from gt.ops.nn.layer_norm import floating_input, statistic
from gt.ops.op import Types, op
from gt.ops.splits_nn import attending, attending_back
from gt.types import TensorType, bool_


def _attended(q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, is_causal: bool, scale: float) -> Types:
    floating_input(q)
    check_flags(is_causal=is_causal)
    check_numbers(q.dtype, scale=scale)
    if not isfinite(scale):
        raise ShapeError(f"scale is finite, not {scale}")
    if q.dtype is not k.dtype or q.dtype is not v.dtype:
        raise DTypeError(f"dtypes differ: {q.dtype.name}, {k.dtype.name} and {v.dtype.name}")
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ShapeError("query, key and value have the same leading dims, then positions and features")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"features of query and key differ: {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"positions of key and value differ: {k.shape[-2]} and {v.shape[-2]}")
    scores = (*q.shape[:-1], k.shape[-2])
    for m in mask:
        if m.dtype is not bool_ and m.dtype is not q.dtype:
            raise DTypeError(f"a mask is of bool or {q.dtype.name}, not {m.dtype.name}")
        if m.ndim > q.ndim or broadcast_shapes(m.shape, scores) != scores:
            raise ShapeError(f"a mask of {shown(m.shape)} does not broadcast to {shown(scores)}")
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype), TensorType(q.shape[:-1], statistic(q.dtype))


# -- the plain form ------------------------------------------------------------------------


def _precise(xp: Any, *xs: Any) -> list[Any]:
    """Half precision as float32."""
    half = xs[0].dtype.itemsize < 4
    return [(x.astype(xp.float32) if hasattr(x, "astype") else x.float()) if half else x for x in xs]


def _swapped(xp: Any, x: Any) -> Any:
    return xp.swapaxes(x, -1, -2)


def _scores(xp: Any, q: Any, k: Any, mask: tuple[Any, ...], is_causal: bool, scale: float) -> Any:
    result = xp.matmul(q, _swapped(xp, k)) * scale
    if is_causal:
        result = xp.where(xp.tril(xp.ones_like(result[..., :, :])) > 0, result, -xp.inf)
    for m in mask:
        boolean = "bool" in str(m.dtype)
        result = xp.where(m, result, -xp.inf) if boolean else result + _precise(xp, m)[0]
    return result


def _weights(xp: Any, scores: Any, lse: Any) -> Any:
    """The softmax of the scores; rows that are masked out are zero."""
    return xp.exp(scores - lse[..., None])


def _attend_plain(xp: Any, q: Any, k: Any, v: Any, *mask: Any, is_causal: bool, scale: float) -> Any:
    q, k, v = _precise(xp, q, k, v)
    scores = _scores(xp, q, k, mask, is_causal, scale)
    if not scores.shape[-1]:
        return xp.zeros_like(xp.matmul(scores, v)), xp.sum(scores, axis=-1)
    top = xp.amax(scores, axis=-1, keepdims=True) if 0 not in scores.shape else xp.sum(scores, axis=-1, keepdims=True)
    blind = top == -xp.inf
    top = xp.where(blind, xp.zeros_like(top), top)
    weights = xp.exp(scores - top)
    # the sum of a row that is masked out is 0: its result is 0, and so is its logarithm, as in torch
    total = xp.sum(weights, axis=-1, keepdims=True)
    total = xp.where(blind, xp.ones_like(total), total)
    return xp.matmul(weights / total, v), (xp.log(total) + top)[..., 0]


def _back_plain(
    xp: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *mask: Any, is_causal: bool, scale: float
) -> Any:
    g, q, k, v, out = _precise(xp, g, q, k, v, out)
    p = _weights(xp, _scores(xp, q, k, mask, is_causal, scale), lse)
    ds = p * (xp.matmul(g, _swapped(xp, v)) - xp.sum(g * out, axis=-1, keepdims=True)) * scale
    return xp.matmul(ds, k), xp.matmul(_swapped(xp, ds), q), xp.matmul(_swapped(xp, p), g)


# -- torch's kernels -----------------------------------------------------------------------


def _fourth(x: Any) -> Any:
    """The shape (batch, heads, positions, features); of three dims, the first is the batch, as for masks."""
    return x if x.ndim == 4 else x.unsqueeze(1) if x.ndim == 3 else x[None, None]


def _in_rows(x: Any) -> Any:
    """torch's kernels read features one after the other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _added(torch: Any, mask: tuple[Any, ...], q: Any, k: Any) -> Any:
    """The mask in the form of torch's kernels: numbers to add, in the query's dtype."""
    if not mask:
        return None
    (m,) = mask
    if m.dtype is torch.bool:
        m = torch.zeros(m.shape, dtype=q.dtype, device=q.device).masked_fill_(m.logical_not(), -torch.inf)
    while m.ndim < 2:
        m = m[None]
    return _fourth(m).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _kernel_for(torch: Any, q: Any, k: Any, v: Any, mask: tuple[Any, ...], is_causal: bool) -> str:
    """The name of the kernel of torch that supports these operands; plain if none does."""
    if not 2 <= q.ndim <= 4 or not q.numel() or not k.numel() or not v.numel() or any(not m.numel() for m in mask):
        return "plain"
    if not q.is_cuda:
        return "cpu" if q.shape[-1] == v.shape[-1] else "plain"
    half = q.dtype in (torch.float16, torch.bfloat16)
    aligned = q.shape[-1] % (8 if half else 4) == 0 == v.shape[-1] % (8 if half else 4)
    square = not is_causal or q.shape[-2] == k.shape[-2]
    if half and not mask and square and q.shape[-1] == v.shape[-1] <= 256 and aligned:
        return _half_precision_kernel(torch, q.shape, k.shape, q.dtype, q.device, is_causal)
    return "efficient" if aligned and square and q.dtype is not torch.float64 else "plain"


@lru_cache(4096)
def _half_precision_kernel(torch: Any, q: Any, k: Any, dtype: Any, device: Any, is_causal: bool) -> str:
    """cudnn where torch itself would use it and its kernels support forward and backward, else flash."""
    if len(q) != 4 or q[-1] > 128 or min(q[-2], k[-2]) < 64:
        return "flash"
    like, other = torch.empty(q, dtype=dtype, device=device), torch.empty(k, dtype=dtype, device=device)
    # 3: SDPBackend.CUDNN_ATTENTION
    return "cudnn" if torch._fused_sdp_choice(like, other, other, None, 0.0, is_causal) == 3 else "flash"


def _aligned(torch: Any, mask: Any) -> Any:
    """The efficient kernel requires rows of the mask to start at multiples of 16 bytes."""
    short = None if mask is None else -mask.shape[-1] % 16
    return torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]] if short else mask


def _attend_torch(torch: Any, q: Any, k: Any, v: Any, *mask: Any, is_causal: bool, scale: float) -> Any:
    kernel = _kernel_for(torch, q, k, v, mask, is_causal)
    if kernel == "plain":
        out, lse = _attend_plain(torch, q, k, v, *mask, is_causal=is_causal, scale=scale)
        return out.to(q.dtype), lse
    shape, aten = q.shape[:-1], torch.ops.aten
    q, k, v = (_in_rows(_fourth(x)) for x in (q, k, v))
    added = _added(torch, mask, q, k)
    if kernel == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=added, scale=scale
        )
    elif kernel == "flash":
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
    elif kernel == "cudnn":
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, False, scale=scale)
    else:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            q, k, v, _aligned(torch, added), True, 0.0, is_causal, scale=scale
        )
        lse = lse[..., : q.shape[2]]
    return out.reshape(*shape, out.shape[-1]), lse.reshape(shape)


def _back_torch(
    torch: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *mask: Any, is_causal: bool, scale: float
) -> Any:
    kernel = _kernel_for(torch, q, k, v, mask, is_causal)
    if kernel == "plain":
        result = _back_plain(torch, g, q, k, v, out, lse, *mask, is_causal=is_causal, scale=scale)
        return tuple(m.to(q.dtype) for m in result)
    shapes = [x.shape for x in (q, k, v)]
    g, q, k, v, out = (_in_rows(_fourth(x)) for x in (g, q, k, v, out))
    lse = lse.reshape(q.shape[:-1])
    added = _added(torch, mask, q, k)
    result = _BACKWARD_KERNELS[kernel](torch, g, q, k, v, out, lse, added, is_causal, scale)
    return tuple(m.reshape(s) for m, s in zip(result[:3], shapes, strict=True))


def _back_cpu(
    torch: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, added: Any, causal: bool, s: float
) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, out, lse.mT.contiguous().mT, 0.0, causal, attn_mask=added, scale=s
    )


def _back_flash(
    torch: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, added: Any, causal: bool, s: float
) -> Any:
    none = torch.empty(0, dtype=torch.uint64, device=q.device)
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, none, none, scale=s
    )


def _back_cudnn(
    torch: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, added: Any, causal: bool, s: float
) -> Any:
    none = torch.empty((), dtype=torch.int64, device=q.device)
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, lse.unsqueeze(-1), none, none, None, None, None, q.shape[2], k.shape[2], 0.0, causal, scale=s
    )


def _back_efficient(
    torch: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, added: Any, causal: bool, s: float
) -> Any:
    if short := -lse.shape[-1] % 32:  # padded as in the forward kernel
        lse = torch.nn.functional.pad(lse, (0, short), value=torch.inf)
    none = torch.empty((), dtype=torch.int64, device=q.device)
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        g, q, k, v, _aligned(torch, added), out, lse, none, none, 0.0, [True, True, True, False], causal, scale=s
    )


_BACKWARD_KERNELS = {"cpu": _back_cpu, "flash": _back_flash, "cudnn": _back_cudnn, "efficient": _back_efficient}

# -- the ops -------------------------------------------------------------------------------


def _attend_vjp(needs: Any, g: Any, y: Any, q: Any, k: Any, v: Any, *mask: Any, **attrs: Any) -> list[Any]:
    """The gradient of a mask is not among them: see `gt.nn.functional.scaled_dot_product_attention`."""
    return [*many("attention_backward", g[0], q, k, v, *y, *mask, **attrs), *[None] * len(mask)]


op(
    "attention",
    autocast="lower",
    operands="tttt?",
    infer=_attended,
    split=attending,
    vjp=_attend_vjp,
    flops=lambda q, k, v, *mask, **attrs: (
        2 * q.numel * k.shape[-2] + 2 * (q.numel // max(q.shape[-1], 1)) * v.shape[-1]
    ),
    torch=_attend_torch,
    kernel=_attend_plain,
)


def _attended_back(
    g: TensorType,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    out: TensorType,
    lse: TensorType,
    *mask: TensorType,
    is_causal: bool,
    scale: float,
) -> Types:
    if _attended(q, k, v, *mask, is_causal=is_causal, scale=scale) != (out, lse) or g is not out:
        raise ShapeError(f"{out} and {lse}, or their gradient {g}, are not results of this attention")
    return q, k, v


def _back_formula(
    g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *mask: Any, is_causal: bool, scale: float
) -> tuple[Any, ...]:
    scores = q @ k.mT * scale
    if is_causal:
        ones = scores.detach().new_ones(scores.shape[-2:]).tril() == 0
        scores = scores.masked_fill(ones, float("-inf"))
    for m in mask:
        boolean = m.dtype.kind == "b"
        scores = scores.masked_fill(m.logical_not(), float("-inf")) if boolean else scores + m.detach()
    p = scores.softmax(-1)
    dp = g @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ g


op(
    "attention_backward",
    operands="t{6,7}",
    infer=_attended_back,
    split=attending_back,
    vjp=differentiated(_back_formula),
    flops=lambda g, q, k, v, *rest, **attrs: 10 * q.numel * k.shape[-2],
    torch=_back_torch,
    kernel=_back_plain,
)
