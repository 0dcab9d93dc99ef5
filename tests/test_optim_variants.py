"""Adadelta, Adamax, ASGD, LBFGS, NAdam, RAdam, Rprop and SparseAdam against torch's, step by step in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.grad.backward import no_grad
from gt.testing import Cluster
from gt.wire.words import RUN

SHAPES = [(3, 4), (5,), (2, 3, 2), (), (4, 1)]

#: SparseAdam and LBFGS have tests of their own below
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1, "maximize": True, "capturable": False}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True, "foreach": True}),
    ("RAdam", {}),
    ("RAdam", {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True, "foreach": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (0.05, 0.2), "maximize": True}),
]
NAMES = sorted({name for name, _ in ROWS})


@pytest.fixture(params=["torch", "numpy"])
def cluster(request):
    with Cluster(backend=request.param).client() as session:
        yield session


def pairs(dtype="float64"):
    rng = np.random.default_rng(0)
    values = [np.asarray(rng.standard_normal(shape), dtype=dtype) for shape in SHAPES]
    return rng, [torch.tensor(v, requires_grad=True) for v in values], [gt.tensor(v).requires_grad_() for v in values]


def feed(rng, theirs, ours, skip=()):
    for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        g = None if i in skip else np.asarray(rng.standard_normal(a.shape))
        a.grad, b.grad = (None, None) if g is None else (torch.tensor(g), gt.tensor(g))


def same(theirs, ours, tolerance=1e-12):
    for a, b in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=tolerance, atol=tolerance)


def same_state(theirs, ours):
    """Every state of every parameter, with torch's names in torch's order."""
    for i, state in theirs.state_dict()["state"].items():
        mine = ours.state_dict()["state"][i]
        assert list(mine) == list(state)
        for name, value in state.items():
            np.testing.assert_allclose(np.asarray(mine[name]), np.asarray(value), rtol=1e-12, atol=1e-12)
    for a, b in zip(theirs.state_dict()["param_groups"], ours.state_dict()["param_groups"], strict=True):
        assert b == a


@pytest.mark.parametrize(("name", "options"), ROWS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_twenty_steps(cluster, name, options):
    rng, theirs, ours = pairs()
    groups = lambda ps: [{"params": ps[:2]}, {"params": ps[2:], "lr": 0.05}]
    a, b = getattr(torch.optim, name)(groups(theirs), **options), getattr(gt.optim, name)(groups(ours), **options)
    for step in range(20):
        feed(rng, theirs, ours, skip=(1,) if step % 3 == 1 else ())
        a.step()
        b.step()
        same(theirs, ours)
    same_state(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_state_goes_both_ways(name):
    """A state of torch's is loaded, goes on as torch's does, and torch loads what comes out."""
    with Cluster().client():
        rng, theirs, ours = pairs()
        make = lambda lib, ps, lr: getattr(lib.optim, name)(ps, lr=lr)
        a, b = make(torch, theirs, 0.01), make(gt, ours, 0.5)
        feed(rng, theirs, ours)
        a.step()
        with no_grad():
            for p, q in zip(ours, theirs, strict=True):
                p.copy_(gt.tensor(q.detach().numpy()))
        b.load_state_dict(a.state_dict())
        assert b.param_groups[0]["lr"] == 0.01
        feed(rng, theirs, ours)
        a.step(), b.step()
        same(theirs, ours)
        same_state(a, b)
        back = make(torch, theirs, 0.7)
        back.load_state_dict(as_torch(b.state_dict()))
        feed(rng, theirs, ours)
        back.step(), b.step()
        same(theirs, ours)


def as_torch(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: as_torch(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_torch(v) for v in value]
    return torch.tensor(value.numpy()) if isinstance(value, gt.Tensor) else value


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_and_a_rate_in_a_tensor(name):
    with Cluster(backend="numpy").client() as session:
        rng, theirs, ours = pairs()
        a = getattr(torch.optim, name)(theirs, lr=torch.tensor(0.1, dtype=torch.float64))
        rate = gt.tensor(0.1, dtype=gt.float64)
        b = getattr(gt.optim, name)(ours, lr=rate)
        schedules = [lib.optim.lr_scheduler.StepLR(opt, 2, 0.5) for lib, opt in ((torch, a), (gt, b))]
        for _ in range(6):
            feed(rng, theirs, ours)
            a.step(), b.step()
            for schedule in schedules:
                schedule.step()
            same(theirs, ours)
        assert b.param_groups[0]["lr"] is rate
        assert rate.item() == pytest.approx(0.0125)
        reads = []
        session.read, read = (lambda *args: reads.append(args) or read(*args)), session.read
        b.rate(b.param_groups[0]), b.rate(b.param_groups[0])
        assert not reads


@pytest.mark.parametrize("name", [*NAMES, "SparseAdam"])
def test_a_loop_is_replayed_and_never_waits(name, monkeypatch):
    """After a few steps, a step is one RUN, whatever the numbers in it."""
    with Cluster().client() as session:
        model = gt.nn.Sequential(gt.nn.Linear(4, 5), gt.nn.Tanh(), gt.nn.Linear(5, 1))
        optimizer = getattr(gt.optim, name)(model.parameters(), lr=0.01)
        x = gt.rand(6, 4)

        def step(k):
            optimizer.param_groups[0]["lr"] = 0.01 / (k + 1)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            session.outbox.flush()

        monkeypatch.setattr(type(session), "read", lambda *_: pytest.fail("a step waits for a value"))
        for k in range(5):
            step(k)
        session.outbox.recent.clear()
        for k in range(5, 12):
            step(k)
        words = [[word for word in stream if word >= 0] for stream, *_ in session.outbox.recent]
        assert {stream[0] for stream in words if stream} == {RUN}
        assert sum(map(len, words)) < 7 * 40


@pytest.mark.parametrize("name", [*NAMES, "SparseAdam"])
def test_a_step_is_one_instruction(name):
    with Cluster(backend="numpy").client() as session:
        ps = [gt.ones(3).requires_grad_() for _ in range(10)]
        optimizer = getattr(gt.optim, name)(ps)
        for _ in range(2):
            for p in ps:
                p.grad = gt.ones(3)
            session.outbox.flush()
            session.outbox.templates.enabled = False
            optimizer.step()
        targets = 10 * (1 + sum(isinstance(x, gt.Tensor) for x in optimizer.state[ps[0]].values()))
        numbers = len(session.outbox.words) - (2 + 2 * targets + 10)
        assert 4 <= numbers <= 8


@pytest.mark.parametrize("name", NAMES)
def test_two_workers_give_the_same_values(name):
    values = []
    for workers in (1, 2):
        with Cluster(workers=workers, seed=3).client():
            if workers > 1:
                gt.auto_shard()
            gt.manual_seed(5)
            model = gt.nn.Linear(4, 3, dtype=gt.float64)
            optimizer = getattr(gt.optim, name)(model.parameters(), lr=0.1)
            for _ in range(4):
                optimizer.zero_grad()
                model(gt.rand(8, 4, dtype=gt.float64)).square().mean().backward()
                optimizer.step()
            values.append(model.weight.tolist())
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)


def test_repr_equals_torchs():
    with Cluster(backend="numpy").client():
        p, q = gt.ones(2).requires_grad_(), torch.ones(2, requires_grad=True)
        for name in (*NAMES, "SparseAdam", "LBFGS"):
            assert repr(getattr(gt.optim, name)([p])) == repr(getattr(torch.optim, name)([q]))


BAD = [
    ("Adadelta", {"rho": 1.5}),
    ("Adadelta", {"eps": -1.0}),
    ("Adadelta", {"weight_decay": -1.0}),
    ("Adamax", {"betas": (0.5, 1.0)}),
    ("NAdam", {"momentum_decay": -1.0}),
    ("NAdam", {"betas": (1.0, 0.5)}),
    ("RAdam", {"eps": -1.0}),
    ("RAdam", {"lr": -1.0}),
    ("ASGD", {"weight_decay": -1.0}),
    ("Rprop", {"etas": (1.1, 1.2)}),
    ("SparseAdam", {"lr": 0.0}),
    ("SparseAdam", {"eps": 0.0}),
    ("LBFGS", {"lr": -1.0}),
]


@pytest.mark.parametrize(("name", "options"), BAD, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_bad_options_are_refused_in_torchs_words(name, options):
    with Cluster(backend="numpy").client():
        with pytest.raises(ValueError, match="Invalid") as theirs:
            getattr(torch.optim, name)([torch.ones(2)], **options)
        with pytest.raises(ValueError, match="Invalid") as ours:
            getattr(gt.optim, name)([gt.ones(2)], **options)
        assert str(ours.value) == str(theirs.value)


def test_a_rate_of_several_elements_is_refused():
    with Cluster(backend="numpy").client(), pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        gt.optim.Adamax([gt.ones(2)], lr=gt.ones(2))


# -- SparseAdam ----------------------------------------------------------------------------


@pytest.mark.parametrize("maximize", [False, True])
def test_sparse_adam(cluster, maximize):
    """The rows of an embedding that a step does not use keep their values and moments."""
    weight = np.random.default_rng(0).standard_normal((6, 3))
    theirs = torch.nn.Embedding(6, 3, _weight=torch.tensor(weight), sparse=True, dtype=torch.float64)
    ours = gt.nn.Embedding(6, 3, sparse=True, dtype=gt.float64)
    ours.load_state_dict({"weight": gt.tensor(weight)})
    a = torch.optim.SparseAdam(theirs.parameters(), lr=0.1, maximize=maximize)
    b = gt.optim.SparseAdam(ours.parameters(), lr=0.1, maximize=maximize)
    rng = np.random.default_rng(1)
    for _ in range(20):
        index = rng.integers(0, 6, 3)
        for lib, module, optimizer in ((torch, theirs, a), (gt, ours, b)):
            optimizer.zero_grad()
            module(lib.tensor(index)).square().sum().backward()
            optimizer.step()
        same([theirs.weight], [ours.weight])
    same_state(a, b)


# -- LBFGS ---------------------------------------------------------------------------------


def rosenbrock(optimizer, x, y):
    """Two valleys, and a quartic in another parameter."""

    def closure():
        optimizer.zero_grad()
        loss = (100 * (x[:, 1] - x[:, 0] ** 2) ** 2 + (1 - x[:, 0]) ** 2).sum() + ((y - 2) ** 4).sum()
        loss.backward()
        return loss

    return closure


LBFGS = [
    {"lr": 0.02, "max_iter": 7, "history_size": 4},
    {"lr": 0.1, "max_iter": 1},
    {"line_search_fn": "strong_wolfe", "max_iter": 2, "history_size": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 3, "max_eval": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 4, "tolerance_change": 0.1},
]


@pytest.mark.parametrize("options", LBFGS, ids=lambda x: ",".join(map(str, x.values())))
def test_lbfgs(cluster, options):
    start, zeros = np.array([[-1.2, 1.0], [2.0, 0.5]]), np.zeros(3)
    theirs = [torch.tensor(v, requires_grad=True) for v in (start, zeros)]
    ours = [gt.tensor(v).requires_grad_() for v in (start, zeros)]
    a, b = torch.optim.LBFGS(theirs, **options), gt.optim.LBFGS(ours, **options)
    for step in range(20 if options.get("lr") else 6):
        expected, loss = a.step(rosenbrock(a, *theirs)), b.step(rosenbrock(b, *ours))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-8), step
        same(theirs, ours, 1e-8)
    state, mine = a.state_dict()["state"][0], b.state_dict()["state"][0]
    assert set(mine) == set(state)
    assert mine["func_evals"] == state["func_evals"]
    assert mine["n_iter"] == state["n_iter"]


def test_lbfgs_state_goes_both_ways():
    with Cluster().client():
        start, zeros = np.array([[-1.2, 1.0], [2.0, 0.5]]), np.zeros(3)
        theirs = [torch.tensor(v, requires_grad=True) for v in (start, zeros)]
        options = {"line_search_fn": "strong_wolfe", "max_iter": 3}
        a = torch.optim.LBFGS(theirs, **options)
        a.step(rosenbrock(a, *theirs))
        ours = [gt.tensor(p.detach().numpy()).requires_grad_() for p in theirs]
        b = gt.optim.LBFGS(ours)
        b.load_state_dict(a.state_dict())
        a.step(rosenbrock(a, *theirs)), b.step(rosenbrock(b, *ours))
        same(theirs, ours, 1e-9)
        back = torch.optim.LBFGS(theirs)
        back.load_state_dict(as_torch(b.state_dict()))
        back.step(rosenbrock(back, *theirs)), b.step(rosenbrock(b, *ours))
        same(theirs, ours, 1e-8)


def test_lbfgs_stops_where_the_gradient_is_zero_and_refuses_bad_calls():
    with Cluster(backend="numpy").client():
        p = gt.zeros(3).requires_grad_()
        optimizer = gt.optim.LBFGS([p])
        closure = lambda: (optimizer.zero_grad(), (p * p).sum().backward(), 0.0)[-1]
        assert optimizer.step(closure) == 0.0
        assert optimizer.state[p] == {"func_evals": 1, "n_iter": 0}
        with pytest.raises(TypeError, match="needs a closure"):
            optimizer.step()
        with pytest.raises(ValueError, match="parameter groups"):
            gt.optim.LBFGS([{"params": [p]}, {"params": [gt.ones(1)]}])
        q = gt.ones(3).requires_grad_()
        with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
            gt.optim.LBFGS([q], line_search_fn="armijo").step(lambda: quartic(q))


def quartic(p):
    p.grad = None
    loss = (p**4).sum()
    loss.backward()
    return loss
