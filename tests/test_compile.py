"""``@gt.compile``: the same values without running the Python again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import Session
from gt.testing import Cluster
from gt.wire.messages import RUN


@pytest.fixture
def session() -> Iterator[Session]:
    with Cluster(backend="numpy").client() as made:  # nothing is compiled on the worker: the same bits
        yield made


def runs(session: Session) -> int:
    """How many of the last submissions run a fragment."""
    return sum(RUN in stream[:1] for stream, _, _ in session.recent)


class Net(gt.nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = gt.nn.Linear(4, 8), gt.nn.Linear(8, 2), gt.nn.Dropout(p)

    def forward(self, x: Any) -> Any:
        return self.down(self.drop(gt.relu(self.up(x))))


def trained(compiled: bool, steps: int = 9, p: float = 0.0, schedule: bool = False) -> tuple[list[float], int]:
    gt.manual_seed(3)
    net = Net(p)
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = gt.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if schedule else None
    called = 0

    def step(x: Any, y: Any) -> Any:
        nonlocal called
        called += 1
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = gt.compile(step) if compiled else step
    losses = []
    for k in range(steps):
        x = gt.from_numpy(np.random.default_rng(k).random((6, 4), np.float32))
        losses.append(run(x, x[:, :2] * 2).item())
        if scheduler is not None:
            scheduler.step()
    losses += [p.sum().item() for p in net.parameters()]
    losses += [p.grad.sum().item() for p in net.parameters()]
    return losses, called


@pytest.mark.parametrize("how", [{}, {"p": 0.5}, {"schedule": True}])
def test_a_training_step(session: Session, how: dict[str, Any]) -> None:
    plain, all_of_them = trained(False, **how)
    compiled, called = trained(True, **how)
    assert plain == compiled
    assert called < all_of_them == 9


def test_nothing_is_left_behind(session: Session) -> None:
    x, w = gt.rand(3, 3), gt.rand(3, 3)

    @gt.compile
    def step(x: Any) -> Any:
        return {"y": (x @ w).tanh(), "parts": [x + 1, 7]}

    for _ in range(4):
        step(x)
    before = gt.debug.memory()["worker 0"]["client"]["tensors"]
    for _ in range(50):
        made = step(x)
    assert set(made) == {"y", "parts"}
    assert made["parts"][1] == 7
    assert np.array_equal(made["y"].numpy(), (x @ w).tanh().numpy())
    del made
    assert gt.debug.memory()["worker 0"]["client"]["tensors"] <= before + 1


def test_shapes_and_numbers_each_have_a_recording(session: Session) -> None:
    called = []

    @gt.compile
    def scaled(x: Any, factor: float) -> Any:
        called.append(factor)
        return x * factor + x.sum()

    for _ in range(5):
        for n in (2, 3):
            for factor in (1.0, 2.0):
                x = gt.ones(n)
                assert scaled(x, factor).numpy().tolist() == [factor + n] * n
    assert len(called) == 2 * 4


def test_train_and_eval(session: Session) -> None:
    net = Net(0.9)
    x = gt.ones(64, 4)

    @gt.compile
    def run(x: Any) -> Any:
        with gt.no_grad():
            return net(x)

    for training in (True, False, True, False):
        net.train(training)
        made = [run(x).numpy() for _ in range(4)]
        assert np.array_equal(made[0], made[3]) is not training


def test_a_value_read_inside(session: Session) -> None:
    @gt.compile
    def read(x: Any) -> float:
        return float(x.sum().item())

    with pytest.raises(gt.CompileError, match="a value is read inside a compiled function"):
        read(gt.ones(3))
    assert gt.ones(3).sum().item() == 3  # and the session goes on


def told(capfd: pytest.CaptureFixture[str], function: Any, *arguments: Any) -> str:
    for _ in range(8):
        function(*arguments)
    return capfd.readouterr().err


def test_what_is_no_good(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    w = gt.rand(3, 3).requires_grad_()
    assert "its result needs gradients" in told(capfd, gt.compile(lambda x: x @ w), gt.ones(3, 3))
    numbers = iter(range(100))
    assert "a number in it changes" in told(capfd, gt.compile(lambda x: x * next(numbers)), gt.ones(3))
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(x + 1)
        return x * 2

    assert "live on without being given back" in told(capfd, gt.compile(keeps), gt.ones(3))


def test_a_tensor_it_uses_is_another_one(session: Session) -> None:
    table = {"w": gt.ones(3)}

    @gt.compile
    def times(x: Any) -> Any:
        return x * table["w"]

    for _ in range(4):
        assert times(gt.ones(3)).numpy().tolist() == [1, 1, 1]
    table["w"] = gt.full((3,), 5.0)
    for _ in range(4):
        assert times(gt.ones(3)).numpy().tolist() == [5, 5, 5]
    table["w"].mul_(2)
    assert times(gt.ones(3)).numpy().tolist() == [10, 10, 10]


def test_in_place_and_views(session: Session) -> None:
    state = gt.zeros(4)

    @gt.compile
    def bump(x: Any) -> Any:
        state.add_(x)
        return state * 2

    data = gt.arange(40).float().reshape(10, 4)
    expected = np.zeros(4, np.float32)
    for k in range(10):
        expected += data[k].numpy()
        row = state[1:3]
        assert np.array_equal(bump(data[k]).numpy(), expected * 2)
        assert np.array_equal(row.numpy(), expected[1:3])


def test_gradients_that_add_up(session: Session) -> None:
    w = gt.ones(3).requires_grad_()

    @gt.compile
    def pull(x: Any) -> None:
        (w * x).sum().backward()

    for k in range(8):
        pull(gt.full((3,), float(k)))
        assert w.grad.numpy().tolist() == [sum(range(k + 1))] * 3


def test_sent_by_its_number(session: Session) -> None:
    @gt.compile
    def long(x: Any) -> Any:
        for _ in range(200):
            x = x + 1
        return x

    x = gt.zeros(2)
    for _ in range(4):
        x = long(x)
    session.flush()
    session.recent.clear()
    x = long(x)
    assert sum(len(stream) for stream, _, _ in session.recent) < 20
    assert x.numpy().tolist() == [1000, 1000]
    assert "= add" in _tape()


def _tape() -> str:
    import io

    file = io.StringIO()
    gt.debug.print_tape(file=file)
    return file.getvalue()


def test_as_a_method_and_with_parentheses(session: Session) -> None:
    class Thing:
        @gt.compile()
        def double(self, x: Any) -> Any:
            return x + x

    thing = Thing()
    for _ in range(4):
        assert thing.double(gt.ones(2)).numpy().tolist() == [2, 2]
    assert Thing.double.__name__ == "double"
