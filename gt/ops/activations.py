"""Activations, each with its gradient as an op of its own: one kernel back, as in torch.

``x_backward(g, x)`` is linear in g; its own gradient for g is itself again, and that for x is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import Any

from gt.errors import ShapeError
from gt.ops.core import op
from gt.ops.functions import each
from gt.ops.pointwise import FLOATING, MEETING, NUMERIC, ONLY_FLOATING, zero
from gt.ops.split import linear
from gt.types import TensorType

Rule = Callable[..., Any]


def aten(name: str) -> Rule:
    """torch's own op, looked up once."""
    found: list[Rule] = []

    def call(torch: Any, *operands: Any, **attrs: Any) -> Any:
        if not found:
            found.append(getattr(torch.ops.aten, name).default)
        return found[0](*operands, **attrs)

    return call


def backward(name: str, *, torch: Rule, numpy: Rule, second: Rule = zero, **fields: Any) -> None:
    """Declare ``name``, the gradient (g, x) of an activation; ``second(c, g, x)`` is its own gradient for x."""

    def again(c: Any, _y: Any, _g: Any, x: Any, **attrs: Any) -> Any:
        return c._op(name, x, **attrs)

    def bent(c: Any, _y: Any, g: Any, x: Any, **attrs: Any) -> Any:
        return second(c, g, x, **attrs)

    fields = (fields or MEETING) | linear((0,))
    op(name, **fields, vjp=(again, zero if second is zero else bent), torch=torch, kernel=numpy)


def back(name: str) -> tuple[Rule]:
    """The vjp of an activation whose gradient is that op, on its operand."""
    return (lambda g, _y, x, **attrs: g._op(name, x, **attrs),)


# -- of the result -------------------------------------------------------------------------

op("tanh", **FLOATING, vjp=(lambda g, y, _x: g._op("tanh_backward", y),), kernel=lambda xp, x: xp.tanh(x))

backward(
    "tanh_backward",
    torch=aten("tanh_backward"),
    numpy=lambda np, g, y: g * (1 - y * y),
    second=lambda c, g, y: c * g * (y * -2),
)


def _sigmoid(np: Any, x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


op(
    "sigmoid",
    **FLOATING,
    vjp=(lambda g, y, _x: g._op("sigmoid_backward", y),),
    torch=lambda torch, x: torch.sigmoid(x),
    kernel=_sigmoid,
)

backward(
    "sigmoid_backward",
    torch=aten("sigmoid_backward"),
    numpy=lambda np, g, y: g * y * (1 - y),
    second=lambda c, g, y: c * g * (1 - y * 2),
)

op(
    "relu",
    **NUMERIC,
    vjp=(lambda g, y, _x: g._op("threshold_backward", y, threshold=0.0),),
    torch=lambda torch, x: torch.relu(x),
    kernel=lambda np, x: np.maximum(x, 0),
    inplace=lambda torch, x: x.relu_(),
)

_threshold_backward = aten("threshold_backward")

backward(
    "threshold_backward",
    torch=lambda torch, g, x, *, threshold: _threshold_backward(torch, g, x, threshold),
    numpy=lambda np, g, x, *, threshold: np.where(x <= threshold, 0, g),
)

op(
    "threshold",
    **NUMERIC | {"infer": lambda x, *, threshold, value: NUMERIC["infer"](x)},
    vjp=(lambda g, _y, x, *, threshold, value: g._op("threshold_backward", x, threshold=threshold),),
    torch=lambda torch, x, *, threshold, value: torch.threshold(x, threshold, value),
    kernel=lambda np, x, *, threshold, value: np.where(x <= threshold, np.asarray(value).astype(x.dtype), x),
)

# -- smooth --------------------------------------------------------------------------------

op(
    "silu",
    **ONLY_FLOATING,
    vjp=back("silu_backward"),
    torch=lambda torch, x: torch.nn.functional.silu(x),
    kernel=lambda np, x: x * _sigmoid(np, x),
)


def _silu_second(c: Any, g: Any, x: Any) -> Any:
    s = x.sigmoid()
    return c * g * s * (1 - s) * (2 + x * (1 - s * 2))


def _silu_numpy(np: Any, g: Any, x: Any) -> Any:
    s = _sigmoid(np, x)
    return g * s * (1 + x * (1 - s))


backward("silu_backward", torch=aten("silu_backward"), numpy=_silu_numpy, second=_silu_second)

_ROOT, _CUBE = sqrt(2 / pi), 0.044715


def _erf(np: Any, x: Any) -> Any:
    return each(erf)(np, x)


_GELU: dict[str, Rule] = {
    "none": lambda np, x: 0.5 * x * (1 + _erf(np, x / sqrt(2))),
    "tanh": lambda np, x: 0.5 * x * (1 + np.tanh(_ROOT * (x + _CUBE * x * x * x))),
}


def _gelu(x: TensorType, *, approximate: str) -> TensorType:
    if approximate not in _GELU:
        raise ShapeError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    made: TensorType = ONLY_FLOATING["infer"](x)
    return made


op(
    "gelu",
    **ONLY_FLOATING | {"infer": _gelu},
    vjp=back("gelu_backward"),
    torch=lambda torch, x, *, approximate: torch.nn.functional.gelu(x, approximate=approximate),
    kernel=lambda np, x, *, approximate: _GELU[approximate](np, x),
)


def _gelu_slope(np: Any, x: Any) -> Any:
    return 0.5 * (1 + _erf(np, x / sqrt(2))) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi)


