"""Activations: functions of `gt.nn.functional`. torch has some of them at its top level too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import normalize_dim, refuse, require_tensor
from gt.client.tensor.emit import call, call_into, unary
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import draw, pointwise, views
from gt.functions.derive import documented
from gt.ops import OPS, Op

#: those that torch has at its top level too
__all__ = [
    "celu", "celu_", "hardshrink", "prelu", "relu_", "rrelu", "selu", "selu_", "threshold", "threshold_",
]  # fmt: skip

Function = Callable[..., Tensor]

#: torch's constants of selu
ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

HARDTANH, LEAKY_RELU, ELU, THRESHOLD = OPS["hardtanh"], OPS["leaky_relu"], OPS["elu"], OPS["threshold"]
PRELU, GLU, COPY, GELU = OPS["prelu"], OPS["glu"], OPS["copy"], OPS["gelu"]


def _apply(op: Op, x: Any, inplace: bool = False, **attrs: Any) -> Tensor:
    x = x if isinstance(x, Tensor) else require_tensor(op.name, x)
    pairs = tuple(attrs.items())
    return call_into(op, x, (), pairs) if inplace else unary(op, x, pairs)


# -- without options -----------------------------------------------------------------------


def _plain(op: Op) -> Function:
    """An activation without options, in place or not."""

    def function(input: Tensor, inplace: bool = False) -> Tensor:
        return _apply(op, input, inplace)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"{op.doc}\n\nSee `torch.nn.functional.{op.name}`."
    return function


relu, silu, mish = _plain(OPS["relu"]), _plain(OPS["silu"]), _plain(OPS["mish"])
hardsigmoid, hardswish = _plain(OPS["hardsigmoid"]), _plain(OPS["hardswish"])
sigmoid, tanh = pointwise.sigmoid, pointwise.tanh


def logsigmoid(input: Tensor) -> Tensor:
    """The logarithm of the sigmoid of each element."""
    return _apply(OPS["logsigmoid"], input)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|) of each element x."""
    return input / (pointwise.abs(input) + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """Each element minus its hyperbolic tangent."""
    return input - tanh(input)


# -- with options --------------------------------------------------------------------------


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Each element times the normal distribution function of it; ``approximate="tanh"`` is faster."""
    return _apply(GELU, input, approximate=approximate)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Each element, limited to 0 and 6."""
    return hardtanh(input, 0, 6, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Each element, limited to the two values."""
    if min_val > max_val:
        raise refuse(ShapeError, "min_val cannot be greater than max_val", "hardtanh", input, min_val, max_val)
    return _apply(HARDTANH, input, inplace, min_val=min_val, max_val=max_val)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Each element, times the slope where it is negative."""
    return _apply(LEAKY_RELU, input, inplace, negative_slope=float(negative_slope))


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """`leaky_relu` with the mean of the two slopes; in training, each negative element draws its slope."""
    if lower > upper:
        raise refuse(ShapeError, "lower is greater than upper", "rrelu", input, lower=lower, upper=upper)
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = draw.rand_like(input.detach()) * (upper - lower) + lower
    result = pointwise.where(input > 0, input, input * slopes)
    return call_into(COPY, input, (result,)) if inplace else result


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Each element that is greater than the threshold, and the value for the others."""
    return _apply(THRESHOLD, input, inplace, threshold=threshold, value=value)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta of each element x; x itself where beta x is greater than the threshold."""
    return _apply(OPS["softplus"], input, beta=float(beta), threshold=float(threshold))


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Each element, or 0 where its absolute value is at most ``lambd``."""
    return _apply(OPS["hardshrink"], input, lambd=float(lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Each element moved towards 0 by ``lambd``, at most to 0."""
    if lambd < 0:
        raise refuse(ShapeError, "lambd must not be less than 0", "softshrink", input, lambd)
    return _apply(OPS["softshrink"], input, lambd=float(lambd))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Each element, or alpha (exp(x) - 1) where it is negative."""
    return _apply(ELU, input, inplace, alpha=float(alpha), scale=1.0, input_scale=1.0)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """`elu` scaled so that repeated layers keep mean and variance."""
    return _apply(ELU, input, inplace, alpha=ALPHA, scale=SCALE, input_scale=1.0)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Each element, or alpha (exp(x / alpha) - 1) where it is negative."""
    alpha = float(alpha)
    if alpha == 0:
        raise refuse(ShapeError, "alpha must not be 0", "celu", input, alpha)
    return _apply(ELU, input, inplace, alpha=alpha, scale=1.0, input_scale=1 / alpha)


# -- with weights, or of two halves --------------------------------------------------------


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`leaky_relu` with one slope for all elements, or one for each channel (dim 1)."""
    x, slopes = require_tensor("prelu", input), require_tensor("prelu", weight)
    count, channels = slopes._type.numel, x._type.shape[1] if x._type.ndim > 1 else 1
    if slopes._type.ndim > 1 or count not in (1, channels):
        raise refuse(ShapeError, f"needs one weight, or one for each of {channels} channels", "prelu", x, slopes)
    if slopes._type.dtype.kind != "f":
        raise refuse(DTypeError, "the weight must be floating", "prelu", x, slopes)
    shape = (1, count, *(1,) * (x._type.ndim - 2)) if count > 1 else (1,) * x._type.ndim
    return call(PRELU, (x, views.reshape(slopes, shape)))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along a dim, times the sigmoid of the second half."""
    x = require_tensor("glu", input)
    return call(GLU, (x,), (("dim", normalize_dim(dim, x._type.ndim)),))


# -- in place ------------------------------------------------------------------------------


def _always_in_place(function: Function) -> Function:
    def in_place(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, **options, inplace=True)

    return documented(in_place, f"{function.__name__}_", f"In place: see `{function.__name__}`.", function)


relu_, elu_, selu_, celu_ = (_always_in_place(function) for function in (relu, elu, selu, celu))
leaky_relu_, hardtanh_, threshold_ = (_always_in_place(function) for function in (leaky_relu, hardtanh, threshold))
