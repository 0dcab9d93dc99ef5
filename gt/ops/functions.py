"""Functions of one operand."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc, factorial, inf, lgamma, log, pi, sqrt
from statistics import NormalDist
from typing import Any

from gt.ops.core import op
from gt.ops.infer import pointwise, refusing
from gt.ops.pointwise import FLOATING, MEETING, NUMERIC, ONLY_FLOATING, zero
from gt.ops.split import elementwise, linear
from gt.types import DType, TensorType, bool_, int64


def each(function: Callable[[float], float]) -> Callable[..., Any]:
    """A function of Python's math on every element: numpy has none of these."""
    return lambda np, x: np.vectorize(function, otypes=[np.float64])(x)


# -- signs ---------------------------------------------------------------------------------

op(
    "neg",
    infer=refusing("b", pointwise, "logical_not"),
    **linear((0,)),
    vjp=(lambda g, _y, _x: -g,),
    kernel=lambda xp, x: -x,
    inplace=lambda torch, x: x.neg_(),
)

op("abs", **NUMERIC, vjp=(lambda g, _y, x: g * x.sign(),), kernel=lambda xp, x: xp.abs(x))

op(
    "sign",
    **MEETING,
    vjp=(zero,),
    torch=lambda torch, x: torch.sign(x),
    # by comparison: torch calls the sign of NaN 0
    kernel=lambda np, x: (x > 0).astype(np.int8) - (x < 0).astype(np.int8),
)

# -- powers, exponentials and logarithms ---------------------------------------------------

op(
    "exp",
    **FLOATING,
    vjp=(lambda g, y, _x: g * y,),
    kernel=lambda xp, x: xp.exp(x),
    inplace=lambda torch, x: x.exp_(),
)

op(
    "exp2",
    **FLOATING,
    vjp=(lambda g, y, _x: g * (y * log(2)),),
    torch=lambda torch, x: torch.exp2(x),
    kernel=lambda np, x: np.exp2(x),
)

op("expm1", **FLOATING, vjp=(lambda g, y, _x: g * (y + 1),), kernel=lambda xp, x: xp.expm1(x))

op("log", **FLOATING, vjp=(lambda g, _y, x: g / x,), kernel=lambda xp, x: xp.log(x))

op("log2", **FLOATING, vjp=(lambda g, _y, x: g / (x * log(2)),), kernel=lambda xp, x: xp.log2(x))

op("log10", **FLOATING, vjp=(lambda g, _y, x: g / (x * log(10)),), kernel=lambda xp, x: xp.log10(x))

op("log1p", **FLOATING, vjp=(lambda g, _y, x: g / (x + 1),), kernel=lambda xp, x: xp.log1p(x))

op(
    "sqrt",
    **FLOATING,
    vjp=(lambda g, y, _x: g / (y * 2),),
    kernel=lambda xp, x: xp.sqrt(x),
    inplace=lambda torch, x: x.sqrt_(),
)

op(
    "rsqrt",
    **FLOATING,
    vjp=(lambda g, y, _x: g * y**3 * -0.5,),
    torch=lambda torch, x: torch.rsqrt(x),
    kernel=lambda np, x: 1 / np.sqrt(x),
)


def _squaring(x: TensorType) -> DType:
    return int64 if x.dtype is bool_ else x.dtype  # torch squares a bool as x ** 2, with an integer 2


op(
    "square",
    infer=lambda x: TensorType(x.shape, _squaring(x)),
    split=elementwise,
    common=_squaring,
    vjp=(lambda g, _y, x: g * (x * 2),),
    torch=lambda torch, x: torch.square(x),
    kernel=lambda np, x: x * x,
)

op(
    "reciprocal",
    **FLOATING,
    vjp=(lambda g, y, _x: -g * (y * y),),
    torch=lambda torch, x: torch.reciprocal(x),
    kernel=lambda np, x: 1 / x,
)

