"""Distributions of counts: Bernoulli, binomial, geometric, negative binomial and Poisson."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.gamma import Gamma
from gt.distributions.location_scale import NAN
from gt.distributions.parameters import lazy_property, logits_to_probs, one_of, probs_to_logits, tiny_of, where
from gt.functions import draw
from gt.functions.creation import arange
from gt.functions.derived import xlogy
from gt.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from gt.types import Size


class Trials(Distribution):
    """The base of distributions with a probability of success, given by itself or by its log odds."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    def _set_odds(self, validate_args: bool | None, probs: Any, logits: Any, **others: Any) -> None:
        name, value = one_of(probs=probs, logits=logits)
        self._set(validate_args, **{name: value}, **others)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of success."""
        return logits_to_probs(self.logits, is_binary=True)

    @lazy_property
    def logits(self) -> Tensor:
        """The log odds of success."""
        return probs_to_logits(self.probs, is_binary=True)

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return Size(self.probs.shape)

    def _cross_entropy(self, value: Tensor) -> Tensor:
        """Minus the log probability that each trial has this result."""
        return binary_cross_entropy_with_logits(*_equal_shapes(self.logits, value), reduction="none")


def _equal_shapes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    shape = (a + b).shape
    return a.expand(shape), b.expand(shape)


class Bernoulli(Trials, ExponentialFamily):
    """1 with this probability, otherwise 0."""

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set_odds(validate_args, probs, logits)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return where(self.probs == 0.5, NAN, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return draw.bernoulli(self.probs.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return -self._cross_entropy(self._checked(value))

    def entropy(self) -> Tensor:
        return self._cross_entropy(self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return _enumerated(self, 2, expand, self.probs)


def _enumerated(distribution: Distribution, count: int, expand: bool, like: Tensor) -> Tensor:
    batch = distribution.batch_shape
    values = arange(count, dtype=like.dtype).reshape((-1, *(1,) * len(batch)))
    return values.expand((count, *batch)) if expand else values


class Geometric(Trials):
    """How many trials fail before the first success."""

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set_odds(validate_args, probs, logits)

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        probs = self.probs.detach()
        drawn = draw.rand(self._extended_shape(sample_shape), dtype=probs.dtype).clamp(min=tiny_of(probs))
        return (drawn.log() / (-probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        certain = (self.probs == 1) & (value == 0)
        return value * (-where(certain, 0.0, self.probs)).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return self._cross_entropy(self.probs) / self.probs


class Binomial(Trials):
    """How many of ``total_count`` trials succeed."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.nonnegative_integer,
        **Trials.arg_constraints,
    }
    has_enumerate_support = True
    total_count: Tensor

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        name, value = one_of(probs=probs, logits=logits)
        if isinstance(total_count, Tensor) and isinstance(value, Tensor):
            total_count = total_count.to(value.dtype)
        self._set(validate_args, **{name: value}, total_count=total_count)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return draw.binomial(self.total_count.detach().expand(shape), self.probs.detach().expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, n, logits = self._checked(value), self.total_count, self.logits
        choices = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return choices + value * logits + n * logsigmoid(-logits)

    def _equal_count(self, name: str) -> int:
        """The number of trials, which is read; all distributions must have the same."""
        least, most = self.total_count.aminmax()
        if least != most:
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{name}`.")
        return int(most)

    def entropy(self) -> Tensor:
        self._equal_count("entropy")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return _enumerated(self, self._equal_count("enumerate_support") + 1, expand, self.probs)


class NegativeBinomial(Trials):
    """How many trials succeed before ``total_count`` of them fail."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer
    total_count: Tensor

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._set_odds(validate_args, probs, logits, total_count=total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        rates = Gamma(self.total_count.detach(), (-self.logits.detach()).exp())
        return draw.poisson(rates.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, n = self._checked(value), self.total_count
        unnormalized = n * logsigmoid(-self.logits) + value * logsigmoid(self.logits)
        norm = -(n + value).lgamma() + (value + 1).lgamma() + n.lgamma()
        return unnormalized - norm.masked_fill(n + value == 0, 0.0)


class Poisson(ExponentialFamily):
    """The number of events at this rate."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, rate=rate)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return draw.poisson(self.rate.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        return xlogy(value, self.rate) - self.rate - (value + 1).lgamma()
