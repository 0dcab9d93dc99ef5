"""Activations."""

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
    """``alpha=1.0, inplace=True``, without the last if it is not so."""

    def show(self: Any) -> str:
        shown = [f"{name}={getattr(self, name)}" if named else str(getattr(self, name)) for name in names]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)

    return show


INPLACE = {"inplace": False}

ReLU = layer("ReLU", "relu", INPLACE, _and_inplace())
SiLU = layer("SiLU", "silu", INPLACE, _and_inplace())
Mish = layer("Mish", "mish", INPLACE, _and_inplace())
SELU = layer("SELU", "selu", INPLACE, _and_inplace())
Hardsigmoid = layer("Hardsigmoid", "hardsigmoid", INPLACE)
Hardswish = layer("Hardswish", "hardswish", INPLACE)
ELU = layer("ELU", "elu", {"alpha": 1.0, **INPLACE}, _and_inplace("alpha"))
CELU = layer("CELU", "celu", {"alpha": 1.0, **INPLACE}, _and_inplace("alpha"))
LeakyReLU = layer("LeakyReLU", "leaky_relu", {"negative_slope": 0.01, **INPLACE}, _and_inplace("negative_slope"))
Threshold = layer(
    "Threshold", "threshold", {"threshold": REQUIRED, "value": REQUIRED, **INPLACE}, _and_inplace("threshold", "value")
)

Hardtanh = layer(
    "Hardtanh", "hardtanh", {"min_val": -1.0, "max_val": 1.0, **INPLACE}, _and_inplace("min_val", "max_val")
)
RReLU = layer(
    "RReLU",
    "rrelu",
    {"lower": 1.0 / 8, "upper": 1.0 / 3, **INPLACE},
    _and_inplace("lower", "upper"),
    "lower upper training inplace",
)
GELU = layer("GELU", "gelu", {"approximate": "none"}, lambda self: f"approximate={self.approximate!r}")
Softplus = layer("Softplus", "softplus", {"beta": 1.0, "threshold": 20.0}, showing("beta", "threshold"))
Softshrink = layer("Softshrink", "softshrink", {"lambd": 0.5}, lambda self: str(self.lambd))
Hardshrink = layer("Hardshrink", "hardshrink", {"lambd": 0.5}, lambda self: str(self.lambd))
GLU = layer("GLU", "glu", {"dim": -1}, showing("dim"))
Sigmoid = layer("Sigmoid", "sigmoid", {})
Tanh = layer("Tanh", "tanh", {})
LogSigmoid = layer("LogSigmoid", "logsigmoid", {})
Softsign = layer("Softsign", "softsign", {})
Tanhshrink = layer("Tanhshrink", "tanhshrink", {})
Softmax = layer("Softmax", "softmax", {"dim": None}, showing("dim"))
Softmin = layer("Softmin", "softmin", {"dim": None}, showing("dim"))
LogSoftmax = layer("LogSoftmax", "log_softmax", {"dim": None}, showing("dim"))


class ReLU6(Hardtanh):  # type: ignore[valid-type, misc]
    """See `torch.nn.ReLU6`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Softmax2d(Module):
    """See `torch.nn.Softmax2d`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, dim=-3)


class PReLU(Module):
    """See `torch.nn.PReLU`."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype or float32))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
