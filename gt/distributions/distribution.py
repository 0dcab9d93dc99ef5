"""The base of all distributions, and `Independent`, which turns batch dims into event dims."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.parameters import broadcast_all, lazy_property, sum_rightmost
from gt.types import Size


class Distribution:
    """The base of all distributions. Arguments are checked only with ``validate_args=True``: a check reads values.

    Example::

        normal = gt.distributions.Normal(gt.zeros(3), gt.ones(3))
        loss = -normal.log_prob(normal.rsample()).sum()
    """

    #: can samples be differentiated by the parameters?
    has_rsample = False
    has_enumerate_support = False
    _validate_args = False
    #: parameter -> the values it may have
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    #: the values that samples may have
    support: Any = constraints.dependent

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Switch the checks of arguments and samples on or off for distributions created from now on."""
        if not isinstance(value, bool):
            raise ValueError("set_default_validate_args takes True or False")
        Distribution._validate_args = value

    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_arguments()

    def _set(self, validate_args: bool | None, **parameters: Any) -> None:
        """Keep parameters that broadcast to the batch shape."""
        self.__dict__.update(zip(parameters, broadcast_all(*parameters.values()), strict=True))
        Distribution.__init__(self, getattr(self, next(iter(parameters))).shape, (), validate_args)

    def _check_arguments(self) -> None:
        for name, constraint in self.arg_constraints.items():
            computed = name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property)
            if constraints.is_dependent(constraint) or computed:
                continue
            value = getattr(self, name)
            if not constraint.check(value).all():
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of distribution "
                    f"{self!r} to satisfy the constraint {constraint!r}, but found invalid values:\n{value}"
                )

    def _validate_sample(self, value: Tensor) -> None:
        """Raise ValueError for a value of a wrong shape, or outside the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        events = value.shape[value.ndim - len(self._event_shape) :]
        if events != self._event_shape:
            raise ValueError(
                f"The right-most size of value must match event_shape: {tuple(value.shape)} vs {self._event_shape}."
            )
        shape = (*self._batch_shape, *self._event_shape)
        pairs = zip(reversed(value.shape), reversed(shape), strict=False)
        if any(n != m and 1 not in (n, m) for n, m in pairs):
            raise ValueError(
                f"Value is not broadcastable with batch_shape+event_shape: {tuple(value.shape)} vs {shape}."
            )
        support = self.support
        if not constraints.is_dependent(support) and not support.check(value).all():
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the "
                f"support ({support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def _checked(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """The same distribution with its parameters expanded to this batch shape."""
        new = copy.copy(self) if _instance is None else _instance
        old = len(self._batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                new.__dict__[name] = value.expand((*batch_shape, *value.shape[old:]))
            elif isinstance(value, Distribution):
                new.__dict__[name] = value.expand((*batch_shape, *value.batch_shape[old:]))
            else:
                new.__dict__[name] = value
        new._batch_shape = Size(batch_shape)
        return new

    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters: each element has a distribution of its own."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one sample of one distribution."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The mean of the distribution."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The value of the greatest density."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance of the distribution."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples without gradients: of the shape ``sample_shape + batch_shape + event_shape``."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples that can be differentiated by the parameters."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Tensor:
        """Draw n samples; the old name of ``sample((n,))``."""
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at a value."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of values up to this one."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution, along a new first dim."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def __repr__(self) -> str:
        present = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        shown = [f"{name}: {x if x.numel() == 1 else x.size()}" for name, x in present.items()]
        return f"{type(self).__name__}({', '.join(shown)})"


class ExponentialFamily(Distribution):
    """The base of distributions whose log density is linear in functions of the parameters."""


class Independent(Distribution):
    """A distribution whose last batch dims count as dims of the event: their log densities are added."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        batch, event = base_distribution.batch_shape, base_distribution.event_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        at = len(batch) - reinterpreted_batch_ndims
        super().__init__(batch[:at], (*batch[at:], *event), validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Can samples be differentiated by the parameters?"""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Can the values be listed?"""
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The values that samples may have."""
        result: Constraint = self.base_dist.support
        count = self.reinterpreted_batch_ndims
        return constraints.independent(result, count) if count else result

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
