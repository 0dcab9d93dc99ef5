"""The code around CUDA graphs, tested on a CPU: buffers, guards, and results that are still in use.

`Graphs` replaces the device: a capture computes nothing, and a replay reads and writes the addresses of the capture.
"""

from __future__ import annotations

import random
import weakref

import pytest
import torch

import gt
from gt.testing import Cluster
from gt.worker.engines import make_engine
from gt.worker.hot.change_recorder import MAX_SETTLING_RUNS, SETTLED_RUNS, Relocations, Settling
from gt.worker.hot.compiled import CompiledProgram, memory_sharing
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.graph import NUMBER_ROWS, REVIEW_INTERVAL_RUNS, CapturedGraph
from gt.worker.hot.level_switch import HOT_RUNS, MAX_ERRORS
from gt.worker.hot.program import Program
from tests.support.shadow import Shadow, client, wait_for_compiler
from tests.test_hot_levels import drawn, scaled, train


class Graphs:
    def __init__(self) -> None:
        self.captures = 0

    def capture(self, run, operands):
        self.captures += 1
        before = [x.clone() for x in operands]
        results, seen = run(operands), [weakref.ref(x) for x in operands]
        for x, old in zip(operands, before, strict=True):
            x.copy_(old)
        separate = [
            x if not shown else None for x, shown in zip(results, memory_sharing(operands, results), strict=True)
        ]
        for i, x in enumerate(separate):  # results that share memory are written once
            if x is None and not any(k >= 0 for k in memory_sharing(operands, results)[i]):
                separate[i] = results[i]

        def replay() -> None:
            for x, new in zip(separate, run([ref() for ref in seen]), strict=True):
                if x is not None:
                    x.copy_(new)

        return results, replay


@pytest.fixture(autouse=True)
def eager_compiler(monkeypatch):
    """Replaces inductor, which is not tested here: the program itself is the compiled code."""

    def compile(program, inputs, kept):
        copies = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_() for x in inputs]
        cells = torch.zeros(program.cell_count, dtype=torch.float64)
        strides = [x.stride() for x in inputs]
        results = program(copies, cells, cells.view(torch.int64))[: len(program.section.results)]
        expected = memory_sharing(copies, results)
        return CompiledProgram(
            program, lambda *arguments: program(list(arguments[:-2]), *arguments[-2:]), expected, strides, 0.1
        )

    monkeypatch.setattr("gt.worker.hot.compiler.build", compile)
    with torch.no_grad():
        yield


def shadowed(mode: str = "auto"):
    cluster = Cluster()
    shadow = Shadow(cluster, mode)
    graphs = Graphs()
    shadow.levels._compiler = Compiler(shadow.engine, graphs)
    return cluster, shadow, graphs


def test_a_training_step_as_a_graph() -> None:
    cluster, shadow, graphs = shadowed()
    with client(cluster):
        quick = train(shadow, HOT_RUNS + 20)
    assert all(quick[HOT_RUNS + 1 :])
    assert shadow.level() == ["template", "compiled"]
    assert graphs.captures == 2, "one of the steps, one of what was compiled"


