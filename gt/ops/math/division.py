"""Division and its remainders; of integers, as torch rounds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import common_floating, pointwise_floating
from gt.ops.math.pointwise import NUMERIC, as_tensors, on_tensors, zero
from gt.ops.op import EITHER, Types, op
from gt.ops.split import elementwise, scaling
from gt.types import OperandType, TensorType, result_dtype


def _divided(*types: OperandType, rounding_mode: str | None) -> TensorType:
    if rounding_mode not in _ROUNDED:
        raise ShapeError(f"rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    result = _ROUNDED[rounding_mode](*types)
    if rounding_mode is not None and result.dtype.kind == "c":
        raise DTypeError(f"complex numbers cannot be rounded: rounding_mode={rounding_mode!r}")
    return result


_ROUNDED: dict[str | None, Callable[..., TensorType]] = {
    None: pointwise_floating,
    "floor": NUMERIC["infer"],
    "trunc": NUMERIC["infer"],
}


def _checked(np: Any, a: Any, divisor: Any) -> Any:
    """Raises at an integer division by zero, as torch does; numpy gives 0 and a warning."""
    if a.size and divisor.dtype.kind in "iu" and not np.all(divisor):
        raise ZeroDivisionError("an integer divided by zero")
    return divisor


def _truncated(np: Any, a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    b = _checked(np, a, b)
    return a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


_DIVIDE = {
    None: lambda np, a, b: a / b,
    "floor": lambda np, a, b: a // _checked(np, a, b),
    "trunc": _truncated,
}


def _div_torch(torch: Any, a: Any, b: Any, *, rounding_mode: str | None, out: Types) -> Any:
    if rounding_mode is None:
        return a / b
    a, b = as_tensors(torch, out, a, b)
    if rounding_mode == "trunc" and out[0].dtype.kind == "i":
        dtype = getattr(torch, out[0].dtype.name)
        return _truncated_torch(torch, a.to(dtype), b.to(dtype))
    return torch.div(a, b, rounding_mode=rounding_mode)


def _truncated_torch(torch: Any, a: Any, b: Any) -> Any:
    """The smallest integer divided by -1 is a trap on x86-64, and ends the process: 0 - a wraps around instead."""
    negated = b == -1
    return torch.where(negated, 0 - a, torch.div(a, b.masked_fill(negated, 1), rounding_mode="trunc"))


def _div_into(torch: Any, a: Any, b: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode == "trunc" and not a.is_floating_point():
        b = b if isinstance(b, torch.Tensor) else torch.full((), b, dtype=a.dtype, device=a.device)
        return a.copy_(_truncated_torch(torch, a, b))
    return a.div_(b, rounding_mode=rounding_mode)


op(
    "div",
    complex="holomorphic",
    operands=EITHER * 2,
    infer=_divided,
    common=lambda *types, rounding_mode: result_dtype(*types) if rounding_mode else common_floating(*types),
    split=lambda *types, rounding_mode: elementwise(*types) if rounding_mode else scaling(*types, divides=True),
    vjp=(
        lambda g, _y, _a, b, *, rounding_mode: zero(g) if rounding_mode else g / b,
        lambda g, _y, a, b, *, rounding_mode: zero(g) if rounding_mode else -g * ((a / b) / b),
    ),
    wants_out=True,
    torch=_div_torch,
    kernel=lambda np, a, b, *, rounding_mode, out: _DIVIDE[rounding_mode](np, a, b),
    inplace=_div_into,
)

op(
    "floor_divide",
    function="ee",
    doc="The quotient of the operands, rounded down.",
    no_gradient="torch has no gradient for it either",
    stops_at_zero=True,
    operands=EITHER * 2,
    **NUMERIC,
    torch=lambda torch, a, b: a // b,
    kernel=lambda np, a, b: a // _checked(np, a, b),
    inplace=lambda torch, a, b: a.floor_divide_(b),
)


def _quotient(a: Any, b: Any, rounding_mode: str) -> Any:
    a = b.new_full((), a) if isinstance(a, int | float) else a
    return a.div(b, rounding_mode=rounding_mode)


op(
    "remainder",
    function="ee",
    doc="The remainder of a division rounded down; it has the sign of the divisor.",
    stops_at_zero=True,
    operands=EITHER * 2,
    **NUMERIC,
    vjp=(lambda g, _y, _a, _b: g, lambda g, _y, a, b: -g * _quotient(a, b, "floor")),
    torch=lambda torch, a, b: a % b,
    kernel=lambda np, a, b: np.remainder(a, _checked(np, a, b)),
    inplace=lambda torch, a, b: a.remainder_(b),
)

op(
    "fmod",
    function="te",
    doc="The remainder of a division rounded towards zero; it has the sign of the dividend.",
    stops_at_zero=True,
    operands=EITHER * 2,
    **NUMERIC,
    vjp=(lambda g, _y, _a, _b: g, lambda g, _y, a, b: -g * _quotient(a, b, "trunc")),
    wants_out=True,
    torch=on_tensors("fmod"),
    kernel=lambda np, a, b, *, out: np.fmod(a, _checked(np, a, b)),
)
