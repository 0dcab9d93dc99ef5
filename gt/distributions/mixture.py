"""Mixtures of distributions of one family."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.categorical import Categorical
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution
from gt.nn.functional import log_softmax


class MixtureSameFamily(Distribution):
    """A component, drawn by a `Categorical`; the components are the last batch dim of one distribution."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution, validate_args: bool | None = None
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(" The Mixture distribution needs to be an  instance of distributions.Categorical")
        count = mixture_distribution.param_shape[-1]
        if component_distribution.batch_shape[-1:] != (count,):
            raise ValueError(
                f"`mixture_distribution component` ({count}) does not equal `component_distribution.batch_shape[-1]` "
                f"({component_distribution.batch_shape[-1:]})"
            )
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        self._num_component = count
        super().__init__(component_distribution.batch_shape[:-1], component_distribution.event_shape, validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """Which component is drawn."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    def _weighted(self, values: Tensor) -> Tensor:
        """The sum over the components, each times its probability."""
        probs = self._mixture_distribution.probs
        events = len(self._event_shape)
        return (probs.reshape((*probs.shape, *(1,) * events)) * values).sum(-1 - events)

    @property
    def mean(self) -> Tensor:
        return self._weighted(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        mean = self._component_distribution.mean
        spread = (mean - self.mean.unsqueeze(-1 - len(self._event_shape))).square()
        return self._weighted(self._component_distribution.variance + spread)

    def cdf(self, value: Tensor) -> Tensor:
        each = self._component_distribution.cdf(self._checked(value).unsqueeze(-1 - len(self._event_shape)))
        return (each * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        each = self._component_distribution.log_prob(self._checked(value).unsqueeze(-1 - len(self._event_shape)))
        return (each + log_softmax(self._mixture_distribution.logits, -1)).logsumexp(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        chosen = self._mixture_distribution.sample(sample_shape)
        values = self._component_distribution.sample(sample_shape)
        events = len(self._event_shape)
        index = chosen.reshape((*chosen.shape, *(1,) * (events + 1)))
        return values.gather(-1 - events, index.expand((*chosen.shape, 1, *self._event_shape))).squeeze(-1 - events)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture_distribution},\n  {self._component_distribution})"