def _gelu_tanh_slope(np: Any, x: Any) -> Any:
    t = np.tanh(_ROOT * (x + _CUBE * x * x * x))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _ROOT * (1 + 3 * _CUBE * x * x)


def _gelu_bend(x: Any) -> Any:
    return (x * x * -0.5).exp() * (2 - x * x) * (1 / sqrt(2 * pi))


def _gelu_tanh_bend(x: Any) -> Any:
    t = ((x + x * x * x * _CUBE) * _ROOT).tanh()
    inner = (x * x * (3 * _CUBE) + 1) * _ROOT
    return (1 - t * t) * (inner + x * (x * (3 * _CUBE * _ROOT) - t * inner * inner))


_GELU_SLOPE: dict[str, Rule] = {"none": _gelu_slope, "tanh": _gelu_tanh_slope}
_GELU_BEND: dict[str, Rule] = {"none": _gelu_bend, "tanh": _gelu_tanh_bend}

backward(
    "gelu_backward",
    torch=aten("gelu_backward"),
    numpy=lambda np, g, x, *, approximate: g * _GELU_SLOPE[approximate](np, np.promote_types(x.dtype, "f4").type(x)),
    second=lambda c, g, x, *, approximate: c * g * _GELU_BEND[approximate](x),
)


op(
    "mish",
    **ONLY_FLOATING,
    vjp=back("mish_backward"),
    torch=lambda torch, x: torch.nn.functional.mish(x),
    kernel=lambda np, x: x * np.tanh(np.logaddexp(0, x)),
)


def _mish_numpy(np: Any, g: Any, x: Any) -> Any:
    t = np.tanh(np.logaddexp(0, x))
    return g * (t + x * _sigmoid(np, x) * (1 - t * t))


def _mish_second(c: Any, g: Any, x: Any) -> Any:
    s = x.sigmoid()
    t = x._op("softplus", beta=1.0, threshold=20.0).tanh()
    slope = s * (1 - t * t)
    return c * g * (slope * 2 + x * slope * ((1 - s) - t * s * 2))


backward("mish_backward", torch=aten("mish_backward"), numpy=_mish_numpy, second=_mish_second)

op(
    "softplus",
    **ONLY_FLOATING | {"infer": lambda x, *, beta, threshold: ONLY_FLOATING["infer"](x)},
    vjp=back("softplus_backward"),
    torch=lambda torch, x, *, beta, threshold: torch.nn.functional.softplus(x, beta, threshold),
    kernel=lambda np, x, *, beta, threshold: np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta),
)

_softplus_backward = aten("softplus_backward")


def _softplus_second(c: Any, g: Any, x: Any, *, beta: float, threshold: float) -> Any:
    s = (x * beta).sigmoid()
    return (c * g * (s * (1 - s) * beta)).masked_fill(x * beta > threshold, 0)


backward(
    "softplus_backward",
    torch=lambda torch, g, x, *, beta, threshold: _softplus_backward(torch, g, x, beta, threshold),
    numpy=lambda np, g, x, *, beta, threshold: np.where(x * beta > threshold, g, g * _sigmoid(np, x * beta)),
    second=_softplus_second,
)

op(
    "logsigmoid",
    **ONLY_FLOATING,
    vjp=back("log_sigmoid_backward"),
    torch=lambda torch, x: torch.nn.functional.logsigmoid(x),
    kernel=lambda np, x: -np.logaddexp(0, -x),
)


_log_sigmoid_backward = aten("log_sigmoid_backward")


def _log_sigmoid_torch(torch: Any, g: Any, x: Any) -> Any:
    # the CPU's kernel wants exp(-|x|) from the forward's; a GPU's makes it anew
    return _log_sigmoid_backward(torch, g, x, x.new_empty(0) if x.is_cuda else (-x.abs()).exp_())


backward(
    "log_sigmoid_backward",
    torch=_log_sigmoid_torch,
    numpy=lambda np, g, x: g * _sigmoid(np, -x),
    second=lambda c, g, x: c._op("sigmoid_backward", x.sigmoid()) * -g,
)


