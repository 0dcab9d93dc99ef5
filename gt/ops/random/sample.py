"""Ops that draw from a distribution with the parameters of each element: gamma, Poisson and binomial.

They are rejection methods: a candidate is drawn for every element, and again for those that were refused, until none is
left. Each round takes its numbers from another section of positions, so a block gives the same values as the whole. The
methods compute in float64 on both engines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lgamma
from typing import Any, NamedTuple

from gt.errors import DTypeError
from gt.ops.infer import broadcast_shapes
from gt.ops.math.special import each
from gt.ops.op import op
from gt.ops.random import philox, tensors
from gt.ops.split import Split, letters, placed, stretched
from gt.types import INT, OperandType, Shape, TensorType

#: A candidate is refused with a probability below 1/2, so a lack of values after this many rounds means a wrong method.
MAX_ROUNDS = 200
#: where the mean is below, values are found by adding up probabilities, the first from 0 on
SMALL_MEAN = 10
#: the most values that are added up: the probability beyond is below the distance between two uniform numbers
MAX_VALUES = 110


class Source(NamedTuple):
    """What a method needs: the tensor library, its logarithm of the gamma function, and random numbers."""

    xp: Any
    lgamma: Callable[[Any], Any]
    #: (draw, section) -> a number of float64 for each element
    draw: Callable[[Any, int], Any]

    def uniform(self, section: int) -> Any:
        """In (0, 1]: 0 has no logarithm."""
        return 1 - self.draw(philox.uniform, section)

    def until_accepted(self, values: Any, pending: Any, candidate: Callable[[int], tuple[Any, Any]]) -> Any:
        """Replace the values where ``pending`` by the first accepted candidates. A round has two sections."""
        for k in range(MAX_ROUNDS):
            if not pending.any():
                break
            drawn, accepted = candidate(2 + 2 * k)
            values = self.xp.where(pending & accepted, drawn, values)
            pending = pending & ~accepted
        return values


def gamma(source: Source, shape: Any) -> Any:
    """Marsaglia and Tsang, 2000. Below 1, a value for the shape plus 1 is scaled down."""
    xp = source.xp
    good = (shape > 0) & xp.isfinite(shape)
    safe = xp.where(good, shape, xp.ones_like(shape))
    d = xp.where(safe < 1, safe + 1, safe) - 1 / 3

    def candidate(section: int) -> tuple[Any, Any]:
        x = source.draw(philox.normal, section)
        v = (1 + x / xp.sqrt(9 * d)) ** 3
        log_v = xp.log(xp.where(v > 0, v, xp.ones_like(v)))
        return d * v, (v > 0) & (xp.log(source.uniform(section + 1)) < x * x / 2 + d * (1 - v + log_v))

    values = source.until_accepted(safe, good, candidate)
    values = xp.where(safe < 1, values * source.uniform(0) ** (1 / safe), values)
    return xp.where(good, values, xp.where(shape == 0, 0 * safe, shape * float("nan")))


def poisson(source: Source, rate: Any) -> Any:
    """Small rates by adding up probabilities, others by Hörmann's transformed rejection (PTRS, 1993)."""
    xp = source.xp
    good = (rate >= 0) & xp.isfinite(rate)
    small = xp.where(good & (rate < SMALL_MEAN), rate, 0 * xp.ones_like(rate))
    values = _added_up(source, xp.exp(-small), lambda k: small / k)
    large = xp.where(good & (rate >= SMALL_MEAN), rate, SMALL_MEAN * xp.ones_like(rate))
    b = 0.931 + 2.53 * xp.sqrt(large)
    a = -0.059 + 0.02483 * b
    scale = xp.log(1.1239 + 1.1328 / (b - 3.4))

    def candidate(section: int) -> tuple[Any, Any]:
        k, us, v = _hat(source, section, a, b, large + 0.43)
        bound = -large + k * xp.log(large) - source.lgamma(xp.where(k < 0, 0 * k, k) + 1)
        inside = (k >= 0) & ((us >= 0.013) | (v <= us)) & (xp.log(v) + scale - xp.log(a / (us * us) + b) <= bound)
        return k, ((us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))) | inside

    values = source.until_accepted(values, good & (rate >= SMALL_MEAN), candidate)
    return xp.where(good, values, rate * float("nan"))


