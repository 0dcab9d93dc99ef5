"""``gt.nn.functional``: losses."""

from __future__ import annotations

import warnings
from math import log, pi
from typing import Any

from gt.client.tensor import emit
from gt.client.tensor.arguments import a_tensor, cast, refuse
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, scan, views
from gt.functions import reduce as reductions
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import result_dtype

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "gaussian_nll_loss", "huber_loss",
    "kl_div", "l1_loss", "mse_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss",
]  # fmt: skip

REDUCTIONS = ("none", "mean", "sum")


def chosen(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> str:
    """torch's old arguments, if they are given, and else its new one."""
    if size_average is not None or reduce is not None:
        text = "size_average and reduce args will be deprecated, please use reduction={!r} instead."
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
        warnings.warn(text.format(reduction), UserWarning, stacklevel=3)
    if reduction not in REDUCTIONS:
        raise ShapeError(f"{reduction} is not a valid value for reduction; it is none, mean or sum")
    return reduction


def reduced(x: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x
    return reductions.mean(x) if reduction == "mean" else reductions.sum(x)


def _same(name: str, *given: Any) -> list[Tensor]:
    """All in one shape and dtype; torch warns if the first two differ in size."""
    xs = [a_tensor(name, x) for x in given]
    if xs[0]._type.shape != xs[1]._type.shape:
        sizes = [tuple(x._type.shape) for x in xs[:2]]
        warnings.warn(
            f"Using a target size ({sizes[1]}) that is different to the input size ({sizes[0]}). "
            "This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            UserWarning,
            stacklevel=4,
        )
    return met(name, xs)


def met(name: str, xs: list[Tensor]) -> list[Tensor]:
    try:
        shape = broadcast_shapes(*(x._type.shape for x in xs))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), name, *xs) from None
    dtype = result_dtype(*(x._type for x in xs))
    return [views.expand(y, shape) if y._type.shape != shape else y for y in (cast(x, dtype) for x in xs)]


