"""Activations as modules."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import full
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.nn.simple import REQUIRED, Show, layer, showing
from gt.types import float32

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
    "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


def _and_inplace(*names: str, named: bool = True) -> Show:
    """Print ``alpha=1.0, inplace=True``; the last only if it is set."""

    def show(self: Any) -> str:
        shown = [f"{name}={getattr(self, name)}" if named else str(getattr(self, name)) for name in names]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)

    return show


INPLACE = {"inplace": False}

ReLU = layer("ReLU", "max(0, x) of each element.", F.relu, INPLACE, _and_inplace())
SiLU = layer("SiLU", "x * sigmoid(x) of each element, also called swish.", F.silu, INPLACE, _and_inplace())
Mish = layer("Mish", "x * tanh(softplus(x)) of each element.", F.mish, INPLACE, _and_inplace())
SELU = layer("SELU", "A scaled elu that keeps mean and variance from layer to layer.", F.selu, INPLACE, _and_inplace())
Hardsigmoid = layer("Hardsigmoid", "A piecewise linear sigmoid: clamp(x / 6 + 1/2, 0, 1).", F.hardsigmoid, INPLACE)
Hardswish = layer("Hardswish", "x * hardsigmoid(x) of each element.", F.hardswish, INPLACE)
ELU = layer("ELU", "x if x > 0, else alpha * (exp(x) - 1).", F.elu, {"alpha": 1.0, **INPLACE}, _and_inplace("alpha"))
CELU = layer(
    "CELU", "x if x > 0, else alpha * (exp(x / alpha) - 1).", F.celu, {"alpha": 1.0, **INPLACE}, _and_inplace("alpha")
)
LeakyReLU = layer(
    "LeakyReLU",
    "x if x > 0, else negative_slope * x.",
    F.leaky_relu,
    {"negative_slope": 0.01, **INPLACE},
    _and_inplace("negative_slope"),
)
Threshold = layer(
    "Threshold",
    "x if x > threshold, else value.",
    F.threshold,
    {"threshold": REQUIRED, "value": REQUIRED, **INPLACE},
    _and_inplace("threshold", "value"),
)
Hardtanh = layer(
    "Hardtanh",
    "Clamp each element between min_val and max_val.",
    F.hardtanh,
    {"min_val": -1.0, "max_val": 1.0, **INPLACE},
    _and_inplace("min_val", "max_val"),
)
RReLU = layer(
    "RReLU",
    "A leaky relu whose slope is drawn between lower and upper in training, and is their mean otherwise.",
    F.rrelu,
    {"lower": 1.0 / 8, "upper": 1.0 / 3, **INPLACE},
    _and_inplace("lower", "upper"),
    passed="lower upper training inplace",
)
GELU = layer(
    "GELU",
    "x times the normal distribution function of x.",
    F.gelu,
    {"approximate": "none"},
    lambda self: f"approximate={self.approximate!r}",
)
Softplus = layer(
    "Softplus",
    "A smooth relu: log(1 + exp(beta * x)) / beta, or x where beta * x > threshold.",
    F.softplus,
    {"beta": 1.0, "threshold": 20.0},
    showing("beta", "threshold"),
)
Softshrink = layer(
    "Softshrink",
    "Move each element towards 0 by lambd; elements within lambd become 0.",
    F.softshrink,
    {"lambd": 0.5},
    lambda self: str(self.lambd),
)
Hardshrink = layer(
    "Hardshrink",
    "Set elements between -lambd and lambd to 0.",
    F.hardshrink,
    {"lambd": 0.5},
    lambda self: str(self.lambd),
)
GLU = layer("GLU", "The first half of a dim times the sigmoid of the second half.", F.glu, {"dim": -1}, showing("dim"))
Sigmoid = layer("Sigmoid", "1 / (1 + exp(-x)) of each element.", F.sigmoid, {})
Tanh = layer("Tanh", "The hyperbolic tangent of each element.", F.tanh, {})
LogSigmoid = layer("LogSigmoid", "log(sigmoid(x)) of each element.", F.logsigmoid, {})
Softsign = layer("Softsign", "x / (1 + |x|) of each element.", F.softsign, {})
Tanhshrink = layer("Tanhshrink", "x - tanh(x) of each element.", F.tanhshrink, {})
DIM = {"dim": None}
Softmax = layer("Softmax", "exp(x), divided by its sum along a dim.", F.softmax, DIM, showing("dim"))
Softmin = layer("Softmin", "The softmax of -x along a dim.", F.softmin, DIM, showing("dim"))
LogSoftmax = layer("LogSoftmax", "The logarithm of the softmax along a dim.", F.log_softmax, DIM, showing("dim"))


class ReLU6(Hardtanh):  # type: ignore[valid-type, misc]
    """min(max(0, x), 6) of each element. See `torch.nn.ReLU6`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Softmax2d(Module):
    """Softmax over the channels of an image, at each position. See `torch.nn.Softmax2d`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, dim=-3)


class PReLU(Module):
    """x if x > 0, else weight * x, with a weight that is learned. See `torch.nn.PReLU`."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype or float32))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
