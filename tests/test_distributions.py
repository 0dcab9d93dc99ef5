"""`gt.distributions` against torch.distributions: every public method, gradients, and what is drawn."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as TD

import gt
import gt.distributions as GD
from gt.testing import Cluster
from tests.support.distributions import ROWS, P, Row, f, factor

#: each test runs the whole system in this thread
BACKEND = "torch"
#: methods and properties that take no value
PLAIN = ("mean", "mode", "variance", "stddev", "entropy", "perplexity")
#: (distribution, method): why GT's result differs
OTHER = {
    ("Kumaraswamy", "mode"): "torch's formula gives NaN or a wrong number for every concentration above 1",
}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[Any]:
    torch.distributions.Distribution.set_default_validate_args(False)
    with Cluster(backend=BACKEND).client() as session:
        yield session
    torch.distributions.Distribution.set_default_validate_args(True)


def to_gt(parameters: dict[str, torch.Tensor], grad: bool = False) -> dict[str, Any]:
    return {k: gt.tensor(v).requires_grad_(grad) for k, v in parameters.items()}


def both(row: Row, grad: bool = False) -> tuple[Any, Any, dict[str, Any], dict[str, torch.Tensor]]:
    ours = to_gt(row.parameters, grad)
    theirs = {k: v.clone().requires_grad_(grad) for k, v in row.parameters.items()}
    return row.make(GD, ours), row.make(TD, theirs), ours, theirs


def same(got: Any, want: Any, rtol: float = 1e-7) -> None:
    if isinstance(want, torch.Tensor):
        array = torch.tensor(got.detach().numpy())
        assert (array.shape, array.dtype) == (want.shape, want.dtype)
        torch.testing.assert_close(array, want.detach(), rtol=rtol, atol=rtol / 1000, equal_nan=True)
    else:
        assert got == want


def call(distribution: Any, name: str, *arguments: Any) -> Any:
    """The result, or the type of the error."""
    try:
        attribute = getattr(distribution, name)
        return attribute(*arguments) if callable(attribute) else attribute
    except (NotImplementedError, ValueError) as error:
        return type(error)


def drawn_by_torch(theirs: Any, shape: Any) -> torch.Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Singular sample", UserWarning)  # it rejects matrices that are not
        return theirs.sample(shape)


def values_of(theirs: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return drawn_by_torch(theirs, (5,))


#: torch approximates Bessel functions to seven digits, and has the other in float32 only
TOLERANCE = {"VonMises": 2e-5, "GeneralizedPareto": 1e-4}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method(row: Row) -> None:
    ours, theirs, _, _ = both(row)
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape)
    assert tuple(ours.event_shape) == tuple(theirs.event_shape)
    assert ours.has_rsample == theirs.has_rsample
    assert ours.has_enumerate_support == theirs.has_enumerate_support
    assert (ours.support.event_dim, ours.support.is_discrete) == (
        theirs.support.event_dim,
        theirs.support.is_discrete,
    )
    for name in (*PLAIN, "enumerate_support"):
        if (row.name, name) not in OTHER:
            same(call(ours, name), call(theirs, name), TOLERANCE.get(row.name, 1e-7))
    value = values_of(theirs)
    for name in ("log_prob", "cdf"):
        same(call(ours, name, gt.tensor(value)), call(theirs, name, value), TOLERANCE.get(row.name, 1e-7))
    same(ours.support.check(gt.tensor(value)), theirs.support.check(value))
    quantile = torch.tensor([[[0.1]], [[0.5]], [[0.8]]], dtype=value.dtype if value.is_floating_point() else None)
    same(call(ours, "icdf", gt.tensor(quantile)), call(theirs, "icdf", quantile), TOLERANCE.get(row.name, 1e-7))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_expand_and_shapes(row: Row) -> None:
    ours, theirs, _, _ = both(row)
    batch = (2, *ours.batch_shape)
    wider, wanted = ours.expand(batch), theirs.expand(torch.Size(batch))
    assert tuple(wider.batch_shape) == batch
    value = values_of(wanted)
    same(wider.log_prob(gt.tensor(value)), wanted.log_prob(value), TOLERANCE.get(row.name, 1e-6))
    for shape in ((), (3,), (2, 3)):
        drawn = wider.sample(shape)
        assert tuple(drawn.shape) == (*shape, *batch, *ours.event_shape)
        assert str(drawn.dtype).removeprefix("gt.") == str(drawn_by_torch(wanted, shape).dtype).removeprefix("torch.")
        assert not drawn.requires_grad
    assert wider.support.check(wider.sample((4,))).all()


DENSITIES = [row for row in ROWS if row.name != "OneHotCategorical"]


@pytest.mark.parametrize("row", DENSITIES, ids=str)
def test_gradients_of_log_prob(row: Row) -> None:
    ours, theirs, p, q = both(row, grad=True)
    values = values_of(theirs)
    continuous = not theirs.support.is_discrete and row.name not in ("Uniform", "LKJCholesky")
    x = values.clone().requires_grad_(continuous)
    y = gt.tensor(values).requires_grad_(continuous)
    weights = torch.linspace(0.5, 1.5, theirs.log_prob(x).numel(), dtype=theirs.log_prob(x).dtype)
    (theirs.log_prob(x).reshape(-1) * weights).sum().backward()
    (ours.log_prob(y).reshape(-1) * gt.tensor(weights)).sum().backward()
    pairs = [(p[k].grad, q[k].grad) for k in p] + ([(y.grad, x.grad)] if continuous else [])
    for got, want in pairs:
        assert (got is None) == (want is None) or want is None
        if want is not None:
            same(got, want, TOLERANCE.get(row.name, 1e-6))


ENTROPIES = [row for row in ROWS if call(row.make(TD, row.parameters), "entropy") is not NotImplementedError]


@pytest.mark.parametrize("row", ENTROPIES, ids=str)
def test_gradients_of_entropy(row: Row) -> None:
    ours, theirs, p, q = both(row, grad=True)
    theirs.entropy().sum().backward()
    ours.entropy().sum().backward()
    for name in p:
        if q[name].grad is not None:
            same(
                gt.zeros_like(p[name]) if p[name].grad is None else p[name].grad,
                q[name].grad,
                TOLERANCE.get(row.name, 1e-6),
            )


def test_a_generalized_pareto_distribution_near_the_exponential_one() -> None:
    """At concentration 0 torch's gradient is 0; ours is the limit."""
    c = gt.zeros(3, dtype=gt.float64, requires_grad=True)
    pareto, z = GD.GeneralizedPareto(0.0, gt.ones(3, dtype=gt.float64), c), torch.tensor([0.1, 1.0, 3.0]).double()
    same(pareto.log_prob(gt.tensor(z)), -z)
    same(pareto.icdf(pareto.cdf(gt.tensor(z))), z)
    pareto.log_prob(gt.tensor(z)).sum().backward()
    same(c.grad, z**2 / 2 - z)


