"""Signals on the client's side: the signal of each instruction, and the configuration that the dispatcher receives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.signals import config, signal
from gt.client.stream import configuration, scope, signatures
from gt.client.stream.session import Session
from gt.testing import Cluster
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.messages import Configure, Submit
from gt.wire.structures import Definition, SignalSpec

STAGES = """
stage0: {shard: {axis: 0, workers: [0, 1]}}
stage1: {shard: {axis: 1, workers: [1]}, backward: stage1_back}
stage1_back: {shard: {axis: 0, workers: [0]}}
hot: {compile: true}
"""


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts and ends without a configuration."""
    monkeypatch.setattr(signal, "_warned", set())
    monkeypatch.setattr(config._environment, "removed", False)
    yield
    assert scope.thread.stack == ()
    assert scope.active == 0
    gt.load_config(None)
    gt.auto_shard(False)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(workers=2)


@pytest.fixture
def session(cluster: Cluster) -> Iterator[Session]:
    with cluster.client() as session:
        yield session


class SentMessages:
    """Everything a session sent, in order."""

    def __init__(self, session: Session) -> None:
        self.session, self.messages = session, []
        link, decode = session.connection.link, Decode("dispatcher")
        assert link is not None
        before = link.send

        def send(frames: list[Any]) -> None:
            self.messages.append(decode(frames[0]))
            before(frames)

        link.send = send  # type: ignore[method-assign]

    def of(self, kind: type) -> list[Any]:
        self.session.outbox.flush()
        return [m for m in self.messages if isinstance(m, kind)]

    @property
    def definitions(self) -> list[Definition]:
        return [d for m in self.of(Submit) for d in m.definitions]

    def signals(self, op: str) -> list[str]:
        return [d.signal for d in self.definitions if d.op == op]


@pytest.fixture
def sent(session: Session) -> SentMessages:
    return SentMessages(session)


@pytest.fixture
def write(tmp_path: Any) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "signals.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def stages(write: Any, session: Session) -> None:
    gt.load_config(write(STAGES))


def emitted(session: Session) -> list[tuple[str, str]]:
    """(op, signal) of every instruction, in order."""
    session.outbox.flush()
    instructions = []
    for stream, by_code, _ in session.outbox.recent:
        i = 0
        while i < len(stream):
            if stream[i] < 16:
                i += 1 if stream[i] < 0 else 3 if stream[i] == 1 else 2
                continue
            signature, under = by_code[stream[i]]
            instructions.append((signature.op.name, under))
            i += signature.width
    return instructions


# -- contexts --------------------------------------------------------------------------------


def test_each_context_has_its_own_code(stages: None, sent: SentMessages) -> None:
    x = gt.ones(4, 4)
    outside = x + x
    with gt.signal.context("stage0"):
        inside = x + x
        again = x + x
    after = x + x
    assert sent.signals("add") == ["", "stage0"]
    assert emitted(sent.session) == [("full", ""), ("add", ""), ("add", "stage0"), ("add", "stage0"), ("add", "")]
    for y in (outside, inside, again, after):
        assert y.sum().item() == 32


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda x: gt.zeros(3), "full"),
        (lambda x: gt.randn(3), "randn"),
        (lambda x: gt.tensor([1.0, 2.0]), "upload"),
        (lambda x: gt.relu(x), "relu"),
        (lambda x: x.sort(), "sort"),
        (lambda x: x.clone().add_(1.5), "add"),
        (lambda x: x[0], "slice"),
        (lambda x: x.clone()[0].fill_(2.0), "put_view"),
    ],
)
def test_every_way_to_emit_knows_its_signal(make: Any, op: str, stages: None, sent: SentMessages) -> None:
    x = gt.ones(4, 4)
    for _ in range(2):
        make(x)
        with gt.signal.context("stage0"):
            make(x)
    assert sorted(set(sent.signals(op))) == ["", "stage0"]
    assert [s for o, s in emitted(sent.session) if o == op].count("stage0") == 2


def test_the_innermost_wins_and_an_error_leaves_all(stages: None, session: Session) -> None:
    x = gt.ones(2)
    assert gt.signal.current() is None

    def fail() -> None:
        with gt.signal.context("stage0"):
            x + 1
            with gt.signal.context("stage1"):
                assert gt.signal.current() == "stage1"
                x + 1
                with gt.signal.context("stage0"):
                    x + 1
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    x + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["stage0", "stage1", "stage0", ""]


