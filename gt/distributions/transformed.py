"""`TransformedDistribution`: samples of a distribution, passed through transforms."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, Independent
from gt.distributions.parameters import sum_rightmost
from gt.distributions.transforms import ComposeTransform, Transform


class TransformedDistribution(Distribution):
    """The distribution of values of a base distribution after these transforms."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole, base = ComposeTransform(self.transforms), base_distribution
        shape, base_events = (*base.batch_shape, *base.event_shape), len(base.event_shape)
        if len(shape) < whole.domain.event_dim:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {whole.domain.event_dim}, but got {shape}."
            )
        forward = whole.forward_shape(shape)
        expanded = whole.inverse_shape(forward)
        if shape != expanded:
            base = base.expand(expanded[: len(expanded) - base_events])
        if (more := whole.domain.event_dim - base_events) > 0:
            base = Independent(base, more)
        self.base_dist = base
        change = whole.codomain.event_dim - whole.domain.event_dim
        cut = len(forward) - max(whole.codomain.event_dim, base_events + change)
        super().__init__(forward[:cut], forward[cut:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Can samples be differentiated by the parameters?"""
        return self.base_dist.has_rsample

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        result: Constraint = self.transforms[-1].codomain if self.transforms else self.base_dist.support
        more = len(self._event_shape) - result.event_dim
        return constraints.independent(result, more) if more > 0 else result

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def _forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        y, event_dim = self._checked(value), len(self._event_shape)
        total: Tensor | None = None
        for transform in reversed(self.transforms):
            x = transform._inv_call(y)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            slope = sum_rightmost(transform.log_abs_det_jacobian(x, y), event_dim - transform.domain.event_dim)
            total = slope if total is None else total + slope
            y = x
        density = sum_rightmost(self.base_dist.log_prob(y), event_dim - len(self.base_dist.event_shape))
        return density if total is None else density - total

    def _monotonized(self, value: Tensor) -> Tensor:
        """The probability of values on the other side, where the transforms fall."""
        sign = ComposeTransform(self.transforms).sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        value = self._checked(value)
        for transform in reversed(self.transforms):
            value = transform._inv_call(value)
        return self._monotonized(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._monotonized(value)))
