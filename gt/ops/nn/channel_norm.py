"""Normalisation by channels: over groups of them, and over the batch."""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.attributes import MAX_INT64, check_int
from gt.ops.elements import wide
from gt.ops.gradient_rules import differentiated
from gt.ops.nn.layer_norm import (
    Mask,
    _affine,
    _backward,
    _contiguous,
    _fitting,
    _gradients,
    _no_gradients,
    _no_rows,
    _pair,
    _stats,
    _wanted,
    _widened,
    back_formula,
    check_parameters,
    normal_gradient,
    statistic,
)
from gt.ops.op import NUMBER, Types, op
from gt.ops.splits_nn import by_channel, grouped, over_batch, over_batch_back, over_groups, over_groups_back
from gt.types import OperandType, TensorType


def _over(x: Any) -> tuple[int, ...]:
    """All dims but that of the channels."""
    return tuple(d for d in range(x.ndim) if d != 1)


def _as_channels(x: Any, ndim: int) -> Any:
    """One value per channel, in a shape for a tensor with this many dims."""
    return x.reshape((1, -1, *(1,) * (ndim - 2)))


# -- over groups of channels ---------------------------------------------------------------


def _grouped(x: TensorType, *parameters: TensorType, groups: int, weight: bool, bias: bool, eps: float) -> Types:
    _check_groups(x, groups)
    _affine(x, parameters, x.shape[1:2], weight, bias, eps)
    stats = TensorType((x.shape[0], groups), statistic(x.dtype))
    return x, stats, stats


def _check_channels(x: TensorType) -> None:
    if x.ndim < 2:
        raise ShapeError("needs at least two dims: batch and channels")


def _check_groups(x: TensorType, groups: int) -> None:
    _check_channels(x)
    check_int("groups", groups, 1, MAX_INT64)
    if x.shape[1] % groups:
        raise ShapeError(f"{x.shape[1]} channels do not make {groups} groups")


def _sizes(x: Any, groups: int) -> tuple[int, int, int, int]:
    return x.shape[0], x.shape[1], prod(x.shape[2:]), groups


def _group_torch(torch: Any, x: Any, *parameters: Any, groups: int, weight: bool, bias: bool, eps: float) -> Any:
    w, b = _pair(_contiguous(*parameters), weight, bias)
    if not x.numel():
        return _no_rows(torch, x, *[(x.shape[0], groups)] * 2)
    return _widened(torch.native_group_norm(x.contiguous(), w, b, *_sizes(x, groups), eps))


