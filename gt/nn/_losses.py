"""``gt.nn.functional``: losses."""

from __future__ import annotations

import warnings
from math import log, pi
from typing import Any

from gt.client.tensor import emit
from gt.client.tensor.arguments import cast, refuse, require_tensor
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, scan, views
from gt.functions import reduce as reductions
from gt.ops import OPS, Attrs
from gt.ops.infer import broadcast_shapes
from gt.types import DTYPES, result_dtype

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "gaussian_nll_loss", "huber_loss",
    "kl_div", "l1_loss", "mse_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss",
]  # fmt: skip

REDUCTIONS = ("none", "mean", "sum")


def choose_reduction(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> str:
    """The reduction: from torch's deprecated arguments unless both are None, else from ``reduction``."""
    if size_average is not None or reduce is not None:
        text = "size_average and reduce args will be deprecated, please use reduction={!r} instead."
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
        warnings.warn(text.format(reduction), UserWarning, stacklevel=3)
    if reduction not in REDUCTIONS:
        raise ShapeError(f"{reduction} is not a valid value for reduction; it is none, mean or sum")
    return reduction


def reduce_loss(x: Tensor, reduction: str) -> Tensor:
    """The elements themselves, their mean, or their sum."""
    if reduction == "none":
        return x
    return reductions.mean(x) if reduction == "mean" else reductions.sum(x)


def _broadcast_pair(name: str, *tensors: Any) -> list[Tensor]:
    """Input, target and weights in one shape and dtype; warns as torch does if the first two differ in size."""
    xs = [require_tensor(name, x) for x in tensors]
    if xs[0]._type.shape != xs[1]._type.shape:
        sizes = [tuple(x._type.shape) for x in xs[:2]]
        warnings.warn(
            f"Using a target size ({sizes[1]}) that is different to the input size ({sizes[0]}). "
            "This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            UserWarning,
            stacklevel=4,
        )
    return unify(name, xs)


def unify(name: str, xs: list[Tensor]) -> list[Tensor]:
    """The tensors in one shape and dtype, by torch's rules of broadcasting and promotion."""
    try:
        shape = broadcast_shapes(*(x._type.shape for x in xs))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), name, *xs) from None
    dtype = result_dtype(*(x._type for x in xs))
    return [views.expand(y, shape) if y._type.shape != shape else y for y in (cast(x, dtype) for x in xs)]


def _pairwise(name: str, input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, **attrs: Any) -> Tensor:
    """A loss of pairs of elements, computed by the op of this name; with weights the mean is a weighted one."""
    x, t = _broadcast_pair(name, input, target)
    loss = call(OPS[name], (x, t), (("reduction", reduction if weight is None else "none"), *attrs.items()))
    if weight is None:
        return loss
    weighted = loss * weight
    return weighted.sum() / weight.sum() if reduction == "mean" else reduce_loss(weighted, reduction)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The squared difference of input and target, averaged. See `torch.nn.functional.mse_loss`."""
    return _pairwise("mse_loss", input, target, weight, choose_reduction(reduction, size_average, reduce))


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """The absolute difference of input and target, averaged. See `torch.nn.functional.l1_loss`."""
    reduction = choose_reduction(reduction, size_average, reduce)
    x, t = _broadcast_pair("l1_loss", input, target)
    each = pointwise.abs(x - t)
    if weight is None:
        return reduce_loss(each, reduction)
    weighted = each * weight
    return weighted.sum() / weight.sum() if reduction == "mean" else reduce_loss(weighted, reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """A squared difference below beta and an absolute one above, averaged. See `torch.nn.functional.smooth_l1_loss`."""
    reduction = choose_reduction(reduction, size_average, reduce)
    if beta < 0:
        raise refuse(ShapeError, "beta must not be negative", "smooth_l1_loss", input, target, beta=beta)
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    return _pairwise("smooth_l1_loss", input, target, None, reduction, beta=float(beta))


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """A squared difference below delta and an absolute one above, averaged. See `torch.nn.functional.huber_loss`."""
    if delta <= 0:
        raise refuse(ShapeError, "delta must be greater than 0", "huber_loss", input, target, delta=delta)
    return _pairwise("huber_loss", input, target, weight, choose_reduction(reduction), delta=float(delta))


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input)), averaged. See `torch.nn.functional.soft_margin_loss`."""
    x, t = unify("soft_margin_loss", [input, target])
    return call(OPS["soft_margin_loss"], (x, t), (("reduction", choose_reduction(reduction, size_average, reduce)),))


