"""Activations, each with its gradient as an op of its own: one kernel in backward, as in torch.

``x_backward(g, x)`` is linear in g; its own gradient for g is itself again, and that for x is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import erf, pi, sqrt
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_numbers
from gt.ops.math.pointwise import FLOATING, ONLY_FLOATING, zero
from gt.ops.math.special import each
from gt.ops.op import op
from gt.ops.split import linear
from gt.types import DType, TensorType

Rule = Callable[..., Any]


def aten(name: str) -> Rule:
    """A function that calls torch's own op of that name; the op is looked up at the first call."""
    cached: list[Rule] = []

    def call(torch: Any, *operands: Any, **attrs: Any) -> Any:
        if not cached:
            cached.append(getattr(torch.ops.aten, name).default)
        return cached[0](*operands, **attrs)

    return call


def _taking(rule: Rule, names: tuple[str, ...], check: Rule) -> Rule:
    """The rule for attributes of exactly these names; ``check`` refuses their values: (dtype, **attributes)."""

    def infer(*types: TensorType, **attrs: Any) -> TensorType:
        if set(attrs) != set(names):
            raise DTypeError(f"its attributes are {', '.join(names) or 'none'}, not {', '.join(attrs) or 'none'}")
        result: TensorType = rule(*types)
        check(result.dtype, **attrs)
        return result

    return infer


def widened(kernel: Rule) -> Rule:
    """A kernel for numpy that computes in float32 what is float16, as torch does."""

    @wraps(kernel)
    def call(np: Any, *xs: Any, **attrs: Any) -> Any:
        return kernel(np, *(x.astype(np.float32) if x.dtype == np.float16 else x for x in xs), **attrs)

    return call


def _of_one_type(g: TensorType, x: TensorType) -> TensorType:
    if g is not x:
        raise ShapeError(f"the gradient {g} is not of the operand's type {x}")
    result: TensorType = ONLY_FLOATING["infer"](x)
    return result


def activation(
    name: str,
    *names: str,
    fields: dict[str, Any] = ONLY_FLOATING,
    check: Rule = check_numbers,
    kernel: Rule,
    **more: Any,
) -> None:
    """Declare an activation of one operand, with attributes of these names."""
    more = {"aten": (name,), **more}
    op(name, **fields | {"infer": _taking(fields["infer"], names, check)}, operands="t", kernel=widened(kernel), **more)


def backward(
    name: str,
    *names: str,
    torch: Rule,
    numpy: Rule,
    second: Rule = zero,
    check: Rule = check_numbers,
    is_aten: bool = True,
) -> None:
    """Declare ``name``, the gradient (g, x) of an activation; ``second(c, g, x)`` is its own gradient for x.

    ``is_aten``: ATen's function of that name takes the same arguments.
    """

    def again(c: Any, _y: Any, _g: Any, x: Any, **attrs: Any) -> Any:
        return c._op(name, x, **attrs)

    def bent(c: Any, _y: Any, g: Any, x: Any, **attrs: Any) -> Any:
        return second(c, g, x, **attrs)

    op(
        name,
        operands="tt",
        infer=_taking(_of_one_type, names, check),
        **linear((0,)),
        vjp=(again, zero if second is zero else bent),
        torch=torch,
        kernel=widened(numpy),
        aten=(name,) if is_aten else (),
    )


def back(name: str) -> tuple[Rule]:
    """The vjp of an activation whose gradient is that op, on its operand."""
    return (lambda g, _y, x, **attrs: g._op(name, x, **attrs),)


# -- of the result -------------------------------------------------------------------------

activation(
    "tanh",
    function="t",
    doc="The hyperbolic tangent of each element.",
    complex="holomorphic",
    fields=FLOATING,
    vjp=(lambda g, y, _x: g * (1 - y * y) if y.is_complex() else g._op("tanh_backward", y),),
    torch=lambda torch, x: torch.tanh(x),
    kernel=lambda np, x: np.tanh(x),
)

backward(
    "tanh_backward",
    torch=aten("tanh_backward"),
    numpy=lambda np, g, y: g * (1 - y * y),
    second=lambda c, g, y: c * g * (y * -2),
)


def _sigmoid(np: Any, x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


activation(
    "sigmoid",
    function="t",
    aliases=("expit",),
    doc="1 / (1 + exp(-x)) of each element x.",
    complex="holomorphic",
    fields=FLOATING,
    vjp=(lambda g, y, _x: g * (1 - y) * y if y.is_complex() else g._op("sigmoid_backward", y),),
    torch=lambda torch, x: torch.sigmoid(x),
    kernel=_sigmoid,
)

backward(
    "sigmoid_backward",
    torch=aten("sigmoid_backward"),
    numpy=lambda np, g, y: g * (1 - y) * y,
    second=lambda c, g, y: c * g * (1 - y * 2),
)

# -- smooth --------------------------------------------------------------------------------

activation(
    "silu",
    doc="Each element times its sigmoid.",
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


def _check_gelu(_: DType, approximate: str) -> None:
    if approximate not in _GELU:
        raise ShapeError(f"approximate is 'none' or 'tanh', not {approximate!r}")


activation(
    "gelu",
    "approximate",
    check=_check_gelu,
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
    "approximate",
    check=_check_gelu,
    torch=aten("gelu_backward"),
    numpy=lambda np, g, x, *, approximate: g * _GELU_SLOPE[approximate](np, x),
    second=lambda c, g, x, *, approximate: c * g * _GELU_BEND[approximate](x),
)


activation(
    "mish",
    doc="Each element times the hyperbolic tangent of its softplus.",
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

activation(
    "softplus",
    *("beta", "threshold"),
    autocast="float32",
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
    *("beta", "threshold"),
    torch=lambda torch, g, x, *, beta, threshold: _softplus_backward(torch, g, x, beta, threshold),
    numpy=lambda np, g, x, *, beta, threshold: np.where(x * beta > threshold, g, g * _sigmoid(np, x * beta)),
    second=_softplus_second,
)

activation(
    "logsigmoid",
    aten=(),
    vjp=back("log_sigmoid_backward"),
    torch=lambda torch, x: torch.nn.functional.logsigmoid(x),
    kernel=lambda np, x: -np.logaddexp(0, -x),
)


_log_sigmoid_backward = aten("log_sigmoid_backward")


def _log_sigmoid_torch(torch: Any, g: Any, x: Any) -> Any:
    # the CPU's kernel needs exp(-|x|) from the forward pass; a GPU's kernel computes it again
    return _log_sigmoid_backward(torch, g, x, x.new_empty(0) if x.is_cuda else (-x.abs()).exp_())


backward(
    "log_sigmoid_backward",
    is_aten=False,
    torch=_log_sigmoid_torch,
    numpy=lambda np, g, x: g * _sigmoid(np, -x),
    second=lambda c, g, x: c._op("sigmoid_backward", x.sigmoid()) * -g,
)


def _elu_numpy(np: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    return np.where(x < 0, np.expm1(x * input_scale) * (alpha * scale), x * scale)


_elu, _elu_backward = aten("elu"), aten("elu_backward")

#: elu, selu and celu: alpha * scale * (exp(x * input_scale) - 1) on the left, x * scale on the right
activation(
    "elu",
    *("alpha", "scale", "input_scale"),
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


backward(
    "elu_backward",
    *("alpha", "scale", "input_scale"),
    is_aten=False,
    torch=_elu_back_torch,
    numpy=_elu_back_numpy,
    second=_elu_second,
)
