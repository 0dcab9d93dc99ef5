"""``biject_to`` and ``transform_to``: a transform from unconstrained values to a constraint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.distributions import constraints, transforms
from gt.distributions.constraints import Constraint
from gt.distributions.transforms import Transform

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """A table from kinds of constraints to functions that make a transform for one of them."""

    def __init__(self) -> None:
        self._factories: dict[type[Constraint], Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Add a function for a kind of constraint; without a function, use it as a decorator."""
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise TypeError(f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}")
        self._factories[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """The transform to this constraint."""
        factory = self._factories.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _both(*kinds: Any) -> Callable[[Factory], Factory]:
    """Register a function in both tables."""

    def register(factory: Factory) -> Factory:
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


def _shifted(base: Transform, loc: Any, scale: Any) -> Transform:
    if isinstance(loc, int | float) and isinstance(scale, int | float) and (loc, scale) == (0, 1):
        return base
    return transforms.ComposeTransform([base, transforms.AffineTransform(loc, scale)])


@_both(constraints.greater_than, constraints.greater_than_eq)
def _to_above(constraint: Any) -> Transform:
    return _shifted(transforms.ExpTransform(), constraint.lower_bound, 1)


@_both(constraints.interval, constraints.half_open_interval)
def _to_between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    return _shifted(transforms.SigmoidTransform(), low, high - low)


_both(constraints.real)(lambda _: transforms.identity_transform)
_both(constraints.less_than)(lambda c: _shifted(transforms.ExpTransform(), c.upper_bound, -1))
_both(constraints.corr_cholesky)(lambda _: transforms.CorrCholeskyTransform())
biject_to.register(constraints.simplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(constraints.lower_cholesky, lambda _: transforms.LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda _: transforms.PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda _: transforms.PositiveDefiniteTransform())
transform_to.register(constraints.simplex, lambda _: transforms.SoftmaxTransform())


def _for_parts(table: ConstraintRegistry) -> None:
    """Constraints made of others: the transforms to those, from the same table."""
    table.register(
        constraints.independent,
        lambda c: transforms.IndependentTransform(table(c.base_constraint), c.reinterpreted_batch_ndims),
    )
    table.register(constraints.cat, lambda c: transforms.CatTransform(map(table, c.cseq), c.dim, c.lengths))
    table.register(constraints.stack, lambda c: transforms.StackTransform(map(table, c.cseq), c.dim))


_for_parts(biject_to)
_for_parts(transform_to)
