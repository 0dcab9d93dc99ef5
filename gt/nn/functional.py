"""``gt.nn.functional``: torch.nn.functional's names, signatures and defaults.

Each function is one op or a few; where torch has a kernel for a gradient, the op has it too.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor import random_state
from gt.client.tensor.arguments import a_tensor, cast, refuse, whole
from gt.client.tensor.emit import call, call_into, call_many
from gt.client.tensor.foreign import report_non_tensors
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, reduce, views
from gt.functions.composite import pdist
from gt.functions.rearrange import pad
from gt.missing import absent
from gt.nn import _activations, _distances, _losses, _spatial
from gt.nn._activations import *
from gt.nn._distances import *
from gt.nn._losses import *
from gt.nn._spatial import *
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import bool_

__all__ = [
    "alpha_dropout", "batch_norm", "bilinear", "dropout", "dropout1d", "dropout2d", "dropout3d", "embedding",
    "feature_alpha_dropout", "group_norm", "instance_norm", "layer_norm", "linear", "local_response_norm", "normalize",
    "one_hot", "pad", "pdist", "rms_norm", "scaled_dot_product_attention",
]  # fmt: skip
__all__ += _activations.__all__
__all__ += _distances.__all__
__all__ += _losses.__all__
__all__ += _spatial.__all__
__getattr__ = absent("nn.functional")

#: what rms_norm adds where nothing is said
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-23, "float16": 2.0**-23}


# -- with weights --------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x = input if isinstance(input, Tensor) else a_tensor("linear", input)
    return call(OPS["linear"], (x, weight) if bias is None else (x, weight, bias))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """For each of the outputs o: input1ᵀ · weight[o] · input2."""
    a, b, w = (a_tensor("bilinear", x) for x in (input1, input2, weight))
    lead, shape = a._type.shape[:-1], w._type.shape
    if w._type.ndim != 3 or b._type.shape[:-1] != lead or (a._type.shape[-1], b._type.shape[-1]) != shape[1:]:
        raise refuse(ShapeError, "the weight is [outputs, size of input1, size of input2]", "bilinear", a, b, w)
    rows = views.reshape(b, (prod(lead), shape[2]))
    right = linear(rows, views.reshape(w, (shape[0] * shape[1], shape[2])))
    parts = views.reshape(right, (prod(lead), shape[0], shape[1]))
    column = views.reshape(a, (prod(lead), shape[1], 1))
    made = views.reshape(parts @ column, (*lead, shape[0]))
    return made if bias is None else made + bias


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Gradients are dense, whatever ``sparse`` says."""
    index, w = a_tensor("embedding", input), a_tensor("embedding", weight)
    if max_norm is not None:
        _renormalise(w, index, float(max_norm), norm_type)
    rows = w._type.shape[0] if w._type.ndim else 0
    at = -1 if padding_idx is None else padding_idx
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise refuse(ShapeError, f"padding_idx is within the {rows} rows", "embedding", index, w, padding_idx)
    at = at % rows if padding_idx is not None and at < 0 else at
    return call(OPS["embedding"], (w, index), (("padding_idx", at), ("by_freq", scale_grad_by_freq)))


