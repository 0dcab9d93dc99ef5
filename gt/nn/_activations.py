"""``gt.nn.functional``: activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import a_tensor, cast, one_dim, refuse
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, reduce, views
from gt.ops import OPS, Attrs

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "log_softmax", "logsigmoid", "mish", "prelu", "relu",
    "relu6", "relu_", "rrelu", "selu", "selu_", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip

Function = Callable[..., Tensor]


def _apply(name: str, x: Any, inplace: bool = False, **attrs: Any) -> Tensor:
    x = a_tensor(name, x)
    given: Attrs = tuple(attrs.items())
    return call_into(OPS[name], x, (), given) if inplace else call(OPS[name], (x,), given)


def _plain(name: str) -> Function:
    """An activation without options, in place or not."""

    def function(input: Tensor, inplace: bool = False) -> Tensor:
        return _apply(name, input, inplace)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"See `torch.nn.functional.{name}`."
    return function


def _inplace(function: Function) -> Function:
    """The same, always in place."""

    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, **options, inplace=True)

    written.__name__ = written.__qualname__ = f"{function.__name__}_"
    return written


relu = _plain("relu")
silu = _plain("silu")
mish = _plain("mish")
hardsigmoid = _plain("hardsigmoid")
hardswish = _plain("hardswish")
sigmoid, tanh = pointwise.sigmoid, pointwise.tanh

#: torch's constants of selu
ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def logsigmoid(input: Tensor) -> Tensor:
    return _apply("logsigmoid", input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return _apply("gelu", input, approximate=approximate)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return hardtanh(input, 0, 6, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    if min_val > max_val:
        raise refuse(ShapeError, "min_val cannot be greater than max_val", "hardtanh", input, min_val, max_val)
    return _apply("hardtanh", input, inplace, min_val=min_val, max_val=max_val)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _apply("leaky_relu", input, inplace, negative_slope=float(negative_slope))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _apply("elu", input, inplace, alpha=float(alpha), scale=1.0, input_scale=1.0)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return _apply("elu", input, inplace, alpha=ALPHA, scale=SCALE, input_scale=1.0)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    if alpha == 0:
        raise refuse(ShapeError, "alpha is not 0", "celu", input, alpha)
    return _apply("elu", input, inplace, alpha=float(alpha), scale=1.0, input_scale=1 / alpha)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return _apply("softplus", input, beta=float(beta), threshold=float(threshold))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    return _apply("threshold", input, inplace, threshold=threshold, value=value)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return _apply("hardshrink", input, lambd=float(lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    if lambd < 0:
        raise refuse(ShapeError, "lambda is not less than 0", "softshrink", input, lambd)
    return _apply("softshrink", input, lambd=float(lambd))


def tanhshrink(input: Tensor) -> Tensor:
    return input - tanh(input)


def softsign(input: Tensor) -> Tensor:
    return input / (pointwise.abs(input) + 1)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    x, weight = a_tensor("prelu", input), a_tensor("prelu", weight)
    count = weight._type.numel
    channels = x._type.shape[1] if x._type.ndim > 1 else 1
    if weight._type.ndim > 1 or count not in (1, channels):
        raise refuse(ShapeError, f"one weight, or one for each of {channels} channels", "prelu", x, weight)
    if weight._type.dtype.kind != "f":
        raise refuse(DTypeError, "the weight is floating", "prelu", x, weight)
    shape = (1, count, *(1,) * (x._type.ndim - 2)) if count > 1 else (1,) * x._type.ndim
    return call(OPS["prelu"], (x, views.reshape(weight, shape)))


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """In training the slope of each negative element is drawn."""
    if lower > upper:
        raise refuse(ShapeError, "lower is at most upper", "rrelu", input, lower=lower, upper=upper)
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    drawn = _drawn(input) * (upper - lower) + lower
    made = pointwise.where(input > 0, input, input * drawn)
    return call_into(OPS["copy"], input, (made,)) if inplace else made


def _drawn(x: Tensor) -> Tensor:
    from gt.functions.draw import rand_like

    return rand_like(x.detach())


relu_, elu_, selu_, celu_ = _inplace(relu), _inplace(elu), _inplace(selu), _inplace(celu)
leaky_relu_, hardtanh_, threshold_ = _inplace(leaky_relu), _inplace(hardtanh), _inplace(threshold)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    x = a_tensor("glu", input)
    dim = one_dim(dim, x._type.ndim)
    return call(OPS["glu"], (x,), (("dim", dim),))


# -- over a dim ----------------------------------------------------------------------------


def _soft_dim(name: str, x: Tensor, dim: int | None) -> int:
    if dim is not None:
        return dim
    import warnings

    text = f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument."
    warnings.warn(text, UserWarning, stacklevel=3)
    return 0 if x._type.ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return reduce.softmax(input, _soft_dim("softmax", input, dim), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return reduce.log_softmax(input, _soft_dim("log_softmax", input, dim), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return reduce.softmax(-input, _soft_dim("softmin", input, dim), dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    drawn = -pointwise.log(-pointwise.log(_drawn(logits).clamp(min=1e-20)).clamp(min=1e-20))
    soft = reduce.softmax((logits + drawn) / tau, dim)
    if not hard:
        return soft
    best = reduce.max(soft, dim, keepdim=True)[1]
    count = views.reshape(_positions(soft, dim), [-1 if d == dim % soft.ndim else 1 for d in range(soft.ndim)])
    chosen: Tensor = cast(pointwise.eq(count, best), soft._type.dtype) - soft.detach() + soft
    return chosen


def _positions(x: Tensor, dim: int) -> Tensor:
    from gt.functions.creation import arange

    return arange(x._type.shape[dim])