# -- what is drawn -------------------------------------------------------------------------

COUNT = 4000


def kolmogorov(distances: np.ndarray[Any, Any]) -> float:
    """The greatest difference between a uniform distribution and these numbers, which should be uniform."""
    ordered = np.sort(distances, axis=0)
    steps = (np.arange(len(ordered)) + 1) / len(ordered)
    return float(np.abs(ordered - steps.reshape((-1, *(1,) * (ordered.ndim - 1)))).max())


WITH_CDF = [
    row
    for row in ROWS
    if not isinstance(call(row.make(TD, row.parameters), "cdf", values_of(row.make(TD, row.parameters))), type)
]


@pytest.mark.parametrize("row", WITH_CDF, ids=str)
def test_what_is_drawn_has_the_distribution(row: Row) -> None:
    gt.manual_seed(1)
    ours, theirs, _, _ = both(row)
    drawn = torch.tensor(ours.sample((COUNT,)).numpy())
    assert kolmogorov(theirs.cdf(drawn).numpy()) < 2.2 / COUNT**0.5  # above it with probability 1e-4


FINITE = [row for row in ROWS if row not in WITH_CDF]


@pytest.mark.parametrize("row", FINITE, ids=str)
def test_what_is_drawn_has_the_moments(row: Row) -> None:
    """The mean and the second moment of log densities, which every distribution has, and the mean itself."""
    gt.manual_seed(1)
    torch.manual_seed(1)
    ours, theirs, _, _ = both(row)
    drawn, wanted = torch.tensor(ours.sample((COUNT,)).numpy()), drawn_by_torch(theirs, (4 * COUNT,))
    for function in (theirs.log_prob, lambda x: x.double().clamp(-9, 9), lambda x: x.double().clamp(-9, 9) ** 2):
        a, b = function(drawn).double(), function(wanted).double()
        error = ((a.var(0) / len(a) + b.var(0) / len(b)).sqrt() + 1e-9) * 4.5
        assert ((a.mean(0) - b.mean(0)).abs() <= error).all()


