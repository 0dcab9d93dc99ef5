"""Special functions of one operand: error functions, gamma functions, Bessel functions, sinc and logit."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc, inf, lgamma, pi, sqrt
from typing import Any

from gt.errors import ShapeError
from gt.ops.elements import wide
from gt.ops.infer import pointwise_floating
from gt.ops.math.pointwise import FLOATING
from gt.ops.op import op
from gt.types import TensorType


def each(function: Callable[[float], float]) -> Callable[..., Any]:
    """A function of Python's math on every element: numpy has none of these."""
    return lambda np, x: np.vectorize(function, otypes=[np.float64])(x)


def _sinc_back(g: Any, _y: Any, x: Any) -> Any:
    angle = x * pi
    return (g * ((angle * angle.cos() - angle.sin()) / (x * angle))).masked_fill(x == 0, 0)


op(
    "sinc",
    function="t",
    doc="sin(πx) / (πx) of each element x; 1 at 0.",
    **FLOATING,
    vjp=(_sinc_back,),
    torch=lambda torch, x: torch.sinc(x),
    kernel=lambda np, x: np.sinc(*wide(np, x)),
)

# -- errors and gammas ---------------------------------------------------------------------

op(
    "erf",
    function="t",
    doc="The error function of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: (-x * x).exp() * (2 / sqrt(pi)) * g,),
    torch=lambda torch, x: torch.erf(x),
    kernel=each(erf),
)

op(
    "erfc",
    function="t",
    doc="1 minus the error function of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: (-x * x).exp() * (-2 / sqrt(pi)) * g,),
    torch=lambda torch, x: torch.erfc(x),
    kernel=each(erfc),
)


def _erfinv(x: float) -> float:
    from statistics import NormalDist  # here: a twentieth of the time of `import gt`

    if abs(x) < 1:
        return NormalDist().inv_cdf((x + 1) / 2) / sqrt(2)
    return inf * x if abs(x) == 1 else float("nan")


op(
    "erfinv",
    function="t",
    doc="The inverse of the error function of each element.",
    autocast="float32",
    **FLOATING,
    vjp=(lambda g, y, _x: (y * y).exp() * (sqrt(pi) / 2) * g,),
    torch=lambda torch, x: torch.erfinv(x),
    kernel=each(_erfinv),
)


def log_gamma(x: float) -> float:
    if x in (inf, -inf) or (x <= 0 and x == int(x)):
        return inf
    return lgamma(x)


op(
    "lgamma",
    function="t",
    aliases=("gammaln",),
    doc="The natural logarithm of the absolute value of the gamma function of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x._op("digamma"),),
    torch=lambda torch, x: torch.lgamma(x),
    kernel=each(log_gamma),
)