# -- losses of probabilities ----------------------------------------------------------------------


def _check_same_size(name: str, input: Tensor, target: Tensor) -> None:
    if input._type.shape != target._type.shape:
        raise refuse(ShapeError, "target and input must have the same size", name, input, target)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of two classes, from probabilities. See `torch.nn.functional.binary_cross_entropy`."""
    _check_same_size("binary_cross_entropy", input, target)
    if target._type.dtype is not input._type.dtype:
        raise refuse(DTypeError, "target and input must have the same dtype", "binary_cross_entropy", input, target)
    reduction = choose_reduction(reduction, size_average, reduce)
    xs = unify("binary_cross_entropy", [input, target, *([] if weight is None else [weight])])
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
    """The cross entropy of two classes, from logits."""
    name = "binary_cross_entropy_with_logits"
    _check_same_size(name, input, target)
    if target._type.dtype.kind != "f":
        raise refuse(DTypeError, "the target must be floating; use target.float()", name, input, target)
    reduction = choose_reduction(reduction, size_average, reduce)
    xs = unify(name, [input, target, *(w for w in (weight, pos_weight) if w is not None)])
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
    """The Kullback-Leibler divergence of the target from the input, which holds log probabilities."""
    if (
        "f" not in (input._type.dtype.kind, target._type.dtype.kind)
        or target._type.dtype.kind != input._type.dtype.kind
    ):
        raise refuse(DTypeError, "both must be floating", "kl_div", input, target)
    batch = reduction == "batchmean"
    reduction = choose_reduction("sum" if batch else reduction, size_average, reduce)
    if log_target:
        each = pointwise.exp(target) * (target - input)
    else:
        each = call(OPS["xlogy"], (target, target)) - target * input
    loss = reduce_loss(each, reduction)
    return loss / input._type.shape[0] if batch and input._type.ndim else loss


# -- losses of classes ----------------------------------------------------------------------------


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The negative log likelihood of classes, from log probabilities. See `torch.nn.functional.nll_loss`."""
    reduction = choose_reduction(reduction, size_average, reduce)
    operands = (
        require_tensor("nll_loss", input),
        require_tensor("nll_loss", target),
        *([] if weight is None else [weight]),
    )
    if emit.casting is not None:  # cast here, so that the result has the dtype of the computation
        operands = emit.casting(OPS["nll_loss"], operands, ())[0]
    if reduction == "none":
        return call_many(OPS["nll_loss"], operands, (("reduction", "none"), ("ignore_index", ignore_index)))[0]
    # the sum and its divisor are separate results: if the batch is sharded, each is summed over the workers first
    loss, total = call_many(OPS["nll_loss"], operands, (("reduction", "sum"), ("ignore_index", ignore_index)))
    loss = loss / total.detach() if reduction == "mean" else loss
    return loss if loss._type.dtype is operands[0]._type.dtype else loss.to(operands[0]._type.dtype)


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
    """The cross entropy of logits and a target: class numbers, or probabilities in the input's shape."""
    x, t = require_tensor("cross_entropy", input), require_tensor("cross_entropy", target)
    reduction = choose_reduction(reduction, size_average, reduce)
    if not 0 <= label_smoothing <= 1:
        raise refuse(ShapeError, "label_smoothing must be between 0 and 1", "cross_entropy", x, t)
    if not x._type.ndim:
        raise refuse(ShapeError, "needs a dim of classes", "cross_entropy", x, t)
    dim = 1 if x._type.ndim > 1 else 0
    if x._type.ndim == 2 and t._type.ndim == 1 and weight is None and not label_smoothing:
        return _cross_entropy_of_rows(x, t, ignore_index, reduction)
    logs = scan.log_softmax(x, dim, x._type.dtype)  # autocast does not change an explicit dtype
    if x._type.shape == t._type.shape:
        if t._type.dtype.kind != "f":
            raise refuse(DTypeError, "a target of probabilities must be floating", "cross_entropy", x, t)
        return _cross_entropy_of_probabilities(logs, t, weight, reduction, label_smoothing, dim)
    loss = nll_loss(logs, t, weight, ignore_index=ignore_index, reduction=reduction)
    if not label_smoothing:
        return loss
    smooth = _smoothing_loss(logs, t, weight, ignore_index, reduction, dim)
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / x._type.shape[dim])


