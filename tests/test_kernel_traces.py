"""Exposed communication on GPUs, from the kernels of a trace: the sets of time against single nanoseconds, a trace made
by hand, and what the tools say where nobody saw the waits."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ConfigError
from gt.events.breakdown import break_down
from gt.events.kernels import DeviceWork, device_work, exposed_communication
from gt.events.load import LoadMeter
from gt.events.log import write_log
from gt.events.table import EventTable
from gt.events.trace_file import read_trace
from gt.scripts import top
from gt.testing import Cluster
from gt.wire.event_messages import EventBatch, Listening
from gt.wire.structures import WorkerInfo
from gt.worker.collectives.local import LocalPlane
from gt.worker.space import ClientSpace, PendingMove


def device_events(pid: int) -> list[dict[str, Any]]:
    """Microseconds of one worker: NCCL from 10 to 30 and 50 to 60; beside it a kernel, a copy and a fill until 18."""
    gather, reduce = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclKernel_AllReduce"
    spans = [
        ("kernel", gather, 28, 10.0, 20.0),
        ("kernel", reduce, 28, 50.0, 10.0),
        ("kernel", "ampere_sgemm_128x64_nn", 7, 0.0, 12.0),
        ("gpu_memcpy", "Memcpy DtoD", 7, 11.0, 4.0),
        ("gpu_memset", "Memset", 7, 15.5, 2.5),
        ("kernel", "vectorized_elementwise_kernel", 7, 58.0, 9.0),
        # ranges around kernels, and calls of the host, are no work of the device
        ("gpu_user_annotation", "nccl:_all_gather_base", 28, 0.0, 90.0),
        ("gpu_user_annotation", "step", 7, 0.0, 90.0),
        ("cpu_op", "aten::mm", 1, 0.0, 90.0),
        ("cuda_runtime", "cudaLaunchKernel", 1, 0.0, 90.0),
        ("collective", "all_gather among workers 0, 1", 10_000, 9.0, 1.0),
    ]
    return [{"ph": "X", "cat": c, "name": n, "pid": pid, "tid": t, "ts": ts, "dur": d} for c, n, t, ts, d in spans]


def trace_of(workers: dict[int, list[dict[str, Any]]], device: str = "cuda:0") -> dict[str, Any]:
    """A file of `gt.debug.trace` with these events: a worker is process ``worker + 1``."""
    events: list[dict[str, Any]] = []
    for worker, own in workers.items():
        name = {"name": f"worker {worker} ({device})"}
        events.append({"ph": "M", "name": "process_name", "pid": worker + 1, "args": name})
        events.append({"ph": "M", "name": "thread_name", "pid": worker + 1, "tid": 28, "args": {"name": "stream 28"}})
        events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": worker + 1, "tid": 28, "ts": 3.0})
        events += own
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": events}


@pytest.mark.parametrize("seed", range(5))
def test_exposed_communication_is_that_of_single_nanoseconds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        spans = [np.sort(rng.integers(0, 80, (rng.integers(0, 7), 2)), axis=1) for _ in range(2)]
        moments = [{t for begin, end in each.tolist() for t in range(begin, end)} for each in spans]
        found = {t for begin, end in DeviceWork(*spans).exposed.tolist() for t in range(begin, end)}
        assert found == moments[0] - moments[1]


def test_a_trace_made_by_hand(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.json"
    later = [event | {"ts": event["ts"] + 5_000.125} for event in device_events(4)]
    path.write_text(json.dumps(trace_of({0: device_events(1), 3: later})))
    # of 10 to 30 the first 8 µs run beside others, without the 0.5 µs between the copy and the fill; then 50 to 58
    assert exposed_communication(path) == {0: 20_500, 3: 20_500}
    only = [event for event in device_events(1) if "nccl" not in event["name"]]
    assert device_work(trace_of({0: only}))[0].exposed.tolist() == []


def test_files_without_kernels(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(trace_of({0: [device_events(1)[8]]}, "cpu")))
    with pytest.raises(ConfigError, match=r"step\.json: no kernel of a GPU; gt\.debug\.trace\(path, kernels=True\)"):
        exposed_communication(path)
    for text in ("{", "[]", '{"traceEvents": [{"ph": "X", "cat": "kernel"}]}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"step\.json: not a file of gt\.debug\.trace\(path, kernels=True\)"):
            exposed_communication(path)
    with pytest.raises(ConfigError, match="No such file"):
        exposed_communication(tmp_path / "none.json")


# -- where nobody saw the waits ------------------------------------------------------------


@pytest.fixture
def moves_end_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalPlane, "ends_on_device", lambda self, group: True)


def recorded(moves: bool = True) -> tuple[EventTable, list[EventBatch]]:
    """The events of a product on two workers, and the batches that they came in."""
    batches: list[EventBatch] = []
    with Cluster(workers=2, backend="numpy").client() as session:
        gt.auto_shard(moves)
        try:
            x = gt.rand(300, 300)
            session.listen(batches.append)
            (x.T @ x).relu().sum().item()
            session.stop_listening()
        finally:
            gt.auto_shard(False)
    table = EventTable()
    for batch in batches:
        table.add(batch)
    return table, batches


WORKERS = [WorkerInfo(n, "numpy", "cuda:0", "", 0) for n in range(2)]


@pytest.mark.usefixtures("moves_end_on_devices")
def test_unseen_waits_are_not_zero(tmp_path: pathlib.Path) -> None:
    table, batches = recorded()
    breakdown = break_down(table, *table.span())
    assert not breakdown.waits_known
    assert sum(breakdown.times.values()) == pytest.approx(breakdown.wall)
    line = breakdown.lines_of_text()[2]
    assert line.startswith("  exposed communication  not known, part of compute: GPUs wait for NCCL")
    with open(tmp_path / "trace.log", "w") as file:
        write_log(file, table, Listening(0, 0, 1_800_000_000_000_000_000, True, WORKERS, [1]))
    again = read_trace(str(tmp_path / "trace.log")).table
    assert not break_down(again, *again.span()).waits_known

    meter = LoadMeter()
    for batch in batches:
        meter.add(batch)
    loads = meter.read(Listening(0, 0, 0, True, WORKERS, [1]), 1.0)
    assert all(load.link_bytes_per_s > 0 and not load.waits_known for load in loads[0].values())
    assert "transfer on the device" not in loads[0][0].families
    head, row = top.plain("here", loads).splitlines()[2:4]
    assert "waiting" in head
    assert row[head.index("waiting") :].split()[0] == "–"
    assert [w["waits_known"] for w in top.as_json("here", loads, 1.0)["workers"]] == [False, False]


def test_waits_are_known_elsewhere() -> None:
    table, _ = recorded()
    breakdown = break_down(table, *table.span())
    assert breakdown.waits_known
    assert breakdown.lines_of_text()[2].endswith(" ms")


@pytest.mark.usefixtures("moves_end_on_devices")
def test_waits_are_known_without_moves() -> None:
    table, _ = recorded(moves=False)
    assert break_down(table, *table.span()).waits_known


def test_no_memory_is_written_that_a_device_may_still_read() -> None:
    """A move that is done when it was issued: before a write into its operand the device waits for it."""
    waited: list[str] = []

    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name

        def done(self) -> bool:
            return True

        def wait_on_device(self) -> None:
            waited.append(self.name)

    (worker,) = Cluster(workers=1, backend="numpy").workers.values()
    space = ClientSpace(False)
    read = np.zeros(4)
    for id, array in enumerate((read, np.zeros(4), None)):
        space.put(id, PendingMove("all_gather", 0, Handle(f"move {id}"), None, array))  # type: ignore[arg-type]
    assert worker.mover.may_write(space, [np.zeros(4), read[1:]])
    assert waited == ["move 0"]