def test_a_context_can_be_used_again_and_inside_itself(stages: None, session: Session) -> None:
    x, stage = gt.ones(2), gt.signal.context("stage0")
    with stage:
        with stage:
            x + 1
        x + 1
    with stage:
        x + 1
    x + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["stage0"] * 3 + [""]


def test_a_context_decorates(stages: None, session: Session) -> None:
    @gt.signal.context("stage1")
    def layer(x: gt.Tensor, deep: int = 2) -> gt.Tensor:
        return layer(x + 1, deep - 1) if deep else x

    layer(gt.ones(2))
    gt.ones(2) + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["stage1", "stage1", ""]


def test_a_thread_begins_without_signals(stages: None, session: Session) -> None:
    x, seen = gt.ones(2), []
    inside, go = threading.Barrier(2), threading.Barrier(2)

    def other() -> None:
        seen.append(gt.signal.current())
        with gt.signal.context("stage1"):
            inside.wait()
            go.wait()
            seen.append(gt.signal.current())

    thread = threading.Thread(target=other)
    with gt.signal.context("stage0"):
        thread.start()
        inside.wait()
        x + 1
        go.wait()
        thread.join()
        assert gt.signal.current() == "stage0"
    assert seen == [None, "stage1"]
    assert [s for o, s in emitted(session) if o == "add"] == ["stage0"]


def test_enter_and_exit(stages: None, session: Session) -> None:
    x = gt.ones(2)
    gt.signal.enter("stage0")
    gt.signal.enter("stage1")
    x + 1
    with pytest.raises(gt.SignalError) as error:
        gt.signal.exit("stage0")
    assert str(error.value) == "gt.signal.exit('stage0'): the innermost signal is 'stage1'; leave that first"
    gt.signal.exit("stage1")
    x + 1
    gt.signal.exit()
    x + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["stage1", "stage0", ""]


@pytest.mark.parametrize(("names", "shown"), [((), ""), (("stage0",), "'stage0'")])
def test_exit_without_enter(names: tuple[str, ...], shown: str) -> None:
    with pytest.raises(gt.SignalError) as error:
        gt.signal.exit(*names)
    assert str(error.value) == f"gt.signal.exit({shown}): no signal was entered in this thread"


def test_a_signal_entered_inside_a_context_ends_with_it(stages: None, session: Session) -> None:
    with gt.signal.context("stage0"):
        gt.signal.enter("stage1")
    assert gt.signal.current() is None


@pytest.mark.parametrize("call", [gt.signal.context, gt.signal.enter, lambda name: gt.signal.tensor(gt.ones(1), name)])
@pytest.mark.parametrize("name", [3, "", "@parameter", None])
def test_invalid_names(call: Any, name: Any, session: Session) -> None:
    with pytest.raises(gt.ConfigError, match=r"a signal's name is a string that does not begin with @$"):
        call(name)


def test_a_tensor_that_was_placed_has_views(stages: None) -> None:
    x = gt.arange(12.0).view(3, 4)
    for y in (x, x.T):
        placed = gt.signal.tensor(y, "stage1")
        assert placed.flatten().tolist() == y.flatten().tolist()
        assert placed[1:].reshape(-1).tolist() == y[1:].reshape(-1).tolist()
        assert placed.is_contiguous() == y.is_contiguous()


def test_exit_leaves_no_context(stages: None, session: Session) -> None:
    with gt.signal.context("stage0"):
        with pytest.raises(gt.SignalError) as error:
            gt.signal.exit()
        assert (
            str(error.value) == "gt.signal.exit(): 'stage0' was entered by a context manager; leave its block instead"
        )
        assert gt.signal.current() == "stage0"


def test_one_context_in_several_threads(stages: None, session: Session) -> None:
    stage, entered, left = gt.signal.context("stage1"), threading.Barrier(2), threading.Barrier(2)
    seen = []

    def other() -> None:
        with stage:
            entered.wait()
            left.wait()
            seen.append(gt.signal.current())
        seen.append(gt.signal.current())

    thread = threading.Thread(target=other)
    with gt.signal.context("stage0"):
        thread.start()
        with stage:
            entered.wait()
        assert gt.signal.current() == "stage0"
        left.wait()
        thread.join()
    assert seen == ["stage1", None]


# -- unknown signals -------------------------------------------------------------------------