def _cross_entropy_of_rows(x: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """For rows of logits and class numbers: log_softmax and nll_loss in one instruction."""
    how = "none" if reduction == "none" else "sum"
    attrs: Attrs = (("reduction", how), ("ignore_index", ignore_index), ("dtype", None))
    if emit.casting is not None:  # here, to know the dtype of the result
        attrs = emit.casting(OPS["cross_entropy"], (x, target), attrs)[1]
    loss, *total = call_many(OPS["cross_entropy"], (x, target), attrs)
    if reduction == "none":
        return loss
    loss = loss / total[0].detach() if reduction == "mean" else loss
    dtype = x._type.dtype if attrs[2][1] is None else DTYPES[attrs[2][1]]
    return loss if loss._type.dtype is dtype else loss.to(dtype)


def _per_class(weight: Tensor, ndim: int, dim: int) -> Tensor:
    return views.reshape(weight, [-1 if d == dim else 1 for d in range(ndim)])


def _cross_entropy_of_probabilities(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int
) -> Tensor:
    classes = logs._type.shape[dim]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    each = logs * target
    if weight is not None:
        each = each * _per_class(weight, logs._type.ndim, dim)
    if reduction == "none":
        return -reductions.sum(each, dim)
    total = -reductions.sum(each)
    return total / (logs._type.numel // max(classes, 1)) if reduction == "mean" and logs._type.numel else total


def _smoothing_loss(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, dim: int
) -> Tensor:
    """The part of the loss that label smoothing adds: the mean over all classes, whatever the target."""
    each = -reductions.sum(logs if weight is None else logs * _per_class(weight, logs._type.ndim, dim), dim)
    ignored = pointwise.eq(target, ignore_index)
    each = pointwise.masked_fill(each, ignored, 0.0)
    if reduction != "mean":
        return reduce_loss(each, reduction)
    counts = pointwise.logical_not(ignored)
    if weight is None:
        return reductions.sum(each) / reductions.sum(counts)
    picked = weight[pointwise.masked_fill(target, ignored, 0)]
    return reductions.sum(each) / reductions.sum(picked * counts)


# -- likelihoods ------------------------------------------------------


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The negative log likelihood of a target under normal distributions of this mean and variance."""
    if not isinstance(var, Tensor):
        var = pointwise.mul(input.detach(), 0) + var
    if var._type.dtype.kind != "f":
        raise refuse(DTypeError, "var must be floating", "gaussian_nll_loss", input, target, var)
    shape = input._type.shape
    if var._type.shape not in (shape, shape[:-1], (*shape[:-1], 1)):
        raise refuse(ShapeError, "var is of incorrect size", "gaussian_nll_loss", input, target, var)
    if var._type.shape == shape[:-1] and var._type.shape != shape:
        var = views.unsqueeze(var, -1)
    reduction = choose_reduction(reduction)
    fixed = var.detach()
    variance: Tensor = var + (fixed.clamp(min=eps) - fixed)  # as in torch, the gradient ignores the clamp
    each = (pointwise.log(variance) + pointwise.square(input - target) / variance) * 0.5
    if full:
        each = each + 0.5 * log(2 * pi)
    return reduce_loss(each, reduction)


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
    """The negative log likelihood of counts under Poisson distributions."""
    reduction = choose_reduction(reduction, size_average, reduce)
    each = pointwise.exp(input) - target * input if log_input else input - target * pointwise.log(input + eps)
    if full:
        stirling = target * pointwise.log(target) - target + pointwise.log(target * (2 * pi)) * 0.5
        each = each + pointwise.masked_fill(stirling, target <= 1, 0)
    return reduce_loss(each, reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of several independent classes, from logits."""
    reduction = choose_reduction(reduction, size_average, reduce)
    logs = [call(OPS["logsigmoid"], (x,)) for x in (input, -input)]
    each = -(target * logs[0] + (1 - target) * logs[1])
    each = each if weight is None else each * weight
    return reduce_loss(reductions.sum(each, -1) / input._type.shape[-1], reduction)
