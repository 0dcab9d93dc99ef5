"""Backward passes that repeat are emitted again, and give the same bits as passes that run the rules of the ops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.grad import pass_form, repeated_pass
from gt.client.stream.connect import use
from gt.client.stream.session import Session
from gt.client.tensor.tape import Node
from gt.testing import Cluster
from tests.support.processes import System

#: passes until one is kept: two distances between roots, two recordings
LEARNED = 5


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture(autouse=True)
def session(cluster: Cluster) -> Iterator[Session]:
    with cluster.client() as session:
        yield session


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each pass that is emitted again."""
    passes: list[int] = []
    emit = repeated_pass.KeptPass.emit

    def count(kept: Any, session: Any, *args: Any) -> None:
        passes.append(session.id)
        emit(kept, session, *args)

    monkeypatch.setattr(repeated_pass.KeptPass, "emit", count)
    return passes


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def leaves(lib: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [(torch.from_numpy(x.copy()) if lib is torch else gt.tensor(x)).requires_grad_() for x in arrays(*shapes)]


def gradients(tensors: list[Any]) -> list[Any]:
    return [None if x.grad is None else x.grad.detach().numpy().copy() for x in tensors]


Loss = Callable[[Any, Any, int], Any]

#: name -> the shapes of the leaves, and the loss of them in step i
LOSSES: dict[str, tuple[tuple[tuple[int, ...], ...], Loss]] = {
    "products": (((3, 4), (4, 2)), lambda lib, a, i: (a[0] @ a[1]).relu().sum()),
    "used twice": (((3,),), lambda lib, a, i: (a[0] * a[0] + a[0].exp()).sum()),
    "broadcast": (((3, 4), (4,), (1,)), lambda lib, a, i: ((a[0] + a[1]) * a[2]).mean()),
    "views": (((4, 6),), lambda lib, a, i: (a[0].view(2, 12).t()[2:8] * a[0].reshape(-1)[:12].view(6, 2)).sum()),
    "several results": (((4, 6),), lambda lib, a, i: sum(x.sum() * k for k, x in enumerate(a[0].chunk(3, 1)))),
    "some results": (((4, 6),), lambda lib, a, i: a[0].sort(dim=1)[0][:, :2].sum()),
    "softmax": (((3, 5),), lambda lib, a, i: lib.nn.functional.cross_entropy(a[0], lib.tensor([1, 0, 4]))),
    "a new number": (((3,),), lambda lib, a, i: (a[0] * (1.0 + i)).exp().sum()),
    "another branch": (((3,), (3,)), lambda lib, a, i: (a[0] * a[1] if i % 2 else a[0] + a[1].exp()).sum()),
    "another shape": (((3, 8),), lambda lib, a, i: a[0][:, : 2 + i // 6].exp().sum()),
    "another tensor": (((3,), (3,)), lambda lib, a, i: (a[i // 6 % 2] * a[0]).sum()),
    "signs of zero": (((3,),), lambda lib, a, i: (a[0] * (0.0 if i < 7 else -0.0)).sum()),
    "norms": (((2, 4, 4),), lambda lib, a, i: lib.nn.functional.layer_norm(a[0], (4, 4)).pow(3).sum()),
}


def trained(lib: Any, name: str, steps: int, clear: Callable[[int], bool]) -> list[Any]:
    """The gradients after each step; ``clear``: are they removed before step i?"""
    shapes, loss = LOSSES[name]
    tensors, seen = leaves(lib, *shapes), []
    for i in range(steps):
        if clear(i):
            for x in tensors:
                x.grad = None
        loss(lib, tensors, i).backward()
        seen.append(gradients(tensors))
    return seen


@pytest.mark.parametrize("clear", ["always", "never", "every third"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_torchs_in_each_step(name: str, clear: str, emitted: list[int]) -> None:
    when = {"always": lambda i: True, "never": lambda i: False, "every third": lambda i: i % 3 == 0}[clear]
    ours, theirs = (trained(lib, name, 30, when) for lib in (gt, torch))
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None), f"step {i}"
            if x is not None:
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=f"step {i}")
                np.testing.assert_array_equal(np.signbit(x), np.signbit(y), err_msg=f"step {i}")
    assert emitted or name == "a new number"


def test_the_same_bits_as_without(monkeypatch: pytest.MonkeyPatch, emitted: list[int]) -> None:
    def run(seed: int) -> list[Any]:
        gt.manual_seed(seed)
        model = gt.nn.Sequential(gt.nn.Linear(6, 16), gt.nn.GELU(), gt.nn.LayerNorm(16), gt.nn.Linear(16, 3))
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        x, y = gt.tensor(arrays((8, 6))[0]), gt.arange(8) % 3
        losses = []
        for _ in range(12):
            loss = gt.nn.functional.cross_entropy(model(x), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*losses, *[p.detach().numpy().tolist() for p in model.parameters()]]

    ours = run(0)
    assert len(emitted) >= 12 - LEARNED
    monkeypatch.setattr(repeated_pass, "run", lambda session, edge, g, run_pass: run_pass(None))
    assert run(0) == ours


def test_a_hook_runs_in_the_step_it_is_added(emitted: list[int]) -> None:
    (x,) = leaves(gt, (3,))
    seen = []
    for i in range(10):
        y = x * 2
        if i == 7:
            y.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
        if i == 8:
            x.register_post_accumulate_grad_hook(lambda leaf: seen.append("added"))
        x.grad = None
        y.sum().backward()
        assert x.grad.tolist() == [20.0 if i == 7 else 2.0] * 3, i
    assert seen == [[1.0] * 3, "added", "added"]
    assert len(emitted) == 7 - LEARNED + 1


def one_pass(y: Any) -> None:
    """All passes that begin here begin at one line."""
    y.backward()


def test_a_value_written_after_it_was_saved_is_refused(emitted: list[int]) -> None:
    (x,) = leaves(gt, (3,))
    for _ in range(8):
        one_pass((x.exp() * 2).sum())
    passes = len(emitted)
    y = x.exp()
    z = (y * 2).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        one_pass(z)
    z = (x.exp() * 2).sum()
    one_pass(z)
    with pytest.raises(RuntimeError, match="a second time"):
        one_pass(z)
    assert len(emitted) == passes + 1 > 1


def test_a_tensor_that_is_two_leaves(emitted: list[int]) -> None:
    a, b = leaves(gt, (3,), (3,))
    for i in range(12):
        a.grad = b.grad = None
        y = a * 2
        if i == 10:
            a.requires_grad_(False)
            a.requires_grad_(True)
        one_pass((y + (a if i == 10 else b) * 3).sum())
        assert a.grad.tolist() == [5.0 if i == 10 else 2.0] * 3, i
    assert len(emitted) >= 5


def test_a_hook_of_a_tensor_that_became_a_leaf_again(emitted: list[int]) -> None:
    (a,), seen = leaves(gt, (3,)), []
    for i in range(12):
        a.grad = None
        y = (a * 2).sum()
        if i == 10:
            a.requires_grad_(False)
            a.requires_grad_(True)
            a.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
        one_pass(y)
    assert seen == [[2.0] * 3] * 2
    assert emitted


def test_a_saved_value_that_the_pass_writes_is_refused(emitted: list[int]) -> None:
    (a,) = leaves(gt, (3,))
    for i in range(12):
        a.grad, grad = None, gt.ones(3)
        product = a * (grad if i == 10 else gt.ones(3))
        (c,) = leaves(gt, (3,))
        c.grad = grad  # the leaf is newer than the product, so the pass writes this before the product's rule runs
        y = (product + c).sum()
        if i == 10:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                one_pass(y)
        else:
            one_pass(y)
    assert len(emitted) >= 6


@pytest.mark.parametrize("change", ["another dtype", "another session", "a view at the root"])
def test_gradients_of_other_kinds(change: str, emitted: list[int]) -> None:
    def run() -> list[Any]:
        with Cluster().client() as session:
            ours = gt.full((3,), 5.0)
            other = Cluster().add_client()
            with use(other):
                foreign = gt.zeros(3)
            (a,), seen = leaves(gt, (3,)), []
            for i in range(12):
                root = gt.ones(3)
                if i == 10 and change == "another dtype":
                    a.grad.data = a.grad.data.double()
                if i == 10 and change == "another session":
                    a.grad = foreign
                root = root.view(3, 1).view(3) if i == 10 and change == "a view at the root" else root
                try:
                    one_root(a * 2, root)
                    seen.append((a.grad.tolist(), str(a.grad.dtype), ours.tolist()))
                except gt.ClusterError:
                    a.grad = None
                    seen.append("refused")
            session.outbox.flush()
            other.close()
        return seen

    ours = run()
    assert emitted
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repeated_pass, "run", lambda session, edge, g, run_pass: run_pass(None))
        assert run() == ours


def one_root(y: Any, g: Any) -> None:
    y.backward(g)


def test_a_frozen_parameter(emitted: list[int]) -> None:
    a, b = leaves(gt, (3, 3), (3, 3))
    for i in range(16):
        b.requires_grad_(i < 8)
        a.grad = b.grad = None
        (a @ b).sum().backward()
        assert a.grad is not None
        assert (b.grad is None) is (i >= 8), i
    assert len(emitted) >= 6


def test_the_gradient_at_the_root(emitted: list[int]) -> None:
    (x,) = leaves(gt, (3,))
    for i in range(10):
        x.grad = None
        (x * 2).backward(gt.full((3,), float(i)))
        assert x.grad.tolist() == [2.0 * i] * 3
    assert emitted


def test_gradients_that_share_memory_are_copies(emitted: list[int]) -> None:
    a, b = leaves(gt, (3,), (3,))
    for _ in range(10):
        a.grad = b.grad = None
        (a + b).sum().backward()
        a.grad.mul_(10)
        assert (a.grad.tolist(), b.grad.tolist()) == ([10.0] * 3, [1.0] * 3)
    assert emitted


def live(cluster: Cluster, session: Session) -> int:
    """How many tensors the worker holds."""
    gt.zeros(1).item()
    session.outbox.flush()
    cluster.settle()
    (worker,) = cluster.workers.values()
    return len(worker.spaces[session.id].store)


def test_nothing_stays_on_the_workers(cluster: Cluster, session: Session, emitted: list[int]) -> None:
    (x,) = leaves(gt, (3, 4))
    counts = []
    for _ in range(14):
        ((x.exp() * 2).tanh() @ gt.ones(4, 2)).relu().sum().backward()
        x.grad = None
        counts.append(live(cluster, session))
    assert emitted
    assert len(set(counts[2:])) == 1, counts


def test_a_very_long_pass_is_not_kept(monkeypatch: pytest.MonkeyPatch, emitted: list[int]) -> None:
    monkeypatch.setattr(pass_form, "MAX_INSTRUCTIONS", 1)
    (x,) = leaves(gt, (3,))
    for _ in range(20):
        (x.exp() * 2).sum().backward()
    assert not emitted


@pytest.mark.parametrize("what", ["a read", "a random number"])
def test_what_the_words_alone_do_not_repeat(what: str, monkeypatch: pytest.MonkeyPatch, emitted: list[int]) -> None:
    """No rule of GT reads or draws. One that does is run in every pass."""
    backward, seen = Node.backward, []

    def backward_and_more(node: Any, grads: Any, retain: bool) -> Any:
        seen.append(gt.ones(1).item() if what == "a read" else gt.rand(1))
        return backward(node, grads, retain)

    monkeypatch.setattr(Node, "backward", backward_and_more)
    monkeypatch.setattr(repeated_pass, "_backward", backward_and_more)
    (x,) = leaves(gt, (3,))
    for _ in range(20):
        x.exp().sum().backward()
    assert len(seen) == 40
    assert not emitted


def test_anomaly_detection_and_templates_switched_off(emitted: list[int]) -> None:
    (x,) = leaves(gt, (3,))
    for i in range(14):
        with gt.autograd.set_detect_anomaly(i >= 7):
            (x.exp() * 2).sum().backward()
    assert len(emitted) == 7 - LEARNED + 1


def raise_at_last(calls: Iterator[int], last: int) -> None:
    if next(calls) == last:
        raise KeyboardInterrupt


def test_an_interrupted_pass_frees_its_tensors(
    cluster: Cluster, session: Session, emitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (x,) = leaves(gt, (3, 4))

    def loss() -> Any:
        return ((x.exp() * 2).tanh() * x.sin()).sum()

    for _ in range(8):
        one_pass(loss())
        x.grad = None
    before, outbox = live(cluster, session), session.outbox
    for stop in range(2, 8):  # the first call is for the gradient at the root
        y, passes = loss(), len(emitted)
        outbox.flush()
        calls = iter(range(1, stop + 1))
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "limit", 1)
            patched.setattr(outbox, "full", lambda: raise_at_last(calls, stop))  # noqa: B023, used in this round
            with pytest.raises(KeyboardInterrupt):
                one_pass(y)
        assert len(emitted) == passes + 1
        del y
        x.grad = None
        assert live(cluster, session) == before, stop


def test_a_gradient_that_was_written_before_the_interrupt_has_a_new_version(
    session: Session, emitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = leaves(gt, (3,), (3,))
    for _ in range(9):
        one_pass((a * 2).sum())
    z, y, passes = (c * a.grad).sum(), (a * 2).sum(), len(emitted)
    session.outbox.flush()

    def interrupt() -> None:
        if a.grad._cell.id in session.outbox.words:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session.outbox, "limit", 1)
        patched.setattr(session.outbox, "full", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one_pass(y)
    assert len(emitted) == passes + 1
    assert a.grad.tolist() == [20.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


THREADS = """
import threading
from gt.client.grad import repeated_pass

emitted, emit, wrong = [], repeated_pass.KeptPass.emit, []
repeated_pass.KeptPass.emit = lambda *args: (emitted.append(1), emit(*args))

def work(factor):
    x = gt.ones(5).requires_grad_()
    for _ in range(60):
        x.grad = None
        (x * factor).sum().backward()
        if x.grad.tolist() != [factor] * 5:
            wrong.append(factor)

threads = [threading.Thread(target=work, args=(float(k),)) for k in (2, 3, 4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say("wrong", wrong, len(emitted) > 20)
"""


def test_threads_at_one_line(stack: contextlib.ExitStack) -> None:
    system = System(stack)
    system.worker()
    client = system.client(THREADS)
    client.expect("wrong [] True")
    assert client.end() == 0


def test_new_codes_forget_the_passes(session: Session, emitted: list[int]) -> None:
    (x,) = leaves(gt, (3,))
    for _ in range(8):
        one_pass((x.exp() * 2).sum())
    before = len(emitted)
    assert before
    session.signatures._forget()
    x.grad = None
    one_pass((x.exp() * 2).sum())
    assert len(emitted) == before
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(x.detach().numpy()), rtol=1e-6)


def test_dropout_draws_anew_in_each_pass(emitted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed is another number each time, which no rule uses."""

    def gradients_of(steps: int) -> list[Any]:
        gt.manual_seed(0)
        (x,) = leaves(gt, (40,))
        seen = []
        for _ in range(steps):
            x.grad = None
            gt.nn.functional.dropout(x * 3, 0.5).sum().backward()
            seen.append(x.grad.tolist())
        return seen

    ours = gradients_of(12)
    assert len(emitted) == 12 - LEARNED + 1
    assert len({tuple(each) for each in ours}) == 12
    monkeypatch.setattr(repeated_pass, "run", lambda session, edge, g, run_pass: run_pass(None))
    assert gradients_of(12) == ours


@pytest.mark.parametrize("layers", [4, 60, 130])
def test_the_whole_step_stays_in_fragments(layers: int, session: Session, emitted: list[int]) -> None:
    """A stretch may end inside a pass: a long one is sent in sections."""
    model = gt.nn.Sequential(
        *[m for _ in range(layers) for m in (gt.nn.Linear(3, 3), gt.nn.LayerNorm(3), gt.nn.GELU())]
    )
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x = gt.ones(2, 3)

    def train(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        (stats,) = session.worker_stats()
        return stats.total_instructions, stats.hot_instructions

    before = train(9)
    total, hot = train(4)
    assert hot - before[1] >= 0.95 * (total - before[0])
    assert len(emitted) >= 8
