"""Distributions over the categories along the last dim of the probabilities."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.discrete import Binomial
from gt.distributions.distribution import Distribution
from gt.distributions.location_scale import NAN
from gt.distributions.parameters import (
    clamp_probs,
    lazy_property,
    logits_to_probs,
    normalized_logits,
    one_of,
    probs_to_logits,
    where,
)
from gt.functions.composite import finfo
from gt.functions.creation import arange, eye, full, full_like
from gt.functions.draw import drawn_positions
from gt.functions.joining import broadcast_shapes
from gt.nn.functional import one_hot
from gt.types import Size

PROBS_OR_LOGITS: dict[str, Constraint] = {"probs": constraints.simplex, "logits": constraints.real_vector}


class Categorical(Distribution):
    """The number of a category, drawn with these probabilities, which are divided by their sum."""

    arg_constraints: ClassVar[dict[str, Constraint]] = PROBS_OR_LOGITS
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = one_of(probs=probs, logits=logits)
        if value.ndim < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        self.__dict__[name] = normalized_logits(value) if name == "logits" else value / value.sum(-1, True)
        self._num_events = value.shape[-1]
        super().__init__(value.shape[:-1], (), validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of each category."""
        return logits_to_probs(self.logits)

    @lazy_property
    def logits(self) -> Tensor:
        """The log probability of each category."""
        return probs_to_logits(self.probs)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return Size((*self._batch_shape, self._num_events))

    @property
    def mean(self) -> Tensor:
        return full(self._batch_shape, NAN, dtype=self.probs.dtype)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return full(self._batch_shape, NAN, dtype=self.probs.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        if not prod(shape):
            return full(shape, 0)
        drawn = drawn_positions(self.probs, prod(sample_shape))
        return (drawn if drawn.shape[-1] == 1 else drawn.movedim(-1, 0)).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        index = self._checked(value).long()
        logits = self.logits
        if index.shape != self._batch_shape:
            shape = broadcast_shapes(index.shape, self._batch_shape)
            logits, index = logits.expand((*shape, self._num_events)), index.expand(shape)
        return logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.logits.clamp(min=finfo(self.logits.dtype).min) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events).reshape((-1, *(1,) * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values


class OneHotCategorical(Distribution):
    """A category as a vector with a 1 in its place."""

    arg_constraints: ClassVar[dict[str, Constraint]] = PROBS_OR_LOGITS
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of each category."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The log probability of each category."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return self._categorical.param_shape

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._hot(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _hot(self, index: Tensor) -> Tensor:
        return one_hot(index, self._event_shape[0]).to(self.probs.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(self._checked(value).argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = eye(n, dtype=self.probs.dtype).reshape((n, *(1,) * len(self._batch_shape), n))
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples pass their gradients to the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(Distribution):
    """How many of ``total_count`` draws are of each category."""

    arg_constraints: ClassVar[dict[str, Constraint]] = PROBS_OR_LOGITS

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count, self._categorical = total_count, Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of each category."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The log probability of each category."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return self._categorical.param_shape

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return one_hot(drawn, self._event_shape[0]).sum(0).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        impossible = (value == 0) & (self.logits == -float("inf"))
        powers = (where(impossible, 0.0, self.logits) * value).sum(-1)
        return (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1) + powers

    def entropy(self) -> Tensor:
        n = full_like(self.probs[..., 0], float(self.total_count))
        binomial = Binomial(self.total_count, clamp_probs(self.probs))
        counts = binomial.enumerate_support(False)[1:]
        expected = (binomial.log_prob(counts).exp() * (counts + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - (n + 1).lgamma() + expected
