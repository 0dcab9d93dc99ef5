"""`gt.debug.trace` shows everything inside its block and nothing else, with one clock; and all its errors."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import gt
from gt.client.stream import connect
from gt.client.stream.tracing import set_wrong_clocks
from gt.errors import CompileError, ConfigError, ConnectionLost, GtError, NoWorkers, WorkerLost
from gt.scripts.command import written
from gt.testing import Cluster
from gt.wire.words import MAX_INLINE_BYTES
from tests.support.processes import System, wait_until

Event = dict[str, Any]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "step.json"


@pytest.fixture
def local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local system: (backend, workers)."""
    backend, workers = request.param
    monkeypatch.setenv("GT_BACKEND", backend)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gt.gpu_workers(workers)
    yield
    gt.load_config(None)
    gt.auto_shard(False)
    gt.disconnect()


def started(backend: str, workers: int) -> Any:
    return pytest.mark.parametrize("local", [(backend, workers)], indirect=True, ids=[f"{backend}-{workers}"])


# -- reading a trace -----------------------------------------------------------------------


def processes(path: pathlib.Path) -> dict[str, list[Event]]:
    """The events with a duration, by worker; each has the name of its row."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_worker: dict[str, list[Event]] = {name: [] for name in names.values()}
    for e in events:
        if e["ph"] == "X":
            by_worker[names[e["pid"]]].append(e | {"row": rows[e["pid"], e["tid"]]})
    return by_worker


def named(events: list[Event], name: str) -> list[Event]:
    return [e for e in events if e["name"] == name]


def collectives(events: list[Event]) -> list[Event]:
    return [e for e in events if e.get("cat") == "collective"]


def overlap(events: list[Event]) -> float:
    """The share of the collectives' time in which the same worker computed."""
    moving, computing = union(collectives(events)), union(e for e in events if e["row"] == "instructions")
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in moving for b in computing)
    return both / sum(end - begin for begin, end in moving)


def union(events: Any) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def test_the_reading() -> None:
    moves = [{"ts": 0, "dur": 10, "row": "collectives", "cat": "collective"}]
    ops = [{"ts": ts, "dur": 4, "row": "instructions"} for ts in (-2, 1, 8)]
    assert overlap(moves + ops) == (2 + 3 + 2) / 10


# -- contents ---------------------------------------------------------------------------


@started("torch", 1)
def test_a_trace_shows_exactly_its_block(local: None, path: pathlib.Path) -> None:
    x = gt.rand(64, 64)
    kept = [x @ x for _ in range(20)]  # may still run when the trace begins
    before = time.time_ns()
    with gt.debug.trace(path, kernels=True):
        kept += [x @ x for _ in range(50)]  # may still run when it ends
    after = time.time_ns()
    kept += [x @ x for _ in range(10)]
    (worker,) = processes(path).items()
    assert worker[0] == "worker 0 (cpu)"
    products = named(worker[1], "aten::mm")
    assert len(products) == 50
    assert {e["row"] for e in products} == {"instructions"}
    base = json.loads(path.read_text())["baseTimeNanoseconds"]
    times = [base + 1000 * t for e in products for t in (e["ts"], e["ts"] + e["dur"])]
    assert before - 1e6 < min(times) <= max(times) < after + 1e6  # two clocks; one is the profiler's
    with gt.debug.trace(str(path), kernels=True):  # again, into the same file
        gt.exp(x).sum().item()
    (events,) = processes(path).values()
    assert not named(events, "aten::mm")
    assert len(named(events, "aten::exp")) == 1
    assert os.listdir(path.parent) == [path.name]