# -- angles --------------------------------------------------------------------------------

op("sin", **FLOATING, vjp=(lambda g, _y, x: g * x.cos(),), kernel=lambda xp, x: xp.sin(x))

op("cos", **FLOATING, vjp=(lambda g, _y, x: g * -x.sin(),), kernel=lambda xp, x: xp.cos(x))

op("tan", **FLOATING, vjp=(lambda g, y, _x: g * (y * y + 1),), kernel=lambda xp, x: xp.tan(x))

op("asin", **FLOATING, vjp=(lambda g, _y, x: g * (1 - x * x).rsqrt(),), kernel=lambda xp, x: xp.asin(x))

op("acos", **FLOATING, vjp=(lambda g, _y, x: g * -(1 - x * x).rsqrt(),), kernel=lambda xp, x: xp.acos(x))

op("atan", **FLOATING, vjp=(lambda g, _y, x: g / (x * x + 1),), kernel=lambda xp, x: xp.atan(x))

op("sinh", **FLOATING, vjp=(lambda g, _y, x: g * x.cosh(),), kernel=lambda xp, x: xp.sinh(x))

op("cosh", **FLOATING, vjp=(lambda g, _y, x: g * x.sinh(),), kernel=lambda xp, x: xp.cosh(x))

op("asinh", **FLOATING, vjp=(lambda g, _y, x: g * (x * x + 1).rsqrt(),), kernel=lambda xp, x: xp.asinh(x))

op("acosh", **FLOATING, vjp=(lambda g, _y, x: g * (x * x - 1).rsqrt(),), kernel=lambda xp, x: xp.acosh(x))

op("atanh", **FLOATING, vjp=(lambda g, _y, x: g / (1 - x * x),), kernel=lambda xp, x: xp.atanh(x))

op(
    "deg2rad",
    **FLOATING | linear((0,), floating=True),
    vjp=(lambda g, _y, _x: g * (pi / 180),),
    torch=lambda torch, x: torch.deg2rad(x),
    kernel=lambda np, x: x * (pi / 180),
)

op(
    "rad2deg",
    **FLOATING | linear((0,), floating=True),
    vjp=(lambda g, _y, _x: g * (180 / pi),),
    torch=lambda torch, x: torch.rad2deg(x),
    kernel=lambda np, x: x * (180 / pi),
)


def _sinc_back(g: Any, _y: Any, x: Any) -> Any:
    angle = x * pi
    return (g * ((angle * angle.cos() - angle.sin()) / (x * angle))).masked_fill(x == 0, 0)


op("sinc", **FLOATING, vjp=(_sinc_back,), torch=lambda torch, x: torch.sinc(x), kernel=lambda np, x: np.sinc(x))

# -- errors and gammas ---------------------------------------------------------------------

op(
    "erf",
    **FLOATING,
    vjp=(lambda g, _y, x: (-x * x).exp() * (2 / sqrt(pi)) * g,),
    torch=lambda torch, x: torch.erf(x),
    kernel=each(erf),
)

op(
    "erfc",
    **FLOATING,
    vjp=(lambda g, _y, x: (-x * x).exp() * (-2 / sqrt(pi)) * g,),
    torch=lambda torch, x: torch.erfc(x),
    kernel=each(erfc),
)


def _erfinv(x: float) -> float:
    if abs(x) < 1:
        return NormalDist().inv_cdf((x + 1) / 2) / sqrt(2)
    return inf * x if abs(x) == 1 else float("nan")


op(
    "erfinv",
    **FLOATING,
    vjp=(lambda g, y, _x: (y * y).exp() * (sqrt(pi) / 2) * g,),
    torch=lambda torch, x: torch.erfinv(x),
    kernel=each(_erfinv),
)


def _lgamma(x: float) -> float:
    if x in (inf, -inf) or (x <= 0 and x == int(x)):
        return inf
    return lgamma(x)


