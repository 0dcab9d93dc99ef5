"""``gt.nn.functional``: torch.nn.functional's names, signatures and defaults.

Each function emits one op or a few. Where torch has a kernel for a gradient, the op has one too.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from gt.client.tensor import random_state
from gt.client.tensor.arguments import refuse, require_tensor
from gt.client.tensor.emit import call, call_into, call_many, detached
from gt.client.tensor.foreign import report_non_tensors
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import pointwise, reduce, scan, views
from gt.functions.composite import pdist
from gt.functions.joining import cat
from gt.functions.norm import norm
from gt.functions.windows import pad
from gt.missing import absent
from gt.nn import _activations, _distances, _losses, _spatial
from gt.nn._activations import *
from gt.nn._distances import *
from gt.nn._functional import embeddings, grids, sequences
from gt.nn._functional.embeddings import *
from gt.nn._functional.grids import *
from gt.nn._functional.sequences import *
from gt.nn._losses import *
from gt.nn._spatial import *
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import bool_

__all__ = [
    "alpha_dropout", "batch_norm", "bilinear", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout", "group_norm", "instance_norm", "layer_norm", "linear", "local_response_norm", "normalize",
    "pad", "pdist", "rms_norm", "scaled_dot_product_attention",
]  # fmt: skip
__all__ += _activations.__all__
__all__ += _distances.__all__
__all__ += embeddings.__all__
__all__ += grids.__all__
__all__ += sequences.__all__
__all__ += _losses.__all__
__all__ += _spatial.__all__
absent("nn.functional")

LINEAR, LAYER_NORM, BATCH_NORM = OPS["linear"], OPS["layer_norm"], OPS["batch_norm_tracked"]
ATTENTION, COPY = OPS["attention"], OPS["copy"]
#: The default eps of rms_norm, by dtype.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-23, "float16": 2.0**-23}


# -- with weights --------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias. See `torch.nn.functional.linear`."""
    x = input if isinstance(input, Tensor) else require_tensor("linear", input)
    return call(LINEAR, (x, weight) if bias is None else (x, weight, bias))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 @ weight[o] @ input2 for each output o. See `torch.nn.functional.bilinear`."""
    a, b, w = (require_tensor("bilinear", x) for x in (input1, input2, weight))
    lead, shape = a._type.shape[:-1], w._type.shape
    if w._type.ndim != 3 or b._type.shape[:-1] != lead or (a._type.shape[-1], b._type.shape[-1]) != shape[1:]:
        raise refuse(ShapeError, "the weight is [outputs, size of input1, size of input2]", "bilinear", a, b, w)
    rows = views.reshape(b, (prod(lead), shape[2]))
    right = linear(rows, views.reshape(w, (shape[0] * shape[1], shape[2])))
    rows = views.reshape(right, (prod(lead), shape[0], shape[1]))
    column = views.reshape(a, (prod(lead), shape[1], 1))
    output = views.reshape(rows @ column, (*lead, shape[0]))
    return output if bias is None else output + bias


# -- at random -----------------------------------------------------------------------------


def _drop(name: str, x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise refuse(ShapeError, f"dropout probability has to be between 0 and 1, but got {p}", name, x)
    if not training or p == 0:
        return x
    output = call_many(OPS["dropout"], (x, *random_state.key()), (("p", float(p)),))[0]
    return call_into(OPS["copy"], x, (output,)) if inplace else output


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Set elements to 0 with probability p, and scale the others by 1 / (1 - p).

    The choice depends only on the seed and on the number of random ops before. See `torch.nn.functional.dropout`.
    """
    return _drop("dropout", require_tensor("dropout", input), p, training, inplace)


