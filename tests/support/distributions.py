"""Rows of distributions: their parameters, and how values for them are made. Torch's are the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def f(*values: Any) -> torch.Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


def factor(n: int, batch: tuple[int, ...] = ()) -> torch.Tensor:
    """Lower triangular matrices with a positive diagonal."""
    rng = torch.Generator().manual_seed(n)
    raw = torch.randn((*batch, n, n), generator=rng, dtype=torch.float64) / 2
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(0, -2, -1).abs() + 0.5)


def covariance(n: int, batch: tuple[int, ...] = ()) -> torch.Tensor:
    lower = factor(n, batch)
    return lower @ lower.mT


@dataclass(frozen=True)
class Row:
    name: str
    parameters: dict[str, Any]
    #: builds the distribution in torch's or GT's namespace, where that is more than calling the class
    build: Callable[..., Any] | None = None

    def make(self, namespace: Any, parameters: dict[str, Any]) -> Any:
        return self.build(namespace, **parameters) if self.build else getattr(namespace, self.name)(**parameters)

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join(self.parameters)}"


A, B = f(0.5, 1.0, 2.5), f([1.5], [4.0])
P = f(0.1, 0.5, 0.93)
LOC, SCALE = f([-1.0, 0.0, 2.0], [0.5, 3.0, -2.5]), f(0.3, 1.0, 2.0)
LOGITS = f([0.3, -1.0, 2.0, 0.0], [1.5, 0.0, 0.0, -3.0])
PROBS = f([0.2, 0.3, 0.5], [1.0, 1.0, 2.0])

ROWS = [
    Row("Normal", {"loc": LOC, "scale": SCALE}),
    Row("LogNormal", {"loc": LOC, "scale": SCALE}),
    Row("Laplace", {"loc": LOC, "scale": SCALE}),
    Row("Cauchy", {"loc": LOC, "scale": SCALE}),
    Row("Gumbel", {"loc": LOC, "scale": SCALE}),
    Row("Uniform", {"low": LOC, "high": LOC + SCALE}),
    Row("Exponential", {"rate": A}),
    Row("HalfNormal", {"scale": SCALE}),
    Row("HalfCauchy", {"scale": SCALE}),
    Row("Gamma", {"concentration": A, "rate": B}),
    Row("InverseGamma", {"concentration": A, "rate": B}),
    Row("Chi2", {"df": f(0.8, 2.0, 9.0)}),
    Row("Beta", {"concentration1": A, "concentration0": B}),
    Row("Dirichlet", {"concentration": f([0.5, 1.0, 2.5], [3.0, 4.0, 1.5])}),
    Row("StudentT", {"df": f(0.9, 1.5, 7.0), "loc": LOC, "scale": SCALE}),
    Row("FisherSnedecor", {"df1": f(1.0, 3.0, 8.0), "df2": f([1.5], [9.0])}),
    Row("Pareto", {"scale": SCALE, "alpha": f(0.7, 1.5, 3.0)}),
    # in float64 torch's fails
    Row("GeneralizedPareto", {"loc": LOC.float(), "scale": SCALE.float(), "concentration": f(-0.5, 0.1, 0.3).float()}),
    Row("Weibull", {"scale": SCALE, "concentration": f(0.7, 1.5, 3.0)}),
    Row("Kumaraswamy", {"concentration1": A, "concentration0": B}),
    Row("VonMises", {"loc": LOC, "concentration": f(0.1, 1.0, 30.0)}),
    Row("ContinuousBernoulli", {"probs": f(0.1, 0.5001, 0.93)}),
    Row("ContinuousBernoulli", {"logits": f(-2.0, 0.001, 3.0)}),
    Row("Bernoulli", {"probs": P}),
    Row("Bernoulli", {"logits": f(-2.0, 0.0, 3.0)}),
    Row("Geometric", {"probs": P}),
    Row("Geometric", {"logits": f(-2.0, 0.0, 3.0)}),
    Row("Binomial", {"probs": P}, lambda lib, probs: lib.Binomial(7, probs)),
    Row("Binomial", {"logits": f(-2.0, 0.0, 3.0)}, lambda lib, logits: lib.Binomial(40, logits=logits)),
    Row("NegativeBinomial", {"total_count": f([3.0], [7.5]), "probs": f(0.1, 0.5, 0.8)}),
    Row("NegativeBinomial", {"total_count": f([3.0], [7.5]), "logits": f(-2.0, 0.0, 1.0)}),
    Row("Poisson", {"rate": f(0.5, 4.0, 33.0)}),
    Row("Categorical", {"logits": LOGITS}),
    Row("Categorical", {"probs": PROBS}),
    Row("OneHotCategorical", {"logits": LOGITS}),
    Row("OneHotCategorical", {"probs": PROBS}),
    Row("OneHotCategoricalStraightThrough", {"probs": PROBS}),
    Row("Multinomial", {"probs": PROBS}, lambda lib, probs: lib.Multinomial(5, probs)),
    Row("Multinomial", {"logits": LOGITS}, lambda lib, logits: lib.Multinomial(3, logits=logits)),
    Row("RelaxedBernoulli", {"temperature": f(0.7), "probs": P}),
    Row("RelaxedBernoulli", {"temperature": f(1.5), "logits": f(-2.0, 0.0, 3.0)}),
    Row("RelaxedOneHotCategorical", {"temperature": f(0.7), "probs": PROBS}),
    Row("RelaxedOneHotCategorical", {"temperature": f(1.5), "logits": LOGITS}),
    Row("LogisticNormal", {"loc": LOC, "scale": SCALE}),
    Row("MultivariateNormal", {"loc": LOC, "scale_tril": factor(3)}),
    Row("MultivariateNormal", {"loc": LOC[0], "covariance_matrix": covariance(3, (2,))}),
    Row("MultivariateNormal", {"loc": LOC, "precision_matrix": covariance(3)}),
    Row(
        "LowRankMultivariateNormal",
        {"loc": LOC, "cov_factor": factor(3)[:, :2], "cov_diag": f(0.5, 1.0, 2.0)},
    ),
    Row("Wishart", {"df": f(9.5, 12.0), "covariance_matrix": covariance(3)}),
    Row("Wishart", {"df": f(11.0), "scale_tril": factor(2)}),
    Row("LKJCholesky", {"concentration": f(0.5, 3.0)}, lambda lib, concentration: lib.LKJCholesky(3, concentration)),
    Row("Independent", {"loc": LOC, "scale": SCALE}, lambda lib, **p: lib.Independent(lib.Normal(**p), 1)),
    Row(
        "MixtureSameFamily",
        {"probs": PROBS, "loc": LOC, "scale": SCALE},
        lambda lib, probs, **p: lib.MixtureSameFamily(lib.Categorical(probs), lib.Normal(**p)),
    ),
    Row(
        "MixtureSameFamily of vectors",
        {"probs": f(0.3, 0.7), "loc": LOC, "scale": SCALE},
        lambda lib, probs, **p: lib.MixtureSameFamily(lib.Categorical(probs), lib.Independent(lib.Normal(**p), 1)),
    ),
    Row(
        "TransformedDistribution",
        {"loc": LOC, "scale": SCALE},
        lambda lib, **p: lib.TransformedDistribution(
            lib.Normal(**p), [lib.TanhTransform(), lib.AffineTransform(1.0, -2.0)]
        ),
    ),
    Row(
        "TransformedDistribution of vectors",
        {"loc": LOC, "scale": SCALE},
        lambda lib, **p: lib.TransformedDistribution(
            lib.Independent(lib.Normal(**p), 1), [lib.SoftplusTransform(), lib.ReshapeTransform((3,), (3, 1))]
        ),
    ),
]
