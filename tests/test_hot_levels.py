"""Compiled sections give the values of interpreted ones, whatever changes from run to run."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest
import torch

import gt
from gt.nn import functional as F
from gt.ops import OPS, sign
from gt.testing import Cluster
from gt.types import FLOAT, INT, TensorType, float32, int64
from gt.worker.engines import make_engine
from gt.worker.hot import changes, compiler
from gt.worker.hot.changes import CompiledCalls
from gt.worker.hot.compiled import CompiledProgram
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.level_switch import HOT_RUNS, MAX_REBUILDS
from gt.worker.hot.levels import Levels
from gt.worker.hot.program import interpret, mutated
from gt.worker.hot.section import KernelCall, Section
from tests.support.processes import ROOT
from tests.support.shadow import Shadow, client, wait_for_compiler

ENGINE = make_engine("torch", "cpu")


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    """Reuses what an earlier run of the tests has compiled."""
    monkeypatch.setenv("GT_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"gt-tests-{os.getuid()}"))
    monkeypatch.setenv("GT_TEMPLATES", "0")  # a shadow needs the plain words
    with torch.no_grad():
        yield


def shadowed(mode: str):
    cluster = Cluster()
    return cluster, Shadow(cluster, mode)


def section(*calls, inputs: int, results: tuple[int, ...], compile: bool = False) -> Section:
    """From calls (op, types, operands, results, into, attrs)."""
    linked = []
    for name, types, operands, outs, into, attrs in calls:
        signature = sign(OPS[name], tuple(attrs.items()), types, into)
        linked.append(KernelCall(signature, ENGINE.link(signature), operands, outs))
    slots = max(k for call in linked for k in (*call.results, inputs - 1)) + 1
    numbers = sum(k < 0 for call in linked for k in call.operands)
    return Section(tuple(linked), inputs, slots, numbers, results, (), compile)


def scaled(compile: bool = False) -> Section:
    """(x + n) * m, and y += x."""
    t = TensorType((3, 4), float32)
    return section(
        ("add", (t, INT), (0, ~0), (2,), False, {}),
        ("mul", (t, INT), (2, ~1), (3,), False, {}),
        ("add", (t, t), (1, 0), (1,), True, {}),
        inputs=2, results=(3,), compile=compile,
    )  # fmt: skip


# -- training ------------------------------------------------------------------------------


def train(shadow: Shadow, steps: int, **optimizer) -> list[bool]:
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(20, 16), gt.nn.ReLU(), gt.nn.Dropout(0.3), gt.nn.Linear(16, 4))
    kind = optimizer.pop("kind", gt.optim.AdamW)
    opt = kind(model.parameters(), lr=1e-2, **optimizer)
    x, y = gt.randn(64, 20), gt.randint(0, 4, (64,))
    shadow.begin()
    quick = []
    for i in range(steps):
        loss = F.cross_entropy(model(x[i : i + 8]), y[i : i + 8])
        opt.zero_grad()
        loss.backward()
        opt.step()
        opt.param_groups[0]["lr"] *= 0.9
        quick.append(shadow.cut())
        if i >= HOT_RUNS:
            wait_for_compiler(shadow.levels)
    return quick


def test_a_training_step() -> None:
    """The learning rate, the step, the position of the batch and the random numbers of dropout change in each run."""
    cluster, shadow = shadowed("all")
    with client(cluster):
        quick = train(shadow, 8)
    assert all(quick[-4:]), shadow.levels.stats()
    entry = shadow.levels.stats()[-1]
    assert entry["level"] == "compiled"
    assert entry["compile_seconds"] > 0


def test_a_worker_with_several_clients_does_not_wait_for_the_compiler(monkeypatch) -> None:
    """The first run is interpreted while a thread compiles; the other clients of the worker would wait otherwise."""
    threads = []

    def recorded(*arguments):
        threads.append(threading.current_thread().name)
        return build(*arguments)

    build = compiler.build
    monkeypatch.setattr(compiler, "build", recorded)
    cluster, shadow = shadowed("all")
    shadow.levels.shared = True
    with client(cluster):
        quick = train(shadow, HOT_RUNS + 6)
    assert not quick[0]
    assert all(quick[-3:]), shadow.levels.stats()
    assert set(threads) == {"gt-compile"}


OTHERS = (gt.optim.RMSprop, gt.optim.Lion)


@pytest.mark.parametrize("kind", [gt.optim.SGD, *(pytest.param(k, marks=pytest.mark.long) for k in OTHERS)])
def test_other_optimizers(kind) -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        quick = train(shadow, 7, kind=kind, **({"momentum": 0.9} if kind is gt.optim.SGD else {}))
    assert all(quick[-3:]), shadow.levels.stats()


def test_hot_sections_are_compiled_in_the_background(monkeypatch) -> None:
    monkeypatch.setattr("gt.worker.hot.trial.MAX_TIME_RATIO", 1e9)
    cluster, shadow = shadowed("auto")
    with client(cluster):
        quick = train(shadow, HOT_RUNS + 6)
    assert not any(quick[:HOT_RUNS])
    assert all(quick[-3:])
    assert shadow.level() == ["template", "compiled"]  # the first step created the optimizer's state


def test_compiled_code_that_is_not_faster_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr("gt.worker.hot.trial.MAX_TIME_RATIO", 0.0)
    cluster, shadow = shadowed("auto")
    with client(cluster):
        quick = train(shadow, HOT_RUNS + 6)
    assert not any(quick)
    assert "not faster" in shadow.levels.stats()[1]["reasons"][0]
    assert not shadow.levels.notices


def test_parameters_keep_their_storage() -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        w, x = gt.ones(4, 4), gt.ones(4, 4)
        shadow.begin()
        before = [t.data_ptr() for t in shadow.store.values()]
        for _ in range(3):
            w -= 0.1 * (x @ w)
            assert shadow.cut()
        assert [t.data_ptr() for t in shadow.store.values()][:2] == before


# -- memory --------------------------------------------------------------------------------


def test_equal_results_are_two_tensors() -> None:
    """A compiler computes equal results once, but a write to one must not change the other."""
    cluster, shadow = shadowed("all")
    with client(cluster):
        x = gt.randn(5, 3)
        shadow.begin()
        for _ in range(2):
            a, b, c = x * 2 + 1, x * 2 + 1, x.clone()
            assert shadow.cut()
            a += 1
            c += 1
            shadow.levels, levels = Levels(shadow.engine, "off"), shadow.levels
            shadow.cut()  # compares b and x as well
            shadow.levels = levels
            del a, b, c
            shadow.cut()


def test_views_of_inputs_and_of_results() -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        x = gt.randn(6, 4)
        shadow.begin()
        kept = []
        for _ in range(3):
            y = (x * 2).relu()
            kept.append((y, y.T, x.T, x[1:3], (y + 1).reshape(-1)))
            shadow.cut()
            x *= 0.5
            shadow.cut()
        for group in kept:
            for t in group:
                t.sum()
        shadow.cut()


def test_a_result_never_changes_afterwards() -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        x, kept = gt.randn(6, 4), []
        shadow.begin()
        for i in range(5):
            kept.append((x * float(i)).exp())
            shadow.cut()  # compares all there is
        assert shadow.quick >= 2


def test_an_input_that_shares_written_memory() -> None:
    repeated, store = scaled(compile=True), {}
    levels = Levels(ENGINE, "off")
    x = torch.ones(3, 4)
    assert levels.run(repeated, [x, x.view(3, 4)], [1, 2], store) is None
    assert "shares memory" in levels.stats()[0]["reasons"][0]


def test_an_input_with_another_layout() -> None:
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    for turn in range(12):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        if turn % 4 == 3:
            x = torch.randn(4, 3).T
        wanted, other = (x + 5) * 2, y + x
        outputs = levels.run(repeated, [x, y], [5, 2], {})
        if outputs is None:
            assert turn % 4 == 3
            outputs = interpret(repeated, [x, y], [5, 2])
        assert torch.equal(outputs[0], wanted)
        assert torch.equal(y, other)


def test_inputs_with_another_layout_when_the_code_is_ready(monkeypatch) -> None:
    """CompiledProgram in the background for one layout, it is not used for another."""
    monkeypatch.setattr("gt.worker.hot.trial.MAX_TIME_RATIO", 1e9)
    repeated, levels = scaled(), Levels(ENGINE, "auto")
    for turn in range(HOT_RUNS + 4):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        if turn == HOT_RUNS:
            wait_for_compiler(levels)
            x = torch.randn(4, 3).T
        if turn == HOT_RUNS + 1:
            y = x.clone()
            x = y.view(3, 4)
        wanted = (x + 5) * 2
        outputs = levels.run(repeated, [x, y], [5, 2], {})
        assert (outputs is None) == (turn < HOT_RUNS + 2)
        outputs = interpret(repeated, [x, y], [5, 2]) if outputs is None else outputs
        assert torch.equal(outputs[0], wanted)


# -- numbers -------------------------------------------------------------------------------


def test_a_constant_that_changes() -> None:
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    quick = []
    for n in (3, 3, 3, 3, 4, 5, 6, 3):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        wanted = (x + n) * 2
        outputs = levels.run(repeated, [x, y], [n, 2], {})
        quick.append(outputs is not None)
        outputs = interpret(repeated, [x, y], [n, 2]) if outputs is None else outputs
        assert torch.allclose(outputs[0], wanted)
    assert quick == [True] * 4 + [False] + [True] * 3
    assert not levels.notices


def test_minus_zero_is_another_constant() -> None:
    t = TensorType((3,), float32)
    repeated = section(
        ("mul", (t, FLOAT), (0, ~0), (1,), False, {}),
        ("div", (t, t), (0, 1), (2,), False, {"rounding_mode": None}),
        inputs=1, results=(2,), compile=True,
    )  # fmt: skip
    levels, x = Levels(ENGINE, "off"), torch.ones(3)
    for n in (0.0, 0.0, -0.0, 0.0, -0.0):
        outputs = levels.run(repeated, [x], [n], {}) or interpret(repeated, [x], [n])
        assert outputs[0].tolist() == [math.copysign(math.inf, n)] * 3


def test_a_section_with_ever_changing_constants_is_reported() -> None:
    """A number is a constant until it changes. After some rebuilds the section stays interpreted, with one notice."""
    count = MAX_REBUILDS + 2
    t = TensorType((3,), float32)
    calls = [("add", (t, INT), (k, ~k), (k + 1,), False, {}) for k in range(count)]
    repeated = section(*calls, inputs=1, results=(count,), compile=True)
    levels, numbers = Levels(ENGINE, "off"), [1] * count
    for turn in range(3 * count):
        if turn % 2:
            numbers[turn // 2 % count] += 1
        x = torch.zeros(3)
        outputs = levels.run(repeated, [x], numbers, {}) or interpret(repeated, [x], numbers)
        assert outputs[0].tolist() == [sum(numbers)] * 3
    texts = [text for _, text in levels.notices]
    assert len(texts) == 1
    assert "changed again" in texts[0]
    assert levels.stats()[0]["level"] == "template"


def test_writing_at_positions_that_change() -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        x = gt.zeros(10, 3)
        shadow.begin()
        for i in range(5):
            x[i : i + 2] += 1.0
            x[i, 1] = i
            shadow.cut()
    assert shadow.level() == ["compiled"]
    assert shadow.quick >= 3


def test_a_number_that_must_be_a_constant() -> None:
    cluster, shadow = shadowed("all")
    with client(cluster):
        x = gt.zeros(10)
        shadow.begin()
        for i in range(4):
            y = F.pad(x + 1, (1, 1), value=float(i))
            shadow.cut()
            del y
            shadow.cut()
    assert "pad is called with changes" in shadow.levels.stats()[0]["reasons"][0]


# -- failures ------------------------------------------------------------------------------


def test_an_op_that_depends_on_values_is_interpreted() -> None:
    t = TensorType((4,), float32)
    repeated = section(
        ("mul", (t, INT), (0, ~0), (1,), False, {}),
        ("nonzero", (t,), (1,), (2,), False, {"n": 2}),
        inputs=1, results=(2,), compile=True,
    )  # fmt: skip
    levels = Levels(ENGINE, "off")
    for _ in range(3):
        assert levels.run(repeated, [torch.tensor([0.0, 1, 0, 2])], [1], {}) is None
    texts = [text for _, text in levels.notices]
    assert len(texts) == 1
    assert texts[0].endswith("2 instructions (mul, nonzero) is not compiled: the result of nonzero depends on values")


def test_a_compiler_error_is_reported_once(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("no compiler here\nand much more")

    monkeypatch.setattr("gt.worker.hot.compiler.build", broken)
    levels, repeated = Levels(ENGINE, "all"), scaled()
    for _ in range(3):
        assert levels.run(repeated, [torch.ones(3, 4), torch.ones(3, 4)], [1, 2], {}) is None
    texts = [text for _, text in levels.notices]
    assert len(texts) == 1
    assert texts[0].endswith("is not compiled: no compiler here")


def test_compiled_code_that_is_wrong_is_not_used(monkeypatch) -> None:
    from gt.worker.hot import compiler

    def wrong(program, inputs, kept):
        compiled = real(program, inputs)
        call, compiled.call = compiled.call, lambda *operands: [x + 1 for x in call(*operands)]
        return compiled

    real = compiler.build
    monkeypatch.setattr(compiler, "build", wrong)
    levels, repeated = Levels(ENGINE, "all"), scaled()
    assert levels.run(repeated, [torch.ones(3, 4), torch.ones(3, 4)], [1, 2], {}) is None
    assert "other values than the interpreter (a result of mul)" in levels.notices[0][1]


def test_an_index_out_of_range_is_interpreted() -> None:
    t, at = TensorType((5, 3), float32), TensorType((2,), int64)
    repeated = section(
        ("mul", (t, INT), (0, ~0), (2,), False, {}),
        ("index", (t, at), (2, 1), (3,), False, {"dims": (0,)}),
        inputs=2, results=(3,), compile=True,
    )  # fmt: skip
    levels, x = Levels(ENGINE, "off"), torch.randn(5, 3)
    assert levels.run(repeated, [x, torch.tensor([1, 4])], [2], {}) is not None
    assert levels.run(repeated, [x, torch.tensor([1, 5])], [2], {}) is None
    outputs = levels.run(repeated, [x, torch.tensor([0, 2])], [2], {})
    assert outputs is not None
    assert torch.equal(outputs[0], (x * 2)[[0, 2]])


# -- random programs -----------------------------------------------------------------------

UNARY = ["relu", "exp", "tanh", "sigmoid", "abs", "neg", "sin", "square"]


def drawn(rng: random.Random, tensors: list, numbers: list[float]) -> None:
    """Append the result of one more call to the tensors."""
    x = rng.choice(tensors)
    match rng.randrange(9):
        case 0 | 1:
            tensors.append(getattr(gt, rng.choice(UNARY))(x.clamp(-3, 3)))
        case 2:
            tensors.append(x * numbers[rng.randrange(4)] + rng.choice(tensors).mean())
        case 3 if x.ndim == 2:
            tensors.append(x @ rng.choice([t for t in tensors if t.ndim == 2 and t.shape == x.shape]).T)
        case 4:
            tensors.append(x.sum(0, keepdim=True) if x.ndim else x * 1)
        case 5:
            tensors.append(gt.where(x > 0, x, numbers[0]))
        case 6:
            tensors.append(F.dropout(x, 0.4, True))
        case 7:
            x += numbers[1]
        case _:
            tensors.append(x.T if x.ndim == 2 else x + 1)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    program = [rng.random() for _ in range(14)]
    cluster, shadow = shadowed("all")
    with client(cluster):
        inputs = [gt.randn(4, 4), gt.randn(4, 4), gt.randn(4)]
        shadow.begin()
        for turn in range(4):
            tensors = list(inputs)
            for part in program:
                drawn(random.Random(part), tensors, [0.5, turn * 0.25, 1.5, -turn])
            tensors[3:-4] = []
            shadow.cut()
            del tensors
            shadow.cut()
    assert shadow.quick, shadow.levels.stats()


# -- modes, forgetting, caches -------------------------------------------------------------------------


def test_off_is_off() -> None:
    levels = Levels(ENGINE, "off")
    assert levels.run(scaled(), [torch.ones(3, 4)] * 2, [1, 2], {}) is None
    assert levels.stats() == []
    numpy = Levels(make_engine("numpy"), "all")
    assert numpy.run(scaled(compile=True), [], [], {}) is None
    levels.close()
    report = subprocess.run(
        [sys.executable, "-c", "import gt.worker.hot.levels, sys; print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert report.stdout.strip() == "False"


def test_forgetting_a_section() -> None:
    levels, repeated = Levels(ENGINE, "auto"), scaled()
    levels.run(repeated, [torch.ones(3, 4), torch.ones(3, 4)], [1, 2], {})
    assert len(levels.stats()) == 1
    levels.forget(repeated)
    levels.forget(repeated)
    assert levels.stats() == []


def test_which_inputs_are_written() -> None:
    t = TensorType((3, 4), float32)
    assert mutated(scaled()) == {1}
    through_a_view = section(
        ("view", (t,), (0,), (1,), False, {"shape": (12,)}),
        ("add", (TensorType((12,), float32), INT), (1, ~0), (1,), True, {}),
        inputs=1, results=(),
    )  # fmt: skip
    assert mutated(through_a_view) == {0}


SECOND = """
import json, torch
from tests.test_hot_levels import *