def test_an_unknown_signal_is_ignored_with_one_warning(stages: None, session: Session, capsys: Any) -> None:
    x = gt.ones(2)
    for _ in range(2):
        with gt.signal.context("stage0"), gt.signal.context("stage9"):
            assert gt.signal.current() == "stage9"
            x + 1
        assert gt.signal.tensor(x, "stage8") is x
    with gt.signal.context("stage9"):
        x + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["stage0", "stage0", ""]
    there = "there are: hot, stage0, stage1, stage1_back"
    assert capsys.readouterr().err.splitlines() == [
        f"[gt] signal 'stage9' is not configured, and is ignored; {there}",
        f"[gt] signal 'stage8' is not configured, and is ignored; {there}",
    ]


def test_without_a_configuration_nothing_is_different(sent: SentMessages, capsys: Any) -> None:
    x = gt.ones(4, requires_grad=True)
    for name in ("stage0", "stage1", "stage0"):
        with gt.signal.context(name, backward="other"):
            y = gt.signal.tensor(x * 2, name)
        y.sum().backward()
    assert {d.signal for d in sent.definitions} == {""}
    assert "placed" not in {d.op for d in sent.definitions}
    assert sent.of(Configure) == []
    assert capsys.readouterr().err.splitlines() == [
        "[gt] signal 'stage0' and all others are ignored: there is no configuration; GT_CONFIG=file.yaml names one"
    ]


def test_a_removed_configuration_is_no_mistake(session: Session, capsys: Any) -> None:
    gt.load_config(None)
    with gt.signal.context("stage0"):
        gt.ones(2)
    assert capsys.readouterr().err == ""


def test_a_signal_without_placement_keeps_the_outer_one(stages: None, session: Session) -> None:
    x = gt.ones(2)
    with gt.signal.context("hot"):
        x + 1
    with gt.signal.context("stage0"), gt.signal.context("hot"):
        assert gt.signal.current() == "hot"
        x + 1
    assert [s for o, s in emitted(session) if o == "add"] == ["", "stage0"]


# -- what the dispatcher receives ------------------------------------------------------------


def test_the_configuration_is_sent_before_instructions_that_need_it(
    write: Any, sent: SentMessages, cluster: Cluster
) -> None:
    before = gt.ones(2) + 1
    gt.load_config(write(STAGES))
    assert sent.of(Configure) == []
    with gt.signal.context("stage0"):
        after = before + 1
    sent.session.outbox.flush()
    kinds = [type(m).__name__ for m in sent.messages]
    assert kinds == ["Submit", "Submit", "Configure", "Submit"]
    (configuration,) = sent.of(Configure)
    assert configuration.auto is False
    assert configuration.signals == [
        SignalSpec("stage0", [0, 1], [], [(0, "")], False, None, True),
        SignalSpec("stage1", [1], [], [(1, "")], False, None, True),
        SignalSpec("stage1_back", [0], [], [(0, "")], False, None, True),
    ]
    assert after.tolist() == [3, 3]
    cluster.settle()
    assert list(next(iter(cluster.dispatcher.clients.values())).config.specs.values()) == configuration.signals


def test_a_new_configuration_makes_new_codes(write: Any, sent: SentMessages) -> None:
    gt.load_config(write(STAGES))
    x = gt.ones(2)
    with gt.signal.context("stage0"):
        x + 1
        gt.load_config(write("stage0: {replicate: true}"))
        x + 1
        gt.load_config(write("other: {replicate: true}"))
        x + 1
    x + 1
    codes = {d.code: d.signal for d in sent.definitions if d.op == "add"}
    assert list(codes.values()) == ["stage0", "stage0", ""]
    assert len(sent.of(Configure)) == 3
    order = [m if isinstance(m, Configure) else m.definitions for m in sent.messages]
    at = [i for i, m in enumerate(order) if isinstance(m, Configure)]
    assert [d.op for part in order[at[1] : at[2]] if not isinstance(part, Configure) for d in part] == ["add"]
    assert (x + 1).tolist() == [2, 2]


def test_a_mesh_of_the_first_workers_is_sent_again_when_they_change(write: Any, cluster: Cluster) -> None:
    gt.load_config(write("grid: {mesh: {x: 2}, replicate: true}"))
    with cluster.client() as session:
        sent, x = SentMessages(session), gt.ones(2)
        cluster.kill_worker(next(iter(cluster.workers)))
        for _ in range(2):
            cluster.add_worker()
        cluster.settle()
        x = gt.ones(2)
        with gt.signal.context("grid"):
            assert (x + 1).tolist() == [2, 2]
        assert [m.signals[0].workers for m in sent.of(Configure)] == [[0, 1], [1, 2]]


