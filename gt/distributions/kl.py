"""``kl_divergence``: how far one distribution is from another.

Most divergences of numbers follow from one formula: KL(p, q) = E_p[-log q] - entropy(p). The cross entropy E_p[-log q]
needs only a few means under p: of x and its square, of log x and log(1 - x), of exp(t x). Where p has values outside
the support of q, the divergence is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import total_ordering
from math import log, pi
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.distributions.bounded import ContinuousBernoulli, Uniform
from gt.distributions.categorical import Categorical, OneHotCategorical
from gt.distributions.composed import Gumbel, HalfNormal, Pareto
from gt.distributions.discrete import Bernoulli, Binomial, Geometric, Poisson
from gt.distributions.distribution import Distribution, Independent
from gt.distributions.gamma import Beta, Dirichlet, Gamma
from gt.distributions.location_scale import EULER, INF, Cauchy, Exponential, Laplace, Normal
from gt.distributions.multivariate import LowRankMultivariateNormal, MultivariateNormal, half_log_det
from gt.distributions.parameters import sum_rightmost, where
from gt.distributions.transformed import TransformedDistribution
from gt.functions.linalg import solve_triangular
from gt.nn.functional import softplus

Rule = Callable[[Any, Any], Tensor]
_rules: dict[tuple[type, type], Rule] = {}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[Rule], Rule]:
    """A decorator: the function computes the divergence of these two kinds of distributions."""
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"Expected a Distribution subclass but got {kind}")

    def register(rule: Rule) -> Rule:
        _rules[type_p, type_q] = rule
        return rule

    return register


@total_ordering
class Match:
    """A registered pair of types, compared by how specific it is: the later base in each order of resolution loses."""

    def __init__(self, *types: type) -> None:
        self.types = types

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Match) and self.types == other.types

    def __le__(self, other: Match) -> bool:
        for mine, theirs in zip(self.types, other.types, strict=True):
            if not issubclass(mine, theirs):
                return False
            if mine is not theirs:
                break
        return True

    __hash__ = object.__hash__


def _rule_for(p: type, q: type) -> Rule:
    matches = [Match(*pair) for pair in _rules if issubclass(p, pair[0]) and issubclass(q, pair[1])]
    if not matches:
        raise NotImplementedError(f"No KL(p || q) is implemented for p type {p.__name__} and q type {q.__name__}")
    left, right = min(matches).types
    return _rules[left, right]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence: the mean of log p(x) - log q(x) under p."""
    return _rule_for(type(p), type(q))(p, q)


# -- cross entropies -----------------------------------------------------------------------


def _second_moment(p: Any, around: Any) -> Tensor:
    """E[(x - around)²]."""
    return p.variance + (p.mean - around).square()  # type: ignore[no-any-return]


def _from_normal(p: Any, q: Normal) -> Tensor:
    return q.scale.log() + log(2 * pi) / 2 + _second_moment(p, q.loc) / (2 * q.scale.square())


def _from_exponential(p: Any, q: Exponential) -> Tensor:
    return q.rate * p.mean - q.rate.log()  # type: ignore[no-any-return]


def _from_gamma(p: Any, q: Gamma) -> Tensor:
    a, b = q.concentration, q.rate
    return a.lgamma() - a * b.log() - (a - 1) * p._log_mean() + b * p.mean  # type: ignore[no-any-return]


