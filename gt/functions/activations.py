"""torch.nn.functional's activations; a few of them are torch's own functions too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import a_tensor, refuse
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, views
from gt.ops import OPS

#: those that torch has at its top, too
__all__ = [
    "celu", "celu_", "hardshrink", "prelu", "relu_", "rrelu", "selu", "selu_", "threshold", "threshold_",
]  # fmt: skip

#: all of them, for `gt.nn.functional`
FUNCTIONAL = (
    "celu", "elu", "elu_", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_",
    "leaky_relu", "leaky_relu_", "logsigmoid", "mish", "prelu", "relu", "relu6", "relu_", "rrelu", "selu", "selu_",
    "celu_", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
)  # fmt: skip


def _run(name: str, input: Any, inplace: bool = False, **attrs: Any) -> Tensor:
    x, given = a_tensor(name, input), tuple(attrs.items())
    return call_into(OPS[name], x, (), given) if inplace else call(OPS[name], (x,), given)


# -- without settings ----------------------------------------------------------------------


def _plain(name: str) -> Callable[..., Tensor]:
    def function(input: Tensor, inplace: bool = False) -> Tensor:
        return _run(name, input, inplace)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"See `torch.nn.functional.{name}`."
    return function


relu = _plain("relu")
silu = _plain("silu")
mish = _plain("mish")
hardsigmoid = _plain("hardsigmoid")
hardswish = _plain("hardswish")
sigmoid, tanh = pointwise.sigmoid, pointwise.tanh


def logsigmoid(input: Tensor) -> Tensor:
    return _run("logsigmoid", input)


def softsign(input: Tensor) -> Tensor:
    return input / (pointwise.abs(input) + 1)


def tanhshrink(input: Tensor) -> Tensor:
    return input - pointwise.tanh(input)


# -- with settings -------------------------------------------------------------------------


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return _run("gelu", input, approximate=approximate)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    if min_val > max_val:
        raise refuse(ShapeError, "min_val is greater than max_val", "hardtanh", input, min_val=min_val, max_val=max_val)
    return _run("hardtanh", input, inplace, min_val=float(min_val), max_val=float(max_val))


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _run("leaky_relu", input, inplace, negative_slope=float(negative_slope))


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """In training every element below 0 has a slope of its own, drawn between the two."""
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    from gt.functions.draw import rand_like

    slopes = rand_like(input.detach()) * (upper - lower) + lower
    made = call(OPS["prelu"], (input, slopes))
    return call_into(OPS["copy"], input, (made,)) if inplace else made


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    return _run("threshold", input, inplace, threshold=threshold, value=value)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return _run("softplus", input, beta=float(beta), threshold=float(threshold))


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return _run("hardshrink", input, lambd=float(lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    if lambd < 0:
        raise refuse(ShapeError, "lambda must be greater or equal to 0", "softshrink", input, lambd=lambd)
    return _run("softshrink", input, lambd=float(lambd))


def _elu(input: Tensor, alpha: float, scale: float, input_scale: float, inplace: bool) -> Tensor:
    return _run("elu", input, inplace, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _elu(input, alpha, 1.0, 1.0, inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return _elu(input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _elu(input, alpha, 1.0, 1 / alpha, inplace)


# -- with weights --------------------------------------------------------------------------


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """One slope for all, or one for each of dim 1."""
    x, slopes = a_tensor("prelu", input), a_tensor("prelu", weight)
    count, channels = slopes._type.numel, x._type.shape[1] if x._type.ndim > 1 else 1
    if count != 1 and count != channels:
        raise refuse(ShapeError, f"{count} weights for {channels} channels", "prelu", x, slopes)
    if slopes._type.dtype.kind != "f":
        raise refuse(DTypeError, "the weight is floating", "prelu", x, slopes)
    shape = (1, count, *(1,) * (x._type.ndim - 2)) if x._type.ndim > 1 else (1,) * x._type.ndim
    return call(OPS["prelu"], (x, views.reshape(slopes, shape)))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    x = a_tensor("glu", input)
    if not x._type.ndim or x._type.shape[dim] % 2:
        raise refuse(ShapeError, "the dim must have an even size", "glu", x, dim=dim)
    a, b = views.chunk(x, 2, dim)
    return a * pointwise.sigmoid(b)


# -- in place ------------------------------------------------------------------------------


def _into(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, **options, inplace=True)

    return written


relu_, selu_, hardtanh_ = _into(relu), _into(selu), _into(hardtanh)
elu_, celu_ = _into(elu), _into(celu)
leaky_relu_, threshold_ = _into(leaky_relu), _into(threshold)
