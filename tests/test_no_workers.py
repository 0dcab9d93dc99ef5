"""A system without workers: what a program gets that runs ahead, and that an instruction which raised never happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gt
from gt.client.stream import outbox
from gt.dispatcher import admission, scheduling
from gt.errors import NoWorkers
from gt.testing import Cluster

Step = Callable[[], object]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A client of it runs out of credit soon."""
    for module in (outbox, scheduling, admission):
        monkeypatch.setattr(module, "WINDOW_WORDS", 2000)
    cluster = Cluster(workers=1, backend="numpy")
    with cluster.client():
        gt.recovery("replay")
        yield cluster


def add(x: gt.Tensor) -> Step:
    return lambda: x.add_(1)


def add_to_view(x: gt.Tensor) -> Step:
    return lambda: x[1].add_(1)


def assign(x: gt.Tensor) -> Step:
    """As in ``x[1] = x[1] + 1``."""
    return lambda: x.__setitem__(1, x[1] + 1)


def fused_step(x: gt.Tensor) -> Step:
    """One instruction for all parameters, and then the end of a step."""
    x.requires_grad_()
    x.grad = -gt.ones(3)
    optimizer = gt.optim.SGD([x], lr=1.0)
    return optimizer.step


def compiled(x: gt.Tensor) -> Step:
    return gt.compile(lambda: x.add_(1))


def repeat(step: Step) -> int:
    """Repeat it until it raises, and return how often it did not."""
    for count in range(100_000):
        try:
            step()
        except NoWorkers:
            return count
    raise AssertionError("it never raises")


@pytest.mark.parametrize("templates", ["1", "0"])
@pytest.mark.parametrize("make", [add, add_to_view, assign, fused_step, compiled])
def test_what_raised_does_not_happen_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, make: Callable[[gt.Tensor], Step], templates: str
) -> None:
    monkeypatch.setattr(gt.client.stream.connect.session().outbox.templates, "enabled", templates == "1")
    x = gt.zeros(3)
    step, done = make(x), 0
    for _ in range(4):  # a compiled function is recorded
        step()
        done += 1
    assert x[1].item() == done
    for name in list(cluster.workers):
        cluster.kill_worker(name)
    for _ in range(4):  # some credit arrives after the first error
        done += repeat(step)
    assert done > 100
    cluster.add_worker()
    assert x[1].item() == done
    step()
    assert x[1].item() == done + 1


def test_a_tensor_whose_write_raised_can_be_used_in_backward(cluster: Cluster) -> None:
    """The write did not happen, so the value that backward needs is still there."""
    x = gt.full((3,), 2.0)
    w = gt.ones(3, requires_grad=True)
    loss = (w * x).sum()
    assert loss.item() == 6
    for name in list(cluster.workers):
        cluster.kill_worker(name)
    ahead = gt.zeros(3)
    for _ in range(2):
        repeat(add(ahead))
    with pytest.raises(NoWorkers):
        x.add_(1)
    cluster.add_worker()
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), [2, 2, 2])