def _from_beta(p: Any, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    norm = a.lgamma() + b.lgamma() - (a + b).lgamma()
    return norm - (a - 1) * p._log_mean() - (b - 1) * p._log_rest_mean()  # type: ignore[no-any-return]


def _from_pareto(p: Any, q: Pareto) -> Tensor:
    return (q.alpha + 1) * p._log_mean() - q.alpha.log() - q.alpha * q.scale.log()  # type: ignore[no-any-return]


def _from_continuous_bernoulli(p: Any, q: ContinuousBernoulli) -> Tensor:
    return -p.mean * q.logits - (-q.probs).log1p() - q._log_norm()  # type: ignore[no-any-return]


def _from_uniform(p: Any, q: Uniform) -> Tensor:
    return (q.high - q.low).log() + 0 * p.mean  # type: ignore[no-any-return]


def _from_gumbel(p: Any, q: Gumbel) -> Tensor:
    tail = p._exponential_mean(-q.scale.reciprocal()) * (q.loc / q.scale).exp()
    return (p.mean - q.loc) / q.scale + tail + q.scale.log()  # type: ignore[no-any-return]


def _by_cross_entropy(cross_entropy: Rule, fits: Callable[[Any, Any], Any] | None = None) -> Rule:
    """The divergence from a cross entropy; infinite where ``fits`` is false."""

    def rule(p: Any, q: Any) -> Tensor:
        divergence = cross_entropy(p, q) - p.entropy()
        return divergence if fits is None else where(fits(p, q), divergence, INF)

    return rule


def _within(p: Uniform, low: Any, high: Any) -> Tensor:
    return (p.low >= low) & (p.high <= high)  # type: ignore[no-any-return]


#: (the kinds of p, the kind of q, the cross entropy, where p is within q's support)
CROSS_ENTROPIES: tuple[tuple[tuple[type, ...], type, Rule, Callable[[Any, Any], Any] | None], ...] = (
    (
        (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform, Normal),
        Normal,
        _from_normal,
        None,
    ),
    ((Beta, ContinuousBernoulli, Exponential, Gamma, Pareto), Exponential, _from_exponential, None),
    ((Uniform,), Exponential, _from_exponential, lambda p, q: p.low >= 0),
    ((Beta, Exponential, Gamma, Pareto), Gamma, _from_gamma, None),
    ((Uniform,), Gamma, _from_gamma, lambda p, q: p.low >= 0),
    ((Beta,), Beta, _from_beta, None),
    ((Uniform,), Beta, _from_beta, lambda p, q: _within(p, 0, 1)),
    ((Beta, ContinuousBernoulli), ContinuousBernoulli, _from_continuous_bernoulli, None),
    ((Uniform,), ContinuousBernoulli, _from_continuous_bernoulli, lambda p, q: _within(p, 0, 1)),
    ((Pareto,), Pareto, _from_pareto, lambda p, q: p.scale >= q.scale),
    ((Uniform,), Pareto, _from_pareto, lambda p, q: p.low >= q.scale),
    ((Beta, ContinuousBernoulli), Uniform, _from_uniform, lambda p, q: (q.low <= 0) & (q.high >= 1)),
    ((Uniform,), Uniform, _from_uniform, lambda p, q: _within(p, q.low, q.high)),
    ((Exponential, Gamma, Normal, Uniform), Gumbel, _from_gumbel, None),
)
#: pairs of supports that never fit
INFINITE: tuple[tuple[tuple[type, ...], tuple[type, ...]], ...] = (
    ((Beta, ContinuousBernoulli), (Pareto,)),
    ((Exponential, Gamma), (Beta, ContinuousBernoulli, Pareto, Uniform)),
    ((Gumbel, Laplace, Normal), (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    ((Pareto,), (Beta, ContinuousBernoulli, Uniform)),
    ((Poisson,), (Bernoulli, Binomial)),
)


def _infinite(p: Any, q: Any) -> Tensor:
    shape = (p.mean * 0 + q.mean * 0).shape
    return p.mean.new_full(shape, INF)  # type: ignore[no-any-return]


def _register_tables() -> None:
    for kinds, target, cross_entropy, fits in CROSS_ENTROPIES:
        for kind in kinds:
            _rules[kind, target] = _by_cross_entropy(cross_entropy, fits)
    for kinds, targets in INFINITE:
        for kind in kinds:
            _rules.update(dict.fromkeys([(kind, target) for target in targets], _infinite))


_register_tables()


# -- other pairs ---------------------------------------------------------------------------


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    t1 = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    t0 = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    t1 = where(p.probs == 0, 0.0, where(q.probs == 0, INF, t1))
    return t1 + where(p.probs == 1, 0.0, where(q.probs == 1, INF, t0))


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return q.rate - p.entropy() - p.probs * q.rate.log()


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    ratio = p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return where(p.total_count > q.total_count, INF, p.total_count * ratio)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    t = p.probs * (p.logits - q.logits)
    t = where((q.probs == 0) & (p.probs > 0), INF, t)
    return where(p.probs == 0, 0.0, t).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total_a, total_b = a.sum(-1), b.sum(-1)
    norm = total_a.lgamma() - total_b.lgamma() + (b.lgamma() - a.lgamma()).sum(-1)
    return norm + ((a - b) * (a.digamma() - total_a.digamma().unsqueeze(-1))).sum(-1)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, distance = p.scale / q.scale, (q.loc - p.loc) / q.scale
    return -ratio.log() - distance + ratio * EULER + (distance + (1 + ratio).lgamma()).exp() - (1 + EULER)


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    z = (p.loc - q.loc) / p.scale
    distance = (2 / pi) ** 0.5 * p.scale * (-z.square() / 2).exp() + p.scale * z * (z / 2**0.5).erf()
    return (2 * q.scale).log() + distance / q.scale - p.entropy()  # type: ignore[no-any-return]


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    return ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log() - (4 * p.scale * q.scale).log()


@register_kl(MultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be computed"
        )
    n, factor = p.event_shape[0], q.scale_tril
    batch = (p.loc[..., 0] + q.loc[..., 0]).shape
    wide = factor.expand((*batch, n, n))
    spread = solve_triangular(wide, p.scale_tril.expand((*batch, n, n)), upper=False).square().sum((-2, -1))
    distance = solve_triangular(wide, (q.loc - p.loc).expand((*batch, n)).unsqueeze(-1), upper=False)
    half_log_dets = half_log_det(factor) - half_log_det(p.scale_tril)
    return half_log_dets + 0.5 * (spread + distance.square().sum((-2, -1)) - n)  # type: ignore[no-any-return]


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("the transforms of the two distributions differ")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("the numbers of reinterpreted dims differ")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
