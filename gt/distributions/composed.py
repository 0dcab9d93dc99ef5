"""Distributions that are transforms of others: log-normal, half-normal, Pareto, Weibull and the like."""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.bounded import Uniform
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution
from gt.distributions.gamma import Gamma
from gt.distributions.location_scale import EULER, INF, LOC_SCALE, NAN, Cauchy, Exponential, LocationScale, Normal
from gt.distributions.parameters import broadcast_all, clamp_probs, where
from gt.distributions.transformed import TransformedDistribution
from gt.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    PowerTransform,
    StickBreakingTransform,
)
from gt.functions.creation import full_like
from gt.functions.draw import rand


class LogNormal(TransformedDistribution):
    """Values whose logarithms are normal."""

    arg_constraints: ClassVar[dict[str, Constraint]] = LOC_SCALE
    support: Any = constraints.positive
    has_rsample = True
    base_dist: Normal

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale), ExpTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithms."""
        return self.base_dist.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithms."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class _Half(TransformedDistribution):
    """The base of absolute values of a distribution that is symmetric around 0."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": constraints.positive}
    support: Any = constraints.nonnegative
    has_rsample = True
    base_dist: Any

    @property
    def scale(self) -> Tensor:
        """The scale of the symmetric distribution."""
        return self.base_dist.scale  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return self.scale * 0

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        return where(value >= 0, self.base_dist.log_prob(value) + log(2), -INF)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(self._checked(value)) - 1  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - log(2)  # type: ignore[no-any-return]


class HalfNormal(_Half):
    """Absolute values of normal ones."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0.0, scale), AbsTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * sqrt(2 / pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / pi)


class HalfCauchy(_Half):
    """Absolute values of Cauchy distributed ones."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0.0, scale), AbsTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        return full_like(self.scale, INF)

    @property
    def variance(self) -> Tensor:
        return full_like(self.scale, INF)


class Gumbel(LocationScale):
    """The distribution of the greatest of many values."""

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (pi**2 / 6)

    @property
    def stddev(self) -> Tensor:
        return self.scale * (pi / sqrt(6))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(clamp_probs(rand(self._extended_shape(sample_shape), dtype=self.loc.dtype)))

    def log_prob(self, value: Tensor) -> Tensor:
        z = self._standardized(value)
        return -z - (-z).exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return (-(-self._standardized(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


class Pareto(TransformedDistribution):
    """Powers of an exponential variable, from ``scale`` upwards."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        super().__init__(Exponential(self.alpha), [ExpTransform(), AffineTransform(0.0, self.scale)], validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())

    def _log_mean(self) -> Tensor:
        return self.scale.log() + self.alpha.reciprocal()


class Weibull(TransformedDistribution):
    """Powers of an exponential variable, scaled."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "scale": constraints.positive,
        "concentration": constraints.positive,
    }
    support: Any = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        transforms = [PowerTransform(self.concentration.reciprocal()), AffineTransform(0.0, self.scale)]
        super().__init__(Exponential(full_like(self.scale, 1.0)), transforms, validate_args)

    def _moment(self, n: int) -> Tensor:
        return (1 + n / self.concentration).lgamma().exp()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Tensor:
        c = self.concentration
        return self.scale * ((c - 1) / c) ** c.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (self._moment(2) - self._moment(1).square())

    def entropy(self) -> Tensor:
        inverse = self.concentration.reciprocal()
        return EULER * (1 - inverse) + (self.scale * inverse).log() + 1


class Kumaraswamy(TransformedDistribution):
    """A distribution on [0, 1], similar to the beta distribution, with a simple cumulative probability."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support: Any = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(full_like(self.concentration0, 0.0), full_like(self.concentration0, 1.0))
        transforms = [
            PowerTransform(self.concentration0.reciprocal()),
            AffineTransform(1.0, -1.0),
            PowerTransform(self.concentration1.reciprocal()),
        ]
        super().__init__(base, transforms, validate_args)

    def _moment(self, n: int) -> Tensor:
        a, b = 1 + n / self.concentration1, self.concentration0
        return b * (a.lgamma() + b.lgamma() - (a + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return where((a < 1) | (b < 1), NAN, ((a - 1) / (a * b - 1)) ** a.reciprocal())

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1).square()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return 1 - b.reciprocal() + (1 - a.reciprocal()) * harmonic - a.log() - b.log()


class InverseGamma(TransformedDistribution):
    """Reciprocals of gamma variables."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support: Any = constraints.positive
    has_rsample = True
    base_dist: Gamma

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(Gamma(concentration, rate), PowerTransform(-1.0), validate_args)

    @property
    def concentration(self) -> Tensor:
        """The shape of the gamma distribution."""
        return self.base_dist.concentration

    @property
    def rate(self) -> Tensor:
        """The rate of the gamma distribution."""
        return self.base_dist.rate

    @property
    def mean(self) -> Tensor:
        return where(self.concentration > 1, self.rate / (self.concentration - 1), INF)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        return where(a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), INF)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class LogisticNormal(TransformedDistribution):
    """Probabilities whose log odds, by breaking a stick, are normal."""

    arg_constraints: ClassVar[dict[str, Constraint]] = LOC_SCALE
    support: Any = constraints.simplex
    has_rsample = True
    base_dist: Any

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale)
        super().__init__(base if base.batch_shape else base.expand((1,)), StickBreakingTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the log odds."""
        return self.base_dist.base_dist.loc  # type: ignore[no-any-return]

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the log odds."""
        return self.base_dist.base_dist.scale  # type: ignore[no-any-return]


class GeneralizedPareto(Distribution):
    """The distribution of excesses over a threshold; its tail is heavy, exponential or finite."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {**LOC_SCALE, "concentration": constraints.real}
    loc: Tensor
    scale: Tensor
    concentration: Tensor

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, scale=scale, concentration=concentration)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        end = where(self.concentration < 0, self.loc - self.scale / self.concentration, INF)
        return constraints.interval(self.loc, end)

    @property
    def mean(self) -> Tensor:
        return where(self.concentration < 1, self.loc + self.scale / (1 - self.concentration), INF)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        c = self.concentration
        return where(c < 0.5, self.scale.square() / ((1 - c).square() * (1 - 2 * c)), INF)

    def _split(self) -> tuple[Tensor, Tensor]:
        """Where the concentration is 0, so that the first terms of its series hold; the concentration with 1 there."""
        zero = self.concentration.isclose(self.concentration * 0)
        return zero, where(zero, 1.0, self.concentration)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(rand(self._extended_shape(sample_shape), dtype=self.loc.dtype))

    def _log_tail(self, value: Tensor) -> Tensor:
        """log P(x > value)."""
        z = (self._checked(value) - self.loc) / self.scale
        zero, c = self._split()
        return where(zero, self.concentration * z.square() / 2 - z, -(c * z).log1p() / c)

    def log_prob(self, value: Tensor) -> Tensor:
        return (1 + self.concentration) * self._log_tail(value) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return -self._log_tail(value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        zero, c = self._split()
        z = -(-value).log1p()
        near = z + self.concentration * z.square() / 2
        return self.loc + self.scale * where(zero, near, (c * z).expm1() / c)

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1