SMOOTH = [row for row in WITH_CDF if row.make(TD, row.parameters).has_rsample and row.name != "MixtureSameFamily"]


@pytest.mark.parametrize("row", SMOOTH, ids=str)
def test_gradients_of_samples(row: Row) -> None:
    """A sample moves so that its cumulative probability stays the same: dx = -(dF / dp) / density."""
    gt.manual_seed(2)
    ours, _, p, _ = both(row, grad=True)
    _, theirs, _, q = both(row, grad=True)
    drawn = ours.rsample((20,))
    assert drawn.requires_grad
    weights = torch.linspace(0.5, 1.5, drawn.numel(), dtype=next(iter(q.values())).dtype).reshape(tuple(drawn.shape))
    (drawn * gt.tensor(weights)).sum().backward()
    x = torch.tensor(drawn.detach().numpy())
    if row.name in ("Gamma", "Chi2", "InverseGamma"):  # torch's cdf has no gradient of the shape
        want = gamma_gradients(row, x, q, weights)
    else:
        density = theirs.log_prob(x).exp().detach()
        (theirs.cdf(x) / density * -weights).sum().backward()
        want = {name: q[name].grad for name in q}
    for name, wanted in want.items():
        same(p[name].grad, wanted, 2e-3 if row.name in ("Gamma", "Chi2", "InverseGamma", "GeneralizedPareto") else 1e-5)


def gamma_gradients(row: Row, x: torch.Tensor, q: Any, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """By torch's own gradient of a gamma variable, at the values that were drawn."""
    shape, rate = (q["df"] / 2, torch.full_like(q["df"], 0.5)) if row.name == "Chi2" else q.values()
    y = (1 / x if row.name == "InverseGamma" else x).detach() * rate.detach()
    slope = torch._standard_gamma_grad(shape.detach().expand(y.shape).contiguous(), y)
    moved = (y + slope * (shape - shape.detach())) / rate
    ((1 / moved if row.name == "InverseGamma" else moved) * weights).sum().backward()
    return {name: q[name].grad for name in q}


#: torch's own gradients of Wishart samples fail after a rejected sample
OTHERS = [
    row for row in ROWS if row not in SMOOTH and row.make(TD, row.parameters).has_rsample and row.name != "Wishart"
]


@pytest.mark.parametrize("row", OTHERS, ids=str)
def test_mean_gradients_of_samples(row: Row) -> None:
    """Mean gradients of a bounded function are torch's, up to noise."""
    gt.manual_seed(2)
    torch.manual_seed(2)

    def gradients(namespace: Any, tensors: dict[str, Any], repeats: int) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in tensors}
        for _ in range(repeats):
            drawn = row.make(namespace, tensors).rsample((400,))
            (drawn.tanh() * drawn.cos()).sum().backward()
            for name, x in tensors.items():
                found[name].append(np.array(x.grad.tolist()) / 400)
                x.grad = None
        return found

    _, _, p, q = both(row, grad=True)
    got, want = gradients(GD, p, 8), gradients(TD, q, 8)
    for name in p:
        a, b = np.stack(got[name]), np.stack(want[name])
        error = np.sqrt((a.var(0, ddof=1) + b.var(0, ddof=1)) / 8) * 9 + 1e-9
        assert (np.abs(a.mean(0) - b.mean(0)) <= error).all(), name