def _drop_channels(name: str, x: Tensor, p: float, training: bool, inplace: bool, batch: int) -> Tensor:
    """Dropout of whole channels."""
    if not training or p == 0:
        return _drop(name, x, p, training, inplace)
    lead = x._type.shape[:batch]
    ones = x.detach().new_ones((*lead, *(1,) * (x._type.ndim - batch)))
    output = x * _drop(name, ones, p, True, False)
    return call_into(OPS["copy"], x, (output,)) if inplace else output


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of sequences. See `torch.nn.functional.dropout1d`."""
    if input._type.ndim not in (2, 3):
        raise refuse(ShapeError, "needs 2 or 3 dims", "dropout1d", input)
    return _drop_channels("dropout1d", input, p, training, inplace, input._type.ndim - 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of images. See `torch.nn.functional.dropout2d`."""
    return _drop_channels("dropout2d", input, p, training, inplace, min(2, input._type.ndim))


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of volumes. See `torch.nn.functional.dropout3d`."""
    return _drop_channels("dropout3d", input, p, training, inplace, min(2, input._type.ndim))


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps the mean and variance of selu. See `torch.nn.functional.alpha_dropout`."""
    return _alpha_drop(input, p, training, inplace, input._type.ndim)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Alpha dropout of whole channels. See `torch.nn.functional.feature_alpha_dropout`."""
    return _alpha_drop(input, p, training, inplace, min(2, input._type.ndim))


def _alpha_drop(x: Tensor, p: float, training: bool, inplace: bool, batch: int) -> Tensor:
    """Dropout that keeps the mean and variance of selu: dropped elements become the limit of selu at -inf."""
    ones = x.detach().new_ones((*x._type.shape[:batch], *(1,) * (x._type.ndim - batch)))
    kept = _drop("alpha_dropout", ones, p, training, False)
    if not training or p == 0:
        return x
    limit = -_activations.ALPHA * _activations.SCALE
    stays = kept != 0
    a = 0.0 if p == 1 else 1 / sqrt((limit * limit * p + 1) * (1 - p))
    output = (pointwise.where(stays, x, limit if p < 1 else 0.0)) * a - limit * a * p
    return call_into(OPS["copy"], x, (output,)) if inplace else output


# -- normalisation -------------------------------------------------------------------------


def _affine_operands(weight: Tensor | None, bias: Tensor | None) -> tuple[tuple[Tensor, ...], dict[str, bool]]:
    tensors = tuple([t for t in (weight, bias) if t is not None])
    return tensors, {"weight": weight is not None, "bias": bias is not None}


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Normalise the last dims to mean 0 and variance 1. See `torch.nn.functional.layer_norm`."""
    x = input if isinstance(input, Tensor) else require_tensor("layer_norm", input)
    has_weight, has_bias = weight is not None, bias is not None
    attrs = (("normalized_shape", tuple(normalized_shape)), ("weight", has_weight), ("bias", has_bias), ("eps", eps))
    affine = (weight, bias) if has_weight and has_bias else _affine_operands(weight, bias)[0]
    return call_many(LAYER_NORM, (x, *affine), attrs)[0]


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divide the last dims by their root mean square. See `torch.nn.functional.rms_norm`."""
    x = require_tensor("rms_norm", input)
    eps = EPSILON.get(x._type.dtype.name, 0.0) if eps is None else eps
    attrs = (("normalized_shape", tuple(normalized_shape)), ("eps", eps))
    return call_many(OPS["rms_norm"], (x, *([] if weight is None else [weight])), attrs)[0]


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> Tensor:
    """Normalise groups of channels of each example. See `torch.nn.functional.group_norm`."""
    x = require_tensor("group_norm", input)
    affine, flags = _affine_operands(weight, bias)
    return call_many(OPS["group_norm"], (x, *affine), (("groups", num_groups), *flags.items(), ("eps", eps)))[0]


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
    """Normalise each channel over a batch.

    In training the running statistics are updated in place. See `torch.nn.functional.batch_norm`.
    """
    x = require_tensor("batch_norm", input)
    affine, flags = _affine_operands(weight, bias)
    running = () if running_mean is None or running_var is None else (running_mean, running_var)
    if x._type.ndim < 2 and not x._type.numel:  # empty, without a dim of channels
        return pointwise.clone(x)
    if not training:
        if not running:
            raise refuse(ShapeError, "needs running statistics when it is not training", "batch_norm", x)
        return call(OPS["batch_norm_inference"], (x, *running, *affine), (*flags.items(), ("eps", eps)))
    attrs = (*flags.items(), ("eps", eps))
    if not running:
        return call_many(OPS["batch_norm"], (x, *affine), attrs)[0]
    results = call_many(BATCH_NORM, (x, float(momentum), *running, *affine), attrs)
    for old, new in zip(running, results[3:], strict=True):
        call_into(COPY, old, (detached(new),))
    return results[0]


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
    """Normalise each channel of each example. See `torch.nn.functional.instance_norm`."""
    x = require_tensor("instance_norm", input)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    n, c = x._type.shape[:2]
    if prod(x._type.shape[2:]) == 1:
        raise refuse(ShapeError, "needs more than one value per channel in training", "instance_norm", x)
    mean, var, w, b = (_repeat_per_example(t, n) for t in (running_mean, running_var, weight, bias))
    # the channels of all examples, as the channels of one example
    merged = views.reshape(x, (1, n * c, *x._type.shape[2:]))
    output = batch_norm(merged, mean, var, w, b, True, momentum, eps)
    for old, new in ((running_mean, mean), (running_var, var)):
        if old is not None and new is not None:
            call_into(OPS["copy"], old, (reduce.mean(views.reshape(new, (n, c)), 0),))
    return views.reshape(output, x._type.shape)


def _repeat_per_example(x: Tensor | None, n: int) -> Tensor | None:
    """Per-channel values, repeated for each example."""
    return None if x is None else views.reshape(views.expand(x, (n, *x._type.shape)), (n * x._type.numel,))


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide each element by a power of the mean square of the neighbouring channels."""
    x = require_tensor("local_response_norm", input)
    if x._type.ndim < 3:
        raise refuse(ShapeError, "needs at least three dims", "local_response_norm", x)
    if not x._type.numel:
        return x
    n, c, *rest = x._type.shape
    squares = views.reshape(pointwise.square(x), (n, 1, c, prod(rest)))
    zeros = squares.detach().new_zeros((n, 1, size, prod(rest)))
    before, after = size // 2, (size - 1) // 2
    padded = [zeros[:, :, :before], squares, zeros[:, :, :after]]
    mean = _spatial.avg_pool2d(cat(padded, 2), (size, 1), stride=1)
    return x / pointwise.pow(views.reshape(mean, x._type.shape) * alpha + k, beta)


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along a dim by their norm. See `torch.nn.functional.normalize`."""
    return pointwise.div(input, pointwise.clamp(norm(input, p, dim, True), min=eps))


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
    """softmax(query @ key.T * scale) @ value.

    A mask of bools is true where a query may attend; a mask of numbers is added to the scores.
    See `torch.nn.functional.scaled_dot_product_attention`.
    """
    name = "scaled_dot_product_attention"
    q, k, v = [x if isinstance(x, Tensor) else require_tensor(name, x) for x in (query, key, value)]
    if is_causal and attn_mask is not None:
        raise refuse(ShapeError, "give either attn_mask or is_causal", name, q, k, v, attn_mask)
    if min(q._type.ndim, k._type.ndim, v._type.ndim) < 2:
        raise refuse(ShapeError, "needs at least two dims: positions and features", name, q, k, v)
    if enable_gqa:
        k, v = _repeat_heads(name, q, k), _repeat_heads(name, q, v)
    if not q._type.shape[:-2] == k._type.shape[:-2] == v._type.shape[:-2]:
        q, k, v = _broadcast_batches(name, q, k, v)
    scale = 1 / sqrt(max(q._type.shape[-1], 1)) if scale is None else float(scale)
    if dropout_p or (attn_mask is not None and attn_mask._node is not None):
        return _plain_attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    operands = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    return call_many(ATTENTION, operands, (("is_causal", is_causal), ("scale", scale)))[0]


def _repeat_heads(name: str, q: Tensor, x: Tensor) -> Tensor:
    """Grouped heads: each head of key or value serves several neighbouring heads of the query."""
    if q._type.ndim < 3 or x._type.ndim != q._type.ndim or q._type.shape[-3] % max(x._type.shape[-3], 1):
        raise refuse(ShapeError, "the heads of the query are a multiple of those of key and value", name, q, x)
    *lead, heads, n, e = x._type.shape
    times = q._type.shape[-3] // max(heads, 1)
    if times == 1:
        return x
    spread = views.expand(views.unsqueeze(x, -3), (*lead, heads, times, n, e))
    return views.reshape(spread, (*lead, heads * times, n, e))


def _broadcast_batches(name: str, *xs: Tensor) -> list[Tensor]:
    try:
        lead = broadcast_shapes(*(x._type.shape[:-2] for x in xs))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), name, *xs) from None
    return [x if x._type.shape[:-2] == lead else views.expand(x, (*lead, *x._type.shape[-2:])) for x in xs]


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    """Attention in plain ops, for what the fused kernels lack: a mask with a gradient, and dropout."""
    scores = (q @ k.mT) * scale
    if is_causal:
        mask = scores.detach().new_ones(scores._type.shape[-2:]).tril() != 0
    if mask is not None and mask._type.dtype is bool_:
        scores = pointwise.masked_fill(scores, pointwise.logical_not(mask), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return dropout(scan.softmax(scores, -1), dropout_p) @ v


_checked = (dropout.__name__, softmax.__name__, log_softmax.__name__, embedding_bag.__name__)
for _name in (*_distances.__all__, *_losses.__all__, *_spatial.__all__, *grids.__all__, *sequences.__all__, *_checked):
    globals()[_name] = report_non_tensors(globals()[_name], __name__)
