"""Listeners that misbehave, and workers that are lost while they record: the program goes on, and what came is kept."""

from __future__ import annotations

import signal

import pytest

import gt
from benchmarks.events import LISTENER
from gt.dispatcher.tenants.access import Access
from gt.events.table import EventTable
from gt.events.viewer import Viewer
from gt.testing import Cluster
from tests.support.processes import OPERATOR, TOKEN, Process, System, wait_until
from tests.test_events import ClusterViewer, drain, nobody_records, ops


def test_a_listener_that_stops_or_is_killed(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """It delays nobody, and a later listener sees everything."""
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    monkeypatch.setenv("GT_OPERATOR_TOKEN", OPERATOR)
    address = f"tcp://localhost:{system.port}"
    client = system.client("x = gt.ones(8, 8)\nwhile True:\n  gt.relu(x @ x).sum().item(); say('step')")
    client.expect("step")
    listener = Process("-c", LISTENER, address)
    try:
        listener.expect("listening")

        def continues(steps: int = 200) -> None:
            before = len(client.lines)
            wait_until(lambda: len(client.lines) > before + steps, what="the program's next steps")

        continues()
        listener.kill(signal.SIGSTOP)
        continues()
        listener.kill()
        continues()
    finally:
        listener.close()
    table = EventTable()
    with Viewer(address) as viewer:
        continues(20)
        for batch in viewer.rest():
            table.add(batch)
    assert ops(list(table.events()))["matmul"] >= 20
    client.close()


def test_a_worker_that_is_lost_while_it_records() -> None:
    """Its events until then are kept, those of the others go on, and the listener can end."""
    cluster = Cluster(workers=2, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    viewer = ClusterViewer(cluster)
    with cluster.client():
        gt.auto_shard()
        try:
            x = gt.rand(300, 3)
            assert x.exp().sum().item() > 0
            drain(cluster)
            cluster.settle()
            cluster.kill_worker(sorted(cluster.workers)[1])
            cluster.settle()
            lost = {event.worker for event in viewer.table.events()}
            with pytest.raises(gt.GtError, match="worker 1"):
                x.sin().sum().item()
            assert gt.rand(300, 3).cos().sum().item() != 0
        finally:
            gt.auto_shard(False)
        table = viewer.stop()
    assert lost == {0, 1}
    counts = ops(list(table.events()))
    assert (counts["exp"], counts["cos"]) == (2, 1)
    assert any(answer.request == 2 for answer in viewer.answers)
    assert [worker.id for worker in viewer.answers[-1].workers] == [0]
    assert nobody_records(cluster)