#: Bernoulli's numbers B2, B4, …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def digamma_numpy(np: Any, x: Any) -> Any:
    """By reflection to the right half, by recurrence to where the series is exact."""
    x = x.astype(np.float64)
    result = np.where(x <= 0, -np.pi / np.tan(np.pi * np.where(x == np.floor(x), np.nan, x)), 0.0)
    far = np.where(x <= 0, 1 - x, x)
    for _ in range(10):
        result, far = result - 1 / far, far + 1
    series = sum(b / (2 * k * far ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    result = result + np.log(far) - 1 / (2 * far) - series
    return np.where(x == 0, np.copysign(np.inf, -x), np.where(np.isposinf(x), np.inf, result))


op(
    "digamma",
    function="t",
    aliases=("psi",),
    doc="The derivative of the logarithm of the gamma function at each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x._op("polygamma", n=1),),
    torch=lambda torch, x: torch.digamma(x),
    kernel=digamma_numpy,
)


#: The largest order of `polygamma`. n! is infinite in float64 long before it, from n = 171 on.
MAX_ORDER = 1000
#: torch sums one term after another from x to 9, which takes forever for a very negative x. A smaller x is replaced by
#: this number plus the fraction of x.
LOWEST = -1e5


def _derived(x: TensorType, *, n: int) -> TensorType:
    if type(n) is not int or not 0 <= n <= MAX_ORDER:
        raise ShapeError(f"an order is an int from 0 to {MAX_ORDER}, not {n!r}")
    return pointwise_floating(x)


def _trigamma(np: Any, x: Any) -> Any:
    """The same terms as in torch."""
    mirrored = x < 0.5
    total = np.where(mirrored, -np.square(np.pi / np.sin(np.pi * x)), 0)
    near = np.where(mirrored, 1 - x, x)
    for _ in range(6):
        total, near = total + 1 / (near * near), near + 1
    i = 1 / (near * near)
    total = total + (1 + 1 / (2 * near) + i * (1 / 6 - i * (1 / 30 - i / 42))) / near
    return np.where(mirrored, -total, total)


def _zeta(np: Any, s: int, x: Any) -> Any:
    """The Hurwitz zeta function for integers s above 1: terms from x to where the Euler-Maclaurin sum is exact."""
    total, far = np.zeros_like(x), x
    while np.any(near := far < 15):
        total, far = total + np.where(near, far**-s, 0), np.where(near, far + 1, far)
    total = total + far ** (1 - s) / (s - 1) + far**-s / 2
    rising = 1.0
    for k, b in enumerate(_BERNOULLI, 1):
        rising = rising * (s if k == 1 else (s + 2 * k - 3) * (s + 2 * k - 2)) / (2 if k == 1 else 2 * k * (2 * k - 1))
        total = total + b * rising * far ** (1 - s - 2.0 * k)
    return np.where((x <= 0) & (x == np.floor(x)), np.inf, total)


def _brought_near(xp: Any, x: Any) -> Any:
    return xp.where((x < LOWEST) & xp.isfinite(x), x - xp.floor(x) + LOWEST, x)


def _polygamma_numpy(np: Any, x: Any, *, n: int) -> Any:
    if n == 0:
        return digamma_numpy(np, x)
    if n == 1:
        return _trigamma(np, x)
    wide = x.astype(np.float64)
    result = _zeta(np, n + 1, np.where(np.isfinite(wide), _brought_near(np, wide), 1.0))
    result = np.where(np.isfinite(wide), result, np.where(wide == np.inf, np.nan, np.where(wide < 0, np.inf, np.nan)))
    return (-1) ** (n + 1) * np.exp(lgamma(n + 1.0)) * result


op(
    "polygamma",
    **FLOATING | {"infer": _derived},
    vjp=(lambda g, _y, x, *, n: g * x._op("polygamma", n=n + 1),),
    torch=lambda torch, x, *, n: torch.polygamma(n, _brought_near(torch, x) if n > 1 and x.is_floating_point() else x),
    kernel=_polygamma_numpy,
)


def _logit_back(g: Any, _y: Any, x: Any, *, eps: float | None) -> Any:
    low, rest = (0.0, float("nan")) if eps is None else (eps, 0.0)
    return (g / (x * (1 - x))).where((x >= low) & (x <= 1 - low), rest)


def _logit_numpy(np: Any, x: Any, *, eps: float | None) -> Any:
    if eps is not None and eps == eps:  # torch compares with eps, and every comparison with NaN is false
        x = np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


op(
    "logit",
    **FLOATING,
    vjp=(_logit_back,),
    torch=lambda torch, x, *, eps: torch.logit(x, eps),
    kernel=_logit_numpy,
)

# -- Bessel functions ----------------------------------------------------------------------

op(
    "i0",
    function="t",
    doc="The modified Bessel function of the first kind of order 0 of each element.",
    **FLOATING,
    vjp=(lambda g, _y, x: g * x._op("i1"),),
    torch=lambda torch, x: torch.special.i0(x),
    kernel=lambda np, x: np.i0(*wide(np, x)),
)


def _i1_numpy(np: Any, x: Any) -> Any:
    """The mean of exp(x cos t) cos t over as many angles as float64 needs; NaN for infinities, as in torch."""
    cosines = np.cos((np.arange(256) + 0.5) * (pi / 256))
    wide_x = np.where(np.isinf(x), np.nan, x.astype(np.float64))[..., None]
    return np.mean(np.exp(wide_x * cosines) * cosines, axis=-1)


def _i1_back(g: Any, y: Any, x: Any) -> Any:
    """0.5 at 0; as in torch, at NaN too."""
    inside = x.abs() > 0
    safe = x.where(inside, 1)
    return g * (safe._op("i0") - y / safe).where(inside, 0.5)


op(
    "i1",
    function="t",
    doc="The modified Bessel function of the first kind of order 1 of each element.",
    **FLOATING,
    vjp=(_i1_back,),
    torch=lambda torch, x: torch.special.i1(x),
    kernel=_i1_numpy,
)