def test_removing_the_configuration_is_announced(write: Any, sent: SentMessages) -> None:
    gt.load_config(write(STAGES))
    x = gt.ones(2) + 1
    gt.load_config(None)
    (x + 1).tolist()
    assert [(len(m.signals), m.auto) for m in sent.of(Configure)] == [(3, False), (0, False)]


def test_no_signal_has_a_longer_name_on_the_wire() -> None:
    decode, long = Decode("dispatcher"), "a" * 201
    for name, good in (("a" * 200, True), (long, False)):
        for message in (
            Configure([SignalSpec(name, [], [], [], True, None, True)], False, 1000),
            Submit(1, [Definition(16, "relu", [], [], False, name)], [], 1000),
        ):
            with contextlib.nullcontext() if good else pytest.raises(BadFrame, match="length <= 200"):
                assert decode(encode(message)) == message


def test_signatures_are_forgotten_under_signals_too(
    stages: None, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "MAX_SIGNATURES", 10)
    total = gt.zeros(1)
    for n in range(1, 40):
        with gt.signal.context("stage0" if n % 2 else "stage1"):
            total = total + (gt.ones(n) * 2).sum()
        assert sum(map(len, session.signatures.tables.values())) <= 11
    assert total.item() == sum(2 * n for n in range(1, 40))


def test_print_tape_shows_the_signal(stages: None, session: Session, capsys: Any) -> None:
    x = gt.ones(2)
    with gt.signal.context("stage0"):
        y = x + x
    gt.debug.print_tape(2)
    assert y.tolist() == [2, 2]
    first, second = capsys.readouterr().out.splitlines()
    assert " under " not in first
    assert second.startswith("%2 = add(float32[2], float32[2]) of %1, %1 under stage0    # ")


# -- gradients -------------------------------------------------------------------------------


def gradients(session: Session, act: Any) -> list[tuple[str, str]]:
    """The instructions that `act` emits."""
    session.outbox.flush()
    session.outbox.recent.clear()
    act()
    return emitted(session)


def test_gradients_run_under_their_ops_signal(stages: None, session: Session) -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("stage0"):
        y = x.exp()
    with gt.signal.context("stage1"):
        y = y.sin()
    with gt.signal.context("stage0", backward="stage1"):
        y = y.tanh()
    loss = y.cos().sum()
    instructions = gradients(session, loss.backward)
    assert {s for o, s in instructions if o == "tanh_backward"} <= {"stage1"}
    assert {s for o, s in instructions if o == "cos"} == {"stage1_back"}
    assert instructions[-1] == ("mul", "stage0")
    assert instructions[0][1] == ""
    assert {s for _, s in instructions} == {"", "stage0", "stage1", "stage1_back"}


def test_gradients_are_added_where_their_tensor_was_computed(stages: None, session: Session) -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("stage0"):
        y = x * 3
    with gt.signal.context("stage1", backward="stage1"):
        loss = (y * 2 + y.exp()).sum()
    instructions = gradients(session, loss.backward)
    assert [s for o, s in instructions if o == "add"] == ["stage1"]
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 3 * (2 + np.exp(3.0)), rtol=1e-6)


def test_gradients_of_gradients_and_an_unknown_backward(stages: None, session: Session, capsys: Any) -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("stage1"):
        y = (x**3).sum()
    (g,) = gt.autograd.grad(y, x, create_graph=True)
    instructions = gradients(session, lambda: g.sum().backward())
    # an op of stage1_back, which defines no signal for its own gradients
    assert {s for o, s in instructions if o == "mul"} == {"stage1_back"}
    gt.register_config("lonely", gt.SignalConfig(gt.ShardConfig(0, [0]), backward_signal="nobody"))
    with gt.signal.context("lonely"):
        y = x.exp().sum()
    assert {s for o, s in gradients(session, y.backward) if o == "mul"} == {"lonely"}
    assert "signal 'nobody' is not configured" in capsys.readouterr().err


def test_ops_without_a_signal_follow_the_one_around_backward(stages: None, session: Session) -> None:
    x = gt.ones(2, requires_grad=True)
    y = x.exp().sum()
    with gt.signal.context("stage0"):
        instructions = gradients(session, y.backward)
    assert {s for o, s in instructions if o == "mul"} == {"stage0"}


def test_a_custom_function(stages: None, session: Session) -> None:
    class Double(gt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: gt.Tensor) -> gt.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: gt.Tensor) -> gt.Tensor:
            return g.sin()

    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("stage1"):
        y = Double.apply(x)
    assert ("sin", "stage1_back") in gradients(session, y.sum().backward)