def _elu_numpy(np: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    return np.where(x <= 0, np.expm1(x * input_scale) * (alpha * scale), x * scale)


_elu, _elu_backward = aten("elu"), aten("elu_backward")

#: elu, selu and celu: alpha * scale * (exp(x * input_scale) - 1) on the left, x * scale on the right
op(
    "elu",
    **ONLY_FLOATING | {"infer": lambda x, *, alpha, scale, input_scale: ONLY_FLOATING["infer"](x)},
    vjp=back("elu_backward"),
    torch=lambda torch, x, *, alpha, scale, input_scale: _elu(torch, x, alpha, scale, input_scale),
    kernel=_elu_numpy,
)


def _elu_back_numpy(np: Any, g: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    left = g * (input_scale * alpha * scale) * np.exp(x * input_scale)
    return np.where(x <= 0, left, g * scale)


def _elu_second(c: Any, g: Any, x: Any, **attrs: Any) -> Any:
    return (c * g * attrs["input_scale"])._op("elu_backward", x, **attrs) * (x < 0)


def _elu_back_torch(torch: Any, g: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    return _elu_backward(torch, g, alpha, scale, input_scale, False, x)


backward("elu_backward", torch=_elu_back_torch, numpy=_elu_back_numpy, second=_elu_second)

# -- with a kink ---------------------------------------------------------------------------

op(
    "leaky_relu",
    **ONLY_FLOATING | {"infer": lambda x, *, negative_slope: ONLY_FLOATING["infer"](x)},
    vjp=back("leaky_relu_backward"),
    torch=lambda torch, x, *, negative_slope: torch.nn.functional.leaky_relu(x, negative_slope),
    kernel=lambda np, x, *, negative_slope: np.where(x > 0, x, x * negative_slope),
)

_leaky = aten("leaky_relu_backward")

backward(
    "leaky_relu_backward",
    torch=lambda torch, g, x, *, negative_slope: _leaky(torch, g, x, negative_slope, False),
    numpy=lambda np, g, x, *, negative_slope: np.where(x > 0, g, g * negative_slope),
)

op(
    "hardtanh",
    **NUMERIC | {"infer": lambda x, *, min_val, max_val: NUMERIC["infer"](x)},
    vjp=back("hardtanh_backward"),
    torch=lambda torch, x, *, min_val, max_val: torch.nn.functional.hardtanh(x, min_val, max_val),
    kernel=lambda np, x, *, min_val, max_val: np.clip(x, min_val, max_val),
)

_hardtanh = aten("hardtanh_backward")

backward(
    "hardtanh_backward",
    torch=lambda torch, g, x, *, min_val, max_val: _hardtanh(torch, g, x, min_val, max_val),
    numpy=lambda np, g, x, *, min_val, max_val: np.where((x <= min_val) | (x >= max_val), 0, g),
)

op(
    "hardsigmoid",
    **ONLY_FLOATING,
    vjp=back("hardsigmoid_backward"),
    torch=lambda torch, x: torch.nn.functional.hardsigmoid(x),
    kernel=lambda np, x: np.clip(x + 3, 0, 6) / 6,
)

#: rounded to float32, as torch's is
_SIXTH = 0.16666667163372040

backward(
    "hardsigmoid_backward",
    torch=aten("hardsigmoid_backward"),
    numpy=lambda np, g, x: np.where((x > -3) & (x < 3), g * _SIXTH, 0),
)

op(
    "hardswish",
    **ONLY_FLOATING,
    vjp=back("hardswish_backward"),
    torch=lambda torch, x: torch.nn.functional.hardswish(x),
    kernel=lambda np, x: x * np.clip(x + 3, 0, 6) / 6,
)

backward(
    "hardswish_backward",
    torch=aten("hardswish_backward"),
    numpy=lambda np, g, x: np.where(x <= -3, 0, np.where(x < 3, g * (x / 3 + 0.5), g)),
    second=lambda c, g, x: (c * g * (1 / 3)).where((x > -3) & (x < 3), 0),
)

op(
    "hardshrink",
    **ONLY_FLOATING | {"infer": lambda x, *, lambd: ONLY_FLOATING["infer"](x)},
    vjp=back("hardshrink_backward"),
    torch=lambda torch, x, *, lambd: torch.nn.functional.hardshrink(x, lambd),
    kernel=lambda np, x, *, lambd: np.where((x >= -lambd) & (x <= lambd), 0, x),
)

op(
    "softshrink",
    **ONLY_FLOATING | {"infer": lambda x, *, lambd: ONLY_FLOATING["infer"](x)},
    vjp=back("softshrink_backward"),
    torch=lambda torch, x, *, lambd: torch.nn.functional.softshrink(x, lambd),
    kernel=lambda np, x, *, lambd: np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0)),
)


def _shrunk(name: str) -> Rule:
    call = aten(name)
    return lambda torch, g, x, *, lambd: call(torch, g, x, lambd)


for _shrink in ("hardshrink_backward", "softshrink_backward"):
    backward(
        _shrink,
        torch=_shrunk(_shrink),
        numpy=lambda np, g, x, *, lambd: np.where((x >= -lambd) & (x <= lambd), 0, g),
    )


# -- with weights --------------------------------------------------------------------------

op(
    "prelu",
    **ONLY_FLOATING,  # the weight is brought to the operand's dims before
    vjp=(
        lambda g, _y, x, weight: g.where(x > 0, g * weight),
        lambda g, _y, x, _weight: (g * x).masked_fill(x > 0, 0),
    ),
    torch=lambda torch, x, weight: torch.where(x > 0, x, x * weight),
    kernel=lambda np, x, weight: np.where(x > 0, x, x * weight),
)
