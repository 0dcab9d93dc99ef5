"""Normal distributions of vectors."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution
from gt.distributions.parameters import lazy_property, one_of
from gt.functions.creation import eye
from gt.functions.draw import randn
from gt.functions.factorizations import cholesky_inverse
from gt.functions.joining import broadcast_shapes
from gt.functions.linalg import cholesky, solve_triangular
from gt.functions.windows import diag_embed


def precision_to_scale_tril(precision: Tensor) -> Tensor:
    """The Cholesky factor of the inverse: from the factor of the matrix read backwards."""
    backwards = cholesky(precision.flip((-2, -1)))
    inverse = backwards.flip((-2, -1)).mT
    return solve_triangular(inverse, eye(precision.shape[-1], dtype=precision.dtype), upper=False)


def scale_tril_of(name: str, matrix: Tensor) -> Tensor:
    """The Cholesky factor of the covariance that a matrix of this kind describes."""
    makers: dict[str, Any] = {"covariance_matrix": cholesky, "precision_matrix": precision_to_scale_tril}
    return makers[name](matrix) if name in makers else matrix


def half_log_det(factor: Tensor) -> Tensor:
    """Half the log determinant of the matrix with this Cholesky factor."""
    return factor.diagonal(0, -2, -1).log().sum(-1)


def solved(factor: Tensor, vector: Tensor) -> Tensor:
    """factor⁻¹ vector, with the dims before the last ones broadcast."""
    batch = broadcast_shapes(factor.shape[:-2], vector.shape[:-1])
    n = vector.shape[-1]
    wide = factor.expand((*batch, n, n)), vector.expand((*batch, n)).unsqueeze(-1)
    return solve_triangular(*wide, upper=False).squeeze(-1)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors, with a covariance, a precision, or the Cholesky factor of a covariance."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = one_of(
            covariance_matrix=covariance_matrix, scale_tril=scale_tril, precision_matrix=precision_matrix
        )
        if matrix.ndim < 2:
            raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        batch, n = broadcast_shapes(matrix.shape[:-2], loc.shape[:-1]), loc.shape[-1]
        self.loc = loc.expand((*batch, n))
        self.__dict__[name] = matrix.expand((*batch, n, n))
        super().__init__(batch, (n,), validate_args)
        self.__dict__["scale_tril"] = scale_tril_of(name, matrix).expand((*batch, n, n))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        raise AssertionError("it is set when the distribution is made")

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.scale_tril @ self.scale_tril.mT

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return cholesky_inverse(self.scale_tril)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + (self.scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        distance = solved(self.scale_tril, self._checked(value) - self.loc).square().sum(-1)
        return -0.5 * (self._event_shape[0] * log(2 * pi) + distance) - half_log_det(self.scale_tril)

    def entropy(self) -> Tensor:
        return 0.5 * self._event_shape[0] * (1 + log(2 * pi)) + half_log_det(self.scale_tril)


class LowRankMultivariateNormal(Distribution):
    """The normal distribution of vectors with the covariance ``cov_factor @ cov_factor.T + diag(cov_diag)``."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        n = loc.shape[-1]
        if cov_factor.ndim < 2 or cov_factor.shape[-2] != n:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {n} x m")
        if cov_diag.ndim < 1 or cov_diag.shape[-1] != n:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {n}")
        batch = broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc, self.cov_diag = loc.expand((*batch, n)), cov_diag.expand((*batch, n))
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        super().__init__(batch, (n,), validate_args)

    @lazy_property
    def _scaled_factor(self) -> Tensor:
        """D⁻¹ W."""
        return self.cov_factor / self.cov_diag.unsqueeze(-1)

    @lazy_property
    def _capacitance_tril(self) -> Tensor:
        """The Cholesky factor of I + Wᵀ D⁻¹ W, a small matrix."""
        rank = self.cov_factor.shape[-1]
        return cholesky(self.cov_factor.mT @ self._scaled_factor + eye(rank, dtype=self.loc.dtype))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return self.cov_factor.square().sum(-1) + self.cov_diag

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.cov_factor @ self.cov_factor.mT + diag_embed(self.cov_diag)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return cholesky(self.covariance_matrix)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        narrow = solve_triangular(self._capacitance_tril, self._scaled_factor.mT, upper=False)
        return diag_embed(self.cov_diag.reciprocal()) - narrow.mT @ narrow

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        narrow = randn((*shape[:-1], self.cov_factor.shape[-1]), dtype=self.loc.dtype)
        wide = randn(shape, dtype=self.loc.dtype)
        return self.loc + (self.cov_factor @ narrow.unsqueeze(-1)).squeeze(-1) + self.cov_diag.sqrt() * wide

    def log_prob(self, value: Tensor) -> Tensor:
        difference = self._checked(value) - self.loc
        narrow = (self._scaled_factor.mT @ difference.unsqueeze(-1)).squeeze(-1)
        away = solved(self._capacitance_tril, narrow).square().sum(-1)
        distance = (difference.square() / self.cov_diag).sum(-1) - away
        return -0.5 * (self._event_shape[0] * log(2 * pi) + distance) - self._half_log_det()

    def _half_log_det(self) -> Tensor:
        return half_log_det(self._capacitance_tril) + self.cov_diag.log().sum(-1) / 2

    def entropy(self) -> Tensor:
        return 0.5 * self._event_shape[0] * (1 + log(2 * pi)) + self._half_log_det()
