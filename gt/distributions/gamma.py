"""Distributions that are sampled from gamma variables: gamma, chi-squared, Dirichlet, beta, Student's t and F."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.location_scale import INF, NAN
from gt.distributions.parameters import broadcast_all, eps_of, tiny_of, where
from gt.functions.derived import igamma, xlogy
from gt.functions.draw import randn, standard_gamma
from gt.functions.joining import stack
from gt.nn.functional import one_hot


class Gamma(ExponentialFamily):
    """The gamma distribution with this shape and rate."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support: Any = constraints.nonnegative
    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, concentration=concentration, rate=rate)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))
        return (drawn / self.rate).clamp(min=tiny_of(self.rate))

    def log_prob(self, value: Tensor) -> Tensor:
        value, a = self._checked(value), self.concentration
        return xlogy(a, self.rate) + xlogy(a - 1, value) - self.rate * value - a.lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        return igamma(self.concentration, self.rate * self._checked(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    def _log_mean(self) -> Tensor:
        return self.concentration.digamma() - self.rate.log()

    def _exponential_mean(self, t: Tensor) -> Tensor:
        return (-t / self.rate).log1p().mul(-self.concentration).exp()


class Chi2(Gamma):
    """The chi-squared distribution with this many degrees of freedom."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args)

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2


class Dirichlet(ExponentialFamily):
    """The Dirichlet distribution: probabilities along the last dim. Sampled as gamma variables divided by their sum."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    support = constraints.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        above = (self.concentration - 1).clamp(min=0)
        mode = above / above.sum(-1, True)
        corner = one_hot(mode.nan_to_num(0).argmax(-1), mode.shape[-1]).to(mode.dtype)
        return where((self.concentration < 1).all(-1, True), corner, mode)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))
        drawn = drawn.clamp(min=tiny_of(drawn))
        tiny, eps = tiny_of(drawn), eps_of(drawn)
        return (drawn / drawn.sum(-1, True)).clamp(tiny, 1 - eps / 2)

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        density = xlogy(a - 1, self._checked(value)).sum(-1)
        return density + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        norm = a.lgamma().sum(-1) - total.lgamma()
        return norm - (k - total) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)


class Beta(ExponentialFamily):
    """The beta distribution: probabilities, as a Dirichlet distribution of two."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        both = stack(list(broadcast_all(concentration1, concentration0)), -1)
        self._dirichlet = Dirichlet(both)
        super().__init__(both.shape[:-1], (), validate_args)

    @property
    def concentration1(self) -> Tensor:
        """The concentration at 1."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Tensor:
        """The concentration at 0."""
        return self._dirichlet.concentration[..., 1]

    @property
    def mean(self) -> Tensor:
        return self._dirichlet.mean[..., 0]

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        return self._dirichlet.variance[..., 0]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        return self._dirichlet.log_prob(stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()

    def _total_digamma(self) -> Tensor:
        return self._dirichlet.concentration.sum(-1).digamma()

    def _log_mean(self) -> Tensor:
        return self.concentration1.digamma() - self._total_digamma()

    def _log_rest_mean(self) -> Tensor:
        """E[log(1 - x)]."""
        return self.concentration0.digamma() - self._total_digamma()


class StudentT(Distribution):
    """Student's t distribution with these degrees of freedom, location and scale."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    df: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self._set(validate_args, df=df, loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return where(self.df > 1, self.loc, NAN)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        large = self.df > 2
        finite = self.scale.square() * self.df / (where(large, self.df, 3.0) - 2)
        return where(large, finite, where(self.df > 1, INF, NAN))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        normal, chi2 = randn(shape, dtype=self.df.dtype), Chi2(self.df).rsample(sample_shape)
        return self.loc + self.scale * normal * (chi2 / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        y, half = (self._checked(value) - self.loc) / self.scale, self.df / 2
        norm = self.scale.log() + 0.5 * (self.df * pi).log() + half.lgamma() - (half + 0.5).lgamma()
        return -(half + 0.5) * (y.square() / self.df).log1p() - norm

    def entropy(self) -> Tensor:
        half = self.df / 2
        log_beta = log(pi) / 2 + half.lgamma() - (half + 0.5).lgamma()
        slope = (half + 0.5) * ((half + 0.5).digamma() - half.digamma())
        return self.scale.log() + slope + 0.5 * self.df.log() + log_beta


class FisherSnedecor(Distribution):
    """The F distribution: a ratio of two chi-squared variables, each divided by its degrees of freedom."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    df1: Tensor
    df2: Tensor

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, df1=df1, df2=df2)

    @property
    def mean(self) -> Tensor:
        return where(self.df2 > 2, self.df2 / (self.df2 - 2), NAN)

    @property
    def mode(self) -> Tensor:
        return where(self.df1 > 2, (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2), NAN)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        return where(b > 4, 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4)), NAN)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        above, below = (standard_gamma((df / 2).expand(shape)) / df for df in (self.df1, self.df2))
        return (above / below.clamp(min=tiny_of(below))).clamp(min=tiny_of(above))

    def log_prob(self, value: Tensor) -> Tensor:
        value, a, b, ratio = self._checked(value), self.df1 / 2, self.df2 / 2, self.df1 / self.df2
        norm = (a + b).lgamma() - a.lgamma() - b.lgamma() + a * ratio.log()
        return norm + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
