"""Distributions of matrices: Wishart, and Lewandowski, Kurowicka and Joe's of correlations."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.gamma import Beta
from gt.distributions.location_scale import NAN
from gt.distributions.multivariate import half_log_det, scale_tril_of
from gt.distributions.parameters import broadcast_all, lazy_property, one_of, tiny_of, where
from gt.functions.composite import mvlgamma
from gt.functions.creation import arange, tensor
from gt.functions.draw import randn, standard_gamma
from gt.functions.factorizations import cholesky_inverse, cholesky_solve, slogdet
from gt.functions.joining import broadcast_shapes
from gt.functions.windows import diag_embed


class Wishart(ExponentialFamily):
    """The distribution of sums of products of normal vectors: positive definite matrices."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
        "df": constraints.greater_than(0),
    }
    support = constraints.positive_definite

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = one_of(
            covariance_matrix=covariance_matrix, scale_tril=scale_tril, precision_matrix=precision_matrix
        )
        if matrix.ndim < 2:
            raise ValueError("scale_tril must be at least two-dimensional, with optional leading batch dimensions")
        self.df: Tensor = df if isinstance(df, Tensor) else tensor(float(df), dtype=matrix.dtype)
        batch, n = broadcast_shapes(matrix.shape[:-2], self.df.shape), matrix.shape[-1]
        self.df = self.df.expand(batch)
        self.__dict__[name] = matrix.expand((*batch, n, n))
        super().__init__(batch, (n, n), validate_args)
        self.__dict__["scale_tril"] = scale_tril_of(name, matrix).expand((*batch, n, n))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        raise AssertionError("it is set when the distribution is made")

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the normal vectors."""
        return self.scale_tril @ self.scale_tril.mT

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return cholesky_inverse(self.scale_tril)

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self._event_shape[0] - 1
        return where(factor > 0, factor, NAN)[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        covariance = self.covariance_matrix
        diagonal = covariance.diagonal(0, -2, -1)
        products = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df[..., None, None] * (covariance.square() + products)

    def _halves(self) -> Tensor:
        """(df - i) / 2 for each row i."""
        return (self.df.unsqueeze(-1) - arange(self._event_shape[0], dtype=self.df.dtype)) / 2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples by Bartlett's decomposition: a triangular matrix of normal and chi-squared variables."""
        shape = self._extended_shape(sample_shape)
        chi2 = 2 * standard_gamma(self._halves().expand(shape[:-1]))
        noise = randn(shape, dtype=self.df.dtype).tril(-1) + diag_embed(chi2.clamp(min=tiny_of(chi2)).sqrt())
        factor = self.scale_tril @ noise
        return factor @ factor.mT

    def log_prob(self, value: Tensor) -> Tensor:
        value, n, nu = self._checked(value), self._event_shape[0], self.df
        batch = broadcast_shapes(value.shape[:-2], self._batch_shape)
        factor = self.scale_tril.expand((*batch, n, n))
        trace = cholesky_solve(value.expand((*batch, n, n)), factor).diagonal(0, -2, -1).sum(-1)
        norm = nu * (n * log(2) / 2 + half_log_det(self.scale_tril)) + mvlgamma(nu / 2, n)
        return (nu - n - 1) / 2 * slogdet(value)[1] - trace / 2 - norm

    def entropy(self) -> Tensor:
        n, nu = self._event_shape[0], self.df
        spread = (n + 1) * (n * log(2) / 2 + half_log_det(self.scale_tril))
        return spread + mvlgamma(nu / 2, n) - (nu - n - 1) / 2 * self._halves().digamma().sum(-1) + nu * n / 2


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices; at concentration 1, all correlation matrices are equally likely."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples by the onion method: each row is a direction, and how far it goes."""
        concentration = self.concentration.detach()
        offset = (arange(self.dim, dtype=concentration.dtype) - 1).clamp(min=0)
        lengths = Beta(offset + 0.5, (concentration + 0.5 * (self.dim - 2)).unsqueeze(-1) - 0.5 * offset)
        y = lengths.sample(sample_shape).unsqueeze(-1)
        normal = randn(self._extended_shape(sample_shape), dtype=concentration.dtype).tril(-1)
        length = normal.square().sum(-1, True).sqrt()
        rows = y.sqrt() * normal / where(length > 0, length, 1.0)
        diagonal = (1 - rows.square().sum(-1)).clamp(min=tiny_of(rows)).sqrt()
        return rows + diag_embed(diagonal)

    def log_prob(self, value: Tensor) -> Tensor:
        diagonal = self._checked(value).diagonal(0, -2, -1)[..., 1:]
        order = self.dim - arange(2, self.dim + 1, dtype=diagonal.dtype)
        powers = 2 * (self.concentration - 1).unsqueeze(-1) + order
        rows = self.dim - 1
        alpha = self.concentration + 0.5 * rows
        norm = 0.5 * rows * log(pi) + mvlgamma(alpha - 0.5, rows) - alpha.lgamma() * rows
        return (powers * diagonal.log()).sum(-1) - norm
