"""Rounding, and the parts of a number.

The array API's floor, ceil and trunc return an integer tensor itself; GT's results are fresh memory.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError
from gt.ops.math.pointwise import NUMERIC, ONLY_FLOATING, zero
from gt.ops.op import Types, op
from gt.ops.split import Split, elementwise, letters
from gt.types import TensorType, int32

op(
    "floor",
    function="t",
    doc="The largest integer that is not greater than each element.",
    **NUMERIC,
    vjp=(zero,),
    torch=lambda torch, x: torch.floor(x),
    kernel=lambda np, x: np.floor(+x),
)

op(
    "ceil",
    function="t",
    doc="The smallest integer that is not less than each element.",
    **NUMERIC,
    vjp=(zero,),
    torch=lambda torch, x: torch.ceil(x),
    kernel=lambda np, x: np.ceil(+x),
)

op(
    "trunc",
    function="t",
    aliases=("fix",),
    doc="The integer part of each element.",
    **NUMERIC,
    vjp=(zero,),
    torch=lambda torch, x: torch.trunc(x),
    kernel=lambda np, x: np.trunc(+x),
)


op("round", **NUMERIC, vjp=(zero,), torch=lambda torch, x: torch.round(x), kernel=lambda np, x: np.round(+x))


def _rounded(x: TensorType, *, decimals: int) -> TensorType:
    if type(decimals) is not int:
        raise DTypeError(f"decimals is an int, and {decimals!r} is not")
    return ONLY_FLOATING["infer"](x)  # type: ignore[no-any-return]


def _round_numpy(np: Any, x: Any, *, decimals: int) -> Any:
    """As in torch: scaled in the dtype of x, so that a scale beyond its range gives NaN or 0."""
    scale = np.float64(10.0) ** abs(decimals)
    scale = scale.astype(x.dtype)
    return np.round(x / scale) * scale if decimals < 0 else np.round(x * scale) / scale


op(
    "round_decimals",
    infer=_rounded,
    split=elementwise,
    vjp=(zero,),
    torch=lambda torch, x, *, decimals: torch.round(x, decimals=decimals),
    kernel=_round_numpy,
)

op(
    "frac",
    function="t",
    doc="The fractional part of each element.",
    **ONLY_FLOATING,
    vjp=(lambda g, _y, _x: g,),
    torch=lambda torch, x: torch.frac(x),
    kernel=lambda np, x: x - np.trunc(x),
)


def _mantissa_and_exponent(x: TensorType) -> Types:
    return ONLY_FLOATING["infer"](x), TensorType(x.shape, int32)


op(
    "frexp",
    function="t",
    results=("mantissa", "exponent"),
    doc="Each element as a mantissa below 1 and a power of 2.",
    operands="t",
    infer=_mantissa_and_exponent,
    split=lambda x: Split(f"{letters(x.ndim)}->{letters(x.ndim)},{letters(x.ndim)}"),
    vjp=(lambda g, y1, _x: g[0] / y1[1].detach().to(g[0].dtype).exp2(),),
    torch=lambda torch, x: tuple(torch.frexp(x)),
    kernel=lambda np, x: np.frexp(x),
)
