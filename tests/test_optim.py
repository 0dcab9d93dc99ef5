"""Optimizers and schedules against torch's, step by step from the same values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from gt.client.grad.backward import no_grad
from gt.testing import Cluster

SHAPES = [(3, 4), (5,), (2, 3, 2), (), (4, 1)]

ROWS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "betas": (0.5, 0.6), "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "eps": 1e-3}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.9}),
    ("RMSprop", {"lr": 0.01, "centered": True, "maximize": True}),
    ("Adafactor", {"lr": 0.01}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "eps": (1e-5, 1e-2), "d": 1.5, "maximize": True}),
]


@pytest.fixture(params=["torch", "numpy"])
def cluster(request):
    with Cluster(backend=request.param).client() as session:
        yield session


def _pairs(dtype="float32"):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]
    theirs = [torch.tensor(v, requires_grad=True) for v in values]
    ours = [gt.tensor(v).requires_grad_() for v in values]
    return rng, theirs, ours


def _feed(rng, theirs, ours, skip=()):
    for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        g = None if i in skip else np.asarray(rng.standard_normal(a.shape), dtype=np.float32)
        a.grad, b.grad = (None, None) if g is None else (torch.tensor(g), gt.tensor(g))


def _same(theirs, ours):
    for a, b in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), ROWS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_twenty_steps(cluster, name, options):
    rng, theirs, ours = _pairs()
    groups = lambda ps: [{"params": ps[:2]}, {"params": ps[2:], "lr": 0.05}]
    a, b = getattr(torch.optim, name)(groups(theirs), **options), getattr(gt.optim, name)(groups(ours), **options)
    for step in range(20):
        _feed(rng, theirs, ours, skip=(1,) if step % 3 == 1 else ())
        a.step()
        b.step()
        _same(theirs, ours)


def test_lion(cluster):
    rng, theirs, ours = _pairs()
    opt = gt.optim.Lion(ours, lr=0.01, weight_decay=0.1)
    means = [torch.zeros_like(p) for p in theirs]
    for _ in range(5):
        _feed(rng, theirs, ours)
        opt.step()
        with torch.no_grad():
            for p, m in zip(theirs, means, strict=True):
                p.mul_(1 - 0.01 * 0.1).sub_(0.01 * torch.sign(m * 0.9 + p.grad * 0.1))
                m.mul_(0.99).add_(p.grad, alpha=0.01)
    _same(theirs, ours)


def test_state_is_exchanged_with_torch():
    with Cluster().client():
        rng, theirs, ours = _pairs()
        a, b = torch.optim.AdamW(theirs, lr=0.01), gt.optim.AdamW(ours, lr=0.5)
        _feed(rng, theirs, ours)
        a.step()
        with no_grad():
            for p, q in zip(ours, theirs, strict=True):
                p.copy_(gt.tensor(q.detach().numpy()))
        b.load_state_dict(a.state_dict())
        assert b.param_groups[0]["lr"] == 0.01
        _feed(rng, theirs, ours)
        a.step(), b.step()
        _same(theirs, ours)
        saved = b.state_dict()
        assert list(saved["state"][0]) == list(a.state_dict()["state"][0])
        assert set(saved["param_groups"][0]) == set(a.state_dict()["param_groups"][0])


def test_a_step_is_one_instruction_at_any_rate():
    with Cluster().client() as session:
        ps = [gt.ones(3).requires_grad_() for _ in range(10)]
        opt = gt.optim.AdamW(ps, lr=0.1)
        for lr in (0.1, 0.2):
            for p in ps:
                p.grad = gt.ones(3)
            session.outbox.flush()
            opt.param_groups[0]["lr"] = lr
            opt.step()
        before = len(session.signatures.plain)
        opt.param_groups[0]["lr"] = 0.3
        session.outbox.flush()
        session.outbox.templates.enabled = False  # then a step goes out word by word
        opt.step()
        assert len(session.signatures.plain) == before
        assert len(session.outbox.words) == 2 + 2 * 30 + 10 + 6


def test_many_parameters_are_split():
    with Cluster().client():
        ps = [gt.zeros(1).requires_grad_() for _ in range(3000)]
        for p in ps:
            p.grad = gt.ones(1)
        gt.optim.SGD(ps, lr=1.0, momentum=0.5).step()
        assert ps[0].item() == ps[-1].item() == -1


def test_closure_and_bad_options():
    with Cluster(backend="numpy").client():
        p = gt.ones(2).requires_grad_()
        opt = gt.optim.SGD([p], lr=0.5)

        def closure():
            opt.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        assert opt.step(closure).item() == 2
        assert p.tolist() == [0, 0]
        with pytest.raises(ValueError, match="Invalid learning rate: -1"):
            gt.optim.SGD([p], lr=-1)
        with pytest.raises(ValueError, match="empty parameter list"):
            gt.optim.Adam([])
        with pytest.raises(ValueError, match="appear in more than one"):
            gt.optim.Adam([{"params": p}, {"params": p}])


def test_repr_equals_torchs():
    with Cluster(backend="numpy").client():
        p, q = gt.ones(2).requires_grad_(), torch.ones(2, requires_grad=True)
        for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor"):
            assert repr(getattr(gt.optim, name)([p])) == repr(getattr(torch.optim, name)([q]))


def _sequential(lib, opt):
    s = lib.lr_scheduler
    return s.SequentialLR(opt, [s.LinearLR(opt, 0.1, total_iters=8), s.CosineAnnealingLR(opt, 20)], [10])


def _chained(lib, opt):
    s = lib.lr_scheduler
    return s.ChainedScheduler([s.ConstantLR(opt, 0.1, 4), s.ExponentialLR(opt, 0.9)])


SCHEDULES = {
    "StepLR": lambda lib, opt: lib.lr_scheduler.StepLR(opt, 7, 0.5),
    "MultiStepLR": lambda lib, opt: lib.lr_scheduler.MultiStepLR(opt, [3, 3, 20], 0.3),
    "ExponentialLR": lambda lib, opt: lib.lr_scheduler.ExponentialLR(opt, 0.9),
    "CosineAnnealingLR": lambda lib, opt: lib.lr_scheduler.CosineAnnealingLR(opt, 12, 0.01),
    "WarmRestarts": lambda lib, opt: lib.lr_scheduler.CosineAnnealingWarmRestarts(opt, 5, 2, 0.001),
    "WarmRestarts1": lambda lib, opt: lib.lr_scheduler.CosineAnnealingWarmRestarts(opt, 7),
    "OneCycleLR": lambda lib, opt: lib.lr_scheduler.OneCycleLR(opt, 0.5, total_steps=60),
    "OneCycle3": lambda lib, opt: lib.lr_scheduler.OneCycleLR(
        opt, [0.5, 0.3], epochs=6, steps_per_epoch=10, three_phase=True, anneal_strategy="linear"
    ),
    "LinearLR": lambda lib, opt: lib.lr_scheduler.LinearLR(opt, 0.2, 0.9, 11),
    "ConstantLR": lambda lib, opt: lib.lr_scheduler.ConstantLR(opt, 0.2, 11),
    "LambdaLR": lambda lib, opt: lib.lr_scheduler.LambdaLR(opt, lambda n: 0.95**n),
    "LambdaLRs": lambda lib, opt: lib.lr_scheduler.LambdaLR(opt, [lambda n: 0.95**n, lambda n: 1 / (n + 1)]),
    "MultiplicativeLR": lambda lib, opt: lib.lr_scheduler.MultiplicativeLR(opt, lambda n: 0.95),
    "PolynomialLR": lambda lib, opt: lib.lr_scheduler.PolynomialLR(opt, 30, 2.0),
    "SequentialLR": _sequential,
    "ChainedScheduler": _chained,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    with Cluster(backend="numpy").client():
        a = torch.optim.SGD([{"params": torch.ones(1)}, {"params": torch.ones(1), "lr": 0.2}], lr=0.1, momentum=0.9)
        b = gt.optim.SGD([{"params": gt.ones(1)}, {"params": gt.ones(1), "lr": 0.2}], lr=0.1, momentum=0.9)
        theirs, ours = SCHEDULES[name](torch.optim, a), SCHEDULES[name](gt.optim, b)
        for _ in range(50):
            for x, y in zip(a.param_groups, b.param_groups, strict=True):
                assert y["lr"] == pytest.approx(x["lr"], rel=1e-12, abs=1e-15)
                assert y["momentum"] == pytest.approx(x["momentum"], rel=1e-12)
            assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())
            a.step()
            theirs.step(), ours.step()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateau(mode, threshold_mode):
    with Cluster(backend="numpy").client():
        a, b = torch.optim.SGD([torch.ones(1)], lr=0.1), gt.optim.SGD([gt.ones(1)], lr=0.1)
        options = {"mode": mode, "threshold_mode": threshold_mode, "patience": 2, "cooldown": 2, "factor": 0.5}
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(a, **options)
        ours = gt.optim.lr_scheduler.ReduceLROnPlateau(b, **options)
        rng = np.random.default_rng(1)
        for _ in range(50):
            value = float(rng.random())
            theirs.step(value), ours.step(value)
            assert a.param_groups[0]["lr"] == b.param_groups[0]["lr"]


def test_step_hooks_can_be_removed(cluster):
    results = []
    for lib in (torch, gt):
        calls = []
        p = lib.ones(1).requires_grad_()
        optimizer = lib.optim.SGD([p], lr=0.1)
        before = optimizer.register_step_pre_hook(lambda o, args, kwargs, c=calls: c.append("before"))
        optimizer.register_step_pre_hook(lambda o, args, kwargs, c=calls: c.append("last"))
        after = optimizer.register_step_post_hook(lambda o, args, kwargs, c=calls: c.append("after"))
        p.grad = lib.ones(1)
        optimizer.step()
        before.remove()
        optimizer.step()
        after.remove()
        after.remove()
        optimizer.step()
        results.append(calls)
    assert results[0] == results[1] == ["before", "last", "after", "last", "after", "last"]


def test_a_step_hook_may_remove_itself(cluster):
    calls = []
    optimizer = gt.optim.SGD([gt.ones(1).requires_grad_()], lr=0.1)
    once = optimizer.register_step_pre_hook(lambda *_: (calls.append("once"), once.remove()))
    optimizer.register_step_pre_hook(lambda *_: calls.append("always"))
    optimizer.step()
    optimizer.step()
    assert calls == ["once", "always", "always"]


def test_adagrad_of_a_group_that_is_added_later(cluster):
    results = []
    for package in (torch, gt):
        first, second = (package.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        optimizer = package.optim.Adagrad([first], lr=0.5, initial_accumulator_value=0.5)
        optimizer.add_param_group({"params": [second]})
        for _ in range(2):
            optimizer.zero_grad()
            (first.square().sum() + (second**3).sum()).backward()
            optimizer.step()
        results.append([first.tolist(), second.tolist()])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
