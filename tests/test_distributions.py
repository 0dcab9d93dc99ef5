"""`gt.distributions` against torch.distributions: every public method, gradients, and what is drawn."""

from __future__ import annotations

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
from tests.support.distributions import ROWS, Row

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
TOLERANCE = {"VonMises": 1e-6, "GeneralizedPareto": 1e-4}


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


VECTORS = ("MultivariateNormal", "LowRankMultivariateNormal", "Wishart", "LogisticNormal", "Independent")
OTHERS = [row for row in ROWS if row not in SMOOTH and row.make(TD, row.parameters).has_rsample]


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
