"""The regularised lower incomplete gamma function P(a, x), and how a gamma variable changes with its shape a."""

from __future__ import annotations

from typing import Any

from gt.ops.math.pointwise import FLOATING, ONLY_FLOATING
from gt.ops.math.special import digamma_numpy, each, log_gamma
from gt.ops.op import op

#: terms of a series, and of a continued fraction: both end earlier where more terms change nothing
MAX_TERMS = 20_000
TINY = 1e-300


def _gradient_numpy(np: Any, a: Any, y: Any) -> Any:
    """dy/da where P(a, y) stays the same, by the series of P, term by term."""
    good = (a > 0) & np.isfinite(a) & (y > 0) & np.isfinite(y)
    shape, x = (np.where(good, v, 1.0) for v in np.broadcast_arrays(a.astype(np.float64), y.astype(np.float64)))
    term, psi, log_x = x / shape, digamma_numpy(np, shape) + 1 / shape, np.log(x)
    total = term * (psi - log_x)
    for k in range(1, MAX_TERMS):
        term, psi = term * (x / (shape + k)), psi + 1 / (shape + k)
        step = term * (psi - log_x)
        total = total + step
        if (abs(step) <= 1e-17 * abs(total)).all():
            break
    return np.where(good, total, np.where(y == 0, 0.0, np.nan))


def _gradient_torch(torch: Any, a: Any, y: Any) -> Any:
    dtype = torch.promote_types(a.dtype, y.dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32  # there is no kernel for halves
    shapes, values = torch.broadcast_tensors(a.to(wide), y.to(wide))  # nor does the kernel broadcast
    return torch._standard_gamma_grad(shapes.contiguous(), values.contiguous()).to(dtype)


op(
    "standard_gamma_grad",
    aten=("_standard_gamma_grad",),
    operands="tt",
    **ONLY_FLOATING,
    no_gradient="torch has none",
    torch=_gradient_torch,
    kernel=_gradient_numpy,
)


def _series(np: Any, a: Any, x: Any) -> Any:
    """P(a, x) by its series, for x below a + 1."""
    term = total = 1 / a
    for k in range(1, MAX_TERMS):
        term = term * (x / (a + k))
        total = total + term
        if (term <= 1e-17 * total).all():
            break
    return total * _front(np, a, x)


def _fraction(np: Any, a: Any, x: Any) -> Any:
    """1 - P(a, x) by its continued fraction (Lentz), for x from a + 1 on."""
    b = x + 1 - a
    c, d = np.full_like(x, 1 / TINY), 1 / b
    total = d
    for k in range(1, MAX_TERMS):
        factor, b = -k * (k - a), b + 2
        d, c = factor * d + b, b + factor / c
        d, c = np.where(abs(d) < TINY, TINY, d), np.where(abs(c) < TINY, TINY, c)
        d = 1 / d
        total = total * (d * c)
        if (abs(d * c - 1) <= 1e-16).all():
            break
    return total * _front(np, a, x)


def _front(np: Any, a: Any, x: Any) -> Any:
    return np.exp(a * np.log(x) - x - each(log_gamma)(np, a))


def _igamma_numpy(np: Any, a: Any, x: Any) -> Any:
    a, x = np.broadcast_arrays(a.astype(np.float64), x.astype(np.float64))
    good = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    low = good & (x < a + 1)
    high = good & ~low
    below = _series(np, np.where(low, a, 1.0), np.where(low, x, 1.0))
    above = _fraction(np, np.where(high, a, 1.0), np.where(high, x, 3.0))
    result = np.where(low, below, 1 - above)
    ends = np.where(x == 0, 0.0, np.where(np.isinf(a), 0.0, 1.0))
    unclear = np.isnan(a + x) & (x != 0) & ~np.isinf(a) & ~np.isinf(x)
    invalid = (a < 0) | (x < 0) | ((a == 0) & ~(x > 0)) | (np.isinf(a) & np.isinf(x)) | unclear
    return np.where(invalid, np.nan, np.where(good, result, ends))


def _density(a: Any, x: Any) -> Any:
    return ((a - 1) * x.log() - x - a.lgamma()).exp()


op(
    "igamma",
    function="tt",
    aliases=("gammainc",),
    doc="The regularised lower incomplete gamma function of a shape and an upper limit.",
    **FLOATING,
    vjp=(
        lambda g, _y, a, x: g * _density(a, x) * -a._op("standard_gamma_grad", x),
        lambda g, _y, a, x: g * _density(a, x),
    ),
    torch=lambda torch, a, x: torch.igamma(*(t if t.is_floating_point() else t.float() for t in (a, x))),
    kernel=_igamma_numpy,
)
