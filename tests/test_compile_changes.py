"""A compiled function sees what its caller changes between two calls: in modules, optimizers and objects.

What is replaced is kept, as an exponential average of weights or a checkpoint keeps it. So the recording's own tensors
still exist, and only a comparison shows that they are not the ones in use any more.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.stream.session import Session
from gt.testing import Cluster

Change = Callable[[Any, Any], Any]


@pytest.fixture
def session() -> Iterator[Session]:
    with Cluster(backend="numpy").client() as session:  # nothing is compiled on the worker, so the bits are the same
        yield session


class Net(gt.nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.config, self._bias = gt.nn.ModuleList([gt.nn.Linear(3, 3)]), SimpleNamespace(k=1.0), 0.0
        self.linear, self.act = gt.nn.Linear(3, 3), gt.nn.ReLU()
        self.scales, self.options, self.sizes, self.mask = [1.0], {"scale": 1.0}, (1, 3), gt.ones(3)

    def forward(self, x: Any) -> Any:
        scale = self.scales[0] * self.options["scale"] * self.sizes[0]
        for layer in self.layers:
            x = layer(x)
        return self.act(self.linear(x)) * self.mask * scale * self.factor * self.config.k + self.bias

    @property
    def bias(self) -> Any:
        return self._bias


#: how a module is changed; what a change returns is kept
MODULE: dict[str, Callable[[Net], Any]] = {
    "data of a parameter": lambda net: (net.linear.weight.data, setattr(net.linear.weight, "data", gt.ones(3, 3))),
    "child module": lambda net: (net.linear, setattr(net, "linear", gt.nn.Linear(3, 3))),
    "child without parameters": lambda net: setattr(net, "act", gt.nn.Tanh()),
    "in a tuple": lambda net: setattr(net, "sizes", (2, 3)),
    "in a list": lambda net: net.scales.__setitem__(0, 3.0),
    "in a dict": lambda net: net.options.update(scale=3.0),
    "another list": lambda net: (net.scales, setattr(net, "scales", [2.0])),
    "tensor": lambda net: (net.mask, setattr(net, "mask", gt.zeros(3))),
    "data of a tensor": lambda net: (net.mask.data, setattr(net.mask, "data", gt.zeros(3))),
    "tensor written in place": lambda net: net.mask.mul_(2),
    "child in a list of modules": lambda net: (net.layers[0], net.layers.__setitem__(0, gt.nn.Linear(3, 3))),
    "longer list of modules": lambda net: net.layers.append(gt.nn.Linear(3, 3)),
    "number of an object": lambda net: setattr(net.config, "k", 3.0),
    "number of the class": lambda net: setattr(Net, "factor", 3.0),
    "number that a property reads": lambda net: setattr(net, "_bias", 3.0),
    "nothing": lambda net: None,
    "an equal tuple and an equal list": lambda net: (setattr(net, "sizes", (1, 3)), setattr(net, "scales", [1.0])),
}


@pytest.mark.parametrize("change", MODULE)
def test_a_module_that_was_changed(change: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Net, "factor", 1.0)
    net, x = Net(), gt.tensor(np.random.default_rng(0).standard_normal((4, 3)), dtype=gt.float32)
    compiled = gt.compile(net)
    with gt.no_grad():
        for _ in range(4):
            compiled(x)
        kept = MODULE[change](net)
        for _ in range(4):
            assert (compiled(x).numpy() == net(x).numpy()).all()
    del kept


class Trainer:
    factor = 1

    def __init__(self) -> None:
        self.net, self.mask, self.scale, self.options, self.calls = (
            gt.nn.Linear(3, 3),
            gt.ones(3),
            1,
            SimpleNamespace(k=1),
            0,
        )

    def step(self, x: Any) -> Any:
        self.calls += 1
        return self.scaled(self.net(x) * self.mask)

    def scaled(self, x: Any) -> Any:
        return x * self.scale * self.options.k * self.factor

    __call__ = step

    @gt.compile
    def decorated(self, x: Any) -> Any:
        return self.step(x)


#: how the object is changed whose method is compiled; what a change returns is kept
OBJECT: dict[str, Callable[[Trainer], Any]] = {
    "tensor": lambda trainer: (trainer.mask, setattr(trainer, "mask", gt.zeros(3))),
    "module": lambda trainer: (trainer.net, setattr(trainer, "net", gt.nn.Linear(3, 3))),
    "number that another method reads": lambda trainer: setattr(trainer, "scale", 3),
    "number of the class": lambda trainer: setattr(Trainer, "factor", 3),
    "number of an object": lambda trainer: setattr(trainer.options, "k", 3),
    "nothing": lambda trainer: None,
}


@pytest.mark.parametrize("how", ["method", "object", "decorator"])
@pytest.mark.parametrize("change", OBJECT)
def test_an_object_that_was_changed(change: str, how: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "factor", 1)
    trainer, x = Trainer(), gt.tensor(np.random.default_rng(0).standard_normal((4, 3)), dtype=gt.float32)
    forms = {"method": lambda: gt.compile(trainer.step), "object": lambda: gt.compile(trainer)}
    compiled = forms[how]() if how in forms else trainer.decorated
    with gt.no_grad():
        for _ in range(6):
            compiled(x)
        assert trainer.calls < 5 or how == "decorator"  # although a call changes it
        kept = OBJECT[change](trainer)
        for _ in range(4):
            assert (compiled(x).numpy() == trainer.step(x).numpy()).all()
    del kept


@dataclass(slots=True)
class Slots:
    k: float = 1.0


class Parent:
    k = 1.0


class Child(Parent):
    def __init__(self) -> None:
        self.scale, self.mask, self.calls = 1.0, gt.ones(3), 0

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def apply(self, x: Any) -> Any:
        return x * self.scale * self.mask


def _with_default(x: Any, scale: float = 1.0) -> Any:
    return x * scale


#: a function, and how what it uses is changed. It uses ``a``, which is the object of the row
FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Change]] = {
    "parameter of a layer that is not called": (
        lambda: gt.nn.Linear(3, 3),
        lambda a, x: x @ a.weight,
        lambda a, _: (a.weight, setattr(a, "weight", gt.nn.Parameter(gt.ones(3, 3)))),
    ),
    "data of such a parameter": (
        lambda: gt.nn.Linear(3, 3),
        lambda a, x: x @ a.weight,
        lambda a, _: (a.weight.data, setattr(a.weight, "data", gt.ones(3, 3))),
    ),
    "number of such a layer": (
        lambda: gt.nn.Dropout(0.0),
        lambda a, x: gt.nn.functional.dropout(x, a.p),
        lambda a, _: setattr(a, "p", 1.0),
    ),
    "number of a module whose forward is called": (
        Net,
        lambda a, x: a.forward(x),
        lambda a, _: setattr(a, "scales", [3.0]),
    ),
    "parameter in a list": (
        lambda: gt.nn.ParameterList([gt.ones(3)]),
        lambda a, x: x * a[0],
        lambda a, _: (a[0], a.__setitem__(0, gt.nn.Parameter(gt.ones(3) * 3))),
    ),
    "slot": (Slots, lambda a, x: x * a.k, lambda a, _: setattr(a, "k", 3.0)),
    "inherited number of the class": (Child, lambda a, x: x * a.k, lambda a, _: setattr(Parent, "k", 3.0)),
    "inherited number of a class": (lambda: Child, lambda a, x: x * a.k, lambda a, _: setattr(Parent, "k", 3.0)),
    "number that a property reads": (Child, lambda a, x: x * a.doubled, lambda a, _: setattr(a, "scale", 3.0)),
    "number that a method reads": (Child, lambda a, x: a.apply(x), lambda a, _: setattr(a, "scale", 3.0)),
    "tensor that a method reads": (
        Child,
        lambda a, x: a.apply(x),
        lambda a, _: (a.mask, setattr(a, "mask", gt.zeros(3))),
    ),
    "number that is read by its name": (
        Child,
        lambda a, x: x * getattr(a, "scale", 1.0),
        lambda a, _: setattr(a, "scale", 3),
    ),
    "number beside one that a call changes": (
        Child,
        lambda a, x: x * a.scale * (1 if setattr(a, "calls", a.calls + 1) is None else 0),
        lambda a, _: setattr(a, "scale", 3.0),
    ),
    "item beside one that a call changes": (
        lambda: {"calls": 0, "scale": 1.0},
        lambda a, x: x * a["scale"] * (1 if a.update(calls=a["calls"] + 1) is None else 0),
        lambda a, _: a.update(scale=3.0),
    ),
    "tensor in a long list": (
        lambda: [gt.ones(3) for _ in range(100)],
        lambda a, x: x * a[7] + a[8],
        lambda a, _: (a[7], a.__setitem__(7, gt.zeros(3))),
    ),
    "data of a tensor in a long dict": (
        lambda: {k: gt.ones(3) for k in range(100)},
        lambda a, x: x * a[7] + a[8],
        lambda a, _: (a[7].data, setattr(a[7], "data", gt.zeros(3))),
    ),
    "default of an argument": (
        lambda: _with_default,
        lambda a, x: a(x),
        lambda a, patch: patch.setattr(a, "__defaults__", (3.0,)),
    ),
}


@pytest.mark.parametrize("how", ["variable", "argument"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_uses_was_changed(
    name: str, how: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parent, "k", 1.0)
    create, compute, change = FUNCTIONS[name]
    used, x = create(), gt.tensor(np.random.default_rng(0).standard_normal((4, 3)), dtype=gt.float32)
    compiled = gt.compile(compute) if how == "argument" else gt.compile(lambda _, x: compute(used, x))
    argument = used if how == "argument" else None
    with gt.no_grad():
        for _ in range(6):
            compiled(argument, x)
        kept = change(used, monkeypatch)
        for _ in range(4):
            assert (compiled(argument, x).numpy() == compute(used, x).numpy()).all()
    del kept


def test_anomaly_detection_sees_a_compiled_step(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)

    @gt.compile
    def step(x: Any) -> Any:
        (g,) = gt.autograd.grad((w.sqrt() * x).sum(), w)
        return g

    for _ in range(4):
        step(gt.ones(3))
    w.data.fill_(-1)
    with np.errstate(all="ignore"), gt.autograd.detect_anomaly(), pytest.raises(gt.GtError, match="nan"):
        step(gt.ones(3))


def test_what_another_thread_computes_is_no_part_of_a_recording(session: Session) -> None:
    count, turns = gt.zeros(3), iter((1, 1))

    @gt.compile
    def step(x: Any) -> Any:
        for _ in itertools.islice(turns, 1):  # another thread runs during the first two calls
            thread = threading.Thread(target=count.add_, args=(1,))
            thread.start()
            thread.join()
        return x * 2

    for _ in range(8):
        assert step(gt.ones(3)).tolist() == [2, 2, 2]
    assert count.tolist() == [2, 2, 2]


def _load(net: Any, optimizer: Any) -> Any:
    """Another state; the one before is kept as well."""
    state = optimizer.state_dict()
    scaled = {
        number: {name: x * 5 if name.startswith("exp") else x for name, x in each.items()}
        for number, each in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": scaled})
    return state, scaled


def _scale_first_average(net: Any, optimizer: Any) -> Any:
    state = optimizer.state[net[0].weight]
    kept, state["exp_avg"] = state["exp_avg"], state["exp_avg"] * 5
    return kept


def _double_data(net: Any, optimizer: Any) -> Any:
    kept, net[0].weight.data = net[0].weight.data, net[0].weight.data * 2
    return kept


def _double_gradients(net: Any, optimizer: Any) -> Any:
    def double(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.mul_(2)

    return optimizer.register_step_pre_hook(double)


def _other_parameter(net: Any, optimizer: Any) -> Any:
    params = optimizer.param_groups[0]["params"]
    kept, params[3] = params[3], params[3].detach().clone().requires_grad_()
    return kept


#: how an optimizer is changed: its class, its options, the change
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], Change]] = {
    "load_state_dict": ("Adam", {}, _load),
    "a state": ("Adam", {}, _scale_first_average),
    "states removed": ("Adam", {}, lambda net, optimizer: optimizer.state.clear()),
    "maximize": ("Adam", {}, lambda net, optimizer: optimizer.param_groups[0].update(maximize=True)),
    "betas": ("Adam", {}, lambda net, optimizer: optimizer.param_groups[0].update(betas=(0.5, 0.6))),
    "nesterov": ("SGD", {"momentum": 0.9}, lambda net, optimizer: optimizer.param_groups[0].update(nesterov=True)),
    "momentum": ("SGD", {}, lambda net, optimizer: optimizer.param_groups[0].update(momentum=0.9)),
    "weight decay": ("SGD", {}, lambda net, optimizer: optimizer.param_groups[0].update(weight_decay=0.1)),
    "data of a parameter": ("SGD", {}, _double_data),
    "a hook": ("SGD", {}, _double_gradients),
    "another parameter": ("SGD", {}, _other_parameter),
}


def _trained(library: Any, change: str, compiled: bool) -> list[Any]:
    kind, options, apply = OPTIMIZERS[change]
    nn = library.nn
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    for k, p in enumerate(net.parameters()):
        p.data.copy_(library.linspace(-1, 1 + k / 10, p.numel()).reshape(p.shape))
    optimizer = getattr(library.optim, kind)(net.parameters(), lr=0.05, **options)
    x = library.linspace(-2, 1, 12).reshape(4, 3)

    def step() -> Any:
        optimizer.zero_grad()
        loss = (net(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, losses, kept = gt.compile(step) if compiled else step, [], None
    for k in range(12):
        if k == 6:
            kept = apply(net, optimizer)
        losses.append(run())
    del kept
    return [t.detach().numpy() for t in (*losses, *net.parameters())]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("change", OPTIMIZERS)
def test_an_optimizer_that_was_changed(change: str, compiled: bool, session: Session) -> None:
    for a, b in zip(_trained(torch, change, False), _trained(gt, change, compiled), strict=True):
        assert np.allclose(a, b, atol=1e-4)


def test_numbers_of_an_optimizer_do_not_need_another_recording(session: Session) -> None:
    net = gt.nn.Linear(3, 3)
    optimizer, runs = gt.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1), 0

    @gt.compile
    def step(x: Any) -> None:
        nonlocal runs
        runs += 1
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for k in range(12):
        optimizer.param_groups[0].update(lr=0.1 / (k + 1), weight_decay=0.1 + k, betas=(0.5 + k / 100, 0.9))
        net.last = gt.ones(3) * k  # a tensor that no call uses
        step(gt.ones(2, 3))
    assert runs < 5
