"""Continuous relaxations of the Bernoulli and categorical distributions, which can be differentiated."""

from __future__ import annotations

from math import lgamma
from typing import Any, ClassVar, Self

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.categorical import PROBS_OR_LOGITS, Categorical
from gt.distributions.constraints import Constraint
from gt.distributions.discrete import Trials
from gt.distributions.distribution import Distribution
from gt.distributions.parameters import broadcast_all, clamp_probs
from gt.distributions.transformed import TransformedDistribution
from gt.distributions.transforms import ExpTransform, SigmoidTransform
from gt.functions.draw import rand
from gt.types import Size


class LogitRelaxedBernoulli(Trials):
    """The log odds of `RelaxedBernoulli`."""

    has_rsample = True
    support = constraints.real

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        (self.temperature,) = broadcast_all(temperature)
        self._set_odds(validate_args, probs, logits)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = super().expand(batch_shape, _instance)
        new.temperature = self.temperature
        return new

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        probs = clamp_probs(self.probs)
        u = clamp_probs(rand(self._extended_shape(sample_shape), dtype=probs.dtype))
        return (u.log() - (-u).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        difference = self.logits - self._checked(value) * self.temperature
        return self.temperature.log() + difference - 2 * difference.exp().log1p()


class ExpRelaxedCategorical(Distribution):
    """The logarithms of `RelaxedOneHotCategorical`."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = PROBS_OR_LOGITS
    support = constraints.real_vector

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits)
        (self.temperature,) = broadcast_all(temperature)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = super().expand(batch_shape, _instance)
        new.temperature = self.temperature
        return new

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

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = clamp_probs(rand(self._extended_shape(sample_shape), dtype=self.logits.dtype))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, True)

    def log_prob(self, value: Tensor) -> Tensor:
        k = self._event_shape[0]
        score = self.logits - self._checked(value) * self.temperature
        shares = (score - score.logsumexp(-1, True)).sum(-1)
        return shares + lgamma(k) + (k - 1) * self.temperature.log()


class _Relaxed(TransformedDistribution):
    """The base of the relaxed distributions on probabilities themselves."""

    has_rsample = True
    base_dist: Any

    @property
    def temperature(self) -> Tensor:
        """Near 0 samples are almost discrete."""
        return self.base_dist.temperature  # type: ignore[no-any-return]

    @property
    def logits(self) -> Tensor:
        """The log odds, or log probabilities."""
        return self.base_dist.logits  # type: ignore[no-any-return]

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return self.base_dist.probs  # type: ignore[no-any-return]


class RelaxedBernoulli(_Relaxed):
    """A number between 0 and 1; at a low temperature it is near 1 with this probability, otherwise near 0."""

    arg_constraints: ClassVar[dict[str, Constraint]] = Trials.arg_constraints
    support: Any = constraints.unit_interval

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args)


class RelaxedOneHotCategorical(_Relaxed):
    """Probabilities that at a low temperature are almost one-hot."""

    arg_constraints: ClassVar[dict[str, Constraint]] = PROBS_OR_LOGITS
    support: Any = constraints.simplex

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits), ExpTransform(), validate_args)