op(
    "lgamma",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x._op("digamma"),),
    torch=lambda torch, x: torch.lgamma(x),
    kernel=each(_lgamma),
)

#: Bernoulli's numbers B2, B4, …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _digamma(np: Any, x: Any) -> Any:
    """Up to where the series is exact by the recurrence, and to the right half by reflection."""
    x = x.astype(np.float64)
    made = np.where(x <= 0, -np.pi / np.tan(np.pi * np.where(x == np.floor(x), np.nan, x)), 0.0)
    far = np.where(x <= 0, 1 - x, x)
    for _ in range(10):
        made, far = made - 1 / far, far + 1
    series = sum(b / (2 * k * far ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    made = made + np.log(far) - 1 / (2 * far) - series
    return np.where(x == 0, np.copysign(np.inf, -x), np.where(np.isposinf(x), np.inf, made))


op(
    "digamma",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x._op("polygamma", n=1),),
    torch=lambda torch, x: torch.digamma(x),
    kernel=_digamma,
)


def _polygamma(np: Any, x: Any, *, n: int) -> Any:
    if n == 0:
        return _digamma(np, x)
    far, total = x.astype(np.float64), 0.0
    for _ in range(15):
        total, far = total + far ** -(n + 1.0), far + 1
    total = total + far**-n / n + far ** -(n + 1.0) / 2
    rising = 1.0
    for k, b in enumerate(_BERNOULLI, 1):
        rising = (
            rising * (n + 1 if k == 1 else (n + 2 * k - 2) * (n + 2 * k - 1)) / (2 if k == 1 else 2 * k * (2 * k - 1))
        )
        total = total + b * rising * far ** -(n + 2.0 * k)
    return (-1) ** (n + 1) * factorial(n) * total


op(
    "polygamma",
    **FLOATING,
    vjp=(lambda g, _y, x, *, n: g * x._op("polygamma", n=n + 1),),
    torch=lambda torch, x, *, n: torch.polygamma(n, x),
    kernel=_polygamma,
)


def _logit_back(g: Any, _y: Any, x: Any, *, eps: float | None) -> Any:
    low, rest = (0.0, float("nan")) if eps is None else (eps, 0.0)
    return (g / (x * (1 - x))).where((x >= low) & (x <= 1 - low), rest)


def _logit_numpy(np: Any, x: Any, *, eps: float | None) -> Any:
    x = x if eps is None else np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


op(
    "logit",
    **FLOATING,
    vjp=(_logit_back,),
    torch=lambda torch, x, *, eps: torch.logit(x, eps),
    kernel=_logit_numpy,
)

# -- rounding ------------------------------------------------------------------------------
# the array API's floor, ceil and trunc give an integer tensor back as it is; GT's results are fresh memory

op("floor", **NUMERIC, vjp=(zero,), torch=lambda torch, x: torch.floor(x), kernel=lambda np, x: np.floor(+x))

op("ceil", **NUMERIC, vjp=(zero,), torch=lambda torch, x: torch.ceil(x), kernel=lambda np, x: np.ceil(+x))

op("trunc", **NUMERIC, vjp=(zero,), torch=lambda torch, x: torch.trunc(x), kernel=lambda np, x: np.trunc(+x))


op("round", **NUMERIC, vjp=(zero,), torch=lambda torch, x: torch.round(x), kernel=lambda np, x: np.round(+x))

op(
    "round_decimals",
    infer=lambda x, *, decimals: NUMERIC["infer"](x),
    split=elementwise,
    vjp=(zero,),
    torch=lambda torch, x, *, decimals: torch.round(x, decimals=decimals),
    kernel=lambda np, x, *, decimals: np.round(x, decimals),
)

op(
    "frac",
    **ONLY_FLOATING,
    vjp=(lambda g, _y, _x: g,),
    torch=lambda torch, x: torch.frac(x),
    kernel=lambda np, x: x - np.trunc(x),
)
