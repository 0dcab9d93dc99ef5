"""Normalisation over the last dims without the mean: by the root of the mean square."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from gt.ops.elements import wide
from gt.ops.gradient_rules import chosen, differentiated
from gt.ops.nn.layer_norm import (
    Mask,
    _affine,
    _check_normalized,
    _first,
    _fitting,
    _gradients,
    _last,
    _mean,
    _no_gradients,
    _no_rows,
    _stats_shape,
    _wanted,
    statistic,
)
from gt.ops.op import Types, op
from gt.ops.splits_nn import over_last, over_last_back
from gt.types import Shape, TensorType


def _rooted(x: TensorType, *weight: TensorType, normalized_shape: Shape, eps: float) -> Types:
    _check_normalized(x, normalized_shape)
    _affine(x, weight, normalized_shape, bool(weight), False, eps)
    return x, TensorType(_stats_shape(x, normalized_shape), statistic(x.dtype))


def _root_numpy(np: Any, x: Any, *weight: Any, normalized_shape: Shape, eps: float) -> Any:
    (x,) = wide(np, x)
    dims = _last(x, normalized_shape)
    total = (x * x).sum(dims, keepdims=True)
    rstd = 1 / np.sqrt(total / prod(normalized_shape) + eps) if x.size else total
    return x * rstd * weight[0] if weight else x * rstd, rstd


def _root_torch(torch: Any, x: Any, *weight: Any, normalized_shape: Shape, eps: float) -> Any:
    if not x.numel():
        return _no_rows(torch, x, _stats_shape(x, normalized_shape))
    y, rstd = torch.ops.aten._fused_rms_norm(x, normalized_shape, weight[0] if weight else None, eps)
    return y.to(x.dtype), rstd


def _root_vjp(needs: Mask, g: Any, y1: Any, x: Any, *weight: Any, normalized_shape: Shape, eps: float) -> list[Any]:
    mask = (needs[0], bool(weight) and needs[1])
    result = chosen("rms_norm_backward", mask, g[0], x, y1[1], *weight, normalized_shape=normalized_shape, eps=eps)
    return result[: len(needs)]


op(
    "rms_norm",
    autocast="float32",
    operands="tt?",
    infer=_rooted,
    split=partial(over_last, stats=1),
    vjp=_root_vjp,
    torch=_root_torch,
    kernel=_root_numpy,
)


def _rooted_back(
    g: TensorType, x: TensorType, rstd: TensorType, *weight: TensorType, normalized_shape: Shape, eps: float, mask: Mask
) -> Types:
    _check_normalized(x, normalized_shape)
    _fitting(g, x, (rstd,), _stats_shape(x, normalized_shape))
    _affine(x, weight, normalized_shape, bool(weight), False, eps)
    return _gradients(x, weight[0] if weight else None, mask, 2)


def _root_back_torch(
    torch: Any, g: Any, x: Any, rstd: Any, *weight: Any, normalized_shape: Shape, eps: float, mask: Mask
) -> Any:
    w = weight[0] if weight else None
    if not x.numel():
        return _no_gradients(x, w, mask)
    if x.is_cuda:
        result = torch.ops.aten._fused_rms_norm_backward(g, x, normalized_shape, rstd, w, mask)
    else:
        result = _root_back_cpu(torch, g.to(rstd.dtype), x.to(rstd.dtype), rstd, w, normalized_shape)
    kept = [m.to(t.dtype) for m, t, wanted in zip(result, (x, w), mask, strict=True) if wanted]
    return tuple(kept) if len(kept) > 1 else kept[0]


def _root_back_cpu(torch: Any, g: Any, x: Any, rstd: Any, w: Any, normalized_shape: Shape) -> Any:
    """torch has no kernel for it on a CPU."""
    dims, rows, normal = _last(x, normalized_shape), _first(x, normalized_shape), x * rstd
    scaled = g if w is None else g * w
    means = (scaled * normal).mean(dims, keepdim=True)
    dx = torch.addcmul(scaled, normal, means, value=-1).mul_(rstd)
    if w is None:
        return dx, None
    normal.mul_(g)
    return dx, normal.sum(rows) if rows else normal


def _root_back_numpy(
    np: Any, g: Any, x: Any, rstd: Any, *weight: Any, normalized_shape: Shape, eps: float, mask: Mask
) -> Any:
    g, x = wide(np, g, x)
    normal, rows, dims = x * rstd, _first(x, normalized_shape), _last(x, normalized_shape)
    scaled = g * weight[0] if weight else g
    dx = (scaled - normal * (scaled * normal).sum(dims, keepdims=True) / max(prod(normalized_shape), 1)) * rstd
    return _wanted((dx, (g * normal).sum(rows)), mask)


def _root_back_formula(
    g: Any, x: Any, rstd: Any, *weight: Any, normalized_shape: Shape, eps: float, mask: Mask
) -> list[Any]:
    dims, rows = _last(x, normalized_shape), _first(x, normalized_shape)
    rstd = (_mean(x * x, dims) + eps).rsqrt()
    normal = x * rstd
    scaled = g * weight[0] if weight else g
    dx = (scaled - normal * _mean(scaled * normal, dims)) * rstd
    dw = (g * normal).sum(rows) if rows else g * normal
    return [m for m, wanted in zip((dx, dw), mask, strict=True) if wanted]


op(
    "rms_norm_backward",
    operands="t{3,4}",
    infer=_rooted_back,
    split=over_last_back,
    vjp=differentiated(_root_back_formula),
    torch=_root_back_torch,
    kernel=_root_back_numpy,
)
