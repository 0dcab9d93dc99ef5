"""``gt.distributions``: torch.distributions' names. Imports `gt.functions`, `gt.nn.functional` and the rooms below.

A distribution is a client-side object of parameter tensors. Sampling and densities are ordinary ops, so gradients,
several workers and `gt.compile` work as everywhere.
"""

from gt.distributions import constraints, kl, transforms
from gt.distributions.bounded import ContinuousBernoulli, Uniform, VonMises
from gt.distributions.categorical import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from gt.distributions.composed import (
    GeneralizedPareto,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    LogisticNormal,
    LogNormal,
    Pareto,
    Weibull,
)
from gt.distributions.constraint_registry import biject_to, transform_to
from gt.distributions.discrete import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson
from gt.distributions.distribution import Distribution, ExponentialFamily, Independent
from gt.distributions.gamma import Beta, Chi2, Dirichlet, FisherSnedecor, Gamma, StudentT
from gt.distributions.kl import kl_divergence, register_kl
from gt.distributions.location_scale import Cauchy, Exponential, Laplace, Normal
from gt.distributions.matrices import LKJCholesky, Wishart
from gt.distributions.mixture import MixtureSameFamily
from gt.distributions.multivariate import LowRankMultivariateNormal, MultivariateNormal
from gt.distributions.relaxed import RelaxedBernoulli, RelaxedOneHotCategorical
from gt.distributions.torch_paths import install as _install
from gt.distributions.transformed import TransformedDistribution
from gt.distributions.transforms import *  # noqa: F403
from gt.distributions.transforms import __all__ as _transform_names
from gt.missing import absent as _absent

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet",
    "Distribution", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
    "Pareto", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints", "kl", "kl_divergence", "register_kl",
    "transform_to", "transforms",
]  # fmt: skip
__all__ += _transform_names
_install(globals())
_absent("distributions")