def _renormalise(w: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """The rows that are asked for are made no longer than ``max_norm``, in place, as torch does it."""
    with no_grad():
        asked = w.new_zeros(w._type.shape[0], dtype=bool_).index_fill(0, views.reshape(index, -1), True)
        lengths = reduce.norm(w, norm_type, 1)
        scale = pointwise.where(asked & (lengths > max_norm), max_norm / (lengths + 1e-7), 1.0)
        call_into(OPS["mul"], w, (views.unsqueeze(scale, 1),))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Without ``num_classes``, reads what the greatest is."""
    from gt.functions.creation import arange

    x = a_tensor("one_hot", tensor)
    if x._type.dtype.name != "int64":
        raise refuse(DTypeError, "one_hot is only applicable to index tensor of int64", "one_hot", x)
    if num_classes == -1:
        if not x._type.numel:
            raise refuse(ShapeError, "an empty tensor does not tell its classes", "one_hot", x)
        num_classes = int(reduce.amax(x).item()) + 1
    count = whole(num_classes, "one_hot(): num_classes is an int")
    return cast(pointwise.eq(views.unsqueeze(x, -1), arange(count)), x._type.dtype)


# -- at random -----------------------------------------------------------------------------


def _dropped(name: str, x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise refuse(ShapeError, f"dropout probability has to be between 0 and 1, but got {p}", name, x)
    if not training or p == 0:
        return x
    made = call_many(OPS["dropout"], (x, *random_state.key()), (("p", float(p)),))[0]
    return call_into(OPS["copy"], x, (made,)) if inplace else made


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """What stays depends on the seed and on how many random ops there were since, and on nothing else."""
    return _dropped("dropout", a_tensor("dropout", input), p, training, inplace)


def _dropped_channels(name: str, x: Tensor, p: float, training: bool, inplace: bool, batch: int) -> Tensor:
    """Whole channels at a time."""
    if not training or p == 0:
        return _dropped(name, x, p, training, inplace)
    lead = x._type.shape[:batch]
    ones = x.detach().new_ones((*lead, *(1,) * (x._type.ndim - batch)))
    made = x * _dropped(name, ones, p, True, False)
    return call_into(OPS["copy"], x, (made,)) if inplace else made


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if input._type.ndim not in (2, 3):
        raise refuse(ShapeError, "needs 2 or 3 dims", "dropout1d", input)
    return _dropped_channels("dropout1d", input, p, training, inplace, input._type.ndim - 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropped_channels("dropout2d", input, p, training, inplace, min(2, input._type.ndim))


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropped_channels("dropout3d", input, p, training, inplace, min(2, input._type.ndim))


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha(input, p, training, inplace, input._type.ndim)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha(input, p, training, inplace, min(2, input._type.ndim))


def _alpha(x: Tensor, p: float, training: bool, inplace: bool, batch: int) -> Tensor:
    """Dropout that keeps selu's mean and variance: what goes becomes the value selu ends at."""
    ones = x.detach().new_ones((*x._type.shape[:batch], *(1,) * (x._type.ndim - batch)))
    kept = _dropped("alpha_dropout", ones, p, training, False)
    if not training or p == 0:
        return x
    end = -_activations.ALPHA * _activations.SCALE
    stays = kept != 0
    a = 0.0 if p == 1 else 1 / sqrt((end * end * p + 1) * (1 - p))
    made = (pointwise.where(stays, x, end if p < 1 else 0.0)) * a - end * a * p
    return call_into(OPS["copy"], x, (made,)) if inplace else made


# -- normalisation -------------------------------------------------------------------------


def _affine(weight: Tensor | None, bias: Tensor | None) -> tuple[tuple[Tensor, ...], dict[str, bool]]:
    given = tuple(t for t in (weight, bias) if t is not None)
    return given, {"weight": weight is not None, "bias": bias is not None}


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    given, there = _affine(weight, bias)
    attrs = (("normalized_shape", tuple(normalized_shape)), *there.items(), ("eps", eps))
    return call_many(OPS["layer_norm"], (a_tensor("layer_norm", input), *given), attrs)[0]


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    x = a_tensor("rms_norm", input)
    small = EPSILON.get(x._type.dtype.name, 0.0) if eps is None else eps
    attrs = (("normalized_shape", tuple(normalized_shape)), ("eps", small))
    return call_many(OPS["rms_norm"], (x, *([] if weight is None else [weight])), attrs)[0]


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> Tensor:
    x = a_tensor("group_norm", input)
    given, there = _affine(weight, bias)
    return call_many(OPS["group_norm"], (x, *given), (("groups", num_groups), *there.items(), ("eps", eps)))[0]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """In training the running statistics are brought up to date, in place."""
    x = a_tensor("batch_norm", input)
    given, there = _affine(weight, bias)
    running = [] if running_mean is None or running_var is None else [running_mean, running_var]
    if x._type.ndim < 2 and not x._type.numel:  # nothing, of no channels
        return pointwise.clone(x)
    if not training:
        if not running:
            raise refuse(ShapeError, "needs running statistics when it is not training", "batch_norm", x)
        return call(OPS["batch_norm_inference"], (x, *running, *given), (*there.items(), ("eps", eps)))
    attrs = (*there.items(), ("eps", eps))
    if not running:
        return call_many(OPS["batch_norm"], (x, *given), attrs)[0]
    made = call_many(OPS["batch_norm_tracked"], (x, float(momentum), *running, *given), attrs)
    for old, new in zip(running, made[3:], strict=True):
        call_into(OPS["copy"], old, (new.detach(),))
    return made[0]


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """The batch and the channels as the channels of one batch: each example by itself."""
    x = a_tensor("instance_norm", input)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    n, c = x._type.shape[:2]
    if prod(x._type.shape[2:]) == 1:
        raise refuse(ShapeError, "needs more than one value a channel in training", "instance_norm", x)
    mean, var, w, b = (_a_copy_each(t, n) for t in (running_mean, running_var, weight, bias))
    seen = views.reshape(x, (1, n * c, *x._type.shape[2:]))
    made = batch_norm(seen, mean, var, w, b, True, momentum, eps)
    for old, new in ((running_mean, mean), (running_var, var)):
        if old is not None and new is not None:
            call_into(OPS["copy"], old, (reduce.mean(views.reshape(new, (n, c)), 0),))
    return views.reshape(made, x._type.shape)


def _a_copy_each(x: Tensor | None, n: int) -> Tensor | None:
    """What there is for a channel, for the channels of each example."""
    return None if x is None else views.reshape(views.expand(x, (n, *x._type.shape)), (n * x._type.numel,))


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    x = a_tensor("local_response_norm", input)
    if x._type.ndim < 3:
        raise refuse(ShapeError, "needs at least three dims", "local_response_norm", x)
    if not x._type.numel:
        return x
    n, c, *rest = x._type.shape
    squares = views.reshape(pointwise.square(x), (n, 1, c, prod(rest)))
    side = squares.detach().new_zeros((n, 1, size, prod(rest)))
    from gt.functions.rearrange import cat

    before, after = size // 2, (size - 1) // 2
    parts = [side[:, :, :before], squares, side[:, :, :after]]
    mean = _spatial.avg_pool2d(cat(parts, 2), (size, 1), stride=1)
    return x / pointwise.pow(views.reshape(mean, x._type.shape) * alpha + k, beta)


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    return pointwise.div(input, pointwise.clamp(reduce.norm(input, p, dim, True), min=eps))


# -- attention -----------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """A mask of bool says who may look at whom; one of numbers is added to the scores."""
    name = "scaled_dot_product_attention"
    q, k, v = (a_tensor(name, x) for x in (query, key, value))
    if is_causal and attn_mask is not None:
        raise refuse(ShapeError, "give either attn_mask or is_causal", name, q, k, v, attn_mask)
    if min(x._type.ndim for x in (q, k, v)) < 2:
        raise refuse(ShapeError, "needs at least two dims: positions and features", name, q, k, v)
    if enable_gqa:
        k, v = _repeated_heads(name, q, k), _repeated_heads(name, q, v)
    q, k, v = _in_one_batch(name, q, k, v)
    scale = 1 / sqrt(max(q._type.shape[-1], 1)) if scale is None else float(scale)
    if dropout_p or (attn_mask is not None and attn_mask._node is not None):
        return _plain_attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    given = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    return call_many(OPS["attention"], given, (("is_causal", is_causal), ("scale", scale)))[0]


def _repeated_heads(name: str, q: Tensor, x: Tensor) -> Tensor:
    """Grouped heads: each of the fewer is looked at by several of the query's, next to each other."""
    if q._type.ndim < 3 or x._type.ndim != q._type.ndim or q._type.shape[-3] % max(x._type.shape[-3], 1):
        raise refuse(ShapeError, "the heads of the query are a multiple of those of key and value", name, q, x)
    *lead, heads, n, e = x._type.shape
    times = q._type.shape[-3] // max(heads, 1)
    if times == 1:
        return x
    spread = views.expand(views.unsqueeze(x, -3), (*lead, heads, times, n, e))
    return views.reshape(spread, (*lead, heads * times, n, e))


def _in_one_batch(name: str, *xs: Tensor) -> list[Tensor]:
    try:
        lead = broadcast_shapes(*(x._type.shape[:-2] for x in xs))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), name, *xs) from None
    return [x if x._type.shape[:-2] == lead else views.expand(x, (*lead, *x._type.shape[-2:])) for x in xs]


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    """In plain ops, where the fused kernels do not do it: a mask that learns, dropout on the weights."""
    scores = (q @ k.mT) * scale
    if is_causal:
        mask = scores.detach().new_ones(scores._type.shape[-2:]).tril() != 0
    if mask is not None and mask._type.dtype is bool_:
        scores = pointwise.masked_fill(scores, pointwise.logical_not(mask), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return dropout(reduce.softmax(scores, -1), dropout_p) @ v


for _name in (*_distances.__all__, *_losses.__all__, *_spatial.__all__, "dropout", "softmax", "log_softmax"):
    globals()[_name] = report_non_tensors(globals()[_name])