def test_a_checkpoint_runs_again_under_its_own_signals(stages: None, session: Session) -> None:
    def layer(x: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("stage1"):
            x = x.sin()
        return x.exp()

    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("stage0"):
        y = gt.checkpoint(layer, x)
    instructions = gradients(session, y.sum().backward)
    assert ("sin", "stage1") in instructions
    assert ("exp", "stage0") in instructions
    assert ("cos", "stage1_back") in instructions


# -- layouts ---------------------------------------------------------------------------------


def test_a_tensor_laid_out_is_a_view(stages: None, session: Session) -> None:
    x = gt.arange(4.0)
    y = gt.signal.tensor(x, "stage1")
    assert emitted(session)[-1] == ("placed", "stage1")
    x.add_(1)
    assert y.tolist() == [1, 2, 3, 4]  # recomputed where it was
    assert [s for o, s in emitted(session) if o == "placed"] == ["stage1", "stage1"]
    y.mul_(2)
    assert x.tolist() == [2, 4, 6, 8]
    y[1:3].zero_()
    assert x.tolist() == [2, 0, 0, 8]
    assert gt.signal.tensor(x[2:], "stage0").tolist() == [0, 8]


def test_gradients_pass_through_a_placed_tensor(stages: None, session: Session) -> None:
    x = gt.arange(4.0).requires_grad_()
    y = gt.signal.tensor(x * 2, "stage0")
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 8, 16, 24]


