"""Normal, Laplace, Cauchy and exponential distributions."""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.parameters import eps_of, tiny_of
from gt.functions.creation import full_like
from gt.functions.draw import rand, randn

LOC_SCALE: dict[str, Constraint] = {"loc": constraints.real, "scale": constraints.positive}
NAN, INF = float("nan"), float("inf")
EULER = 0.5772156649015329


class LocationScale(Distribution):
    """The base of distributions with a location and a scale."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = LOC_SCALE
    support = constraints.real
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    def _standardized(self, value: Tensor) -> Tensor:
        return (self._checked(value) - self.loc) / self.scale


class Normal(LocationScale, ExponentialFamily):
    """The normal distribution with this mean and standard deviation."""

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + randn(self._extended_shape(sample_shape), dtype=self.loc.dtype) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        return -self._standardized(value).square() / 2 - self.scale.log() - log(2 * pi) / 2

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + (self._standardized(value) / sqrt(2)).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * value - 1).erfinv() * sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * log(2 * pi) + self.scale.log()

    def _exponential_mean(self, t: Tensor) -> Tensor:
        """E[exp(t x)]."""
        return (t * self.loc + (t * self.scale).square() / 2).exp()


class Laplace(LocationScale):
    """The Laplace distribution: two exponential distributions, back to back."""

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Tensor:
        return sqrt(2) * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.loc.dtype)
        u = (2 * drawn - 1).clamp(min=eps_of(self.loc) - 1)
        return self.loc - self.scale * u.sign() * (-u.abs().clamp(max=1 - eps_of(self.loc) / 2)).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - self._standardized(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        z = self._standardized(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Cauchy(LocationScale):
    """The Cauchy distribution, which has no mean and no variance."""

    @property
    def mean(self) -> Tensor:
        return full_like(self.loc, NAN)

    @property
    def variance(self) -> Tensor:
        return full_like(self.loc, INF)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + self.scale * ((drawn - 0.5) * pi).tan()

    def log_prob(self, value: Tensor) -> Tensor:
        return -log(pi) - self.scale.log() - self._standardized(value).square().log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return self._standardized(value).atan() / pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return ((value - 0.5) * pi).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return log(4 * pi) + self.scale.log()


class Exponential(ExponentialFamily):
    """The exponential distribution with this rate."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.positive}
    support = constraints.nonnegative
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, rate=rate)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = rand(self._extended_shape(sample_shape), dtype=self.rate.dtype)
        return -(-drawn).log1p().clamp(max=-tiny_of(self.rate)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * self._checked(value)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (-self.rate * self._checked(value)).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()

    def _log_mean(self) -> Tensor:
        """E[log x]."""
        return -EULER - self.rate.log()

    def _exponential_mean(self, t: Tensor) -> Tensor:
        return self.rate / (self.rate - t)