def _pairwise(name: str, input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, **attrs: Any) -> Tensor:
    x, t = _same(name, input, target)
    given = (("reduction", reduction if weight is None else "none"), *attrs.items())
    made = call(OPS[name], (x, t), given)
    if weight is None:
        return made
    weighted = made * weight
    return weighted.sum() / weight.sum() if reduction == "mean" else reduced(weighted, reduction)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    return _pairwise("mse_loss", input, target, weight, chosen(reduction, size_average, reduce))


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    x, t = _same("l1_loss", input, target)
    each = pointwise.abs(x - t)
    if weight is None:
        return reduced(each, reduction)
    weighted = each * weight
    return weighted.sum() / weight.sum() if reduction == "mean" else reduced(weighted, reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    if beta < 0:
        raise refuse(ShapeError, "beta is not negative", "smooth_l1_loss", input, target, beta=beta)
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    return _pairwise("smooth_l1_loss", input, target, None, reduction, beta=float(beta))


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    if delta <= 0:
        raise refuse(ShapeError, "delta is greater than 0", "huber_loss", input, target, delta=delta)
    return _pairwise("huber_loss", input, target, weight, chosen(reduction), delta=float(delta))


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    x, t = met("soft_margin_loss", [input, target])
    return call(OPS["soft_margin_loss"], (x, t), (("reduction", chosen(reduction, size_average, reduce)),))


# -- of probabilities ----------------------------------------------------------------------


def _equal_sizes(name: str, input: Tensor, target: Tensor) -> None:
    if input._type.shape != target._type.shape:
        raise refuse(ShapeError, "target and input have the same size", name, input, target)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    _equal_sizes("binary_cross_entropy", input, target)
    if target._type.dtype is not input._type.dtype:
        raise refuse(DTypeError, "target and input have the same dtype", "binary_cross_entropy", input, target)
    reduction = chosen(reduction, size_average, reduce)
    xs = met("binary_cross_entropy", [input, target, *([] if weight is None else [weight])])
    return call(OPS["binary_cross_entropy"], tuple(xs), (("reduction", reduction),))


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    name = "binary_cross_entropy_with_logits"
    _equal_sizes(name, input, target)
    if target._type.dtype.kind != "f":
        raise refuse(DTypeError, "the target is floating; use target.float()", name, input, target)
    reduction = chosen(reduction, size_average, reduce)
    xs = met(name, [input, target, *(w for w in (weight, pos_weight) if w is not None)])
    attrs = (("weight", weight is not None), ("pos_weight", pos_weight is not None), ("reduction", reduction))
    return call(OPS[name], tuple(xs), attrs)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    if (
        "f" not in (input._type.dtype.kind, target._type.dtype.kind)
        or target._type.dtype.kind != input._type.dtype.kind
    ):
        raise refuse(DTypeError, "both are floating", "kl_div", input, target)
    batch = reduction == "batchmean"
    reduction = chosen("sum" if batch else reduction, size_average, reduce)
    if log_target:
        each = pointwise.exp(target) * (target - input)
    else:
        each = call(OPS["xlogy"], (target, target)) - target * input
    made = reduced(each, reduction)
    return made / input._type.shape[0] if batch and input._type.ndim else made


# -- of classes ----------------------------------------------------------------------------


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    given = (a_tensor("nll_loss", input), a_tensor("nll_loss", target), *([] if weight is None else [weight]))
    if emit.casting is not None:  # here, so that the result has the dtype it is computed in
        given, _ = emit.casting(OPS["nll_loss"], given, ())
    if reduction == "none":
        return call_many(OPS["nll_loss"], given, (("reduction", "none"), ("ignore_index", ignore_index)))[0]
    # the sum and its divisor apart: a batch may be cut across workers, and only then is there one of each
    made, total = call_many(OPS["nll_loss"], given, (("reduction", "sum"), ("ignore_index", ignore_index)))
    made = made / total.detach() if reduction == "mean" else made
    return made if made._type.dtype is given[0]._type.dtype else made.to(given[0]._type.dtype)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The target holds class numbers, or, in the input's own shape, probabilities."""
    x, t = a_tensor("cross_entropy", input), a_tensor("cross_entropy", target)
    reduction = chosen(reduction, size_average, reduce)
    if not 0 <= label_smoothing <= 1:
        raise refuse(ShapeError, "label_smoothing is between 0 and 1", "cross_entropy", x, t)
    if not x._type.ndim:
        raise refuse(ShapeError, "needs a dim of classes", "cross_entropy", x, t)
    dim = 1 if x._type.ndim > 1 else 0
    logs = scan.log_softmax(x, dim, x._type.dtype)  # a dtype that is asked for: autocast leaves it alone
    if x._type.shape == t._type.shape:
        if t._type.dtype.kind != "f":
            raise refuse(DTypeError, "probabilities as a target are floating", "cross_entropy", x, t)
        return _of_probabilities(logs, t, weight, reduction, label_smoothing, dim)
    made = nll_loss(logs, t, weight, ignore_index=ignore_index, reduction=reduction)
    if not label_smoothing:
        return made
    smooth = _smooth(logs, t, weight, ignore_index, reduction, dim)
    return made * (1 - label_smoothing) + smooth * (label_smoothing / x._type.shape[dim])


def _by_class(weight: Tensor, ndim: int, dim: int) -> Tensor:
    return views.reshape(weight, [-1 if d == dim else 1 for d in range(ndim)])


def _of_probabilities(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int
) -> Tensor:
    classes = logs._type.shape[dim]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    each = logs * target
    if weight is not None:
        each = each * _by_class(weight, logs._type.ndim, dim)
    if reduction == "none":
        return -reductions.sum(each, dim)
    total = -reductions.sum(each)
    return total / (logs._type.numel // max(classes, 1)) if reduction == "mean" and logs._type.numel else total


def _smooth(logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, dim: int) -> Tensor:
    """What each class has to say, whatever the target."""
    each = -reductions.sum(logs if weight is None else logs * _by_class(weight, logs._type.ndim, dim), dim)
    ignored = pointwise.eq(target, ignore_index)
    each = pointwise.masked_fill(each, ignored, 0.0)
    if reduction != "mean":
        return reduced(each, reduction)
    counts = pointwise.logical_not(ignored)
    if weight is None:
        return reductions.sum(each) / reductions.sum(counts)
    picked = weight[pointwise.masked_fill(target, ignored, 0)]
    return reductions.sum(each) / reductions.sum(picked * counts)


# -- of distributions with parameters ------------------------------------------------------


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    if not isinstance(var, Tensor):
        var = pointwise.mul(input.detach(), 0) + var
    if var._type.dtype.kind != "f":
        raise refuse(DTypeError, "var is floating", "gaussian_nll_loss", input, target, var)
    shape = input._type.shape
    if var._type.shape not in (shape, shape[:-1], (*shape[:-1], 1)):
        raise refuse(ShapeError, "var is of incorrect size", "gaussian_nll_loss", input, target, var)
    if var._type.shape == shape[:-1] and var._type.shape != shape:
        var = views.unsqueeze(var, -1)
    reduction = chosen(reduction)
    fixed = var.detach()
    variance: Tensor = var + (fixed.clamp(min=eps) - fixed)  # in torch, the limit has no effect on the gradient
    made = (pointwise.log(variance) + pointwise.square(input - target) / variance) * 0.5
    if full:
        made = made + 0.5 * log(2 * pi)
    return reduced(made, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    made = pointwise.exp(input) - target * input if log_input else input - target * pointwise.log(input + eps)
    if full:
        stirling = target * pointwise.log(target) - target + pointwise.log(target * (2 * pi)) * 0.5
        made = made + pointwise.masked_fill(stirling, target <= 1, 0)
    return reduced(made, reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    logs = [call(OPS["logsigmoid"], (x,)) for x in (input, -input)]
    each = -(target * logs[0] + (1 - target) * logs[1])
    each = each if weight is None else each * weight
    return reduced(reductions.sum(each, -1) / input._type.shape[-1], reduction)
