"""Losses, softmax and activations whose arguments are others than GT's, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, pointwise, scan
from gt.nn._distances import multilabel_margin_loss
from gt.nn._functional.sequences import ctc_loss
from gt.nn._losses import REDUCTIONS, binary_cross_entropy, binary_cross_entropy_with_logits, unify
from gt.nn.functional import logsigmoid, multi_margin_loss
from gt.ops import OPS, Attrs, Op
from gt.torch_device.gradients import gradients, present, pulled
from gt.types import DType, float32, int64

ENTROPY = OPS["binary_cross_entropy"]
NLL, NLL_BACKWARD = OPS["nll_loss"], OPS["nll_loss_backward"]
SOFTMAX, LOG_SOFTMAX = OPS["softmax_backward"], OPS["log_softmax_backward"]
LOG_SIGMOID_BACKWARD = OPS["log_sigmoid_backward"]
LEAKY_BACKWARD, ELU_BACKWARD = OPS["leaky_relu_backward"], OPS["elu_backward"]

# -- pairs of elements ---------------------------------------------------------------------


def _pair_loss(op: Op, *names: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The functions of a loss of pairs and of its gradient; ``names`` are its attributes after the reduction."""

    def forward(x: Tensor, target: Tensor, reduction: int = 1, *rest: Any) -> Tensor:
        return call(op, tuple(unify(op.name, [x, target])), _loss_attrs(reduction, names, rest))

    def backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, *rest: Any) -> Any:
        x, target = unify(op.name, [x, target])
        return gradients(op, (True, False), [grad], (x, target), _loss_attrs(reduction, names, rest))[0]

    return forward, backward


def _loss_attrs(reduction: int, names: tuple[str, ...], rest: tuple[Any, ...]) -> Attrs:
    given = (*rest, *(1.0,) * (len(names) - len(rest)))
    return (("reduction", REDUCTIONS[reduction]), *zip(names, map(float, given), strict=True))


def _entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    return binary_cross_entropy(x, target, weight, reduction=REDUCTIONS[reduction])