def test_the_seed_repeats_samples() -> None:
    for row in ROWS:
        ours, _, _, _ = both(row)
        gt.manual_seed(3)
        first, second = ours.sample((9,)).tolist(), ours.sample((9,)).tolist()
        gt.manual_seed(3)
        assert ours.sample((9,)).tolist() == first
        assert first != second


def test_gradients_of_wishart_samples() -> None:
    """The mean is df times the covariance."""
    gt.manual_seed(4)
    row = next(row for row in ROWS if row.name == "Wishart")
    ours, _, p, _ = both(row, grad=True)
    ours.rsample((4000,)).mean(0).sum().backward()
    total = float(row.parameters["covariance_matrix"].sum())
    np.testing.assert_allclose(p["df"].grad.tolist(), [total] * 2, rtol=0.2)
    np.testing.assert_allclose(
        p["covariance_matrix"].grad.sum().item(), float(row.parameters["df"].sum()) * 9, rtol=0.2
    )


def test_samples_do_not_depend_on_the_workers() -> None:
    drawn = []
    for workers in (1, 2):
        with Cluster(workers=workers, backend=BACKEND).client():
            gt.auto_shard()
            gt.manual_seed(5)
            gamma, counts = GD.Gamma(gt.full((64, 3), 0.7), 2.0).sample(), GD.Poisson(gt.full((64, 3), 20.0)).sample()
            drawn.append((gamma.tolist(), counts.tolist(), GD.Binomial(90, gt.full((64,), 0.4)).sample().tolist()))
    assert drawn[0] == drawn[1]


def test_samples_vary_in_compiled_code() -> None:
    calls = []

    @gt.compile
    def step(rate: Any) -> Any:
        calls.append(1)
        return GD.Poisson(rate).sample() + GD.Normal(rate * 0, 1.0).sample()

    rows = [tuple(step(gt.full((4,), 9.0)).tolist()) for _ in range(8)]
    assert len(set(rows)) == 8
    assert len(calls) < 4


# -- divergences ---------------------------------------------------------------------------

KINDS = {
    **{row.name: row for row in reversed(ROWS)},
    "Uniform inside": Row("Uniform", {"low": f(0.1), "high": f(0.8)}),
    "Uniform above": Row("Uniform", {"low": f(2.5), "high": f(4.0)}),
    "Uniform around": Row("Uniform", {"low": f(-9.0), "high": f(9.0)}),
    "Pareto heavy": Row("Pareto", {"scale": f(2.0), "alpha": f(2.5)}),
    "Normal other": Row("Normal", {"loc": f(0.3), "scale": f(1.7)}),
    "Gamma other": Row("Gamma", {"concentration": f(1.3), "rate": f(0.4)}),
    "Gumbel other": Row("Gumbel", {"loc": f(0.3), "scale": f(1.7)}),
    "Laplace other": Row("Laplace", {"loc": f(0.3), "scale": f(1.7)}),
    "Bernoulli certain": Row("Bernoulli", {"probs": f(0.0, 0.4, 1.0)}),
    "Binomial larger": Row("Binomial", {"probs": P}, lambda lib, probs: lib.Binomial(9, probs.flip(0))),
    "Categorical other": Row("Categorical", {"probs": f([0.0, 0.5, 0.5], [0.1, 0.2, 0.7])}),
    "Dirichlet other": Row("Dirichlet", {"concentration": f(1.0, 2.0, 0.7)}),
    "LogNormal other": Row("LogNormal", {"loc": f(0.3), "scale": f(1.7)}),
}
#: pairs for which torch has a divergence, with shapes that broadcast
PAIRS = []
#: GT has none: it does not read values to see whether two transforms are equal, and torch's of Wishart is a series
WITHOUT = ("Wishart", "Weibull", "Kumaraswamy", "TransformedDistribution", "TransformedDistribution of vectors")
for _p in [name for name in KINDS if name not in WITHOUT]:
    for _q in KINDS:
        try:
            TD.kl_divergence(KINDS[_p].make(TD, KINDS[_p].parameters), KINDS[_q].make(TD, KINDS[_q].parameters))
            PAIRS.append((_p, _q))
        except (NotImplementedError, RuntimeError, ValueError, IndexError):
            continue