class Model(gt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = gt.nn.ModuleList([gt.nn.Linear(3, 3) for _ in range(2)])
        self.head = gt.nn.Linear(3, 1)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


RULES = """
weights: {match: "layers.*.weight", shard: {axis: 0, workers: [0, 1]}}
head: {match: [head.weight, "*.bias"], replicate: true}
late: {match: "*", shard: {axis: 0}}
"""


def test_parameters_are_laid_out_by_name_once(write: Any, sent: SentMessages) -> None:
    model = Model()
    x = gt.ones(2, 3)
    plain = model(x)
    gt.load_config(write(RULES))
    ids = {p._cell.id: name for name, p in model.named_parameters()}
    versions = [p._cell.version for p in model.parameters()]
    session = sent.session
    session.outbox.flush()
    session.outbox.recent.clear()
    again = model(x)
    model(x)
    laid_out = []
    session.outbox.flush()
    for stream, by_code, _ in session.outbox.recent:
        for i, word in enumerate(stream):
            if word in by_code and by_code[word][0].op.name == "placed" and stream[i + 2] in ids:
                assert by_code[word][0].into
                laid_out.append((ids[stream[i + 2]], by_code[word][1]))
    assert laid_out == [
        ("layers.0.weight", "weights"),
        ("layers.0.bias", "head"),
        ("layers.1.weight", "weights"),
        ("layers.1.bias", "head"),
        ("head.weight", "head"),
        ("head.bias", "head"),
    ]
    assert [p._cell.version for p in model.parameters()] == versions
    again.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert gt.allclose(plain, again)  # sharded sums round differently
    assert [s.keep for s in sent.of(Configure)[-1].signals] == [False, False, False]


def test_a_submodule_called_alone_keeps_its_names(write: Any, session: Session) -> None:
    """As in a checkpoint: the catch-all at the end must not take a parameter that another rule matches."""
    gt.load_config(write("weights: {match: 'layers.*', replicate: true}\nrest: {match: 'weight', shard: {axis: 0}}"))
    model = Model()
    model(gt.ones(2, 3))
    assert "placed" not in {o for o, _ in gradients(session, lambda: model.layers[0](gt.ones(2, 3)))}
    alone = gt.nn.Linear(3, 1)
    assert ("placed", "rest") in gradients(session, lambda: alone(gt.ones(2, 3)))


def test_place_asks_for_it(write: Any, session: Session) -> None:
    model = Model()
    gt.signal.place(model)
    gt.load_config(write(RULES))
    instructions = gradients(session, lambda: gt.signal.place(model))
    assert [s for o, s in instructions if o == "placed"].count("weights") == 2
    assert gradients(session, lambda: gt.signal.place(model)) == []
    gt.load_config(write("all: {match: '*', replicate: true}"))
    assert [s for o, s in gradients(session, lambda: gt.signal.place(model)) if o == "placed"] == ["all"] * 6


OPTIMIZERS = [
    lambda p: gt.optim.SGD(p, 0.1, momentum=0.9),
    lambda p: gt.optim.Adam(p, amsgrad=True),
    lambda p: gt.optim.Adagrad(p, initial_accumulator_value=0.5),
    lambda p: gt.optim.RMSprop(p, momentum=0.9, centered=True),
    lambda p: gt.optim.Lion(p),
    lambda p: gt.optim.Adafactor(p),
    lambda p: gt.optim.Adadelta(p),
    lambda p: gt.optim.Adamax(p),
    lambda p: gt.optim.NAdam(p),
    lambda p: gt.optim.ASGD(p),
    lambda p: gt.optim.Rprop(p),
    lambda p: gt.optim.SparseAdam(p),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_states_are_created_from_their_parameters(make: Any, session: Session) -> None:
    w, b = (gt.ones(*shape, requires_grad=True) for shape in ((3, 2), (2,)))
    session.outbox.flush()
    session.outbox.recent.clear()
    optimizer = make([w, b])
    (w.sum() + b.sum()).backward()
    optimizer.step()
    assert "full" not in {o for o, _ in emitted(session)}
    again = make([w, b])
    again.load_state_dict(optimizer.state_dict())
    assert optimizer.state
    for p, state in optimizer.state.items():
        for key, value in state.items():
            same = again.state[p][key]
            assert same.tolist() == value.tolist() if isinstance(value, gt.Tensor) else same == value


# -- auto-shard ------------------------------------------------------------------------------


def test_auto_shard_marks_parameters(sent: SentMessages) -> None:
    x = gt.ones(2)
    gt.auto_shard()
    w = gt.ones(3, requires_grad=True)
    v = gt.nn.Parameter(x)
    u = gt.ones(4).requires_grad_()
    y = gt.checkpoint(lambda w: (w * 2).exp(), w)
    (y.sum() + v.sum() + u.sum()).backward()
    session = sent.session
    assert [s for o, s in emitted(session) if o == "placed"] == ["@parameter"] * 3
    gt.auto_shard()
    gt.auto_shard(False)
    gt.ones(3).requires_grad_()
    assert [s for o, s in emitted(session) if o == "placed"] == ["@parameter"] * 3
    on, off = sent.of(Configure)
    assert on == Configure([SignalSpec("@parameter", [], [], [], True, None, True, True)], True, on.weight)
    assert off == Configure([], False, off.weight)
    assert (on.weight, off.weight) == (len(encode(on)) // 8 + 1, len(encode(off)) // 8 + 1)
    assert w.grad is not None


def test_auto_shard_on_some_workers(sent: SentMessages) -> None:
    gt.auto_shard(workers=1)
    gt.ones(3).requires_grad_()
    gt.auto_shard(workers=[0])
    gt.ones(3).requires_grad_()
    gt.auto_shard(False)
    gt.ones(3).sum().item()
    specs = [m.signals for m in sent.of(Configure)]
    first = SignalSpec("@parameter", [0], [("", 1)], [], True, None, True, True)
    assert specs == [[first], [SignalSpec("@parameter", [0], [], [], True, None, True, True)], []]


@pytest.mark.parametrize("wrong", [0, -1, True, [], [0, 0], ["a"], [True], 1.5])
def test_auto_shard_refuses(wrong: Any) -> None:
    with pytest.raises(gt.ConfigError, match="auto_shard"):
        gt.auto_shard(workers=wrong)
    assert not configuration.current.auto


def test_auto_shard_names_workers_that_are_not_there(session: Session) -> None:
    with pytest.raises(gt.ConfigError, match="auto_shard: worker 7 does not exist; there are: 0"):
        gt.auto_shard(workers=[0, 7])
    assert not configuration.current.auto


def test_auto_shard_stays_when_a_file_is_loaded(write: Any, session: Session) -> None:
    gt.auto_shard()
    gt.load_config(write(STAGES))
    assert configuration.current.auto
    assert set(configuration.current.signals) == {"stage0", "stage1", "stage1_back", "hot", "@parameter"}


def test_a_pattern_that_matches_nothing_is_reported_once(tmp_path: Any, capsys: Any) -> None:
    (tmp_path / "c.yaml").write_text("cols: {match: '*.wieght', shard: {axis: 0, workers: [0]}}")
    gt.load_config(tmp_path / "c.yaml")
    with Cluster(workers=1).client():
        model = gt.nn.Linear(2, 2)
        for _ in range(2):
            model(gt.ones(1, 2))
    lines = [line for line in capsys.readouterr().err.splitlines() if "matches" in line]
    assert lines == ["[gt] signal 'cols': *.wieght matches no parameter of Linear (weight, bias, …)"]
