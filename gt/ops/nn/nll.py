"""The loss of classes: for each target, the input at its class."""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import MAX_INT64, check_int
from gt.ops.elements import wide
from gt.ops.gradient_rules import many, one
from gt.ops.nn.layer_norm import floating_input, statistic
from gt.ops.nn.loss import REDUCTIONS
from gt.ops.op import Types, op
from gt.ops.positions import Positions
from gt.ops.splits_nn import picking, picking_back
from gt.types import OperandType, TensorType, int64


def picked(
    x: TensorType, target: OperandType, *weight: TensorType, reduction: str, ignore_index: int
) -> TensorType | Types:
    """Each loss; or their sum, and the sum of the weights, which divides it for a mean."""
    floating_input(x)
    check_int("ignore_index", ignore_index, -MAX_INT64, MAX_INT64)
    if not isinstance(target, TensorType) or target.dtype is not int64:
        raise DTypeError(f"the target holds class numbers in int64, not {target}")
    if not x.ndim:
        raise ShapeError("needs a dim of classes")
    classes = 1 if x.ndim > 1 else 0
    shape = (*x.shape[:classes], *x.shape[classes + 1 :])
    if target.shape != shape:
        raise ShapeError(f"the target has the input's shape without the classes, {list(shape)}")
    if target.numel and not x.shape[classes]:
        raise ShapeError(f"there are no classes in {x}")
    for w in weight:
        if w.shape != x.shape[classes : classes + 1] or w.dtype is not x.dtype:
            raise ShapeError(f"a weight a class, of {x.dtype.name}; not {w}")
    if reduction == "none":
        return TensorType(shape, x.dtype)
    if reduction != "sum":
        raise ShapeError(f"reduction is none or sum here, and {reduction!r} is not")
    return (TensorType((), statistic(x.dtype)),) * 2


def _flat(x: Any, target: Any) -> tuple[Any, Any]:
    """More than two dims in the shape of torch's kernel for images."""
    if x.ndim <= 2:
        return x, target
    n, c = x.shape[:2]
    rest = prod(x.shape[2:])
    return x.reshape(n, c, 1, rest), target.reshape(n, 1, rest)


def nll_torch(torch: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    seen, at = _flat(x, target)
    forward = torch.ops.aten.nll_loss_forward if x.ndim <= 2 else torch.ops.aten.nll_loss2d_forward
    w = weight[0] if weight else None
    if reduction == "sum" and x.itemsize > 2:
        result: Any = forward(seen, at, w, REDUCTIONS.index("sum"), ignore_index)
        return result
    each = forward(seen, at, w, REDUCTIONS.index("none"), ignore_index)[0].reshape(target.shape)
    if reduction == "none":
        return each
    # half precision is summed in float32
    counts = target != ignore_index
    counts = counts if w is None else w[target.where(counts, 0)] * counts
    return each.sum(dtype=torch.float32), counts.sum(dtype=torch.float32)


def _class_weights(np: Any, x: Any, target: Any, weight: Any, ignore_index: int) -> tuple[Any, Any]:
    """For each target, its class (0 if it is ignored) and its weight."""
    counts = target != ignore_index
    at = np.where(counts, target, 0)
    if at.size and (at.min() < 0 or at.max() >= x.shape[min(x.ndim - 1, 1)]):
        raise IndexError("Target is out of bounds.")
    return at, np.where(counts, weight[0][at] if weight else np.ones(at.shape, x.dtype), 0)


def nll_numpy(np: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    x, *weights = wide(np, x, *weight)
    at, w = _class_weights(np, x, target, weights, ignore_index)
    axis = min(x.ndim - 1, 1)
    picked = np.take_along_axis(x, np.expand_dims(at, axis), axis).squeeze(axis) if x.size else w
    each = np.where(target != ignore_index, -picked * w, 0)
    return each if reduction == "none" else (each.sum(), w.sum())


def _nll_vjp(needs: Any, g: Any, _y: Any, x: Any, target: Any, *weight: Any, **attrs: Any) -> list[Any]:
    grad = g[0] if isinstance(g, tuple) else g
    if grad is None:
        return [None] * len(needs)
    return [one("nll_loss_backward", grad, x, target, *weight, **attrs), None, *[None] * len(weight)]


def _classes(at: int, x: TensorType, ignore_index: int) -> tuple[Positions, ...]:
    return (Positions(at, x.shape[min(x.ndim - 1, 1)], ignored=ignore_index),)


op(
    "nll_loss",
    autocast="float32",
    operands="ttt?",
    infer=picked,
    positions=lambda x, *rest, reduction, ignore_index: _classes(1, x, ignore_index),
    split=picking,
    vjp=_nll_vjp,
    torch=nll_torch,
    kernel=nll_numpy,
)


def _picked_back(g: TensorType, x: TensorType, target: TensorType, *weight: TensorType, **attrs: Any) -> TensorType:
    result = picked(x, target, *weight, **attrs)
    if g is not (result[0] if isinstance(result, tuple) else result):
        raise ShapeError(f"{g} is not the gradient of this loss")
    return x


def nll_back_torch(torch: Any, g: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    if not x.is_cuda:
        return _nll_back_cpu(torch, g, x, target, *weight, ignore_index=ignore_index)
    seen, at = _flat(x, target)
    back = torch.ops.aten.nll_loss_backward if x.ndim <= 2 else torch.ops.aten.nll_loss2d_backward
    g = g.reshape(at.shape) if reduction == "none" else g.to(x.dtype)
    w, total = weight[0] if weight else None, x.new_empty(())  # the total is required and not read
    return back(g, seen.contiguous(), at, w, REDUCTIONS.index(reduction), ignore_index, total).reshape(x.shape)


def _nll_back_cpu(torch: Any, g: Any, x: Any, target: Any, *weight: Any, ignore_index: int) -> Any:
    """Raises for an invalid target: torch's kernel would write outside the result."""
    counts, axis = target != ignore_index, min(x.ndim - 1, 1)
    at = target.where(counts, 0)
    each = -g if not weight else -g * weight[0][at]
    each = torch.where(counts, each, 0).to(x.dtype).expand(target.shape)
    result = torch.zeros(x.shape, dtype=x.dtype)
    return result.scatter_(axis, at.unsqueeze(axis), each.unsqueeze(axis)) if target.numel() else result


def nll_back_numpy(np: Any, g: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    g, x, *weights = wide(np, g, x, *weight)
    at, w = _class_weights(np, x, target, weights, ignore_index)
    each = np.where(target != ignore_index, -w * g, 0).astype(x.dtype)
    result, axis = np.zeros(x.shape, x.dtype), min(x.ndim - 1, 1)
    if result.size:
        np.put_along_axis(result, np.expand_dims(at, axis), np.expand_dims(each, axis), axis)
    return result


def _nll_back_vjp(needs: Any, d: Any, _y: Any, _g: Any, _x: Any, target: Any, *weight: Any, **attrs: Any) -> list[Any]:
    """The loss is linear, so the gradient of its gradient is the loss itself."""
    return [many("nll_loss", d, target, *weight, **attrs)[0], None, None, *[None] * len(weight)]


op(
    "nll_loss_backward",
    operands="tttt?",
    infer=_picked_back,
    positions=lambda g, x, *rest, reduction, ignore_index: _classes(2, x, ignore_index),
    split=picking_back,
    vjp=_nll_back_vjp,
    torch=nll_back_torch,
    kernel=nll_back_numpy,
)