def _group_numpy(np: Any, x: Any, *parameters: Any, groups: int, weight: bool, bias: bool, eps: float) -> Any:
    (x,) = wide(np, x)
    w, b = _pair(parameters, weight, bias)
    seen = x.reshape(x.shape[0], groups, prod(x.shape[1:]) // groups)
    mean, rstd = _moments(np, seen, (2,), eps)
    y = ((seen - mean) * rstd).reshape(x.shape)
    y = y if w is None else y * _as_channels(w, x.ndim)
    return y if b is None else y + _as_channels(b, x.ndim), mean[..., 0], rstd[..., 0]


def _moments(np: Any, x: Any, dims: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    mean = x.mean(dims, keepdims=True) if x.size else x.sum(dims, keepdims=True)
    return mean, 1 / np.sqrt(x.var(dims, keepdims=True) + eps) if x.size else mean


def _group_vjp(needs: Mask, g: Any, y12: Any, x: Any, *parameters: Any, groups: int, **attrs: Any) -> list[Any]:
    affine = attrs["weight"], attrs["bias"]
    how = {"groups": groups, "eps": attrs["eps"]}
    return _backward("group_norm_backward", needs, g[0], y12[1:], x, parameters, _over(x), *affine, **how)


op(
    "group_norm",
    autocast="float32",
    operands="t{1,3}",
    infer=_grouped,
    split=over_groups,
    local=grouped,
    vjp=_group_vjp,
    torch=_group_torch,
    kernel=_group_numpy,
)


def _grouped_back(
    g: TensorType,
    x: TensorType,
    mean: TensorType,
    rstd: TensorType,
    *parameters: TensorType,
    groups: int,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Types:
    _check_groups(x, groups)
    _fitting(g, x, (mean, rstd), (x.shape[0], groups))
    _affine(x, parameters, x.shape[1:2], weight, False, eps)
    return _gradients(x, parameters[0] if parameters else None, mask)


def _group_back_torch(
    torch: Any,
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    *parameters: Any,
    groups: int,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Any:
    w = parameters[0].contiguous() if weight else None
    if not x.numel():
        return _no_gradients(x, w, mask)
    dtype = x.dtype if w is None else w.dtype  # of torch's statistics here, on a GPU as well
    mean, rstd = (s.to(dtype) if x.itemsize < 4 else s for s in (mean, rstd))
    g, x, mean, rstd = _contiguous(g, x, mean, rstd)
    result = torch.ops.aten.native_group_norm_backward(g, x, mean, rstd, w, *_sizes(x, groups), mask)
    return _wanted(result, mask)


def _group_back_numpy(
    np: Any, g: Any, x: Any, mean: Any, rstd: Any, *parameters: Any, groups: int, eps: float, weight: bool, mask: Mask
) -> Any:
    g, x = wide(np, g, x)
    shape = (x.shape[0], groups, prod(x.shape[1:]) // groups)
    normal = (x.reshape(shape) - mean[..., None]) * rstd[..., None]
    scaled = g * _as_channels(parameters[0], x.ndim) if weight else g
    dx = normal_gradient(np, scaled.reshape(shape), normal, rstd[..., None], (2,)).reshape(x.shape)
    return _wanted((dx, (g * normal.reshape(x.shape)).sum(_over(x)), g.sum(_over(x))), mask)


def _group_back_formula(
    g: Any, x: Any, mean: Any, rstd: Any, *parameters: Any, groups: int, eps: float, weight: bool, mask: Mask
) -> list[Any]:
    shape = (x.shape[0], groups, x.shape[1] // groups, prod(x.shape[2:]))
    w = parameters[0].reshape((1, groups, shape[2], 1)) if weight else None
    dx, dw, db = back_formula(g.reshape(shape), x.reshape(shape), w, eps, (2, 3), (0, 3))
    result = (dx.reshape(x.shape), dw.reshape(x.shape[1:2]), db.reshape(x.shape[1:2]))
    return [m for m, wanted in zip(result, mask, strict=True) if wanted]


op(
    "group_norm_backward",
    operands="t{4,5}",
    infer=_grouped_back,
    split=over_groups_back,
    local=grouped,
    vjp=differentiated(_group_back_formula),
    torch=_group_back_torch,
    kernel=_group_back_numpy,
)

# -- over the batch ------------------------------------------------------------------------


def _batched(x: TensorType, *parameters: TensorType, weight: bool, bias: bool, eps: float) -> Types:
    _check_channels(x)
    if x.numel == x.shape[1]:
        raise ShapeError("needs more than one value a channel in training")
    _affine(x, parameters, x.shape[1:2], weight, bias, eps)
    stats = TensorType(x.shape[1:2], statistic(x.dtype))
    return x, stats, stats


def _check_running(x: TensorType, running: tuple[TensorType, ...], parameters: tuple[TensorType, ...]) -> None:
    for t in running:
        if t.shape != x.shape[1:2]:
            raise ShapeError(f"running statistics are one number a channel, not {t}")
    check_parameters(x, (*running, *parameters))


def _batch_torch(torch: Any, x: Any, *parameters: Any, weight: bool, bias: bool, eps: float) -> Any:
    return _batch_into(torch, x, None, None, 0.0, parameters, weight, bias, eps)


def _batch_into(
    torch: Any, x: Any, mean: Any, var: Any, momentum: float, parameters: Any, weight: bool, bias: bool, eps: float
) -> Any:
    """torch's kernel, which updates the running statistics."""
    w, b = _pair(parameters, weight, bias)
    if not x.numel():
        return _no_rows(torch, x, *[x.shape[1:2]] * 2)
    if not x.is_cuda and x.itemsize < 4:  # the CPU's kernel for half precision sums rows in memory order
        x = x.contiguous()
    return _widened(torch.native_batch_norm(x, w, b, mean, var, True, momentum, eps))


def _batch_numpy(np: Any, x: Any, *parameters: Any, weight: bool, bias: bool, eps: float) -> Any:
    (x,) = wide(np, x)
    w, b = _pair(parameters, weight, bias)
    mean, rstd = _moments(np, x, _over(x), eps)
    y = (x - mean) * rstd
    y = y if w is None else y * _as_channels(w, x.ndim)
    return y if b is None else y + _as_channels(b, x.ndim), mean.reshape(-1), rstd.reshape(-1)


def _batch_vjp(
    needs: Mask, g: Any, y12: Any, x: Any, *parameters: Any, weight: bool, bias: bool, eps: float
) -> list[Any]:
    return _backward("batch_norm_backward", needs, g[0], y12[1:3], x, parameters, _over(x), weight, bias, eps=eps)


op(
    "batch_norm",
    operands="t{1,3}",
    infer=_batched,
    split=over_batch,
    vjp=_batch_vjp,
    torch=_batch_torch,
    kernel=_batch_numpy,
)


def _tracked(
    x: TensorType, momentum: OperandType, mean: TensorType, var: TensorType, *parameters: TensorType, **attrs: Any
) -> Types:
    result = _batched(x, *parameters, **attrs)
    _check_running(x, (mean, var), parameters)
    return *result, mean, var


def _track_torch(torch: Any, x: Any, momentum: float, mean: Any, var: Any, *parameters: Any, **attrs: Any) -> Any:
    running = mean.clone(), var.clone()
    return *_batch_into(torch, x, *running, momentum, parameters, **attrs), *running


def _track_numpy(np: Any, x: Any, momentum: float, mean: Any, var: Any, *parameters: Any, **attrs: Any) -> Any:
    result, running = _batch_numpy(np, x, *parameters, **attrs), (mean, var)
    if x.size:
        n = x.size // x.shape[1]
        seen = result[1], wide(np, x)[0].var(_over(x)) * n / (n - 1)
        running = tuple((1 - momentum) * r + momentum * s for r, s in zip(running, seen, strict=True))
    return *result, *(np.array(r) for r in running)


def _track_vjp(
    needs: Mask, g: Any, y12: Any, x: Any, _momentum: Any, _mean: Any, _var: Any, *parameters: Any, **attrs: Any
) -> list[Any]:
    dx, *rest = _batch_vjp((needs[0], *needs[4:]), g, y12, x, *parameters, **attrs)
    return [dx, None, None, None, *rest]


# the same, with the running statistics among the operands: their new values come last
op(
    "batch_norm_tracked",
    operands=f"t{NUMBER}t{{2,4}}",
    infer=_tracked,
    split=over_batch,
    vjp=_track_vjp,
    torch=_track_torch,
    kernel=_track_numpy,
)


def _batched_back(
    g: TensorType,
    x: TensorType,
    mean: TensorType,
    rstd: TensorType,
    *parameters: TensorType,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Types:
    _check_channels(x)
    _fitting(g, x, (mean, rstd), x.shape[1:2])
    _affine(x, parameters, x.shape[1:2], weight, False, eps)
    return _gradients(x, parameters[0] if parameters else None, mask)


def _batch_back_torch(
    torch: Any, g: Any, x: Any, mean: Any, rstd: Any, *parameters: Any, eps: float, weight: bool, mask: Mask
) -> Any:
    w = parameters[0] if weight else None
    if not x.numel():
        return _no_gradients(x, w, mask)
    mean, rstd = _contiguous(*_stats(x, w, mean, rstd))
    if not x.is_cuda and x.itemsize < 4:  # as above
        g, x = _contiguous(g, x)
    result = torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, mean, rstd, True, eps, mask)
    return _wanted(result, mask)


def _batch_back_numpy(
    np: Any, g: Any, x: Any, mean: Any, rstd: Any, *parameters: Any, eps: float, weight: bool, mask: Mask
) -> Any:
    g, x = wide(np, g, x)
    mean, rstd = _as_channels(mean, x.ndim), _as_channels(rstd, x.ndim)
    normal = (x - mean) * rstd
    dx = normal_gradient(np, g * _as_channels(parameters[0], x.ndim) if weight else g, normal, rstd, _over(x))
    return _wanted((dx, (g * normal).sum(_over(x)), g.sum(_over(x))), mask)


def _batch_back_formula(
    g: Any, x: Any, mean: Any, rstd: Any, *parameters: Any, eps: float, weight: bool, mask: Mask
) -> list[Any]:
    w = _as_channels(parameters[0], x.ndim) if weight else None
    result = back_formula(g, x, w, eps, _over(x), _over(x))
    return [m for m, wanted in zip(result, mask, strict=True) if wanted]


op(
    "batch_norm_backward",
    operands="t{4,5}",
    infer=_batched_back,
    split=over_batch_back,
    vjp=differentiated(_batch_back_formula),
    torch=_batch_back_torch,
    kernel=_batch_back_numpy,
)


def _settled(
    x: TensorType, mean: TensorType, var: TensorType, *parameters: TensorType, weight: bool, bias: bool, eps: float
) -> TensorType:
    _check_channels(x)
    _check_running(x, (mean, var), parameters)
    _affine(x, parameters, x.shape[1:2], weight, bias, eps)
    return x


def _settle_numpy(np: Any, x: Any, mean: Any, var: Any, *parameters: Any, weight: bool, bias: bool, eps: float) -> Any:
    x, mean, var = wide(np, x, mean, var)
    w, b = _pair(parameters, weight, bias)
    y = (x - _as_channels(mean, x.ndim)) / np.sqrt(_as_channels(var, x.ndim) + eps)
    y = y if w is None else y * _as_channels(w, x.ndim)
    return y if b is None else y + _as_channels(b, x.ndim)


def _settle_torch(
    torch: Any, x: Any, mean: Any, var: Any, *parameters: Any, weight: bool, bias: bool, eps: float
) -> Any:
    w, b = _pair(parameters, weight, bias)
    if not x.numel():
        return torch.empty_like(x)
    return torch.nn.functional.batch_norm(x, mean, var, w, b, False, 0.0, eps)


def _settle_vjp(
    needs: Mask, g: Any, _y: Any, x: Any, mean: Any, var: Any, *parameters: Any, weight: bool, bias: bool, eps: float
) -> list[Any]:
    mean, rstd = mean.detach(), (var.detach() + eps).rsqrt()
    w, b = _pair(parameters, weight, bias)
    needed = _pair(needs[3:], weight, bias)
    dx = g * _as_channels(rstd if w is None else rstd * w, x.ndim) if needs[0] else None
    grads = [dx, None, None]
    if weight:
        normal = (x - _as_channels(mean, x.ndim)) * _as_channels(rstd, x.ndim)
        grads.append((g * normal).sum(_over(x)) if needed[0] else None)
    return [*grads, g.sum(_over(x))] if b is not None else grads


op(
    "batch_norm_inference",
    operands="t{3,5}",
    infer=_settled,
    split=by_channel,
    vjp=_settle_vjp,
    torch=_settle_torch,
    kernel=_settle_numpy,
)
