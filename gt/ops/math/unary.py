"""Functions of one operand."""

from __future__ import annotations

from math import log, pi
from typing import Any

from gt.errors import DTypeError
from gt.ops.infer import pointwise, refusing
from gt.ops.math.pointwise import FLOATING, NUMERIC, ONLY_FLOATING, PROMOTING, zero
from gt.ops.op import Types, op
from gt.ops.split import Split, elementwise, letters, linear
from gt.types import DType, TensorType, bool_, int32, int64, real_of

# -- signs ---------------------------------------------------------------------------------

op(
    "neg",
    complex="rule",
    function="t",
    aliases=("negative",),
    doc="The negative of each element.",
    infer=refusing("b", pointwise, "logical_not"),
    **linear((0,)),
    vjp=(lambda g, _y, _x: -g,),
    kernel=lambda xp, x: -x,
    inplace=lambda torch, x: x.neg_(),
)


def _sized(x: TensorType) -> TensorType:
    """The absolute value of a complex number is real."""
    result: TensorType = NUMERIC["infer"](x)
    return TensorType(result.shape, real_of(result.dtype))


op(
    "abs",
    complex="rule",
    function="t",
    aliases=("absolute",),
    doc="The absolute value of each element.",
    **NUMERIC | {"infer": _sized},
    vjp=(lambda g, _y, x: g * x.sgn(),),
    kernel=lambda xp, x: xp.abs(x),
)

op(
    "sign",
    function="t",
    doc="The sign of each element: -1, 0 or 1.",
    **PROMOTING,
    vjp=(zero,),
    torch=lambda torch, x: torch.sign(x),
    # by comparison: in torch, the sign of NaN is 0
    kernel=lambda np, x: (x > 0).astype(np.int8) - (x < 0).astype(np.int8),
)

# -- powers, exponentials and logarithms ---------------------------------------------------

op(
    "exp",
    complex="holomorphic",
    function="t",
    doc="e to the power of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: g * y,),
    kernel=lambda xp, x: xp.exp(x),
    inplace=lambda torch, x: x.exp_(),
)

op(
    "exp2",
    complex="holomorphic",
    function="t",
    doc="2 to the power of each element.",
    **FLOATING,
    vjp=(lambda g, y, _x: g * (y * log(2)),),
    torch=lambda torch, x: torch.exp2(x),
    kernel=lambda np, x: np.exp2(x),
)

op(
    "expm1",
    complex="holomorphic",
    function="t",
    doc="e to the power of each element, minus 1; exact for small elements.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: g * (y + 1),),
    kernel=lambda xp, x: xp.expm1(x),
)

op(
    "log",
    complex="holomorphic",
    function="t",
    doc="The natural logarithm of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g / x,),
    kernel=lambda xp, x: xp.log(x),
)

op(
    "log2",
    complex="holomorphic",
    function="t",
    doc="The logarithm to base 2 of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g / (x * log(2)),),
    kernel=lambda xp, x: xp.log2(x),
)

op(
    "log10",
    complex="holomorphic",
    function="t",
    doc="The logarithm to base 10 of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g / (x * log(10)),),
    kernel=lambda xp, x: xp.log10(x),
)

op(
    "log1p",
    complex="holomorphic",
    function="t",
    doc="The natural logarithm of 1 plus each element; exact for small elements.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g / (x + 1),),
    kernel=lambda xp, x: xp.log1p(x),
)

op(
    "sqrt",
    complex="holomorphic",
    function="t",
    doc="The square root of each element.",
    **FLOATING,
    vjp=(lambda g, y, _x: g / (y * 2),),
    kernel=lambda xp, x: xp.sqrt(x),
    inplace=lambda torch, x: x.sqrt_(),
)

op(
    "rsqrt",
    complex="holomorphic",
    function="t",
    doc="1 divided by the square root of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: g * y**3 * -0.5,),
    torch=lambda torch, x: torch.rsqrt(x),
    kernel=lambda np, x: 1 / np.sqrt(x),
)


def _squaring(x: TensorType) -> DType:
    return int64 if x.dtype is bool_ else x.dtype  # torch squares a bool as x ** 2, with an integer 2


