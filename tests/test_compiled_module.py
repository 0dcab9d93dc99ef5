"""``gt.compile(module)``: the module itself in every respect, except that its calls are compiled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream.session import Session
from gt.testing import Cluster


@pytest.fixture
def session() -> Iterator[Session]:
    with Cluster(backend="numpy").client() as session:
        yield session


class Net(gt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = gt.nn.Linear(4, 8), gt.nn.Linear(8, 2)
        self.register_buffer("scale", gt.full((1,), 2.0))
        self.calls = 0

    def forward(self, x: Any, twice: bool = False) -> Any:
        self.__dict__["log"] = [*self.__dict__.get("log", ()), tuple(x.shape)]
        y = self.down(gt.relu(self.up(x))) * self.scale
        return y * 2 if twice else y

    def largest(self, x: Any) -> Any:
        return self(x).argmax(-1)


@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "max-autotune", "backend": "inductor", "fullgraph": True, "dynamic": False, "options": {"a": 1}}],
)
def test_it_is_the_module(session: Session, options: dict[str, Any]) -> None:
    net = Net()
    compiled = gt.compile(net, **options)
    assert isinstance(compiled, Net)
    assert compiled._orig_mod is net
    assert list(compiled.state_dict()) == list(net.state_dict()) == [name for name, _ in STATE]
    assert [x is y for x, y in zip(compiled.parameters(), net.parameters(), strict=True)] == [True] * 4
    assert compiled.eval() is compiled
    assert [net.training, net.up.training, compiled.training] == [False] * 3
    assert compiled.train() is compiled
    assert net.up.training
    compiled.calls = 3
    assert net.calls == 3
    net.extra = gt.nn.Linear(2, 2)
    assert compiled.extra is net.extra
    assert compiled.to("cuda").double() is compiled
    assert net.up.weight.dtype == gt.float64
    assert repr(compiled) == repr(net).replace("Net(", "CompiledNet(", 1)
    assert gt.compile(compiled) is compiled


STATE = [("scale", (1,)), ("up.weight", (8, 4)), ("up.bias", (8,)), ("down.weight", (2, 8)), ("down.bias", (2,))]


def test_calls_are_replayed(session: Session) -> None:
    net = Net()
    compiled = gt.compile(net)
    x = gt.rand(3, 4)
    with gt.no_grad():
        results = [compiled(x).numpy() for _ in range(5)]
        assert len(net.log) == 2
        assert all(np.array_equal(y, net(x).numpy()) for y in results)
        assert compiled(x, twice=True).tolist() == (net(x) * 2).tolist()
        assert compiled.largest(x).tolist() == net(x).argmax(-1).tolist()
        net.up.weight.zero_()  # parameters are read in each call
        assert compiled(x).tolist() == net(x).tolist()
        net.scale = gt.full((1,), 5.0)  # another buffer is a change of the module's state
        assert compiled(x).tolist() == net(x).tolist()


def test_training_a_compiled_module(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    def train(compiled: bool) -> list[Any]:
        gt.manual_seed(0)
        net = Net()
        model = gt.compile(net) if compiled else net
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(gt.ones(3, 4)).square().mean()
            loss.backward()
            optimizer.step()
        return [loss.item(), *[p.sum().item() for p in model.parameters()]]

    assert train(True) == train(False)
    assert capfd.readouterr().err == ""


def test_hooks_run(session: Session) -> None:
    compiled = gt.compile(Net())
    seen: list[Any] = []
    handle = compiled.register_forward_hook(lambda module, inputs, output: output + 1)
    with gt.no_grad():
        with_hook = [compiled(gt.ones(2, 4)) for _ in range(4)][-1]
        handle.remove()
        assert (with_hook - compiled(gt.ones(2, 4))).tolist() == [[1, 1], [1, 1]]
    compiled.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].shape))
    compiled(gt.ones(2, 4)).sum().backward()
    assert seen == [(2, 2)]


def test_inside_another_module(session: Session) -> None:
    net = Net()
    outer = gt.nn.Sequential(gt.compile(net), gt.nn.Linear(2, 1))
    assert list(outer.state_dict())[:2] == ["0.scale", "0.up.weight"]
    outer.eval()
    assert not net.training
    assert outer(gt.ones(3, 4)).shape == (3, 1)
    twice = gt.compile(outer)
    with gt.no_grad():
        assert [twice(gt.ones(3, 4)).tolist() for _ in range(4)] == [outer(gt.ones(3, 4)).tolist()] * 4


def test_checkpoints(session: Session) -> None:
    net, other = Net(), Net()
    compiled = gt.compile(other)
    assert not any(compiled.load_state_dict(net.state_dict()))
    assert other.up.weight.tolist() == net.up.weight.tolist()
    from_torch = {f"_orig_mod.{key}": value * 0 for key, value in net.state_dict().items()}
    assert not any(compiled.load_state_dict(from_torch))
    assert other.up.weight.sum().item() == 0
    with pytest.raises(RuntimeError, match="Unexpected key"):
        compiled.load_state_dict({**net.state_dict(), "more": gt.ones(1)})


def test_copies(session: Session) -> None:
    net = Net()
    compiled = gt.compile(net, fullgraph=True)
    clone = copy.deepcopy(compiled)
    assert clone._orig_mod is not net
    assert type(clone) is type(compiled)
    with gt.no_grad():
        net.up.weight.zero_()
        assert [clone(gt.ones(1, 4)).tolist() for _ in range(3)] != [compiled(gt.ones(1, 4)).tolist()] * 3


def test_options(session: Session) -> None:
    def double(x: Any) -> Any:
        return x * 2

    assert gt.compile(double, disable=True) is double
    assert gt.compile(mode="reduce-overhead", fullgraph=True)(double)(gt.ones(2)).tolist() == [2, 2]
    with pytest.raises(TypeError, match="a function or a module is needed here, not int"):
        gt.compile(3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'modes'"):
        gt.compile(double, modes=1)


def test_compiled_in_place(session: Session) -> None:
    net, plain = Net(), Net()
    plain.load_state_dict(net.state_dict())
    before = repr(net)
    holder = gt.nn.Sequential(net)
    assert net.compile(mode="max-autotune") is None
    assert net.compile() is None  # it is compiled already
    assert repr(net) == before
    assert isinstance(net, Net)
    x = gt.rand(3, 4)
    with gt.no_grad():
        assert [net(x).tolist() for _ in range(5)] == [plain(x).tolist()] * 5
        assert len(net.log) == 2
        assert holder(x).tolist() == plain(x).tolist()
        assert len(net.log) == 2
        net.scale = gt.full((1,), 5.0)
        plain.scale = gt.full((1,), 5.0)
        assert net(x).tolist() == plain(x).tolist()
    clone = copy.deepcopy(net)
    assert clone(x).tolist() == net(x).tolist()
    assert clone.up is not net.up
    off = Net()
    off.compile(disable=True)
    assert type(off) is Net


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module_is_saved_as_the_module(session: Session, tmp_path: Any, in_place: bool) -> None:
    net = gt.nn.Sequential(gt.nn.Linear(4, 8), gt.nn.ReLU())
    if in_place:
        net.compile()
    compiled = net if in_place else gt.compile(net)
    gt.save({"model": compiled, "outer": gt.nn.Sequential(compiled)}, tmp_path / "model.gt")
    loaded = gt.load(tmp_path / "model.gt")
    assert type(loaded["model"]) is gt.nn.Sequential
    assert loaded["outer"][0] is loaded["model"]
    assert loaded["model"](gt.ones(1, 4)).tolist() == compiled(gt.ones(1, 4)).tolist()
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(compiled)
    assert copy.copy(compiled)(gt.ones(1, 4)).tolist() == compiled(gt.ones(1, 4)).tolist()
