"""Losses of two tensors of one shape; that of classes is in `gt.ops.nn.nll`.

``reduction`` is torch's: none, mean or sum.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import MAX_INT64, check_flags, check_int, check_numbers
from gt.ops.elements import wide
from gt.ops.gradient_rules import differentiated, one
from gt.ops.nn.layer_norm import floating_input
from gt.ops.op import op
from gt.ops.splits_nn import averaged, comparing, comparing_back
from gt.types import TensorType

REDUCTIONS = ("none", "mean", "sum")

Rule = Callable[..., Any]


def reduced(x: TensorType, reduction: str) -> TensorType:
    if reduction not in REDUCTIONS:
        raise ShapeError(f"reduction is none, mean or sum, and {reduction!r} is not")
    return x if reduction == "none" else TensorType((), x.dtype)


# -- of two tensors of one shape -----------------------------------------------------------


#: the attribute of each loss, and whether it may be 0
_ATTRIBUTES = {"smooth_l1_loss": ("beta", True), "huber_loss": ("delta", False)}


def _check_attribute(name: str, x: TensorType, attrs: dict[str, Any]) -> None:
    attribute, zero = _ATTRIBUTES.get(name, ("", True))
    if set(attrs) != ({attribute} if attribute else set()):
        raise DTypeError(f"its attribute is {attribute or 'reduction alone'}, not {', '.join(attrs) or 'none'}")
    check_numbers(x.dtype, **attrs)
    if attribute and not (attrs[attribute] >= 0 if zero else attrs[attribute] > 0):
        raise ShapeError(f"{attribute} is {'0 or more' if zero else 'greater than 0'}, not {attrs[attribute]}")


def _compared(
    x: TensorType, target: TensorType, *weight: TensorType, reduction: str, whole: int | None = None
) -> TensorType:
    """``whole``: the number of elements on all workers that the mean is over."""
    floating_input(x)
    if whole is not None:
        check_int("whole", whole, 0, MAX_INT64)
    for t in (target, *weight):
        if t.shape != x.shape or t.dtype is not x.dtype:
            raise ShapeError(f"all operands are of one type, {x}; not {t}")
    return reduced(x, reduction)


def _reduce_numpy(np: Any, each: Any, reduction: str, whole: int | None) -> Any:
    if reduction == "none":
        return each
    total = each.sum()
    return total if reduction == "sum" else total / np.asarray(each.size if whole is None else whole, total.dtype)


def _share_torch(torch: Any, each: Any, whole: int) -> Any:
    """A block's share of a mean; half precision is summed in float32, as in torch."""
    return (each.sum(dtype=torch.promote_types(each.dtype, torch.float32)) / whole).to(each.dtype)


def spread(g: Any, x: Any, reduction: str) -> Any:
    """The gradient of a reduced loss for each element."""
    return g / prod(x.shape) if reduction == "mean" and 0 not in x.shape else g


def _inference(name: str) -> tuple[Callable[..., TensorType], Callable[..., TensorType]]:
    """The rules of a loss and of its gradient."""

    def infer(x: TensorType, *rest: TensorType, reduction: str, whole: int | None = None, **attrs: Any) -> TensorType:
        _check_attribute(name, x, attrs)
        return _compared(x, *rest, reduction=reduction, whole=whole)

    def infer_back(g: TensorType, x: TensorType, *rest: TensorType, **attrs: Any) -> TensorType:
        if (expected := infer(x, *rest, **attrs)) is not g:
            raise ShapeError(f"the gradient of this loss is {expected}, not {g}")
        return x

    return infer, infer_back


def pairwise(name: str, value: Rule, slope: Rule, target: Rule, **fields: Any) -> None:
    """Declare a loss and its gradient.

    ``value`` and ``slope``: (np, x, target, *weight, **attrs), element by element in numpy; ``target``: (the gradient
    of x, g, x, target, *weight, **attrs) -> that of the target, in ops.
    """
    (infer, infer_back), backward = _inference(name), f"{name}_backward"

    def forward_numpy(np: Any, *arguments: Any, reduction: str, whole: int | None = None, **attrs: Any) -> Any:
        return _reduce_numpy(np, value(np, *wide(np, *arguments), **attrs), reduction, whole)

    def forward_torch(
        torch: Any, x: Any, t: Any, *weight: Any, reduction: str, whole: int | None = None, **attrs: Any
    ) -> Any:
        call = getattr(torch.nn.functional, name)
        if whole is not None:
            return _share_torch(torch, call(x, t, *weight, reduction="none", **attrs), whole)
        return call(x, t, *weight, reduction=reduction, **attrs)

    def back_numpy(np: Any, g: Any, x: Any, *rest: Any, reduction: str, whole: int | None = None, **attrs: Any) -> Any:
        g, x, *arguments = wide(np, g, x, *rest)
        return (spread(g, x, reduction) if whole is None else g / whole) * slope(np, x, *arguments, **attrs)

    def back_torch(
        torch: Any, g: Any, x: Any, *rest: Any, reduction: str, whole: int | None = None, **attrs: Any
    ) -> Any:
        if whole is not None:
            g, reduction = g / whole, "sum"
        rest += (None,) if name == "binary_cross_entropy" and not rest[1:] else ()  # in the place of a weight
        return getattr(torch.ops.aten, backward)(g, x, *rest, REDUCTIONS.index(reduction), *attrs.values())

    def vjp(needs: Any, g: Any, _y: Any, x: Any, t: Any, *weight: Any, **attrs: Any) -> list[Any]:
        dx = one(backward, g, x, t, *weight, **attrs)
        return [dx, target(dx, g, x, t, *weight, **attrs) if needs[1] else None, *[None] * len(weight)]

    takes = "ttt?" if name == "binary_cross_entropy" else "tt"
    fields |= {"split": comparing, "local": averaged, "torch": forward_torch, "kernel": forward_numpy}
    op(name, operands=takes, infer=infer, vjp=vjp, **fields)
    back: dict[str, Any] = {"split": comparing_back, "local": averaged, "torch": back_torch, "kernel": back_numpy}
    op(backward, operands=f"t{takes}", infer=infer_back, vjp=differentiated(FORMULAS[name]), **back)


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
    result = spread(g, x, reduction) * (x - t) / ((1 - x) * x).clamp(min=1e-12)
    return result * weight[0].detach() if weight else result


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
    for name, values in (("input", x), ("target", t)):
        if not ((values >= 0) & (values <= 1)).all():  # this refuses NaN too
            raise ValueError(f"all elements of {name} should be between 0 and 1")
    result = (t - 1) * np.maximum(np.log1p(-x), -100) - t * np.maximum(np.log(x), -100)
    return result * weight[0] if weight else result