def test_there_are_many_pairs() -> None:
    assert len(PAIRS) > 150


@pytest.mark.parametrize("name", KINDS)
def test_divergences(name: str) -> None:
    for _, other in [pair for pair in PAIRS if pair[0] == name]:
        (p, tp, ours, theirs), (q, tq, more, others) = both(KINDS[name], True), both(KINDS[other], True)
        got, want = GD.kl_divergence(p, q), TD.kl_divergence(tp, tq)
        # for equal supports of these two, torch's divergence is infinite
        close_divergence({KINDS[name].name, KINDS[other].name} == {"ContinuousBernoulli", "Uniform"}, got, want)
        if want.isfinite().all() and want.requires_grad:
            want.sum().backward()
            got.sum().backward()
            for key, x in [*theirs.items(), *others.items()]:
                mine = ours[key] if x is theirs.get(key) else more[key]
                if x.grad is not None:
                    same(gt.zeros_like(mine) if mine.grad is None else mine.grad, x.grad, 1e-5)


def close_divergence(edge: bool, got: Any, want: torch.Tensor) -> None:
    # torch's infinities have the shape of p alone
    array, want = torch.broadcast_tensors(torch.tensor(got.detach().numpy()), want)
    if edge:
        want = torch.where(want.isinf(), array, want)
    torch.testing.assert_close(array, want.detach(), rtol=1e-6, atol=1e-8, equal_nan=True)


def test_divergences_of_users() -> None:
    class Mine(GD.Normal):
        pass

    @GD.register_kl(Mine, GD.Normal)
    def rule(p: Any, q: Any) -> Any:
        return p.loc * 0 + 7

    assert GD.kl_divergence(Mine(0.0, 1.0), GD.Normal(0.0, 1.0)).item() == 7
    assert GD.kl_divergence(GD.Normal(0.0, 1.0), Mine(0.0, 1.0)).item() == 0
    with pytest.raises(NotImplementedError, match="p type Cauchy and q type Normal"):
        GD.kl_divergence(GD.Cauchy(0.0, 1.0), GD.Normal(0.0, 1.0))
    with pytest.raises(TypeError, match="Expected a Distribution subclass"):
        GD.register_kl(int, GD.Normal)
    wide, narrow = (GD.MultivariateNormal(gt.zeros(n), gt.eye(n)) for n in (3, 2))
    with pytest.raises(ValueError, match="different event shapes"):
        GD.kl_divergence(wide, narrow)


# -- transforms and constraints ------------------------------------------------------------

