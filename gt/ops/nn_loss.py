"""Losses with kernels of their own: those of classes, and those of two tensors of one shape.

``reduction`` is torch's: none, mean or sum.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.core import Types
from gt.ops.nn_back import differentiated, many, one, op
from gt.ops.nn_linear import wide
from gt.ops.nn_norm import floating_input, statistic
from gt.ops.splits_nn import averaged, losing, losing_back, picking, picking_back
from gt.types import OperandType, TensorType, int64

REDUCTIONS = ("none", "mean", "sum")


def reduced(x: TensorType, reduction: str) -> TensorType:
    if reduction not in REDUCTIONS:
        raise ShapeError(f"reduction is none, mean or sum, and {reduction!r} is not")
    return x if reduction == "none" else TensorType((), x.dtype)


# -- of classes ----------------------------------------------------------------------------


def _picked(
    x: TensorType, target: OperandType, *weight: TensorType, reduction: str, ignore_index: int
) -> TensorType | Types:
    """Each loss; or their sum and that of the weights, which divides it where the mean is asked for."""
    floating_input(x)
    if not isinstance(target, TensorType) or target.dtype is not int64:
        raise DTypeError(f"the target holds class numbers in int64, not {target}")
    if not x.ndim:
        raise ShapeError("needs a dim of classes")
    classes = 1 if x.ndim > 1 else 0
    shape = (*x.shape[:classes], *x.shape[classes + 1 :])
    if target.shape != shape:
        raise ShapeError(f"the target has the input's shape without the classes, {list(shape)}")
    for w in weight:
        if w.shape != x.shape[classes : classes + 1] or w.dtype is not x.dtype:
            raise ShapeError(f"a weight a class, of {x.dtype.name}; not {w}")
    if reduction == "none":
        return TensorType(shape, x.dtype)
    if reduction != "sum":
        raise ShapeError(f"reduction is none or sum here, and {reduction!r} is not")
    return (TensorType((), statistic(x.dtype)),) * 2


def _flat(x: Any, target: Any) -> tuple[Any, Any]:
    """More than two dims as torch's kernel for images has them."""
    if x.ndim <= 2:
        return x, target
    n, c = x.shape[:2]
    rest = prod(x.shape[2:])
    return x.reshape(n, c, 1, rest), target.reshape(n, 1, rest)


