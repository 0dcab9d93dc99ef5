"""Functions of one operand."""

from __future__ import annotations

from math import log, pi

from gt.ops.infer import pointwise, refusing
from gt.ops.math.pointwise import FLOATING, HOLOMORPHIC, NUMERIC, PROMOTING, zero
from gt.ops.op import op
from gt.ops.split import elementwise, linear
from gt.types import DType, TensorType, bool_, int64, real_of

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
    function="t",
    doc="e to the power of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: g * y,),
    kernel=lambda xp, x: xp.exp(x),
    inplace=lambda torch, x: x.exp_(),
)

op(
    "exp2",
    function="t",
    doc="2 to the power of each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: g * (y * log(2)),),
    torch=lambda torch, x: torch.exp2(x),
    kernel=lambda np, x: np.exp2(x),
)

op(
    "expm1",
    function="t",
    doc="e to the power of each element, minus 1; exact for small elements.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: g * (y + 1),),
    kernel=lambda xp, x: xp.expm1(x),
)

op(
    "log",
    function="t",
    doc="The natural logarithm of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g / x,),
    kernel=lambda xp, x: xp.log(x),
)

op(
    "log2",
    function="t",
    doc="The logarithm to base 2 of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g / (x * log(2)),),
    kernel=lambda xp, x: xp.log2(x),
)

op(
    "log10",
    function="t",
    doc="The logarithm to base 10 of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g / (x * log(10)),),
    kernel=lambda xp, x: xp.log10(x),
)

op(
    "log1p",
    function="t",
    doc="The natural logarithm of 1 plus each element; exact for small elements.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g / (x + 1),),
    kernel=lambda xp, x: xp.log1p(x),
)

op(
    "sqrt",
    function="t",
    doc="The square root of each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: g / (y * 2),),
    kernel=lambda xp, x: xp.sqrt(x),
    inplace=lambda torch, x: x.sqrt_(),
)

op(
    "rsqrt",
    function="t",
    doc="1 divided by the square root of each element.",
    autocast="float32",
    **HOLOMORPHIC,
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
    function="t",
    doc="1 divided by each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: -g * (y * y),),
    torch=lambda torch, x: torch.reciprocal(x),
    kernel=lambda np, x: 1 / x,
)

# -- angles --------------------------------------------------------------------------------

op(
    "sin",
    function="t",
    doc="The sine of each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * x.cos(),),
    kernel=lambda xp, x: xp.sin(x),
)

op(
    "cos",
    function="t",
    doc="The cosine of each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * -x.sin(),),
    kernel=lambda xp, x: xp.cos(x),
)

op(
    "tan",
    function="t",
    doc="The tangent of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, y, _x: g * (y * y + 1),),
    kernel=lambda xp, x: xp.tan(x),
)

op(
    "asin",
    function="t",
    aliases=("arcsin",),
    doc="The angle whose sine is each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * (1 - x * x).rsqrt(),),
    kernel=lambda xp, x: xp.asin(x),
)

op(
    "acos",
    function="t",
    aliases=("arccos",),
    doc="The angle whose cosine is each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * -(1 - x * x).rsqrt(),),
    kernel=lambda xp, x: xp.acos(x),
)

op(
    "atan",
    function="t",
    aliases=("arctan",),
    doc="The angle whose tangent is each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g / (x * x + 1),),
    kernel=lambda xp, x: xp.atan(x),
)

op(
    "sinh",
    function="t",
    doc="The hyperbolic sine of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * x.cosh(),),
    kernel=lambda xp, x: xp.sinh(x),
)

op(
    "cosh",
    function="t",
    doc="The hyperbolic cosine of each element.",
    autocast="float32",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * x.sinh(),),
    kernel=lambda xp, x: xp.cosh(x),
)

op(
    "asinh",
    function="t",
    aliases=("arcsinh",),
    doc="The inverse hyperbolic sine of each element.",
    **HOLOMORPHIC,
    vjp=(lambda g, _y, x: g * (x * x + 1).rsqrt(),),
    kernel=lambda xp, x: xp.asinh(x),
)

op(
    "acosh",
    function="t",
    aliases=("arccosh",),
    doc="The inverse hyperbolic cosine of each element.",
    **HOLOMORPHIC,
    # of complex numbers, the square root of a product is not always the product of the square roots
    vjp=(lambda g, _y, x: g * ((x + 1).rsqrt() * (x - 1).rsqrt() if x.is_complex() else (x * x - 1).rsqrt()),),
    kernel=lambda xp, x: xp.acosh(x),
)

op(
    "atanh",
    function="t",
    aliases=("arctanh",),
    doc="The inverse hyperbolic tangent of each element.",
    **HOLOMORPHIC,
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