def _entropy_backward(grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Any:
    operands = unify(ENTROPY.name, [x, target, *present(weight)])
    needs = (True, *(False,) * (len(operands) - 1))
    return gradients(ENTROPY, needs, [grad], operands, (("reduction", REDUCTIONS[reduction]),))[0]


def _entropy_with_logits(
    x: Tensor, target: Tensor, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Tensor:
    return binary_cross_entropy_with_logits(x, target, weight, reduction=REDUCTIONS[reduction], pos_weight=pos_weight)


def _multi_margin(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    return multi_margin_loss(x, target, p, margin, weight, reduction=REDUCTIONS[reduction])


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return multilabel_margin_loss(x, target, reduction=REDUCTIONS[reduction])


def _multilabel_margin_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """(loss, 1 for each class that is a target)"""
    listed = scan.cumprod(cast(target >= 0, int64), -1)
    counts = creation.zeros(target._type.shape, dtype=int64).scatter_add(-1, target * listed, listed)
    return _multilabel_margin(x, target, reduction), cast(counts > 0, x._type.dtype)


def _multilabel_margin_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    return pulled(_multilabel_margin)(grad, x, target, reduction)


# -- classes -------------------------------------------------------------------------------


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    operands = (x, target, *present(weight))
    if REDUCTIONS[reduction] == "none":
        attrs = (("reduction", "none"), ("ignore_index", ignore_index))
        return call(NLL, operands, attrs), creation.zeros((), dtype=x._type.dtype)
    total, weights = call_many(NLL, operands, (("reduction", "sum"), ("ignore_index", ignore_index)))
    loss = total / weights if REDUCTIONS[reduction] == "mean" else total
    return cast(loss, x._type.dtype), cast(weights, x._type.dtype)


def _nll_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int, weights: Tensor
) -> Tensor:
    if REDUCTIONS[reduction] == "mean":
        grad = grad / weights
    kind = "none" if REDUCTIONS[reduction] == "none" else "sum"
    if kind == "sum" and x._type.dtype.itemsize < float32.itemsize:
        grad = cast(grad, float32)
    attrs = (("reduction", kind), ("ignore_index", ignore_index))
    return call(NLL_BACKWARD, (grad, x, target, *present(weight)), attrs)


# -- sequences -----------------------------------------------------------------------------


def _ctc(
    x: Tensor, targets: Tensor, times: Any, lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> tuple[Tensor, Tensor]:
    """(losses, what torch keeps for the gradient: nothing, because the gradient's rule runs the loss once more)"""
    losses = ctc_loss(x, targets, times, lengths, blank, "none", zero_infinity)
    return losses, creation.zeros(0, dtype=x._type.dtype)


def _ctc_backward(
    grad: Tensor, x: Tensor, targets: Tensor, times: Any, lengths: Any, losses: Tensor, kept: Tensor, blank: int,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    return pulled(ctc_loss)(grad, x, targets, times, lengths, blank, "none", zero_infinity)


# -- softmax -------------------------------------------------------------------------------


def _softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, dim, half_to_float: function(x, dim, dtype=float32 if half_to_float else None)


def _softmax_backward(op: Op) -> Callable[..., Tensor]:
    def backward(grad: Tensor, y: Tensor, dim: int, input_dtype: DType) -> Tensor:
        attrs = (("dim", dim % (y._type.ndim or 1)), ("dtype", None))
        return cast(call(op, (grad, y), attrs), input_dtype)

    return backward


def _safe_softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Softmax where a row of only -inf is zeros."""
    dead = (x == float("-inf")).all(dim, True)
    return pointwise.masked_fill(scan.softmax(x, dim, dtype=dtype), dead, 0.0)


# -- activations ---------------------------------------------------------------------------


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return logsigmoid(x), creation.zeros(0, dtype=x._type.dtype)


def _log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return call(LOG_SIGMOID_BACKWARD, (grad, x))


def _leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    return call(LEAKY_BACKWARD, (grad, x), (("negative_slope", float(slope)),))


def _elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Any:
    if is_result:  # of the result y of a negative x: y + alpha * scale is the slope
        return pointwise.where(x <= 0, grad * input_scale * (x + alpha * scale), grad * scale)
    attrs = (("alpha", float(alpha)), ("scale", float(scale)), ("input_scale", float(input_scale)))
    return call(ELU_BACKWARD, (grad, x), attrs)


def _prelu(x: Tensor, weight: Tensor) -> Any:
    return pointwise.where(x > 0, x, weight * x)


def _prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    positive = x > 0
    return pointwise.where(positive, grad, weight * grad), pointwise.where(positive, 0.0, x * grad)


def _logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    return gradients(OPS["logit"], (True,), [grad], (x,), (("eps", eps),))[0]  # type: ignore[return-value]


#: Losses of pairs of elements, and their attributes after the reduction.
PAIRS: dict[str, tuple[str, ...]] = {
    "mse_loss": (),
    "soft_margin_loss": (),
    "smooth_l1_loss": ("beta",),
    "huber_loss": ("delta",),
}
_PAIR_FUNCTIONS = {name: _pair_loss(OPS[name], *names) for name, names in PAIRS.items()}
#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    **{name: forward for name, (forward, _) in _PAIR_FUNCTIONS.items()},
    **{f"{name}_backward": backward for name, (_, backward) in _PAIR_FUNCTIONS.items()},
    "_ctc_loss": _ctc,
    "_ctc_loss_backward": _ctc_backward,
    "_log_softmax": _softmax(scan.log_softmax),
    "_log_softmax_backward_data": _softmax_backward(LOG_SOFTMAX),
    "_prelu_kernel": _prelu,
    "_prelu_kernel_backward": _prelu_backward,
    "_safe_softmax": _safe_softmax,
    "_softmax": _softmax(scan.softmax),
    "_softmax_backward_data": _softmax_backward(SOFTMAX),
    "binary_cross_entropy": _entropy,
    "binary_cross_entropy_backward": _entropy_backward,
    "binary_cross_entropy_with_logits": _entropy_with_logits,
    "elu_backward": _elu_backward,
    "multilabel_margin_loss_backward": _multilabel_margin_backward,
    "multilabel_margin_loss_forward": _multilabel_margin_forward,
    "multi_margin_loss": _multi_margin,
    "multi_margin_loss_backward": pulled(_multi_margin),
    "leaky_relu_backward": _leaky_relu_backward,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "log_sigmoid_forward": _log_sigmoid,
    "logit_backward": _logit_backward,
    "nll_loss2d_backward": _nll_backward,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss_forward": _nll,
}