def binomial(source: Source, count: Any, prob: Any) -> Any:
    """Small means by adding up probabilities, others by Hörmann's transformed rejection (BTRS, 1993)."""
    xp = source.xp
    good = (count >= 0) & xp.isfinite(count) & (prob >= 0) & (prob <= 1)
    n = xp.where(good, xp.floor(count), 0 * xp.ones_like(count))
    p = xp.where(good, xp.where(prob > 0.5, 1 - prob, prob), 0 * xp.ones_like(prob))
    is_large = n * p >= SMALL_MEAN
    small = xp.where(is_large, 0 * p, p)
    odds = small / (1 - small)
    values = _added_up(source, xp.exp(n * xp.log1p(-small)), lambda k: xp.where(n >= k, (n - k + 1) / k * odds, 0 * n))
    n_large, p_large = xp.where(is_large, n, 40 * xp.ones_like(n)), xp.where(is_large, p, 0.5 * xp.ones_like(p))
    spread = xp.sqrt(n_large * p_large * (1 - p_large))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p_large
    mode, odds_large = xp.floor((n_large + 1) * p_large), xp.log(p_large / (1 - p_large))
    height = source.lgamma(mode + 1) + source.lgamma(n_large - mode + 1)

    def candidate(section: int) -> tuple[Any, Any]:
        k, us, v = _hat(source, section, a, b, n_large * p_large + 0.5)
        in_range = (k >= 0) & (k <= n_large)
        safe = xp.where(in_range, k, mode)
        bound = height - source.lgamma(safe + 1) - source.lgamma(n_large - safe + 1) + (safe - mode) * odds_large
        inside = in_range & (xp.log(v * (2.83 + 5.1 / b) * spread / (a / (us * us) + b)) <= bound)
        return k, ((us >= 0.07) & (v <= 0.92 - 4.2 / b)) | inside

    values = source.until_accepted(values, is_large, candidate)
    return xp.where(good, xp.where(prob > 0.5, n - values, values), count * float("nan"))


def _hat(source: Source, section: int, a: Any, b: Any, center: Any) -> tuple[Any, Any, Any]:
    """A candidate below Hörmann's hat, the distance of its uniform number to the ends, and a second uniform number."""
    xp = source.xp
    u = source.uniform(section) - 0.5
    us = 0.5 - xp.abs(u)
    us = xp.where(us > 0, us, 1e-17 * xp.ones_like(us))
    return xp.floor((2 * a / us + b) * u + center), us, source.uniform(section + 1)


def _added_up(source: Source, first: Any, ratio: Callable[[int], Any]) -> Any:
    """The first value up to which the probabilities add up to a uniform number; ``ratio(k)`` is p(k) / p(k - 1)."""
    left = source.draw(philox.uniform, 0)
    values, probability = 0 * left, first
    for k in range(1, MAX_VALUES):
        above = left >= probability
        if not above.any():
            break
        left = source.xp.where(above, left - probability, -1 + 0 * left)
        values = source.xp.where(above, values + 1, values)
        probability = probability * ratio(k)
    return values


# -- engines -------------------------------------------------------------------------------


def _on_torch(method: Any, torch: Any, *operands: Any, block: tensors.Block = None) -> Any:
    *parameters, seed, stream = operands
    out = torch.promote_types(parameters[0].dtype, parameters[-1].dtype)
    wide = torch.broadcast_tensors(*(x.to(torch.float64) for x in parameters))
    how = {"shape": tuple(wide[0].shape), "dtype": "float64", "block": block, "device": wide[0].device}
    source = Source(torch, torch.lgamma, lambda draw, k: tensors.on_torch(draw, seed, stream, **how, section=k))
    return method(source, *wide).to(out)


def _on_numpy(method: Any, np: Any, *operands: Any, block: tensors.Block = None) -> Any:
    *parameters, seed, stream = operands
    wide = np.broadcast_arrays(*(x.astype(np.float64) for x in parameters))
    how: dict[str, Any] = {"shape": wide[0].shape, "dtype": "float64", "block": block}
    log_gamma = partial(each(lgamma), np)
    source = Source(np, log_gamma, lambda draw, k: tensors.on_numpy(draw, seed, stream, **how, section=k))
    return np.asarray(method(source, *wide)).astype(np.result_type(*parameters))


def _sampled(*operands: OperandType, block: tensors.Block = None) -> TensorType:
    *parameters, seed, stream = operands
    types = [t for t in parameters if isinstance(t, TensorType)]
    if seed is not INT or stream is not INT:
        raise DTypeError("the seed and the stream are ints")
    if len({t.dtype for t in types}) > 1 or types[0].dtype.kind != "f":
        raise DTypeError("needs parameters of one floating dtype; use x.float()")
    shape = broadcast_shapes(*(t.shape for t in types))
    if block is not None:
        tensors.within(block, shape)
    return TensorType(shape, types[0].dtype)


def _sampling(*operands: OperandType, **_attrs: Any) -> Split:
    shapes: list[Shape] = [t.shape for t in operands if isinstance(t, TensorType)]
    shape = broadcast_shapes(*shapes)
    names = letters(len(shape))
    return Split(f"{','.join(stretched(names, shape, x) for x in shapes)}->{names}")


#: what the ops that draw with parameters share
SAMPLED: dict[str, Any] = {
    "infer": _sampled,
    "draws": True,
    "reads_values": "always",
    "split": _sampling,
    "local": placed,
}
COUNTS: dict[str, Any] = {"no_gradient": "it draws integers"}


def _gamma_back(g: Any, y: Any, x: Any, _seed: Any, _stream: Any) -> Any:
    return g * x._op("standard_gamma_grad", y)


for _name, _method, _operands, _gradient in (
    ("standard_gamma", gamma, "tii", {"vjp": (_gamma_back, None, None)}),
    ("poisson", poisson, "tii", COUNTS),
    ("binomial", binomial, "ttii", COUNTS),
):
    op(
        _name,
        operands=_operands,
        **SAMPLED,
        **_gradient,
        torch=partial(_on_torch, _method),
        kernel=partial(_on_numpy, _method),
    )