VECTOR, MATRIX = f([0.3, -1.0, 2.0], [1.5, 0.2, 0.1]), factor(3, (2,)) - 0.3
TRANSFORMS: dict[str, tuple[Any, torch.Tensor]] = {
    "exp": (lambda lib: lib.ExpTransform(), VECTOR),
    "sigmoid": (lambda lib: lib.SigmoidTransform(), VECTOR),
    "softplus": (lambda lib: lib.SoftplusTransform(), VECTOR),
    "tanh": (lambda lib: lib.TanhTransform(), VECTOR),
    "abs": (lambda lib: lib.AbsTransform(), VECTOR),
    "power": (lambda lib: lib.PowerTransform(-2.0), VECTOR.abs()),
    "affine": (lambda lib: lib.AffineTransform(1.0, -2.0), VECTOR),
    "affine of vectors": (lambda lib: lib.AffineTransform(1.0, -2.0, event_dim=1), VECTOR),
    "cdf": (lambda lib: lib.CumulativeDistributionTransform(lib.Normal(0.5, 2.0)), VECTOR),
    "softmax": (lambda lib: lib.SoftmaxTransform(), VECTOR),
    "stick breaking": (lambda lib: lib.StickBreakingTransform(), VECTOR),
    "lower cholesky": (lambda lib: lib.LowerCholeskyTransform(), MATRIX),
    "positive definite": (lambda lib: lib.PositiveDefiniteTransform(), MATRIX),
    "correlation": (lambda lib: lib.CorrCholeskyTransform(), VECTOR),
    "reshape": (lambda lib: lib.ReshapeTransform((3,), (1, 3)), VECTOR),
    "compose": (
        lambda lib: lib.ComposeTransform([lib.AffineTransform(0.5, 2.0), lib.StickBreakingTransform()]),
        VECTOR,
    ),
    "independent": (lambda lib: lib.IndependentTransform(lib.ExpTransform(), 1), VECTOR),
    "stack": (lambda lib: lib.StackTransform([lib.ExpTransform(), lib.TanhTransform()], 0), VECTOR),
    "cat": (lambda lib: lib.CatTransform([lib.ExpTransform(), lib.TanhTransform()], 1, [1, 2]), VECTOR),
    "inverse": (lambda lib: lib.ExpTransform().inv, VECTOR.abs()),
    "identity": (lambda lib: lib.identity_transform, VECTOR),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    make, x = TRANSFORMS[name]
    ours, theirs = make(GD), make(TD)
    y, inverse = theirs(x), theirs.inv(theirs(x))
    same(ours(gt.tensor(x)), y)
    same(ours.inv(gt.tensor(y)), inverse, 1e-6)
    assert ours.bijective == theirs.bijective
    assert (ours.domain.event_dim, ours.codomain.event_dim) == (theirs.domain.event_dim, theirs.codomain.event_dim)
    assert tuple(ours.forward_shape(x.shape)) == tuple(theirs.forward_shape(x.shape)) == tuple(y.shape)
    assert tuple(ours.inverse_shape(y.shape)) == tuple(x.shape)
    assert ours.codomain.check(ours(gt.tensor(x))).all()
    try:
        wanted = theirs.log_abs_det_jacobian(x, y)
    except NotImplementedError:
        wanted = None
    if wanted is not None and name != "identity":
        same(ours.log_abs_det_jacobian(gt.tensor(x), gt.tensor(y)), wanted, 1e-6)
    cached = ours.with_cache(1)
    z = gt.tensor(x)
    assert cached.inv(cached(z)) is z or name in ("identity", "inverse")


CONSTRAINTS = ("real", "real_vector", "positive", "nonnegative", "unit_interval", "simplex", "corr_cholesky")
CONSTRAINTS += ("lower_cholesky", "positive_definite")


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("table", ["biject_to", "transform_to"])
def test_transforms_to_constraints(name: str, table: str) -> None:
    if table == "biject_to" and name in ("lower_cholesky", "positive_definite"):
        with pytest.raises(NotImplementedError, match="Cannot transform"):
            GD.biject_to(getattr(GD.constraints, name))
        return
    ours, theirs = (getattr(lib, table)(getattr(lib.constraints, name)) for lib in (GD, TD))
    x = MATRIX if theirs.domain.event_dim == 2 else VECTOR
    same(ours(gt.tensor(x)), theirs(x), 1e-6)
    assert getattr(GD.constraints, name).check(ours(gt.tensor(x))).all()


LIMITS = {"interval": (-1.0, 3.0), "greater_than": (2.0,), "greater_than_eq": (2.0,), "less_than": (-1.0,)}


def test_constraints_with_limits() -> None:
    x = gt.tensor(VECTOR)
    for kind, limits in LIMITS.items():
        ours, theirs = (getattr(lib.constraints, kind)(*limits) for lib in (GD, TD))
        same(ours.check(x), theirs.check(VECTOR))
        same(GD.biject_to(ours)(x), TD.biject_to(theirs)(VECTOR))
        assert ours.check(GD.biject_to(ours)(x)).all()
    mixed = GD.constraints.stack([GD.constraints.positive, GD.constraints.unit_interval], 0)
    assert not mixed.check(x).all()
    assert mixed.check(GD.transform_to(mixed)(x)).all()
    assert repr(GD.constraints.interval(0, 1)) == repr(TD.constraints.interval(0, 1))
    with pytest.raises(NotImplementedError, match="Cannot transform"):
        GD.biject_to(GD.constraints.boolean)
    with pytest.raises(TypeError, match="Expected constraint"):
        GD.biject_to.register(int, lambda c: None)


# -- checks --------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "a parameter": (lambda: GD.Normal(0.0, -1.0, validate_args=True), "Expected parameter scale"),
    "a value": (lambda: GD.Exponential(1.0, validate_args=True).log_prob(gt.tensor(-1.0)), "within the support"),
    "a shape": (lambda: GD.Normal(gt.zeros(3), 1.0, validate_args=True).log_prob(gt.zeros(2)), "not broadcastable"),
    "an event": (lambda: GD.Dirichlet(gt.ones(3), validate_args=True).log_prob(gt.ones(2) / 2), "right-most size"),
    "a number": (lambda: GD.Normal(0.0, 1.0, validate_args=True).log_prob(0.5), "must be a Tensor"),
    "limits": (lambda: GD.Uniform(1.0, 0.0, validate_args=True), "low>= high"),
    "both": (lambda: GD.Bernoulli(probs=0.5, logits=0.0), "Either `probs` or `logits` must be specified"),
    "neither": (lambda: GD.Categorical(), "Either `probs` or `logits` must be specified"),
    "a list": (lambda: GD.Normal([0.0], 1.0), "must all be instances of Number or Tensor"),
    "dims": (lambda: GD.Independent(GD.Normal(0.0, 1.0), 1), "reinterpreted_batch_ndims"),
    "a mixture": (lambda: GD.MixtureSameFamily(GD.Categorical(gt.ones(2)), GD.Normal(gt.ones(3), 1)), "does not equal"),
    "a default": (lambda: GD.Distribution.set_default_validate_args(1), "True or False"),
    "a cache": (lambda: GD.ExpTransform(cache_size=2), "cache_size must be 0 or 1"),
    "elements": (lambda: GD.ReshapeTransform((2,), (3,)), "different numbers of elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        call()


def test_checks_by_default() -> None:
    GD.Normal(0.0, -1.0)  # values are not read
    GD.Distribution.set_default_validate_args(True)
    try:
        with pytest.raises(ValueError, match="Expected parameter scale"):
            GD.Normal(0.0, -1.0)
        for row in ROWS:
            drawn = row.make(GD, to_gt(row.parameters))
            drawn.log_prob(drawn.sample())
    finally:
        GD.Distribution.set_default_validate_args(False)


def test_every_name_of_torch() -> None:
    assert set(TD.__all__) <= set(GD.__all__)
    assert set(TD.constraints.__all__) <= set(GD.constraints.__all__)
    assert repr(GD.Normal(gt.zeros(3), 1.0)) == "Normal(loc: gt.Size([3]), scale: gt.Size([3]))"


#: names that GT does not have in torch's modules
NOT_THERE = {
    "LogitRelaxedBernoulli", "ExpRelaxedCategorical", "tril_matrix_to_vec", "vec_to_tril_matrix",
}  # fmt: skip


@pytest.mark.parametrize("path", [module.name for module in pkgutil.iter_modules(TD.__path__)])
def test_torchs_modules(path: str) -> None:
    theirs = importlib.import_module(f"torch.distributions.{path}")
    ours = importlib.import_module(f"gt.distributions.{path}")
    assert getattr(GD, path) is ours
    for name in set(theirs.__all__) - NOT_THERE:
        value = getattr(ours, name)
        assert name not in GD.__all__ or getattr(GD, name) is value
    with pytest.raises(AttributeError, match=r"does not exist|has no attribute"):
        ours.Nothing  # noqa: B018