def _nll_torch(torch: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    seen, at = _flat(x, target)
    forward = torch.ops.aten.nll_loss_forward if x.ndim <= 2 else torch.ops.aten.nll_loss2d_forward
    w = weight[0] if weight else None
    if reduction == "sum" and x.itemsize > 2:
        made: Any = forward(seen, at, w, REDUCTIONS.index("sum"), ignore_index)
        return made
    each = forward(seen, at, w, REDUCTIONS.index("none"), ignore_index)[0].reshape(target.shape)
    if reduction == "none":
        return each
    # halves are added up as floats
    counts = target != ignore_index
    counts = counts if w is None else w[target.where(counts, 0)] * counts
    return each.sum(dtype=torch.float32), counts.sum(dtype=torch.float32)


def _class_weights(np: Any, x: Any, target: Any, weight: Any, ignore_index: int) -> tuple[Any, Any]:
    """For each target, its class (0 if it is ignored) and what it counts."""
    counts = target != ignore_index
    at = np.where(counts, target, 0)
    if at.size and (at.min() < 0 or at.max() >= x.shape[min(x.ndim - 1, 1)]):
        raise IndexError("Target is out of bounds.")
    return at, (weight[0][at] if weight else np.ones(at.shape, x.dtype)) * counts


def _nll_numpy(np: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    x, *given = wide(np, x, *weight)
    at, w = _class_weights(np, x, target, given, ignore_index)
    axis = min(x.ndim - 1, 1)
    picked = np.take_along_axis(x, np.expand_dims(at, axis), axis).squeeze(axis) if x.size else w
    each = np.where(w != 0, -picked * w, 0)
    return each if reduction == "none" else (each.sum(), w.sum())


def _nll_vjp(needs: Any, g: Any, _y: Any, x: Any, target: Any, *weight: Any, **attrs: Any) -> list[Any]:
    given = g[0] if isinstance(g, tuple) else g
    if given is None:
        return [None] * len(needs)
    return [one("nll_loss_backward", given, x, target, *weight, **attrs), None, *[None] * len(weight)]


op("nll_loss", infer=_picked, split=picking, vjp=_nll_vjp, torch=_nll_torch, kernel=_nll_numpy)


def _picked_back(g: TensorType, x: TensorType, target: TensorType, *weight: TensorType, **attrs: Any) -> TensorType:
    made = _picked(x, target, *weight, **attrs)
    if g is not (made[0] if isinstance(made, tuple) else made):
        raise ShapeError("the gradient is not that of this loss")
    return x


def _nll_back_torch(torch: Any, g: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    seen, at = _flat(x, target)
    back = torch.ops.aten.nll_loss_backward if x.ndim <= 2 else torch.ops.aten.nll_loss2d_backward
    g = g.reshape(at.shape) if reduction == "none" else g.to(x.dtype)
    w, total = weight[0] if weight else None, x.new_empty(())  # the total is asked for and not looked at
    return back(g, seen.contiguous(), at, w, REDUCTIONS.index(reduction), ignore_index, total).reshape(x.shape)


def _nll_back_numpy(np: Any, g: Any, x: Any, target: Any, *weight: Any, reduction: str, ignore_index: int) -> Any:
    g, x, *given = wide(np, g, x, *weight)
    at, w = _class_weights(np, x, target, given, ignore_index)
    each = np.where(w != 0, -w * g, 0).astype(x.dtype)
    made, axis = np.zeros(x.shape, x.dtype), min(x.ndim - 1, 1)
    if made.size:
        np.put_along_axis(made, np.expand_dims(at, axis), np.expand_dims(each, axis), axis)
    return made


def _nll_back_vjp(needs: Any, d: Any, _y: Any, _g: Any, _x: Any, target: Any, *weight: Any, **attrs: Any) -> list[Any]:
    """The loss is linear: what its gradient does to a gradient is the loss itself."""
    return [many("nll_loss", d, target, *weight, **attrs)[0], None, None, *[None] * len(weight)]


op(
    "nll_loss_backward",
    infer=_picked_back,
    split=picking_back,
    vjp=_nll_back_vjp,
    torch=_nll_back_torch,
    kernel=_nll_back_numpy,
)

# -- of two tensors of one shape -----------------------------------------------------------


def _compared(
    x: TensorType, target: TensorType, *weight: TensorType, reduction: str, whole: int | None = None, **attrs: Any
) -> TensorType:
    """``whole``: the mean is over so many elements, of which these are some."""
    floating_input(x)
    for t in (target, *weight):
        if t.shape != x.shape or t.dtype is not x.dtype:
            raise ShapeError(f"all operands are of one type, {x}; not {t}")
    return reduced(x, reduction)


def _compared_back(g: TensorType, x: TensorType, *rest: TensorType, **attrs: Any) -> TensorType:
    if _compared(x, *rest, **attrs) is not g:
        raise ShapeError("the gradient is not that of this loss")
    return x


def _reduce_numpy(np: Any, each: Any, reduction: str, whole: int | None) -> Any:
    if reduction == "none":
        return each
    total = each.sum()
    return total if reduction == "sum" else total / np.asarray(each.size if whole is None else whole, total.dtype)


def _share_torch(torch: Any, each: Any, whole: int) -> Any:
    """A block's share of a mean; halves are added up as floats, as torch does."""
    return (each.sum(dtype=torch.promote_types(each.dtype, torch.float32)) / whole).to(each.dtype)


def spread(g: Any, x: Any, reduction: str) -> Any:
    """The gradient of a reduced loss, for each element."""
    return g / prod(x.shape) if reduction == "mean" and 0 not in x.shape else g


def pairwise(name: str, value: Callable[..., Any], slope: Callable[..., Any], target: Callable[..., Any]) -> None:
    """A loss, and its gradient.

    ``value`` and ``slope``: (np, x, target, *weight, **attrs), element by element in numpy; ``target``: (the gradient
    of x, g, x, target, *weight, **attrs) -> that of the target, in ops.
    """

    def forward_numpy(np: Any, *given: Any, reduction: str, whole: int | None = None, **attrs: Any) -> Any:
        return _reduce_numpy(np, value(np, *wide(np, *given), **attrs), reduction, whole)

    def forward_torch(
        torch: Any, x: Any, t: Any, *weight: Any, reduction: str, whole: int | None = None, **attrs: Any
    ) -> Any:
        call = getattr(torch.nn.functional, name)
        if whole is not None:
            return _share_torch(torch, call(x, t, *weight, reduction="none", **attrs), whole)
        return call(x, t, *weight, reduction=reduction, **attrs)

    def back_numpy(np: Any, g: Any, x: Any, *rest: Any, reduction: str, whole: int | None = None, **attrs: Any) -> Any:
        g, x, *given = wide(np, g, x, *rest)
        return (spread(g, x, reduction) if whole is None else g / whole) * slope(np, x, *given, **attrs)

    def back_torch(
        torch: Any, g: Any, x: Any, *rest: Any, reduction: str, whole: int | None = None, **attrs: Any
    ) -> Any:
        kernel = getattr(torch.ops.aten, f"{name}_backward")
        if whole is not None:
            g, reduction = g / whole, "sum"
        none = (None,) if name == "binary_cross_entropy" and not rest[1:] else ()  # in the place of a weight
        return kernel(g, x, *rest, *none, REDUCTIONS.index(reduction), *attrs.values())

    def vjp(needs: Any, g: Any, _y: Any, x: Any, t: Any, *weight: Any, **attrs: Any) -> list[Any]:
        dx = one(f"{name}_backward", g, x, t, *weight, **attrs)
        return [dx, target(dx, g, x, t, *weight, **attrs) if needs[1] else None, *[None] * len(weight)]

    op(name, infer=_compared, split=losing, local=averaged, vjp=vjp, torch=forward_torch, kernel=forward_numpy)
    back = {"split": losing_back, "local": averaged, "vjp": differentiated(FORMULAS[name])}
    op(f"{name}_backward", infer=_compared_back, **back, torch=back_torch, kernel=back_numpy)


def _squared(g: Any, x: Any, t: Any, *, reduction: str) -> Any:
    return spread(g, x, reduction) * 2 * (x - t)


def _bent(d: Any, limit: float) -> Any:
    """d within the limit, and the limit with d's sign beyond; its gradient at the limit is 0."""
    return d.where(d.abs() < limit, d.detach().sign() * limit)


def _smooth(g: Any, x: Any, t: Any, *, reduction: str, beta: float) -> Any:
    return spread(g, x, reduction) * _bent(x - t, beta) / beta


def _huber(g: Any, x: Any, t: Any, *, reduction: str, delta: float) -> Any:
    return spread(g, x, reduction) * _bent(x - t, delta)


def _entropy(g: Any, x: Any, t: Any, *weight: Any, reduction: str) -> Any:
    made = spread(g, x, reduction) * (x - t) / ((1 - x) * x).clamp(min=1e-12)
    return made * weight[0].detach() if weight else made


def _margin(g: Any, x: Any, t: Any, *, reduction: str) -> Any:
    t = t.detach()
    return spread(g, x, reduction) * -t * (-t * x).sigmoid()


FORMULAS: dict[str, Callable[..., Any]] = {
    "mse_loss": _squared,
    "smooth_l1_loss": _smooth,
    "huber_loss": _huber,
    "binary_cross_entropy": _entropy,
    "soft_margin_loss": _margin,
}


def _opposite(dx: Any, *_: Any, **attrs: Any) -> Any:
    return -dx


def _entropy_numpy(np: Any, x: Any, t: Any, *weight: Any) -> Any:
    if x.size and (x.min() < 0 or x.max() > 1):
        raise ValueError("all elements of input should be between 0 and 1")
    made = (t - 1) * np.maximum(np.log1p(-x), -100) - t * np.maximum(np.log(x), -100)
    return made * weight[0] if weight else made


def _entropy_slope(np: Any, x: Any, t: Any, *weight: Any) -> Any:
    made = (x - t) / np.maximum((1 - x) * x, 1e-12)
    return made * weight[0] if weight else made


def _entropy_target(dx: Any, g: Any, x: Any, t: Any, *weight: Any, reduction: str) -> Any:
    made = spread(g, x, reduction) * ((-x).log1p().clamp(min=-100) - x.log().clamp(min=-100))
    return made * weight[0].detach() if weight else made


def _smooth_value(np: Any, x: Any, t: Any, *, beta: float) -> Any:
    d = np.abs(x - t)
    return np.where(d < beta, 0.5 * d * d / beta if beta else 0, d - 0.5 * beta)


pairwise("mse_loss", lambda np, x, t: (x - t) ** 2, lambda np, x, t: 2 * (x - t), _opposite)
pairwise(
    "smooth_l1_loss",
    _smooth_value,
    lambda np, x, t, *, beta: np.clip((x - t) / beta, -1, 1) if beta else np.sign(x - t),
    _opposite,
)
pairwise(
    "huber_loss",
    lambda np, x, t, *, delta: np.where(
        (d := np.abs(x - t)) <= delta, 0.5 * d * d, delta * (d - x.dtype.type(0.5 * delta))
    ),
    lambda np, x, t, *, delta: np.clip(x - t, -delta, delta),
    _opposite,
)
pairwise("binary_cross_entropy", _entropy_numpy, _entropy_slope, _entropy_target)
pairwise(
    "soft_margin_loss",
    lambda np, x, t: np.log1p(np.exp(-t * x)),
    lambda np, x, t: -t * np.exp(-t * x) / (1 + np.exp(-t * x)),
    lambda *_, **attrs: None,
)

# -- of logits -----------------------------------------------------------------------------


def _logits(
    x: TensorType,
    target: TensorType,
    *given: TensorType,
    weight: bool,
    pos_weight: bool,
    reduction: str,
    whole: int | None = None,
) -> TensorType:
    if len(given) != weight + pos_weight:
        raise ShapeError(f"{len(given)} operands for weight={weight}, pos_weight={pos_weight}")
    return _compared(x, target, *given, reduction=reduction)


def _each(given: Any, weight: bool, pos_weight: bool) -> tuple[Any, Any]:
    return given[0] if weight else None, given[-1] if pos_weight else None


def _logits_numpy(
    np: Any, x: Any, t: Any, *given: Any, weight: bool, pos_weight: bool, reduction: str, whole: int | None = None
) -> Any:
    x, t, *rest = wide(np, x, t, *given)
    w, pos = _each(rest, weight, pos_weight)
    soft = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
    each = (1 - t) * x + (1 + (pos - 1) * t if pos is not None else 1) * soft
    return _reduce_numpy(np, each * w if w is not None else each, reduction, whole)


def _logits_torch(
    torch: Any, x: Any, t: Any, *given: Any, weight: bool, pos_weight: bool, reduction: str, whole: int | None = None
) -> Any:
    w, pos = _each(given, weight, pos_weight)
    call = torch.nn.functional.binary_cross_entropy_with_logits
    if whole is not None:
        return _share_torch(torch, call(x, t, w, pos_weight=pos, reduction="none"), whole)
    return call(x, t, w, pos_weight=pos, reduction=reduction)


def _logits_vjp(
    needs: Any, g: Any, _y: Any, x: Any, t: Any, *given: Any, weight: bool, pos_weight: bool, reduction: str
) -> list[Any]:
    w, pos = _each([v.detach() for v in given], weight, pos_weight)
    g = spread(g, x, reduction)
    g = g if w is None else g * w
    s = x.sigmoid()
    dx = (s - t if pos is None else s * (1 + (pos - 1) * t) - pos * t) * g
    dt = None
    if needs[1]:
        dt = -x * g if pos is None else -(x + (pos - 1) * _log_sigmoid(x)) * g
    return [dx, dt, *[None] * len(given)]


def _log_sigmoid(x: Any) -> Any:
    return one("logsigmoid", x)


op(
    "binary_cross_entropy_with_logits",
    infer=_logits,
    split=losing,
    local=averaged,
    vjp=_logits_vjp,
    torch=_logits_torch,
    kernel=_logits_numpy,
)