t = TensorType((3, 4), float32)
calls = [("add", (t, INT), (k, ~k), (k + 1,), False, {}) for k in range(6)]
repeated = section(*calls, inputs=1, results=(6,), compile=True)
levels = Levels(ENGINE, "off")
with torch.no_grad():
    assert levels.run(repeated, [torch.ones(3, 4)], list(range(6)), {}) is not None
from torch._dynamo.utils import counters
print(json.dumps([levels.stats()[0]["compile_seconds"], counters["inductor"]["fxgraph_cache_hit"]]))
"""


@pytest.mark.long
def test_a_second_process_compiles_nothing(tmp_path) -> None:
    env = {**os.environ, "GT_CACHE_DIR": str(tmp_path)}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)
    report = []
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", SECOND], env=env, capture_output=True, text=True, check=True)
        report.append(json.loads(ran.stdout))
    assert [hits for _, hits in report] == [0, 1]
    assert report[1][0] < report[0][0]
    assert os.listdir(tmp_path) == ["compile"]


def failing_halfway(monkeypatch):
    """A system whose compiled code fails at its end while ``fails[0]`` is true."""
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster()
    (worker,) = cluster.workers.values()
    worker.replayer.levels = Levels(ENGINE, "all")
    fails = [False]
    call = CompiledProgram.__call__

    def failing(self, inputs, floats, ints):
        outputs = call(self, inputs, floats, ints)
        if fails[0]:
            raise RuntimeError("in the middle of it")
        return outputs

    monkeypatch.setattr(CompiledProgram, "__call__", failing)
    return cluster, worker, fails


def test_code_that_fails_halfway_is_not_run_again(monkeypatch) -> None:
    """What it writes becomes a failure. Running it again would write twice and give a wrong number."""
    cluster, worker, fails = failing_halfway(monkeypatch)
    with cluster.client():
        total, other = gt.zeros(3), gt.ones(3)
        for k in range(5):
            fails[0] = k == 4
            total += other
            y = (total * 2).tanh() + other * 3
            gt.step()
            cluster.settle()
        with pytest.raises(gt.RemoteError, match="in the middle of it"):
            total.numpy()
        with pytest.raises(gt.RemoteError, match="in the middle of it"):
            y.numpy()
        assert other.numpy().tolist() == [1, 1, 1]
        assert any(report["level"] == "compiled" for report in worker.replayer.levels.stats())


def test_code_that_fails_while_it_writes_over_an_input(monkeypatch) -> None:
    cluster, worker, fails = failing_halfway(monkeypatch)
    with cluster.client():
        w, g = gt.zeros(3), gt.ones(3)
        for k in range(6):
            fails[0] = k == 5
            w = (w - g * 2).tanh()
            gt.step()
            cluster.settle()
        assert any(t.active and t.active._compiled.program.donated for t in worker.replayer.levels._switches.values())
        with pytest.raises(gt.RemoteError, match="in the middle of it"):
            w.numpy()
        assert g.numpy().tolist() == [1, 1, 1]
        (space,) = worker.spaces.values()
        del w
        g.sum().item()
        cluster.settle()
        assert space.store.keys() <= {g._cell.id, max(space.store)}


def test_an_index_out_of_range_leaves_the_rest_alone(monkeypatch) -> None:
    """A section with indices donates no input, so a result that does not depend on the index is still computed."""
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster()
    (worker,) = cluster.workers.values()
    worker.replayer.levels = Levels(ENGINE, "all")
    with cluster.client():
        w, table = gt.ones(4), gt.arange(4.0)
        index = [gt.full((4,), 9 if k == 4 else 1, dtype=gt.int64) for k in range(6)]
        gt.step()
        rows = []
        for k in range(6):
            rows.append(table[index[k]] * 2)
            w = w * 0.5 + table
            gt.step()
        cluster.settle()
        assert "compiled" in [report["level"] for report in worker.replayer.levels.stats()]
        with pytest.raises(gt.RemoteError, match="out of"):
            rows[4].numpy()
        assert rows[5].numpy().tolist() == [2, 2, 2, 2]
        expected = np.ones(4, "f")
        for _ in range(6):
            expected = expected * np.float32(0.5) + np.arange(4, dtype="f")
        assert w.numpy().tolist() == expected.tolist()


def test_a_programming_error_is_reported_with_its_position() -> None:
    from gt.worker.hot.compiler import error_summary

    try:
        None.shape  # noqa: B018
    except AttributeError as error:
        report = error_summary(error)
    assert report.startswith("'NoneType' object has no attribute 'shape' (AttributeError in test_hot_levels.py:")
    assert error_summary(RuntimeError("no compiler\nat all")) == "no compiler"


def test_compiling_without_enough_memory_for_a_trial(monkeypatch) -> None:
    """It is compiled in the background from the layouts of the inputs; the inputs themselves may be freed."""
    monkeypatch.setattr("gt.worker.hot.level_switch.has_memory", lambda section, inputs: False)
    submitted = []
    real = Compiler.submit

    def submit(compiler, job, wait):
        submitted.append(job)
        return real(compiler, job, wait)

    monkeypatch.setattr(Compiler, "submit", submit)
    cluster, shadow = shadowed("auto")
    with client(cluster):
        x = gt.randn(50)
        shadow.begin()
        for _ in range(HOT_RUNS + 6):
            x = (x.sin() * x).tanh() + 1
            quick = shadow.cut()
            wait_for_compiler(shadow.levels)
    assert quick, shadow.levels.stats()
    assert not any(isinstance(x, torch.Tensor) for job in submitted for x in job.inputs)


# -- GT_DEBUG_COMPILE ----------------------------------------------------------------------


def recompiling(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("] ")[2] for line in capfd.readouterr().err.splitlines() if "Recompiling" in line]


def documented() -> set[str]:
    """The lines of the page about settings."""
    return set((ROOT / "docs/settings.md").read_text().splitlines())


def test_recompiling_names_the_number_that_changed(monkeypatch, capfd) -> None:
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    for n in (3, 3, 4, 5):
        levels.run(repeated, [torch.randn(3, 4), torch.randn(3, 4)], [n, 2], {})
    what = "3 instructions (add, mul, add)"
    lines = recompiling(capfd)
    assert lines == [f"Recompiling {what}: a number of add(float32[3,4], int) is 4, before 3"]
    assert set(lines) <= documented()


def test_recompiling_names_the_strides_that_changed(monkeypatch, capfd) -> None:
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    for turn in range(6):
        x = torch.randn(3, 4) if turn < 2 else torch.randn(4, 3).T
        levels.run(repeated, [x, torch.randn(3, 4)], [5, 2], {})
    (line,) = recompiling(capfd)
    assert line.endswith(": input 0 with shape [3, 4] has the strides [1, 3], before [4, 1]")


def test_recompiling_names_memory_that_is_written(monkeypatch, capfd) -> None:
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    for turn in range(6):
        y = torch.randn(3, 4)
        levels.run(repeated, [torch.randn(3, 4) if turn < 2 else y.view(3, 4), y], [5, 2], {})
    (line,) = recompiling(capfd)
    assert line.endswith(": an input shares memory that the section writes")


def test_recompiling_names_the_shape_that_changed(monkeypatch, capfd) -> None:
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    levels = Levels(ENGINE, "off")
    for rows in (3, 5):
        t = TensorType((rows,), float32)
        calls = [("neg", (t,), (0,), (1,), False, {}), ("exp", (t,), (1,), (2,), False, {})]
        repeated = section(*calls, inputs=1, results=(2,), compile=True)
        for _ in range(2):
            levels.run(repeated, [torch.ones(rows)], [], {})
    what = "2 instructions (neg, exp)"
    lines = recompiling(capfd)
    assert lines == [f"Recompiling {what}: neg(float32[5]), before neg(float32[3])"]
    assert set(lines) <= documented()


def test_without_the_setting_nothing_is_said(monkeypatch, capfd) -> None:
    monkeypatch.delenv("GT_DEBUG_COMPILE", raising=False)
    repeated, levels = scaled(compile=True), Levels(ENGINE, "off")
    for n in (3, 3, 4, 5):
        levels.run(repeated, [torch.randn(3, 4), torch.randn(3, 4)], [n, 2], {})
    assert capfd.readouterr().err == ""


def test_few_sections_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(changes, "MAX_REMEMBERED", 3)
    remembered = CompiledCalls()
    t = TensorType((2,), float32)
    for length in range(1, 6):
        calls = [("neg", (t,), (k,), (k + 1,), False, {}) for k in range(length)]
        assert remembered.change(section(*calls, inputs=1, results=(length,))) == ""
    assert len(remembered._by_ops) == 3