op(
    "square",
    complex="holomorphic",
    function="t",
    doc="The square of each element.",
    infer=lambda x: TensorType(x.shape, _squaring(x)),
    split=elementwise,
    common=_squaring,
    vjp=(lambda g, _y, x: g * (x * 2),),
    torch=lambda torch, x: torch.square(x),
    kernel=lambda np, x: x * x,
)

op(
    "reciprocal",
    complex="holomorphic",
    function="t",
    doc="1 divided by each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: -g * (y * y),),
    torch=lambda torch, x: torch.reciprocal(x),
    kernel=lambda np, x: 1 / x,
)

# -- angles --------------------------------------------------------------------------------

op(
    "sin",
    complex="holomorphic",
    function="t",
    doc="The sine of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x.cos(),),
    kernel=lambda xp, x: xp.sin(x),
)

op(
    "cos",
    complex="holomorphic",
    function="t",
    doc="The cosine of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * -x.sin(),),
    kernel=lambda xp, x: xp.cos(x),
)

op(
    "tan",
    complex="holomorphic",
    function="t",
    doc="The tangent of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: g * (y * y + 1),),
    kernel=lambda xp, x: xp.tan(x),
)

op(
    "asin",
    complex="holomorphic",
    function="t",
    aliases=("arcsin",),
    doc="The angle whose sine is each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g * (1 - x * x).rsqrt(),),
    kernel=lambda xp, x: xp.asin(x),
)

op(
    "acos",
    complex="holomorphic",
    function="t",
    aliases=("arccos",),
    doc="The angle whose cosine is each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g * -(1 - x * x).rsqrt(),),
    kernel=lambda xp, x: xp.acos(x),
)

op(
    "atan",
    complex="holomorphic",
    function="t",
    aliases=("arctan",),
    doc="The angle whose tangent is each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g / (x * x + 1),),
    kernel=lambda xp, x: xp.atan(x),
)

op(
    "sinh",
    complex="holomorphic",
    function="t",
    doc="The hyperbolic sine of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x.cosh(),),
    kernel=lambda xp, x: xp.sinh(x),
)

op(
    "cosh",
    complex="holomorphic",
    function="t",
    doc="The hyperbolic cosine of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x.sinh(),),
    kernel=lambda xp, x: xp.cosh(x),
)

op(
    "asinh",
    complex="holomorphic",
    function="t",
    aliases=("arcsinh",),
    doc="The inverse hyperbolic sine of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * (x * x + 1).rsqrt(),),
    kernel=lambda xp, x: xp.asinh(x),
)

op(
    "acosh",
    complex="holomorphic",
    function="t",
    aliases=("arccosh",),
    doc="The inverse hyperbolic cosine of each element.",
    **FLOATING,
    # of complex numbers, the square root of the product is not always the product of the square roots
    vjp=(lambda g, _y, x: g * ((x + 1).rsqrt() * (x - 1).rsqrt() if x.is_complex() else (x * x - 1).rsqrt()),),
    kernel=lambda xp, x: xp.acosh(x),
)

op(
    "atanh",
    complex="holomorphic",
    function="t",
    aliases=("arctanh",),
    doc="The inverse hyperbolic tangent of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g / (1 - x * x),),
    kernel=lambda xp, x: xp.atanh(x),
)

op(
    "deg2rad",
    function="t",
    doc="Each element, an angle in degrees, in radians.",
    **FLOATING | linear((0,), floating=True),
    vjp=(lambda g, _y, _x: g * (pi / 180),),
    torch=lambda torch, x: torch.deg2rad(x),
    kernel=lambda np, x: x * (pi / 180),
)

op(
    "rad2deg",
    function="t",
    doc="Each element, an angle in radians, in degrees.",
    **FLOATING | linear((0,), floating=True),
    vjp=(lambda g, _y, _x: g * (180 / pi),),
    torch=lambda torch, x: torch.rad2deg(x),
    kernel=lambda np, x: x * (180 / pi),
)

# -- rounding ------------------------------------------------------------------------------
# the array API's floor, ceil and trunc return an integer tensor itself; GT's results are fresh memory

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
