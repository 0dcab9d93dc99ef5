"""``gt.nn.init``: initial values of parameters, written in place."""

from __future__ import annotations

from math import erf, prod, sqrt
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.random_state import Generator
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import eye, from_numpy, zeros
from gt.functions.draw import rand, randn
from gt.functions.pointwise import where
from gt.functions.sort import argsort
from gt.missing import absent
from gt.say import warn

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip
absent("nn.init")

LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")

#: The coefficients of Giles' approximation of the inverse error function, near 0 and in the tails.
MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
TAILS = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which weights before a nonlinearity are scaled. See `torch.nn.init.calculate_gain`."""
    slope = 0.01 if param is None else param
    gains = {"tanh": 5.0 / 3, "relu": sqrt(2.0), "leaky_relu": sqrt(2.0 / (1 + slope**2)), "selu": 3.0 / 4}
    gains |= dict.fromkeys(LINEAR, 1.0)
    if nonlinearity not in gains:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return gains[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


_calculate_fan_in_and_fan_out = _fans


def _fan(tensor: Tensor, mode: str) -> int:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _fans(tensor)[mode.lower() == "fan_out"]


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill a tensor with numbers drawn uniformly between a and b."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill a tensor with numbers drawn from a normal distribution."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill a tensor with one value."""
    return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Fill a tensor with ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill a tensor with zeros."""
    return constant_(tensor, 0.0)


@no_grad()
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill a tensor with numbers drawn from a normal distribution, limited to [a, b]."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect."
        )
    low, high = (erf((limit - mean) / std / sqrt(2.0)) for limit in (a, b))
    drawn = _erfinv(rand(tensor.shape, generator=generator) * (high - low) + low)
    return tensor.copy_((drawn * (std * sqrt(2.0)) + mean).clamp(a, b))


def _erfinv(x: Tensor) -> Tensor:
    w: Tensor = -((1 - x) * (1 + x)).log()
    return where(w < 5, _polynomial(MIDDLE, w - 2.5), _polynomial(TAILS, w.sqrt() - 3)) * x  # type: ignore[no-any-return]


def _polynomial(factors: tuple[float, ...], x: Tensor) -> Tensor:
    value: Any = factors[0]
    for factor in factors[1:]:
        value = value * x + factor
    return value  # type: ignore[no-any-return]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draw uniform weights whose variance suits the number of inputs and outputs (Glorot)."""
    bound = sqrt(3.0) * gain * sqrt(2.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draw normal weights whose variance suits the number of inputs and outputs (Glorot)."""
    return normal_(tensor, 0.0, gain * sqrt(2.0 / sum(_fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Draw uniform weights whose variance suits a rectifier after them (He)."""
    if 0 in tensor.shape:
        return tensor
    bound = sqrt(3.0) * calculate_gain(nonlinearity, a) / sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Draw normal weights whose variance suits a rectifier after them (He)."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / sqrt(_fan(tensor, mode)), generator)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Set a matrix to the identity."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return tensor.copy_(eye(*tensor.shape))


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Set a convolution's kernel so that it returns its input, as far as there are channels."""
    import numpy as np

    shape = tensor.shape
    if len(shape) not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    values = np.zeros(shape, dtype=np.float32)
    out = shape[0] // groups
    for g in range(groups):
        for d in range(min(out, shape[1])):
            values[(g * out + d, d, *(n // 2 for n in shape[2:]))] = 1
    return tensor.copy_(from_numpy(values))


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Set a matrix to one with orthogonal rows or columns. Waits for a read: the client computes it."""
    import numpy as np

    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    drawn = randn(rows, columns, generator=generator).numpy()
    q, r = np.linalg.qr(drawn.T if rows < columns else drawn)
    q = q * np.sign(np.diag(r))
    q = q.T if rows < columns else q
    values = from_numpy(np.ascontiguousarray(q * gain, dtype=np.float32)).reshape(tensor.shape)
    return tensor.copy_(values)


@no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix with normal numbers, and set this fraction of each column to zero."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    order = argsort(argsort(rand(rows, columns, generator=generator), 0), 0)
    count = -int(-sparsity * rows // 1)
    return tensor.copy_(where(order < count, zeros(()), randn(rows, columns, generator=generator) * std))


def _bias_bound(weight: Tensor) -> float:
    """The bound of a uniform bias beside this weight, as Linear and the convolutions draw it."""
    fan_in = _fans(weight)[0]
    return 1 / sqrt(fan_in) if fan_in > 0 else 0.0
