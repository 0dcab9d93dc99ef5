"""Piecewise linear activations, each with its gradient as an op of its own; and `prelu`, which has weights."""

from __future__ import annotations

from math import isnan
from typing import Any

from gt.errors import ShapeError
from gt.ops.attributes import LARGEST, check_numbers, check_values
from gt.ops.math.activations import Rule, activation, aten, back, backward
from gt.ops.math.pointwise import NUMERIC, ONLY_FLOATING
from gt.ops.op import op
from gt.ops.split import linear
from gt.types import DType


def _of(x: Any, number: float) -> Any:
    """The number in x's dtype; for integers, torch truncates it."""
    return x.dtype.type(number)


activation(
    "relu",
    function="t",
    doc="Each element, or 0 where it is negative.",
    fields=NUMERIC,
    vjp=(lambda g, y, _x: g._op("threshold_backward", y, threshold=0.0),),
    torch=lambda torch, x: torch.relu(x),
    kernel=lambda np, x: np.maximum(x, 0),
    inplace=lambda torch, x: x.relu_(),
)

_threshold_backward = aten("threshold_backward")

backward(
    "threshold_backward",
    "threshold",
    check=check_values,
    torch=lambda torch, g, x, *, threshold: _threshold_backward(torch, g, x, threshold),
    numpy=lambda np, g, x, *, threshold: np.where(x <= threshold, 0, g),
)

activation(
    "threshold",
    *("threshold", "value"),
    check=check_values,
    fields=NUMERIC,
    vjp=(lambda g, _y, x, *, threshold, value: g._op("threshold_backward", x, threshold=threshold),),
    torch=lambda torch, x, *, threshold, value: torch.threshold(x, threshold, value),
    kernel=lambda np, x, *, threshold, value: np.where(x <= _of(x, threshold), _of(x, value), x),
)

activation(
    "leaky_relu",
    "negative_slope",
    vjp=back("leaky_relu_backward"),
    torch=lambda torch, x, *, negative_slope: torch.nn.functional.leaky_relu(x, negative_slope),
    kernel=lambda np, x, *, negative_slope: np.where(x > 0, x, x * negative_slope),
)

_leaky = aten("leaky_relu_backward")

backward(
    "leaky_relu_backward",
    "negative_slope",
    is_aten=False,
    torch=lambda torch, g, x, *, negative_slope: _leaky(torch, g, x, negative_slope, False),
    numpy=lambda np, g, x, *, negative_slope: np.where(x > 0, g, g * negative_slope),
)


def _check_limits(dtype: DType, min_val: float, max_val: float) -> None:
    check_values(dtype, min_val=min_val, max_val=max_val)
    if not min_val <= max_val:
        raise ShapeError(f"min_val {min_val} is not less than or equal to max_val {max_val}")


activation(
    "hardtanh",
    *("min_val", "max_val"),
    check=_check_limits,
    fields=NUMERIC,
    vjp=back("hardtanh_backward"),
    torch=lambda torch, x, *, min_val, max_val: torch.nn.functional.hardtanh(x, min_val, max_val),
    kernel=lambda np, x, *, min_val, max_val: np.clip(x, _of(x, min_val), _of(x, max_val)),
)

_hardtanh = aten("hardtanh_backward")

backward(
    "hardtanh_backward",
    *("min_val", "max_val"),
    check=_check_limits,
    torch=lambda torch, g, x, *, min_val, max_val: _hardtanh(torch, g, x, min_val, max_val),
    numpy=lambda np, g, x, *, min_val, max_val: np.where((x <= min_val) | (x >= max_val), 0, g),
)

activation(
    "hardsigmoid",
    doc="Each element plus 3, limited to 0 and 6, divided by 6.",
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

activation(
    "hardswish",
    doc="Each element times its `hardsigmoid`.",
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


def _check_lambda(dtype: DType, lambd: float) -> None:
    check_values(dtype, lambd=lambd)
    if isnan(lambd):
        raise ShapeError("lambd is NaN")


def _check_positive_lambda(dtype: DType, lambd: float) -> None:
    check_numbers(dtype, lambd=lambd)
    if not 0 <= lambd <= LARGEST[dtype.name]:
        raise ShapeError(f"lambd is from 0 to {LARGEST[dtype.name]} for {dtype.name}, not {lambd}")


activation(
    "hardshrink",
    "lambd",
    check=_check_lambda,
    vjp=back("hardshrink_backward"),
    torch=lambda torch, x, *, lambd: torch.nn.functional.hardshrink(x, lambd),
    kernel=lambda np, x, *, lambd: np.where((x >= -lambd) & (x <= lambd), 0, x),
)

activation(
    "softshrink",
    "lambd",
    check=_check_positive_lambda,
    vjp=back("softshrink_backward"),
    torch=lambda torch, x, *, lambd: torch.nn.functional.softshrink(x, lambd),
    kernel=lambda np, x, *, lambd: np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0)),
)


def _shrunk(name: str) -> Rule:
    call = aten(name)
    return lambda torch, g, x, *, lambd: call(torch, g, x, lambd)


for _shrink, _check in (("hardshrink_backward", _check_lambda), ("softshrink_backward", _check_positive_lambda)):
    backward(
        _shrink,
        "lambd",
        check=_check,
        torch=_shrunk(_shrink),
        numpy=lambda np, g, x, *, lambd: np.where((x >= -lambd) & (x <= lambd), 0, g),
    )

# -- with weights --------------------------------------------------------------------------

op(
    "prelu",
    autocast="lower",
    **ONLY_FLOATING,  # the caller reshapes the weight to the operand's dims
    operands="tt",
    vjp=(
        lambda g, _y, x, weight: g._op("prelu_backward", x, weight),
        # both factors are masked, so that no NaN passes in gradients of gradients
        lambda g, _y, x, _weight: g.masked_fill(x >= 0, 0) * x.masked_fill(x >= 0, 0),
    ),
    torch=lambda torch, x, weight: torch.where(x > 0, x, x * weight),
    kernel=lambda np, x, weight: np.where(x > 0, x, x * weight),
)

op(
    "prelu_backward",
    **{**ONLY_FLOATING, **linear((0,))},
    operands="ttt",
    # at 0 the slope is the weight, but gradients of gradients take it as 1, as in torch
    vjp=(
        lambda d, _y, _g, x, weight: d.where(x >= 0, d * weight),
        None,
        lambda d, _y, g, x, _weight: (d * g).masked_fill(x >= 0, 0),
    ),
    torch=lambda torch, g, x, weight: torch.where(x > 0, g, g * weight),
    kernel=lambda np, g, x, weight: np.where(x > 0, g, g * weight),
)
