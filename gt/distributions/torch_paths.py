"""torch's longer paths to the names of `gt.distributions`, such as ``gt.distributions.normal.Normal``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gt.distributions import parameters
from gt.missing import absent

#: torch's module -> its names. Where GT has a file of that name, the file has the names.
PATHS = {
    "bernoulli": "Bernoulli", "beta": "Beta", "binomial": "Binomial", "cauchy": "Cauchy", "chi2": "Chi2",
    "continuous_bernoulli": "ContinuousBernoulli", "dirichlet": "Dirichlet", "exp_family": "ExponentialFamily",
    "exponential": "Exponential", "fishersnedecor": "FisherSnedecor", "generalized_pareto": "GeneralizedPareto",
    "geometric": "Geometric", "gumbel": "Gumbel", "half_cauchy": "HalfCauchy", "half_normal": "HalfNormal",
    "independent": "Independent", "inverse_gamma": "InverseGamma", "kumaraswamy": "Kumaraswamy", "laplace": "Laplace",
    "lkj_cholesky": "LKJCholesky", "log_normal": "LogNormal", "logistic_normal": "LogisticNormal",
    "lowrank_multivariate_normal": "LowRankMultivariateNormal", "mixture_same_family": "MixtureSameFamily",
    "multinomial": "Multinomial", "multivariate_normal": "MultivariateNormal", "negative_binomial": "NegativeBinomial",
    "normal": "Normal", "one_hot_categorical": "OneHotCategorical OneHotCategoricalStraightThrough",
    "pareto": "Pareto", "poisson": "Poisson", "relaxed_bernoulli": "RelaxedBernoulli",
    "relaxed_categorical": "RelaxedOneHotCategorical", "studentT": "StudentT",
    "transformed_distribution": "TransformedDistribution", "uniform": "Uniform", "von_mises": "VonMises",
    "weibull": "Weibull", "wishart": "Wishart",
}  # fmt: skip
#: the names of torch.distributions.utils
UTILS = ("broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits")


def install(package: dict[str, Any]) -> None:
    """Add the modules to the package, whose names are given."""
    paths = {path: {name: package[name] for name in names.split()} for path, names in PATHS.items()}
    paths["utils"] = {name: getattr(parameters, name) for name in UTILS}
    for path, contents in paths.items():
        module = ModuleType(f"gt.distributions.{path}", f"``gt.distributions.{path}``: torch's path to these names.")
        module.__dict__.update(contents, __all__=[*contents])
        sys.modules[module.__name__] = package[path] = module
        absent(f"distributions.{path}")
