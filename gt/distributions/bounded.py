"""Distributions between limits: uniform, continuous Bernoulli and von Mises."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.discrete import Trials
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.location_scale import NAN
from gt.distributions.parameters import clamp_probs, where
from gt.functions.creation import full_like
from gt.functions.derived import i1
from gt.functions.draw import rand
from gt.functions.scatter import gather


class Uniform(Distribution):
    """The uniform distribution from ``low`` to below ``high``."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {"low": constraints.dependent, "high": constraints.dependent}
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, low=low, high=high)
        if self._validate_args and not (self.low < self.high).all():
            raise ValueError("Uniform is not defined when low>= high")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return full_like(self.low, NAN)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.low.dtype)
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        return ((self._checked(value) - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()

    def _log_mean(self) -> Tensor:
        return _log_mean_between(self.low, self.high)

    def _log_rest_mean(self) -> Tensor:
        return _log_mean_between(1 - self.high, 1 - self.low)

    def _exponential_mean(self, t: Tensor) -> Tensor:
        return ((t * self.high).exp() - (t * self.low).exp()) / (t * (self.high - self.low))


def _log_mean_between(low: Tensor, high: Tensor) -> Tensor:
    """The mean of log x between two limits; 0 log 0 is 0."""
    return (high.xlogy(high) - low.xlogy(low)) / (high - low) - 1


class ContinuousBernoulli(Trials, ExponentialFamily):
    """A distribution on [0, 1] whose log density is linear. Near probability 1/2, series replace its formulas."""

    has_rsample = True
    support = constraints.unit_interval

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._lims = lims
        self._set_odds(validate_args, probs, logits)
        if probs is not None:
            self.__dict__["probs"] = clamp_probs(self.probs)

    def _outside(self) -> Tensor:
        return (self.probs <= self._lims[0]) | (self.probs > self._lims[1])

    def _choice(self, formula: Any, series: Any) -> Tensor:
        """The formula where probabilities are far from 1/2, and the series of p - 1/2 elsewhere."""
        outside = self._outside()
        return where(outside, formula(where(outside, self.probs, self._lims[0])), series(self.probs - 0.5))

    def _log_norm(self) -> Tensor:
        return self._choice(
            lambda p: ((-p).log1p() - p.log()).abs().log() - (1 - 2 * p).abs().log(),
            lambda d: log(2) + (4 / 3 + 104 / 45 * d.square()) * d.square(),
        )

    @property
    def mean(self) -> Tensor:
        return self._choice(
            lambda p: p / (2 * p - 1) + 1 / ((-p).log1p() - p.log()),
            lambda d: 0.5 + (1 / 3 + 16 / 45 * d.square()) * d,
        )

    @property
    def variance(self) -> Tensor:
        return self._choice(
            lambda p: p * (p - 1) / (1 - 2 * p).square() + 1 / ((-p).log1p() - p.log()).square(),
            lambda d: 1 / 12 - (1 / 15 - 128 / 945 * d.square()) * d.square(),
        )

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(rand(self._extended_shape(sample_shape), dtype=self.probs.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        return -self._cross_entropy(self._checked(value)) + self._log_norm()

    def cdf(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        inside = self._choice(
            lambda p: (p.pow(value) * (1 - p).pow(1 - value) + p - 1) / (2 * p - 1), lambda d: value + 0 * d
        )
        return where(value <= 0, 0.0, where(value >= 1, 1.0, inside))

    def icdf(self, value: Tensor) -> Tensor:
        return self._choice(
            lambda p: ((-p + value * (2 * p - 1)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p()),
            lambda d: value + 0 * d,
        )

    def entropy(self) -> Tensor:
        return -self.mean * self.logits - (-self.probs).log1p() - self._log_norm()


#: Candidates for a sample of a von Mises distribution. At least 65 % are accepted: all fail with probability 1e-15.
CANDIDATES = 33


class VonMises(Distribution):
    """The normal distribution's counterpart on a circle: angles from -π to π."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "concentration": constraints.positive,
    }
    support = constraints.real
    loc: Tensor
    concentration: Tensor

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, concentration=concentration)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1 - _bessel_ratio(self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        turned = (self._checked(value) - self.loc).cos()
        return self.concentration * turned - log(2 * pi) - _log_bessel(self.concentration)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples by rejection (Best and Fisher, 1979): the first accepted candidate of each."""
        k, loc = self.concentration.detach().double(), self.loc.detach()
        tau = 1 + (1 + 4 * k.square()).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * k)
        r = where(k < 1e-5, 1 / k + k, (1 + rho.square()) / (2 * rho))
        shape = self._extended_shape(sample_shape)
        u1, u2, u3 = rand((3, CANDIDATES, *shape), dtype=k.dtype).unbind(0)
        z = (pi * u1).cos()
        f = (1 + r * z) / (r + z)
        c = k * (r - f)
        accepted = (c * (2 - c) - u2 > 0) | ((c / u2).log() + 1 - c >= 0)
        angles = (u3 - 0.5).sign() * f.clamp(-1, 1).acos()
        first = gather(angles, 0, accepted.long().argmax(0, keepdim=True)).squeeze(0)
        return ((first.to(loc.dtype) + pi + loc) % (2 * pi)) - pi


#: Above it, the Bessel functions overflow, and an asymptotic series is exact.
LARGE_CONCENTRATION = 500.0


def _log_bessel(k: Tensor) -> Tensor:
    """log I0(k)."""
    small = k.clamp(max=LARGE_CONCENTRATION).i0().log()
    return where(k < LARGE_CONCENTRATION, small, k - (2 * pi * k).log() / 2 + (1 / (8 * k) + 9 / (128 * k * k)).log1p())


def _bessel_ratio(k: Tensor) -> Tensor:
    """I1(k) / I0(k)."""
    small = k.clamp(max=LARGE_CONCENTRATION)
    return where(k < LARGE_CONCENTRATION, i1(small) / small.i0(), 1 - 1 / (2 * k) - 1 / (8 * k * k))
