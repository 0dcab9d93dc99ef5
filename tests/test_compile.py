"""``@gt.compile``: the same values without running the Python again."""

from __future__ import annotations

import argparse
import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.compile.function import CompiledFunction
from gt.client.compile.module_states import ModuleStates
from gt.client.stream.session import Session
from gt.client.stream.templates import MAX_WAITS
from gt.testing import Cluster
from gt.wire.words import RUN


@pytest.fixture
def session() -> Iterator[Session]:
    with Cluster(backend="numpy").client() as session:  # nothing is compiled on the worker, so the bits are the same
        yield session


def runs(session: Session) -> int:
    """The number of recent submissions that run a fragment."""
    return sum(RUN in stream[:1] for stream, _, _ in session.outbox.recent)


class Net(gt.nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = gt.nn.Linear(4, 8), gt.nn.Linear(8, 2), gt.nn.Dropout(p)

    def forward(self, x: Any) -> Any:
        return self.down(self.drop(gt.relu(self.up(x))))


def trained(
    compiled: bool, steps: int = 9, p: float = 0.0, schedule: bool = False, cleared: bool = False
) -> tuple[list[float], int]:
    """``cleared``: the step ends without gradients, instead of removing them before its own."""
    gt.manual_seed(3)
    net = Net(p)
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = gt.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if schedule else None
    called = 0

    def step(x: Any, y: Any) -> Any:
        nonlocal called
        called += 1
        loss = ((net(x) - y) ** 2).mean()
        if not cleared:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cleared:
            optimizer.zero_grad()
        return loss

    run = gt.compile(step) if compiled else step
    losses = []
    for k in range(steps):
        x = gt.from_numpy(np.random.default_rng(k).random((6, 4), np.float32))
        losses.append(run(x, x[:, :2] * 2).item())
        if scheduler is not None:
            scheduler.step()
    losses += [p.sum().item() for p in net.parameters()]
    losses += [p.grad.sum().item() for p in net.parameters() if p.grad is not None]
    return losses, called


@pytest.mark.parametrize("how", [{}, {"p": 0.5}, {"schedule": True}, {"cleared": True, "schedule": True}])
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
        result = step(x)
    assert set(result) == {"y", "parts"}
    assert result["parts"][1] == 7
    assert np.array_equal(result["y"].numpy(), (x @ w).tanh().numpy())
    del result
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
        results = [run(x).numpy() for _ in range(4)]
        assert np.array_equal(results[0], results[3]) is not training


def test_a_value_read_inside(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    def read(x: Any) -> float:
        return float(x.sum().item())

    with pytest.raises(gt.CompileError, match=r"gt.compile: a value is read inside"):
        gt.compile(read, fullgraph=True)(gt.ones(3))
    assert gt.ones(3).sum().item() == 3  # and the session continues
    compiled = gt.compile(read)
    assert [compiled(gt.ones(k % 2 + 3)) for k in range(20)] == [3, 4] * 10
    assert capfd.readouterr().err.count("a value is read inside") == 1


def notices_of(capfd: pytest.CaptureFixture[str], function: Any, *arguments: Any) -> str:
    for _ in range(8):
        function(*arguments)
    return capfd.readouterr().err


def test_functions_that_cannot_be_compiled(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    numbers = iter(range(100))
    assert "a number in it changes" in notices_of(capfd, gt.compile(lambda x: x * next(numbers)), gt.ones(3))
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(x + 1)
        return x * 2

    assert "live on without being returned" in notices_of(capfd, gt.compile(keeps), gt.ones(3))


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


SCALE = 1.0


def scaled(x: Any) -> Any:
    return x * SCALE


class Scaled(gt.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * SCALE


def set_scale(value: float) -> None:
    global SCALE
    SCALE = value


def variables_around() -> Iterator[tuple[str, Any, Any]]:
    """(name, a function of x, how to make it multiply x by a number)"""
    scales, options, table, other = [1.0], argparse.Namespace(scale=1.0), {"w": gt.ones(3)}, [gt.ones(3)]
    weight, multiply = gt.ones(3), lambda x: x * 1.0
    module = Scaled()
    kept = [weight]  # they live on when the variable names another tensor

    def rebind(k: float) -> None:
        nonlocal weight
        weight = kept[0] * k
        kept.append(weight)

    def redefine(k: float) -> None:
        nonlocal multiply
        multiply = lambda x: x * k

    yield "global", lambda x: x * SCALE, set_scale
    yield "of a function that it calls", lambda x: scaled(x) + 0, set_scale
    yield "of a module that it calls", lambda x: module(x) + 0, set_scale
    yield "in a list", lambda x: x * scales[0], lambda k: scales.__setitem__(0, k)
    yield "of an object", lambda x: x * options.scale, lambda k: setattr(options, "scale", k)
    yield "a tensor", lambda x: x * weight, rebind
    yield "a tensor in a dict", lambda x: x * table["w"], lambda k: table.__setitem__("w", other[0] * k)
    yield "a function", lambda x: multiply(x) + 0, redefine


@pytest.mark.parametrize("case", range(8))
def test_variables_around_a_function(session: Session, case: int) -> None:
    _, function, change = list(variables_around())[case]
    set_scale(1.0)
    compiled = gt.compile(function)
    for k in (1.0, 5.0, 5.0, 1.0, math.nan, math.nan, 7.0):
        change(k)
        for _ in range(4):
            np.testing.assert_array_equal(compiled(gt.ones(3)).numpy(), np.full(3, k, np.float32))
    assert list(compiled._variants.values())[-1].template is not None  # it is replayed while nothing changes


def test_variables_that_the_function_changes(session: Session) -> None:
    calls, scales = [], [2.0]
    count = 0

    @gt.compile
    def step(x: Any) -> Any:
        nonlocal count
        count += 1
        calls.append(count)
        return x * scales[0]

    for _ in range(6):
        step(gt.ones(3))
    assert calls == [1, 2]  # two recordings, then replays
    scales[0] = 3.0
    assert step(gt.ones(3)).tolist() == [3, 3, 3]


def test_a_compiled_function_keeps_nothing_alive(session: Session) -> None:
    def make() -> tuple[Any, Any]:
        box = {"net": Net()}

        @gt.compile
        def call(x: Any) -> Any:
            with gt.no_grad():
                return box["net"](x)

        return call, box

    call, box = make()
    for _ in range(3):
        call(gt.ones(2, 4))
    gone = weakref.ref(box.pop("net"))
    box["net"] = Net()
    for _ in range(3):
        call(gt.ones(2, 4))
    call._variants.popitem(last=False)  # a recording keeps the state of the modules it called
    gc.collect()
    assert gone() is None


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
    session.outbox.flush()
    session.outbox.recent.clear()
    x = long(x)
    assert sum(len(stream) for stream, _, _ in session.outbox.recent) < 20
    assert x.numpy().tolist() == [1000, 1000]
    assert "= add" in _tape()


def test_a_call_without_side_effects_is_sent_before_the_modules_are_compared(session: Session) -> None:
    """A forward pass whose recording does not hold ran for nothing: its results are freed, its reads dropped."""
    model = gt.nn.Linear(2, 2, bias=False)
    run = gt.compile(lambda x: model(x).sum())
    x = gt.ones(1, 2)
    with gt.no_grad():
        for _ in range(6):
            run(x).item()
        alive = gt.debug.memory()["worker 0"]["client"]["tensors"]
        kept, model.weight = model.weight, gt.nn.Parameter(gt.full((2, 2), 7.0))
        session.outbox.flush()
        session.outbox.recent.clear()
        waiting = set(session.replies.pending)
        assert run(x).item() == 28
        assert runs(session) == 1
        assert set(session.replies.pending) <= waiting | {*session.replies._dropped}
        assert kept is not model.weight
        assert gt.debug.memory()["worker 0"]["client"]["tensors"] == alive + 1  # the new parameter


def test_a_call_that_writes_is_compared_before_it_is_sent(session: Session) -> None:
    dropout, total = gt.nn.Dropout(0.0), gt.zeros(2)

    @gt.compile
    def add(x: Any) -> None:
        total.add_(dropout(x))

    for _ in range(6):
        add(gt.ones(2))
    session.outbox.recent.clear()
    dropout.eval()
    add(gt.ones(2))
    assert runs(session) == 0
    assert total.numpy().tolist() == [7, 7]


def test_tensors_freed_between_calls_do_not_cause_a_message(session: Session) -> None:
    """The background thread leaves them to the next call, as long as one comes soon."""
    run = gt.compile(lambda x: (x + 1, x * 2))
    x = gt.ones(2)
    for _ in range(3 * MAX_WAITS):
        run(x)
        sent = session.outbox.serial
        session.outbox.flush_in_background()
        assert session.outbox.serial == sent
    for _ in range(MAX_WAITS):
        session.outbox.flush_in_background()
    assert session.outbox.serial == sent + 1


def _tape() -> str:
    import io

    file = io.StringIO()
    gt.debug.print_tape(file=file)
    return file.getvalue()


def test_a_list_of_tensors_is_compared_with_that_of_the_last_call(session: Session) -> None:
    scale = 2

    def function(a: Any, b: Any) -> Any:
        return [a * scale + b, b, None]

    call = CompiledFunction(function).call_tensors

    def check(a: Any, b: Any, expected: list[float], replayed: bool | None) -> None:
        session.outbox.flush()
        session.outbox.recent.clear()
        result, second, nothing = call([a, b])
        assert replayed is None or (runs(session) == 1) is replayed
        assert second is b
        assert nothing is None
        assert result.numpy().tolist() == expected

    for k in range(5):
        check(gt.ones(2) * k, gt.ones(2), [2 * k + 1] * 2, k >= 2)
    x = gt.ones(2)
    check(x, x, [3, 3], False)  # one tensor twice
    check(gt.ones(3)[1:], gt.ones(2), [3, 3], True)
    check(gt.ones(3), gt.ones(3), [3] * 3, False)  # other types
    check(gt.ones(2), 1, [3, 3], False)  # a number
    check(gt.ones(2), gt.ones(2), [3, 3], True)
    view = (base := gt.ones(3))[1:]
    base += 1  # the view is computed again
    check(view, gt.ones(2), [5, 5], None)
    with gt.no_grad():
        check(gt.ones(2), gt.ones(2), [3, 3], False)
    check(gt.ones(2), gt.ones(2), [3, 3], True)
    scale = 3
    check(gt.ones(2), gt.ones(2), [4, 4], False)


def test_as_a_method_and_with_parentheses(session: Session) -> None:
    class Thing:
        @gt.compile()
        def double(self, x: Any) -> Any:
            return x + x

    holder = Thing()
    for _ in range(4):
        assert holder.double(gt.ones(2)).numpy().tolist() == [2, 2]
    assert Thing.double.__name__ == "double"


# -- what it was recorded under ----------------------------------------------------------------


def test_gradients_that_are_kept_while_others_take_their_place(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)

    @gt.compile
    def micro(x: Any) -> None:
        (w * x).sum().backward()

    kept = []
    for _ in range(3):
        for _ in range(4):
            micro(gt.ones(3))
        kept.append(w.grad)
        w.grad = None
    assert [g.numpy().tolist() for g in kept] == [[4, 4, 4]] * 3


def test_a_step_alone_reads_the_gradients_there_are(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    optimizer = gt.optim.SGD([w], lr=1.0)
    step = gt.compile(optimizer.step)
    old = []
    for k in range(6):
        w.grad = gt.full((3,), float(k))
        old.append(w.grad)
        step()
    assert w.detach().numpy().tolist() == [1.0 - 15] * 3


def _trainer(model: Any) -> Any:
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)

    @gt.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


def test_freezing_a_layer(session: Session) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 3), gt.nn.Linear(3, 2))
    step, _ = _trainer(model)
    x = gt.ones(4, 3)
    for _ in range(5):
        step(x)
    for frozen in (True, False):
        for p in model[0].parameters():
            p.requires_grad_(not frozen)
            p.grad = None
        before = model[0].weight.detach().clone().numpy()
        for _ in range(5):
            step(x)
        assert (model[0].weight.detach().numpy() == before).all() == frozen


def test_a_parameter_that_was_replaced(session: Session) -> None:
    model = gt.nn.Linear(2, 1, bias=False)
    run = gt.compile(lambda x: model(x).sum().detach())
    with gt.no_grad():
        for _ in range(4):
            run(gt.ones(1, 2))
        kept, model.weight = model.weight, gt.nn.Parameter(gt.full((1, 2), 7.0))
        assert run(gt.ones(1, 2)).item() == 14
    assert kept is not model.weight


def test_a_module_s_numbers_and_hooks(session: Session) -> None:
    dropout, linear = gt.nn.Dropout(0.5), gt.nn.Linear(2, 2)
    run = gt.compile(lambda x: dropout(linear(x)))
    x = gt.ones(64, 2)
    with gt.no_grad():
        for _ in range(4):
            run(x)
        dropout.p = 0.0
        assert (run(x).numpy() == linear(x).numpy()).all()
        linear.register_forward_hook(lambda module, inputs, output: output * 2)
        assert (run(x).numpy() == linear(x).numpy()).all()


CHANGES: dict[str, Any] = {
    "training": lambda norm: norm.eval(),
    "number": lambda norm: setattr(norm, "eps", 0.5),
    "number of another type": lambda norm: setattr(norm, "num", True),
    "sign of zero": lambda norm: setattr(norm, "zero", -0.0),
    "attribute in place of another": lambda norm: (delattr(norm, "zero"), setattr(norm, "more", 0.0)),
    "kind of a number": lambda norm: setattr(norm, "momentum", None),
    "tensor in place of a number": lambda norm: setattr(norm, "eps", gt.ones(())),
    "new attribute": lambda norm: setattr(norm, "more", 1),
    "parameter": lambda norm: setattr(norm, "weight", gt.nn.Parameter(gt.ones(3))),
    "no parameter": lambda norm: norm.register_parameter("bias", None),
    "no gradient": lambda norm: norm.weight.requires_grad_(False),
    "buffer": lambda norm: setattr(norm, "running_mean", gt.ones(3)),
    "table of buffers": lambda norm: norm.__dict__.update(_buffers=dict(norm._buffers)),
    "hook": lambda norm: norm.register_forward_hook(lambda module, inputs, output: None),
    "hook of a parameter": lambda norm: norm.weight.register_hook(lambda g: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_module_is_seen(change: str, session: Session) -> None:
    """In the middle of several modules; and nothing is emitted for the comparison."""
    modules = [gt.nn.BatchNorm1d(3) for _ in range(3)]
    for norm in modules:
        norm.num, norm.zero = 1, 0.0
    states = ModuleStates(modules)
    assert states.hold()
    CHANGES[change](modules[1])
    session.outbox.flush()
    assert not states.hold()
    assert not session.outbox.words


def test_an_equal_number_is_no_change_of_a_module(session: Session) -> None:
    dropout = gt.nn.Dropout(0.5)
    states = ModuleStates([dropout])
    for half in ("0.5", "0.50"):
        dropout.p = float(half)
        assert states.hold()
    dropout.p = 0.25
    assert not states.hold()


def test_a_hook_that_is_removed_is_seen(session: Session) -> None:
    linear = gt.nn.Linear(2, 2)
    hook = linear.weight.register_hook(lambda g: None)
    states = ModuleStates([linear])
    assert states.hold()
    hook.remove()
    assert not states.hold()


def test_a_hook_of_a_leaf(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)

    @gt.compile
    def run(x: Any) -> None:
        w.grad = None
        (w * x).sum().backward()

    for _ in range(4):
        run(gt.ones(2))
    w.register_hook(lambda g: g * 5)
    run(gt.ones(2))
    assert w.grad is not None
    assert w.grad.numpy().tolist() == [5, 5]


def test_a_group_more(session: Session) -> None:
    a, b = (gt.ones(2, requires_grad=True) for _ in range(2))
    optimizer = gt.optim.AdamW([a], lr=0.1)

    @gt.compile
    def step() -> None:
        optimizer.zero_grad()
        (a * a + b * b).sum().backward()
        optimizer.step()

    for _ in range(4):
        step()
    optimizer.add_param_group({"params": [b]})
    b.grad = None
    for _ in range(4):
        step()
    assert b.detach().numpy()[0] < 1
    assert optimizer.state[a]["step"] == 8


def test_an_argument_s_gradient(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    @gt.compile
    def run(x: Any) -> None:
        (x * x).sum().backward()

    for k in range(9):
        x = gt.full((2,), float(k), requires_grad=True)
        run(x)
        assert x.grad is not None
        assert x.grad.numpy().tolist() == [2.0 * k] * 2
    assert capfd.readouterr().err.count("sets an argument's gradient") == 1


def test_arguments_that_cannot_be_compared(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    run = gt.compile(lambda x, k: x * float(k[0]))
    for k in (1, 1, 1, 5, 7):
        assert run(gt.ones(1), np.array([k])).item() == k
    assert capfd.readouterr().err.count("an argument is a ndarray") == 1


def test_zeros_of_two_signs_and_an_object_s_numbers(session: Session) -> None:
    divide = gt.compile(lambda x, by: x / by)
    for by in (0.0, 0.0, 0.0, -0.0, -0.0, -0.0, 0.0):
        assert divide(gt.ones(1), by).item() == math.copysign(math.inf, by)

    class Scale:
        factor = 1.0

        def __init__(self) -> None:
            self.by = 2.0

        @gt.compile
        def run(self, x: Any) -> Any:
            return x * self.by + 1

    scale = Scale()
    for by in (2.0, 2.0, 2.0, 10.0, 10.0, 2.0):
        scale.by = by
        assert scale.run(gt.ones(1)).item() == by + 1


def test_a_seed_that_is_set_inside(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    @gt.compile
    def run() -> Any:
        gt.manual_seed(3)
        return gt.rand(4)

    results = {run().numpy().tobytes() for _ in range(9)}
    assert len(results) == 1
    assert "sets the seed" in capfd.readouterr().err