def test_a_trial_that_fails_is_repeated_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program continues at the level it has; after a few errors the statistics say why."""
    trials = []

    def fail(*arguments: object) -> None:
        trials.append(arguments)
        raise RuntimeError("no memory left")

    monkeypatch.setattr("gt.worker.hot.level_switch.run_trial", fail)
    cluster, shadow, _ = shadowed()
    with client(cluster):
        train(shadow, HOT_RUNS + 20)
    assert shadow.level() == ["template", "graph"]
    assert len(trials) == MAX_ERRORS
    assert any("no memory left" in piece["reasons"] for piece in shadow.levels.stats())


def test_nothing_is_computed_twice_when_it_is_captured() -> None:
    cluster, shadow, _ = shadowed()
    with client(cluster):
        w = gt.zeros(3)
        shadow.begin()
        for _ in range(HOT_RUNS + 5):
            w += 1
            y = w * 2
            shadow.cut()
            wait_for_compiler(shadow.levels)
            del y
    assert "compiled" in shadow.level()


def test_results_that_are_kept() -> None:
    """A result in use becomes a copy before the graph overwrites it; from then on the graph copies it in each run."""
    cluster, shadow, _ = shadowed()
    with client(cluster):
        x, kept = gt.randn(4, 3), []
        shadow.begin()
        for i in range(HOT_RUNS + 8):
            kept.append((x * float(i)).tanh())
            if i % 3 == 0:
                kept.append(kept[-1].T)
            shadow.cut()
            wait_for_compiler(shadow.levels)
    assert shadow.quick


def test_a_view_of_a_result_is_kept() -> None:
    cluster, shadow, _ = shadowed()
    with client(cluster):
        x, kept = gt.randn(4, 3), []
        shadow.begin()
        for i in range(HOT_RUNS + 8):
            y = (x * float(i)).tanh()
            shadow.cut()
            if i > HOT_RUNS + 2:
                kept.append(y[1:3])  # created by another section, from memory that the graph writes
            shadow.cut()
            del y
            shadow.cut()
            wait_for_compiler(shadow.levels)
    assert shadow.quick


def test_a_result_that_is_the_next_run_s_input() -> None:
    cluster, shadow, _ = shadowed()
    with client(cluster):
        h, w = gt.randn(4, 4), gt.randn(4, 4)
        shadow.begin()
        for _ in range(HOT_RUNS + 10):
            h = (h @ w).tanh()
            h = h + h.T
            shadow.cut()
            wait_for_compiler(shadow.levels)
    assert shadow.quick > 3


def test_a_result_that_is_referenced_elsewhere() -> None:
    cluster, shadow, _ = shadowed()
    with client(cluster):
        x = gt.randn(4, 3)
        shadow.begin()
        for i in range(HOT_RUNS + 8):
            y = (x * float(i)).tanh()
            shadow.cut()
            wait_for_compiler(shadow.levels)
            if i == HOT_RUNS + 4:
                held = shadow.store[max(shadow.store)]
                before = held.clone()
            del y
            shadow.cut()
        assert torch.equal(held, before)
        del held


def test_inputs_that_move() -> None:
    """Two models alternate in the same section: in the end their parameters are copied in and out."""
    cluster, shadow, graphs = shadowed()
    with client(cluster):
        x = gt.randn(4, 4)
        ws = [gt.randn(4, 4), gt.randn(4, 4)]
        shadow.begin()
        for _ in range(HOT_RUNS + 2):
            ws[0] -= 0.01 * (x @ ws[0])
            shadow.cut()
            wait_for_compiler(shadow.levels)
        for i in range(20):
            ws[i % 2] -= 0.01 * (x @ ws[i % 2])
            assert shadow.cut()
    assert graphs.captures <= 5


def test_two_alternating_graphs_share_addresses() -> None:
    cluster, shadow, graphs = shadowed()
    with client(cluster):
        w = gt.randn(4, 4)
        shadow.begin()
        for _ in range(HOT_RUNS + 3 * REVIEW_INTERVAL_RUNS):
            h = (w @ w).relu()
            g = h * 2
            shadow.cut()
            y = h.T @ g + 1
            v = h.T
            shadow.cut()
            del h, g, y, v
            shadow.cut()
            wait_for_compiler(shadow.levels)
    assert shadow.level()[:2] == ["compiled"] * 2
    assert not list(shadow.levels._switches.values())[1].active._copied, "results of one are captured in the other"
    assert 2 <= graphs.captures <= 5, "while the compiler runs a trial, no graph is captured"


@pytest.mark.parametrize("mode", ["graphs", "auto", "all"])
def test_what_a_forward_pass_keeps_exists_once(mode: str) -> None:
    """A graph of a backward pass is captured after that of the forward pass, and reads its results where they are."""
    cluster, shadow, graphs = shadowed(mode)
    copied = []
    with client(cluster):
        x, w = gt.randn(8, 4), gt.randn(4, 4)
        shadow.begin()
        for _ in range(HOT_RUNS + 10):
            h = (x @ w).relu()
            g = h * 2
            shadow.cut()
            w -= 0.01 * (h.T @ g)
            del h, g
            shadow.cut()
            wait_for_compiler(shadow.levels)
            active = [switch.active for switch in shadow.levels._switches.values()]
            copied += [len(graph._buffers) for graph in active if isinstance(graph, CapturedGraph)]
    assert shadow.level() == ["graph" if mode == "graphs" else "compiled"] * 2
    assert len(copied) > HOT_RUNS
    assert not any(copied), copied
    assert graphs.captures <= (4 if mode == "auto" else 2), "each once at each of its levels, and none to measure it"


def test_a_section_does_not_wait_for_ever_until_others_stay_as_they_are() -> None:
    relocations = Relocations()
    one, other = Settling(relocations), Settling(relocations)
    for _ in range(SETTLED_RUNS):
        one.begin_run()
    assert one.settled({0})
    one.relocated()
    one.begin_run()
    assert one.settled({0}), "its own results are not its inputs"
    waited = 0
    for _ in range(2 * MAX_SETTLING_RUNS):
        other.relocated()
        one.begin_run()
        assert one.settled(set()), "the inputs are at one place already"
        waited += not one.settled({0})
    assert waited == MAX_SETTLING_RUNS


def test_a_graph_is_freed_before_it_is_captured_again() -> None:
    shared = scaled()
    freed: list[bool] = []

    class Watched(Graphs):
        def __init__(self) -> None:
            super().__init__()
            self.earlier: list[weakref.ref] = []

        def capture(self, run, operands):
            freed.extend(ref() is None for ref in self.earlier)
            results, replay = super().capture(run, operands)
            self.earlier = [weakref.ref(x) for x in results]
            return results, replay

    program = Program(shared, [1, 2], frozenset(), torch.device("cpu"), compiled=False)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    graph = CapturedGraph(program, program, "graph", [x, y], frozenset(), Watched().capture)
    for _ in range(2):
        expected = (x + 1) * 2
        (result,) = graph.run([x, y], [1, 2], {})
        assert torch.equal(result, expected)
        del result
        x = torch.randn(3, 4)
    assert freed == [True]


def test_more_runs_than_rows_of_numbers() -> None:
    cluster, shadow, _ = shadowed()
    with client(cluster):
        x = gt.ones(3)
        shadow.begin()
        for i in range(2 * NUMBER_ROWS + HOT_RUNS):
            y = x * float(i) + i
            shadow.cut()
            wait_for_compiler(shadow.levels)
            del y
            shadow.cut()
    assert shadow.quick > NUMBER_ROWS


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    program = [rng.random() for _ in range(14)]
    cluster, shadow, _ = shadowed()
    kept = []
    with client(cluster):
        inputs = [gt.randn(4, 4), gt.randn(4, 4), gt.randn(4)]
        shadow.begin()
        for turn in range(HOT_RUNS + 10):
            tensors = list(inputs)
            for part in program:
                drawn(random.Random(part), tensors, [0.5, turn * 0.25, 1.5, -turn])
            tensors[3:-4] = []
            shadow.cut()
            wait_for_compiler(shadow.levels)
            if rng.random() < 0.3:
                kept.append(rng.choice(tensors))
            del tensors
            shadow.cut()
            if kept and rng.random() < 0.2:
                kept.pop(rng.randrange(len(kept)))
                shadow.cut()
    assert shadow.quick, shadow.levels.stats()


def test_inputs_that_share_memory_are_not_written_by_a_graph() -> None:
    from gt.worker.hot.levels import Levels

    engine = make_engine("torch", "cpu")
    levels = Levels(engine, "auto")
    levels._compiler = Compiler(engine, Graphs())
    repeated, x, y = scaled(), torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(HOT_RUNS + 3):
        levels.run(repeated, [x, y], [1, 2], {})
    assert levels.run(repeated, [x, y], [1, 2], {}) is not None
    assert levels.run(repeated, [y.view(3, 4), y], [1, 2], {}) is None
    assert levels.run(repeated, [x, y], [1, 2], {}) is not None


def test_graphs_without_a_compiler() -> None:
    """``GT_AUTO_COMPILE=graphs``: the compiler is never used."""
    cluster, shadow, graphs = shadowed("graphs")
    with client(cluster):
        quick = train(shadow, HOT_RUNS + 6)
    assert all(quick[-4:]), shadow.levels.stats()
    assert graphs.captures
    assert {entry["level"] for entry in shadow.levels.stats() if entry["runs"] >= HOT_RUNS} == {"graph"}
    assert shadow.levels._compiler._thread is None


def test_what_cannot_be_compiled_at_once_becomes_a_graph(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("not now")

    monkeypatch.setattr("gt.worker.hot.compiler.build", broken)
    cluster, shadow, graphs = shadowed("all")
    with client(cluster):
        quick = train(shadow, 10)
    entry = shadow.levels.stats()[-1]
    assert (entry["level"], entry["reasons"]) == ("graph", ["not now"])
    assert all(quick[-4:])
    assert graphs.captures


def test_gradients_that_a_compiled_function_replaces_are_written_where_they_were() -> None:
    """The old gradients are freed before each run, so nothing uses the memory that the graph writes."""
    cluster = Cluster()
    (worker,) = cluster.workers.values()
    worker.replayer.levels._compiler = Compiler(worker.engine, Graphs())
    with cluster.client():
        model = gt.nn.Linear(3, 2)
        optimizer = gt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = gt.randn(5, 3)

        @gt.compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(8):
            loss = step(x)
        assert loss.item() > 0
        graphs = [
            switch.active
            for switch in worker.replayer.levels._switches.values()
            if isinstance(switch.active, CapturedGraph)
        ]
        (outputs,) = [graph._outputs for graph in graphs]
        assert len(outputs.results) == 3
        assert outputs.copied <= {0}, "only the loss, which is in use until the next one exists"
        assert model.weight.grad is not None
        kept, before = model.weight.grad, model.weight.grad.numpy()
        step(x)
        assert (kept.numpy() == before).all()
        assert (model.weight.grad.numpy() != before).any()