#: 1e-12 rounded to float32, as torch's is
_EPSILON = 9.999999960041972e-13


def _entropy_slope(np: Any, x: Any, t: Any, *weight: Any) -> Any:
    result = (x - t) / np.maximum((1 - x) * x, _EPSILON)
    return result * weight[0] if weight else result


def _entropy_target(dx: Any, g: Any, x: Any, t: Any, *weight: Any, reduction: str) -> Any:
    result = spread(g, x, reduction) * ((-x).log1p().clamp(min=-100) - x.log().clamp(min=-100))
    return result * weight[0].detach() if weight else result


def _smooth_value(np: Any, x: Any, t: Any, *, beta: float) -> Any:
    d = np.abs(x - t)
    return np.where(d < beta, 0.5 * d * d / beta if beta else 0, d - 0.5 * beta)


def _smooth_slope(np: Any, x: Any, t: Any, *, beta: float) -> Any:
    d = x - t
    return np.where(d <= -beta, -1, np.where(d >= beta, 1, d / beta if beta else d))


pairwise("mse_loss", lambda np, x, t: (x - t) ** 2, lambda np, x, t: 2 * (x - t), _opposite, autocast="float32")
pairwise("smooth_l1_loss", _smooth_value, _smooth_slope, _opposite, autocast="float32")
pairwise(
    "huber_loss",
    lambda np, x, t, *, delta: np.where(
        (d := np.abs(x - t)) <= delta, 0.5 * d * d, delta * (d - x.dtype.type(0.5 * delta))
    ),
    lambda np, x, t, *, delta: np.clip(x - t, -delta, delta),
    _opposite,
    autocast="float32",
)
pairwise("binary_cross_entropy", _entropy_numpy, _entropy_slope, _entropy_target)
pairwise(
    "soft_margin_loss",
    lambda np, x, t: np.log1p(np.exp(-t * x)),
    lambda np, x, t: -t * np.exp(-t * x) / (1 + np.exp(-t * x)),
    lambda *_, **attrs: None,
    autocast="float32",
)

# -- of logits -----------------------------------------------------------------------------


def _logits(
    x: TensorType,
    target: TensorType,
    *weights: TensorType,
    weight: bool,
    pos_weight: bool,
    reduction: str,
    whole: int | None = None,
) -> TensorType:
    check_flags(weight=weight, pos_weight=pos_weight)
    if len(weights) != weight + pos_weight:
        raise ShapeError(f"{len(weights)} operands for weight={weight}, pos_weight={pos_weight}")
    return _compared(x, target, *weights, reduction=reduction, whole=whole)


def _each(weights: Any, weight: bool, pos_weight: bool) -> tuple[Any, Any]:
    return weights[0] if weight else None, weights[-1] if pos_weight else None


def _logits_numpy(
    np: Any, x: Any, t: Any, *weights: Any, weight: bool, pos_weight: bool, reduction: str, whole: int | None = None
) -> Any:
    x, t, *rest = wide(np, x, t, *weights)
    w, pos = _each(rest, weight, pos_weight)
    soft = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
    each = (1 - t) * x + (1 + (pos - 1) * t if pos is not None else 1) * soft
    return _reduce_numpy(np, each * w if w is not None else each, reduction, whole)


def _logits_torch(
    torch: Any,
    x: Any,
    t: Any,
    *weights: Any,
    weight: bool,
    pos_weight: bool,
    reduction: str,
    whole: int | None = None,
) -> Any:
    w, pos = _each(weights, weight, pos_weight)
    call = torch.nn.functional.binary_cross_entropy_with_logits
    if whole is not None:
        return _share_torch(torch, call(x, t, w, pos_weight=pos, reduction="none"), whole)
    return call(x, t, w, pos_weight=pos, reduction=reduction)


def _logits_vjp(
    needs: Any, g: Any, _y: Any, x: Any, t: Any, *weights: Any, weight: bool, pos_weight: bool, reduction: str
) -> list[Any]:
    w, pos = _each([v.detach() for v in weights], weight, pos_weight)
    g = spread(g, x, reduction)
    g = g if w is None else g * w
    s = x.sigmoid()
    dx = (s - t if pos is None else s * (1 + (pos - 1) * t) - pos * t) * g
    dt = None
    if needs[1]:
        dt = -x * g if pos is None else -(x + (pos - 1) * _log_sigmoid(x)) * g
    return [dx, dt, *[None] * len(weights)]


def _log_sigmoid(x: Any) -> Any:
    return one("logsigmoid", x)


op(
    "binary_cross_entropy_with_logits",
    autocast="float32",
    operands="t{2,4}",
    infer=_logits,
    split=comparing,
    local=averaged,
    vjp=_logits_vjp,
    torch=_logits_torch,
    kernel=_logits_numpy,
)