@started("torch", 1)
def test_a_large_trace(local: None, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent in chunks like any large value; also without shared memory."""
    x, sizes = gt.rand(4), []
    trace = connect.session().trace
    monkeypatch.setattr(connect.session(), "trace", lambda begin: (t := trace(begin), sizes.append(len(t[0])))[0])
    with gt.debug.trace(path, kernels=True):
        for _ in range(4000):
            x = x * 0.5 + 1
    assert sizes[1] > 2 * MAX_INLINE_BYTES
    (events,) = processes(path).values()
    assert len(named(events, "aten::mul")) == len(named(events, "aten::add")) == 4000
    assert x.sum().item() == pytest.approx(8)


@started("torch", 2)
def test_collectives_beside_computing(local: None, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = tmp_path / "signals.yaml"
    config.write_text("cut: {shard: {0: all}}\nsummed: {output: replicate}\nmesh: {all: 2}\n")
    gt.load_config(str(config))
    with gt.signal.context("cut"):
        x, w = gt.rand(4096, 1024), gt.rand(2048, 512)
        v = gt.rand(512, 512)

    def step() -> float:
        turned = x.T
        with gt.signal.context("summed"):
            gradient = turned @ x  # both workers have terms, which are added as soon as they exist
        with gt.signal.context("cut"):
            other = w @ v
            for _ in range(4):
                other = gt.tanh(other @ v)
        return float((gradient.sum() + other.sum()).item())

    wanted = step()
    with gt.debug.trace(path, kernels=True):
        assert step() == pytest.approx(wanted)
    by_worker = processes(path)
    assert list(by_worker) == ["worker 0 (cpu)", "worker 1 (cpu)"]
    for events in by_worker.values():
        large = [e for e in collectives(events) if e["args"]["bytes"] == 4 << 20]
        assert [e["name"] for e in large] == ["all_reduce among workers 0, 1"]
        assert large[0]["row"].startswith("collectives")
        assert named(events, "aten::mm")
        assert 0 < overlap(events) <= 1
    first, second = (next(e for e in collectives(events)) for events in by_worker.values())
    # one clock: neither ends before the other begins
    assert first["ts"] < second["ts"] + second["dur"]
    assert second["ts"] < first["ts"] + first["dur"]


@started("torch", 2)
def test_gradients_are_reduced_during_backward(local: None, path: pathlib.Path) -> None:
    """The second layer's gradient is a separate bucket, sent while the first layer's gradient is computed."""
    gt.auto_shard()
    layers = [gt.nn.Linear(1024, 1024, bias=False) for _ in range(3)]
    model = gt.nn.Sequential(*layers)
    optimizer = gt.optim.SGD(model.parameters(), lr=1e-3)
    x, y = gt.randn(512, 1024), gt.randn(512, 1024)

    def step() -> Any:
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(12):  # learned in two parts once the read of the loss is expected
        step().item()
    with gt.debug.trace(path, kernels=True):
        step().item()
    for events in processes(path).values():
        buckets = sorted((e for e in collectives(events) if e["args"]["bytes"] >= 4 << 20), key=lambda e: e["ts"])
        products = sorted((e for e in events if e["name"] == "aten::mm"), key=lambda e: e["ts"])
        assert [e["args"]["bytes"] for e in buckets] == [4 << 20, 8 << 20]
        # the first one starts before the last product does, and the last one after it
        assert buckets[0]["ts"] < products[-1]["ts"] < buckets[1]["ts"]
        assert overlap([buckets[0], *(e for e in events if e["row"] == "instructions")]) > 0


@started("numpy", 2)
def test_numpy_shows_collectives_only(local: None, path: pathlib.Path) -> None:
    gt.auto_shard()
    x = gt.rand(512, 512)
    with gt.debug.trace(path, kernels=True):
        (x.T @ x).relu().sum().item()
    for events in processes(path).values():
        assert events == collectives(events) != []
        by_row = sorted(events, key=lambda e: (e["row"], e["ts"]))
        for a, b in pairwise(by_row):
            assert a["row"] != b["row"] or a["ts"] + a["dur"] <= b["ts"] + 0.002


# -- errors ---------------------------------------------------------------------


@started("torch", 1)
def test_the_block_fails(local: None, path: pathlib.Path) -> None:
    """The events up to the error are written, and another trace can begin."""
    for error in (OSError("mine"), ConnectionResetError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            fail_inside(path, error)
        assert caught.value is error
        (events,) = processes(path).values()
        assert len(named(events, "aten::exp")) == 1


def fail_inside(path: pathlib.Path, error: BaseException) -> None:
    with gt.debug.trace(path, kernels=True):
        gt.exp(gt.ones(3)).sum().item()
        raise error


@started("numpy", 1)
@pytest.mark.parametrize("kernels", [False, True])
def test_a_device_is_written_and_not_replaced(local: None, tmp_path: pathlib.Path, kernels: bool) -> None:
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    with gt.debug.trace(null, kernels=kernels):
        gt.ones(3).tolist()
    with written(str(null)) as file:
        file.write("a trace")
    gt.save({"x": gt.ones(3)}, null)
    assert null.is_symlink()
    assert [entry.name for entry in tmp_path.iterdir()] == ["null"]


@started("numpy", 1)
def test_a_path_that_cannot_be_written(local: None, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for bad, why in ((tmp_path / "none" / "x.json", "No such file or directory"), (tmp_path, "Is a directory")):
        message = rf"gt.debug.trace\('{bad}'\): cannot be written: {why}$"
        with pytest.raises(ConfigError, match=message), gt.debug.trace(bad, kernels=True):
            pytest.fail("it did not begin")
    assert os.listdir(tmp_path) == []
    path.write_text("what was there")
    message = r"a trace is running already; only one at a time is possible$"
    with pytest.raises(GtError, match=message), gt.debug.trace(path, kernels=True), gt.debug.trace(path, kernels=True):
        pytest.fail("it did not begin")
    with gt.debug.trace(path, kernels=True):  # the outer one has ended
        assert gt.ones(3).sum().item() == 3
    assert list(processes(path)) == ["worker 0 (cpu)"]

    @gt.compile
    def traced(x: gt.Tensor) -> gt.Tensor:
        with gt.debug.trace(path, kernels=True):
            return x + 1

    with pytest.raises(CompileError, match=r"inside a compiled function; trace the call of the function instead$"):
        traced(gt.ones(3))


@started("numpy", 2)
def test_a_worker_lost_during_a_trace(local: None, path: pathlib.Path) -> None:
    def kill() -> None:
        os.kill(next(w.pid for w in gt.workers() if w.id == 1), signal.SIGKILL)
        wait_until(lambda: gt.ones(1).item() == 1 and len(gt.workers()) == 1)

    with (
        pytest.raises(WorkerLost, match=r"worker 1 is gone, and its part of the trace with it$"),
        gt.debug.trace(path, kernels=True),
    ):
        kill()
    assert list(processes(path)) == ["worker 0 (cpu)"]
    path.unlink()
    with pytest.raises(ConnectionLost, match="disconnected"), gt.debug.trace(path, kernels=True):
        gt.disconnect()
    assert os.listdir(path.parent) == []


def test_other_clients_are_not_shown(system: System, path: pathlib.Path) -> None:
    def attempt(body: str) -> str:
        return (
            f"try:\n  with gt.debug.trace({str(path)!r}, kernels=True): {body}\n"
            "except gt.GtError as error: say(type(error).__name__, error)\n"
            "else: say('traced')\n"
        )

    first = system.client("assert gt.ones(3).sum().item() == 3; say('here'); go()")
    first.expect("here")
    second = system.client(attempt("say('begun')"))
    line = second.expect("trace")
    assert line.startswith("GtError")
    assert line.endswith("worker 0 serves other clients, too: a trace would show their work")
    assert second.end() == 0
    first.tell()
    assert first.end() == 0
    third = system.client(attempt("say('begun'); go()") + attempt("pass"))
    third.expect("begun")
    joining = system.client("assert gt.ones(3).sum().item() == 3; say('here')")
    joining.expect("here")
    assert joining.end() == 0
    third.tell()
    assert "worker 0 began to serve other clients, too" in third.expect("GtError")
    third.expect("traced")
    assert third.end() == 0
    dying = system.client(attempt("say('begun'); go()"))  # its trace ends with it
    dying.expect("begun")
    dying.kill()
    dying.end()
    last = system.client("assert gt.ones(3).sum().item() == 3; go()\n" + attempt("pass"))
    system.server.expect("client 5 is gone")
    last.tell()
    last.expect("traced")


# -- in one thread -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_messages(seed: int, path: pathlib.Path) -> None:
    cluster = Cluster(workers=3, seed=seed, backend="numpy")
    with cluster.client():
        gt.auto_shard()
        try:
            for _ in range(3):
                x = gt.rand(300, 300)
                with gt.debug.trace(path, kernels=True):
                    y = (x.T @ x).relu()
                assert y.sum().item() > 0
                assert [len(collectives(events)) for events in processes(path).values()] == [1] * 3
        finally:
            gt.auto_shard(False)
    assert not any(worker.tracer.on for worker in cluster.workers.values())


def test_a_worker_that_dies_during_the_request(path: pathlib.Path) -> None:
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client():
        with pytest.raises(WorkerLost, match=r"worker 1 .* is gone"), gt.debug.trace(path, kernels=True):
            stops(cluster)
        with gt.debug.trace(path, kernels=True):
            assert gt.ones(3).sum().item() == 3
    assert list(processes(path)) == ["worker 0 (cpu)"]


def stops(cluster: Cluster) -> None:
    cluster.paused.add(b"w2")
    cluster.after_step = dies


def dies(cluster: Cluster) -> None:
    """The other worker has answered; this one never will."""
    if cluster.wires[b"", b"w2"] and not any(queue for wire, queue in cluster.wires.items() if wire[1] != b"w2"):
        cluster.after_step = None
        cluster.kill_worker(b"w2")


def test_without_workers(path: pathlib.Path) -> None:
    with Cluster(workers=0).client(), pytest.raises(NoWorkers), gt.debug.trace(path, kernels=True):
        pytest.fail("it did not begin")
    assert os.listdir(path.parent) == []


def test_a_worker_that_cannot_write(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(profile: Any) -> Any:
        raise OSError(28, "No space left on device")

    with Cluster(workers=1).client():
        with monkeypatch.context() as patch:
            patch.setattr("gt.worker.tracing._export", full)
            with pytest.raises(GtError, match=r"worker 0 could not write its trace: .*No space left"):
                traced_exp(path)
        traced_exp(path)
    (events,) = processes(path).values()
    assert len(named(events, "aten::exp")) == 1


def traced_exp(path: pathlib.Path) -> None:
    with gt.debug.trace(path, kernels=True):
        gt.exp(gt.ones(3)).sum().item()


def test_torch_traces_one_worker_of_a_process(path: pathlib.Path) -> None:
    """Two workers of a simulation share a process: the second cannot be traced, and the first trace stops."""
    cluster = Cluster(workers=2)
    with (
        cluster.client(),
        pytest.raises(GtError, match=r"worker \d cannot be traced"),
        gt.debug.trace(path, kernels=True),
    ):
        pytest.fail("it did not begin")
    assert not any(worker.tracer.on for worker in cluster.workers.values())


def test_a_wrong_clock_is_not_believed() -> None:
    """Three workers began within two seconds; the clock of a fourth one is an hour ahead."""
    second, hour = 10**9, 3600 * 10**9
    traces = {0: {"began": 100 * second}, 1: {"began": 101 * second}, 2: {"began": 102 * second}}
    set_wrong_clocks(traces, 2.0)
    assert [trace["began"] // second for trace in traces.values()] == [100, 101, 102]
    traces[3] = {"began": 101 * second + hour}
    set_wrong_clocks(traces, 2.0)
    assert [trace["began"] // second for trace in traces.values()] == [100, 101, 102, 101]
    two = {0: {"began": hour}, 1: {"began": 0}}
    set_wrong_clocks(two, 2.0)
    assert two[0] == two[1]
