"""``gt.distributions.constraints``: which values a parameter or a sample may have, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.joining import cat as join
from gt.functions.joining import stack as pile
from gt.types import bool_

__all__ = [
    "Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property",
    "greater_than", "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval",
    "is_dependent", "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative",
    "nonnegative_integer", "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite",
    "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A set of values. ``check`` says for each value, over the last ``event_dim`` dims, whether it is in the set."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Any) -> Tensor:
        """A tensor of bools: is each value in the set?"""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__[1:] + "()"


class _Dependent(Constraint):
    """A set that depends on the parameters of a distribution."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Any) -> Tensor:
        raise ValueError("Cannot determine validity of dependent constraint")


class dependent_property(property, _Dependent):  # noqa: N801, torch's name
    """A property of a distribution that gives a constraint, with its kind known to the class."""

    def __init__(
        self, function: Callable[..., Any] | None = None, *, is_discrete: bool = False, event_dim: int = 0
    ) -> None:
        property.__init__(self, function)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, function: Any) -> dependent_property:  # type: ignore[override]
        return dependent_property(function, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Constraint) -> bool:
    """Does the set depend on parameters?"""
    return isinstance(constraint, _Dependent)


class _IndependentConstraint(Constraint):
    """All values over more dims are in the set."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Tensor:
        result = self.base_constraint.check(value)
        if result.ndim < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.ndim}")
        shape = result.shape[: result.ndim - self.reinterpreted_batch_ndims]
        return result.reshape((*shape, -1)).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """The set of a mixture's values: those of its components."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete, self.event_dim = base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: Any) -> Tensor:
        valid = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return valid.reshape((*value.shape[: value.ndim - self.event_dim], -1)).all(-1)


class _Elements(Constraint):
    """A test of each element, with a text that shows the limits."""

    def __init__(self, text: str, test: Callable[[Any], Any], is_discrete: bool = False) -> None:
        self.text, self.test, self.is_discrete = text, test, is_discrete

    def check(self, value: Any) -> Tensor:
        return self.test(value)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.text


class _Boolean(_Elements): ...


class _Real(_Elements): ...


class _IntegerInterval(Constraint):
    is_discrete = True

    def __init__(self, lower_bound: Any, upper_bound: Any = None) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Tensor:
        inside = (value % 1 == 0) & (value >= self.lower_bound)
        return inside if self.upper_bound is None else inside & (value <= self.upper_bound)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if self.upper_bound is None:
            return f"IntegerGreaterThan(lower_bound={self.lower_bound})"
        return f"IntegerInterval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class _Bounded(Constraint):
    """Numbers between limits; ``None`` is no limit. Whether a limit itself belongs to the set depends on the kind."""

    name = ""
    with_lower, with_upper = True, True

    def __init__(self, lower_bound: Any = None, upper_bound: Any = None) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Tensor:
        inside = value == value
        if self.lower_bound is not None:
            inside = inside & ((value >= self.lower_bound) if self.with_lower else (value > self.lower_bound))
        if self.upper_bound is not None:
            inside = inside & ((value <= self.upper_bound) if self.with_upper else (value < self.upper_bound))
        return inside  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        shown = ", ".join(f"{name}={bound}" for name, bound in bounds.items() if bound is not None)
        return f"{type(self).__name__[1:]}({shown})"


class _Interval(_Bounded): ...


class _GreaterThan(_Bounded):
    with_lower = False


class _GreaterThanEq(_Bounded): ...


class _LessThan(_Bounded):
    with_upper = False

    def __init__(self, upper_bound: Any) -> None:
        super().__init__(None, upper_bound)


class _HalfOpenInterval(_Bounded):
    with_upper = False


class _OneHot(Constraint):
    is_discrete, event_dim = True, 1

    def check(self, value: Any) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)  # type: ignore[no-any-return]


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Any) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)  # type: ignore[no-any-return]


class _Multinomial(Constraint):
    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, x: Any) -> Tensor:
        return (x >= 0).all(-1) & (x.sum(-1) <= self.upper_bound)  # type: ignore[no-any-return]


class _Matrices(Constraint):
    event_dim = 2


class _LowerTriangular(_Matrices):
    def check(self, value: Any) -> Tensor:
        return (value.tril() == value).flatten(-2).all(-1)  # type: ignore[no-any-return]


class _LowerCholesky(_Matrices):
    def check(self, value: Any) -> Tensor:
        positive_diagonal = (value.diagonal(0, -2, -1) > 0).all(-1)
        return _LowerTriangular().check(value) & positive_diagonal  # type: ignore[no-any-return]


class _CorrCholesky(_Matrices):
    def check(self, value: Any) -> Tensor:
        length = (value * value).sum(-1).sqrt()
        return ((length - 1).abs() < 1e-4).all(-1) & _LowerCholesky().check(value)  # type: ignore[no-any-return]


class _Square(_Matrices):
    def check(self, value: Any) -> Tensor:
        rows, columns = value.shape[-2:]
        return value.new_full(value.shape[:-2], rows == columns, dtype=bool_)  # type: ignore[no-any-return]


class _Symmetric(_Square):
    def check(self, value: Any) -> Tensor:
        if value.shape[-1] != value.shape[-2]:
            return super().check(value)
        return value.isclose(value.mT, atol=1e-6).flatten(-2).all(-1)  # type: ignore[no-any-return]


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Any) -> Tensor:
        from gt.functions.linalg import eigvalsh

        return super().check(value) & (eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Any) -> Tensor:
        from gt.functions.linalg import eigvalsh

        return super().check(value) & (eigvalsh(value) > 0).all(-1)


class _Parts(Constraint):
    """A constraint for each part of a tensor along a dim."""

    def __init__(self, cseq: Any, dim: int = 0, lengths: Any = None) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        self.event_dim = max(c.event_dim for c in self.cseq)


class _Cat(_Parts):
    def check(self, value: Any) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return join([c.check(part) for c, part in zip(self.cseq, parts, strict=True)], self.dim)


class _Stack(_Parts):
    def check(self, value: Any) -> Tensor:
        return pile([c.check(part) for c, part in zip(self.cseq, value.unbind(self.dim), strict=True)], self.dim)


dependent = _Dependent()
independent = _IndependentConstraint
boolean = _Boolean("Boolean()", lambda value: (value == 0) | (value == 1), is_discrete=True)
one_hot = _OneHot()
nonnegative_integer = _IntegerInterval(0)
positive_integer = _IntegerInterval(1)
integer_interval = _IntegerInterval
real = _Real("Real()", lambda value: value == value)
real_vector = independent(real, 1)
positive = _GreaterThan(0.0)
nonnegative = _GreaterThanEq(0.0)
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
multinomial = _Multinomial
interval = _Interval
half_open_interval = _HalfOpenInterval
unit_interval = _Interval(0.0, 1.0)
simplex = _Simplex()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
corr_cholesky = _CorrCholesky()
square = _Square()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
cat = _Cat
stack = _Stack
