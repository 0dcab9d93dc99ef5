"""The event stream: exact while somebody listens, absent otherwise; who sees what; clocks; slow listeners."""

from __future__ import annotations

import os
import pathlib
import stat
from collections import Counter
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream import sites
from gt.client.stream.session import Session
from gt.dispatcher.listeners import MAX_UNTAKEN
from gt.dispatcher.tenants.access import Access
from gt.errors import Refused
from gt.events.table import Event, EventTable
from gt.events.viewer import Viewer
from gt.ops import OPS
from gt.ops.families import _FAMILIES, family
from gt.testing import Cluster
from gt.version import PROTOCOL, VERSION
from gt.wire.auth import make_operator_token, operator_file
from gt.wire.codec import Decode, encode
from gt.wire.event_messages import BatchTaken, EventBatch, Listen, Listening
from gt.wire.messages import Hello, Refusal
from gt.worker import recording
from gt.worker.recording import DETAILED_EVERY
from tests.support.keys import copy_server_key
from tests.support.processes import OPERATOR, TOKEN, System


class ClusterViewer:
    """A viewer of a `Cluster`. ``takes``: whether it tells the dispatcher that it has read a batch."""

    def __init__(self, cluster: Cluster, operator: str = "", detail: bool = True, takes: bool = True) -> None:
        self._cluster, self._takes, self._decode = cluster, takes, Decode("client")
        self.name = cluster._name("v")
        cluster.clients[self.name] = self  # type: ignore[assignment]
        self.table, self.batches, self.answers, self.refusal = EventTable(), 0, [], ""
        self.send(Hello("viewer", PROTOCOL, VERSION, "", 1, operator=operator))
        self.send(Listen(1, True, detail))
        cluster.settle()

    def send(self, message: Any) -> None:
        self._cluster._post(self.name, b"", [encode(message)])

    def handle(self, frames: list[bytes]) -> None:
        message = self._decode(frames[0])
        if isinstance(message, EventBatch):
            self.batches += 1
            self.table.add(message)
            if self._takes:
                self.send(BatchTaken(1))
        elif isinstance(message, Listening):
            self.answers.append(message)
        elif isinstance(message, Refusal):
            self.refusal = message.reason

    def stop(self) -> EventTable:
        self.send(Listen(2, False))
        self._cluster.settle()
        return self.table

    def leave(self) -> None:
        del self._cluster.clients[self.name]
        self._cluster._cut(self.name)
        self._cluster.settle()


def ops(events: list[Event]) -> Counter[str]:
    return Counter(event.name.op for event in events if event.name.kind == "op")


def listened(session: Session, body: Any) -> EventTable:
    table = EventTable()
    table = EventTable(since=session.listen(lambda batch: table.add(batch)).now)
    body()
    session.stop_listening()
    return table


def drain(cluster: Cluster) -> None:
    """Let the workers send what they have recorded, as their shells do from time to time."""
    for name, worker in cluster.workers.items():
        assert worker.recorder is not None
        for message in worker.recorder.drain():
            cluster._post(name, b"", [encode(message)])


def nobody_records(cluster: Cluster) -> bool:
    return all(
        part.recorder is None
        for worker in cluster.workers.values()
        for part in (worker, worker.interpreter, worker.replayer, worker.mover)
    )


def test_families() -> None:
    files = {op.file for op in OPS.values()}
    unknown = set(_FAMILIES) - files
    assert not unknown, f"no op is declared in {unknown}"
    assert (family(OPS["matmul"]), family(OPS["add"]), family(OPS["attention"])) == (
        "matmul",
        "elementwise",
        "attention",
    )


# -- in one thread -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_client_sees_exactly_its_block(seed: int) -> None:
    cluster = Cluster(workers=1, seed=seed, backend="numpy")
    with cluster.client() as session:
        x = gt.ones(4, 4)
        before = [x @ x for _ in range(3)]
        assert nobody_records(cluster)

        def block() -> None:
            y = x
            for _ in range(5):
                y = gt.relu(y @ x)
            y.sum().item()

        table = listened(session, block)
        cluster.settle()
        assert nobody_records(cluster)
        after = [x @ x for _ in range(3)]
    events = list(table.events())
    assert ops(events) == {"matmul": 5, "relu": 5, "sum": 1}
    assert {event.name.family for event in events} == {"matmul", "elementwise", "reduction"}
    assert all(event.queued <= event.started <= event.ended for event in events)
    assert all(event.execute > 0 for event in events)
    assert {event.site.split(":")[0] for event in events} == {__file__}
    assert any("y = gt.relu(y @ x)" in event.site for event in events)
    matmul = next(event.name for event in events if event.name.op == "matmul")
    assert (matmul.text, matmul.nbytes) == ("matmul(float32[4,4], float32[4,4])", 64)
    assert before
    assert after


def training_step() -> Any:
    model = gt.nn.Sequential(gt.nn.Linear(6, 5), gt.nn.ReLU(), gt.nn.Linear(5, 3))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    x, y = gt.randn(4, 6), gt.randn(4, 3)

    def step() -> float:
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


@pytest.mark.parametrize(("workers", "auto"), [(1, False), (2, True)])
def test_recording_changes_no_value(workers: int, auto: bool) -> None:
    losses = {}
    for listen in (False, True):
        cluster = Cluster(workers=workers, backend="numpy")
        with cluster.client() as session:
            gt.auto_shard(auto)
            try:
                gt.manual_seed(3)
                step = training_step()
                table = EventTable()
                if listen:
                    session.listen(table.add)
                losses[listen] = [step() for _ in range(6)]
                if listen:
                    session.stop_listening()
                    events = list(table.events())
                    assert ops(events)["sgd_step"] == 6 * workers
                    assert {event.level for event in events} == {"eager", "template"}
                    assert {event.fragment > 0 for event in events} == {True, False}
                    assert sum(table.hot.values()) > len(events) // 3
            finally:
                gt.auto_shard(False)
    assert losses[False] == losses[True]


def test_moves_and_waits() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client() as session:
        gt.auto_shard()
        try:
            x = gt.rand(300, 300)
            table = listened(session, lambda: (x.T @ x).relu().sum().item())
        finally:
            gt.auto_shard(False)
    moves = [event for event in table.events() if event.name.kind == "move"]
    assert {(event.worker, event.name.op) for event in moves} >= {(0, "all_reduce"), (1, "all_reduce")}
    assert all(event.name.members == (0, 1) and event.ended >= event.started for event in moves)
    large = [event for event in moves if event.name.nbytes == 300 * 300 * 4]
    assert len(large) == 2
    assert any(event.name.kind == "wait" and event.name.family == "waiting" for event in table.events())
    transfer = sum(share.nbytes for share in table.shares if share.family == "transfer")
    assert transfer == sum(event.name.nbytes for event in moves)


def test_a_failure_while_recording() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    with cluster.client() as session:
        x, i = gt.ones(3), gt.tensor([7])
        table = EventTable()
        session.listen(table.add)
        for _ in range(4):
            bad = x[i]
            with pytest.raises(gt.GtError, match="index"):
                bad.sum().item()
        assert (x + 1).tolist() == [2, 2, 2]
        session.stop_listening()
    assert ops(list(table.events()))["add"] == 1
    assert ops(list(table.events()))["index"] == 4


def test_detail_where_it_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short instructions share the time of their stretch as in the samples; long ones are all measured."""
    cluster = Cluster(workers=1, backend="numpy")
    (worker,) = cluster.workers.values()
    spent = {"exp": 18_000, "sin": 6_000, "cos": 0}
    link = worker.engine.link

    def slow_link(signature: Any) -> Any:
        kernel = link(signature)

        def run(*operands: Any) -> Any:
            cluster._ticks += spent.get(signature.op.name, 0)
            return kernel(*operands)

        return run

    monkeypatch.setattr(worker.engine, "link", slow_link)
    table = EventTable()
    with cluster.client() as session:
        x = gt.ones(4)
        session.listen(table.add)
        for _ in range(2 * DETAILED_EVERY):
            x.exp().sin().cos().sum().item()
        drain(cluster)
        spent["cos"] = 1_000_000
        for k in range(30):
            spent["exp"] = 1_000_000 * k
            x.exp().sin().cos().sum().item()
        session.stop_listening()
    took = {name: [e.ended - e.started for e in table.events() if e.name.op == name] for name in ("exp", "sin")}
    exp, sin = (np.array(took[name][4 : 2 * DETAILED_EVERY]) for name in ("exp", "sin"))
    assert (np.abs(exp / sin - 2.5) < 0.5).all()  # 18 µs and 6 µs, and up to 2 µs for reading the clock
    # once the instructions are long, each is measured, though they now take another time each time
    assert took["exp"][-15:] == pytest.approx([1_000_000 * k for k in range(15, 30)], abs=10_000)


def test_words_of_the_same_length() -> None:
    """Instructions are found in the words also if their order, operands or frees differ from the last time."""
    cluster = Cluster(workers=1, backend="numpy")
    rng = np.random.default_rng(0)
    wanted: Counter[str] = Counter()
    with cluster.client() as session:
        x, i = gt.ones(3), gt.tensor([1])
        table = EventTable()
        session.listen(table.add)
        for _ in range(150):
            kept = []
            for kind in rng.integers(0, 4, 4).tolist():
                y = (x.exp, x.sin, lambda: x + x, lambda: gt.tensor([7]))[kind]()
                wanted[("exp", "sin", "add", "upload")[kind]] += 1
                kept += [y] if rng.integers(2) else []
            kept.clear()
            session.outbox.flush()
        assert x[i].item() == 1
        session.stop_listening()
    counts = ops(list(table.events()))
    assert {name: counts[name] for name in wanted} == wanted


def test_a_program_with_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that runs for weeks: each of its cells has lines of its own."""
    monkeypatch.setattr(sites, "_sites", [(None, 0)] * 100_000)
    monkeypatch.setattr(sites, "_lines", {})
    monkeypatch.setattr(sites, "_by_offset", {})
    with Cluster(workers=1, backend="numpy").client() as session:
        table = listened(session, lambda: gt.ones(3).tan().tolist())
    (line,) = (event.site for event in table.events() if event.name.op == "tan")
    assert "gt.ones(3).tan()" in line


def test_source_lines_that_are_no_numbers() -> None:
    """A client may send anything as the number of a line. It must not disturb the worker that records."""
    cluster = Cluster(workers=1, backend="numpy")
    viewer = ClusterViewer(cluster)
    with cluster.client() as session:
        x = gt.ones(3)
        session.outbox.flush()
        for line in (b"", 1.5, 2**63, -1, 2**40):
            y = x + 1
            stream = session.outbox.words
            stream[1 if stream[0] > 0 else 2] = line
            assert y.tolist() == [2, 2, 2]
    assert viewer.stop().shares
    assert not any(cluster.closed.values())


class LateMarks:
    """Marks like those of a GPU: expensive, and not there at once."""

    cheap = False

    def __init__(self, clock: Any) -> None:
        self._clock, self._asked = clock, 0

    def mark(self) -> list[int]:
        return [self._clock()]

    def times(self, marks: list[list[int]], wait: bool) -> Any:
        self._asked += 1
        return [mark[0] for mark in marks] if wait or self._asked % 3 == 0 else None


def test_marks_that_are_not_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instruction still has an event, and the events of a stretch fill its time."""
    cluster = Cluster(workers=1, backend="numpy")
    (worker,) = cluster.workers.values()
    monkeypatch.setattr(worker.engine, "marks", LateMarks, raising=False)
    with cluster.client() as session:
        step = training_step()
        table = EventTable()
        session.listen(table.add)
        for _ in range(12):
            step()
        drain(cluster)
        session.stop_listening()
    events = list(table.events())
    counts = ops(events)
    assert counts["sgd_step"] == counts["mse_loss"] == 12
    assert counts["linear"] == 24
    assert all(event.ended >= event.started for event in events)
    assert any(event.ended > event.started for event in events if event.level == "template")


class NeverMarks(LateMarks):
    """Marks that the device never reaches, except when somebody waits for it."""

    def times(self, marks: list[list[int]], wait: bool) -> Any:
        return super().times(marks, wait) if wait else None


def test_what_a_device_far_behind_drops_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(workers=1, backend="numpy")
    (worker,) = cluster.workers.values()
    monkeypatch.setattr(worker.engine, "marks", NeverMarks, raising=False)
    monkeypatch.setattr(recording, "MAX_WAITING_STRETCHES", 10)
    with cluster.client() as session:
        x, table = gt.ones(3), EventTable()
        session.listen(table.add)
        for _ in range(40):
            assert x.exp().sin().sum().item() > 0
            drain(cluster)
        assert table.count == 0
        assert table.dropped_events >= 3 * 25
        session.stop_listening()
    assert table.count + table.dropped_events == 3 * 40
    assert 3 * 5 <= table.count <= 3 * 10


# -- who sees what -------------------------------------------------------------------------


def test_who_sees_what() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    cluster.dispatcher._access = Access("the token")
    viewer, operator = ClusterViewer(cluster), ClusterViewer(cluster, "the token")
    shares_only = ClusterViewer(cluster, "the token", detail=False)
    stranger = ClusterViewer(cluster, "another")
    assert stranger.refusal == "this is not the operator's token of this server"
    assert [v.answers[0].operator for v in (viewer, operator)] == [False, True]
    first, second = cluster.add_client(), cluster.add_client()
    table = EventTable()
    with gt.client.stream.connect.use(first):
        first.listen(table.add)
        x = gt.ones(3).exp().sum()
    with gt.client.stream.connect.use(second):
        y = gt.ones(3).sin().sum()
        assert y.item() > 0
    with gt.client.stream.connect.use(first):
        assert x.item() > 0
        first.stop_listening()
    tables = {v: v.stop() for v in (viewer, operator, shares_only)}
    mine, other = first.id, second.id
    assert ops(list(table.events())) == {"full": 1, "exp": 1, "sum": 1}
    assert {event.client for event in table.events()} == {mine}
    assert {share.client for share in table.shares} == {mine, other}
    assert not table.names.get((0, other))
    assert not table.sites.get(other)
    assert ops(list(tables[operator].events())) == {"full": 2, "exp": 1, "sin": 1, "sum": 2}
    assert any("sin()" in text for text in tables[operator].sites[other].values())
    for quiet in (viewer, shares_only):
        assert not list(tables[quiet].events())
        assert {share.client for share in tables[quiet].shares} == {mine, other}
        assert not any(tables[quiet].names.values())
        assert not any(tables[quiet].sites.values())
    assert nobody_records(cluster)
    first.close(), second.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_listener_right_after_another(seed: int) -> None:
    """Events of the recording before, which are still on their way, are not for the new listener."""
    cluster = Cluster(workers=2, seed=seed, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    with cluster.client():
        step = training_step()
        for _ in range(3):
            first = ClusterViewer(cluster)
            step()
            gt.ones(3).exp().sum().item()
            del cluster.clients[first.name]
            cluster._cut(first.name)
            while first.name in cluster.dispatcher.by_peer:
                cluster.step()
            second = ClusterViewer(cluster)
            gt.ones(2).sin().sum().item()
            table = second.stop()
            second.leave()
            assert {event.name.op for event in table.events()} == {"full", "sin", "sum"}


def test_recording_ends_with_the_last_listener() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    first, second = ClusterViewer(cluster), ClusterViewer(cluster)
    assert not nobody_records(cluster)
    first.leave()
    assert not nobody_records(cluster)
    second.stop()
    assert nobody_records(cluster)
    assert [answer.request for answer in second.answers if answer.request] == [1, 2]


def test_a_late_listener_gets_all_names() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    early = ClusterViewer(cluster)
    with cluster.client():
        x = gt.ones(3)
        assert x.exp().sum().item() > 0
        cluster.tick()
        late = ClusterViewer(cluster)
        late.table = EventTable(since=late.answers[0].now)
        assert x.exp().sum().item() > 0
        assert ops(list(late.stop().events())) == {"exp": 1, "sum": 1}
        assert ops(list(early.stop().events())) == {"full": 1, "exp": 2, "sum": 2}


def test_workers_come_and_go() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    viewer = ClusterViewer(cluster)
    name = cluster.add_worker()
    cluster.settle()
    assert cluster.workers[name].recorder is not None
    assert [worker.id for worker in viewer.answers[-1].workers] == [0, 1]
    cluster.paused.add(name)
    viewer.stop()
    assert viewer.answers[-1].request != 2  # this worker has not sent the rest
    cluster.kill_worker(name)
    cluster.settle()
    assert any(answer.request == 2 for answer in viewer.answers)
    assert nobody_records(cluster)


def test_a_slow_listener_misses_batches_and_is_told() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    viewer = ClusterViewer(cluster, takes=False)
    listeners = cluster.dispatcher.listeners
    with cluster.client():
        for _ in range(MAX_UNTAKEN + 10):
            gt.ones(3).sum().item()
            drain(cluster)
            cluster.settle()
    (listener,) = listeners.listeners.values()
    assert viewer.batches == listener.untaken == MAX_UNTAKEN
    assert listener.dropped >= 10
    viewer.send(BatchTaken(100))
    cluster.settle()
    assert viewer.stop().dropped == listener.dropped


def test_clocks_of_other_machines_are_corrected() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    skews = dict(zip(cluster.workers, (5_000_000_000, -3_000_000_000), strict=True))
    cluster.skews.update(skews)
    cluster.dispatcher._access = Access(everybody=True)
    viewer = ClusterViewer(cluster)
    begun = cluster.clock()
    with cluster.client():
        gt.auto_shard()
        try:
            assert gt.rand(300, 3).sum().item() > 0
            table = viewer.stop()
        finally:
            gt.auto_shard(False)
    ended = cluster.clock()
    events = list(table.events())
    assert {event.worker for event in events} == {0, 1}
    assert 0 < table.error < 1_000_000
    for event in events:
        assert begun - table.error <= event.started <= event.ended <= ended + table.error


@pytest.mark.parametrize("seed", range(4))
def test_messages_have_the_same_number_on_both_sides(seed: int) -> None:
    """Also if the words of another client are forwarded at the moment when somebody begins to listen."""
    cluster = Cluster(workers=1, seed=seed, backend="numpy")
    first, second = cluster.add_client(), cluster.add_client()
    cluster.paused.add(b"w1")
    sums = []
    for session in (first, second):
        with gt.client.stream.connect.use(session):
            y = x = gt.ones(3)
            for k in range(1500):
                y = y + x if k % 7 else gt.relu(y)
            sums.append(y)
            session.outbox.flush()
    cluster.settle()

    def unpause(_: Cluster) -> None:
        if cluster.dispatcher.clients[first.id].waiting_requests:  # it listens after what waits for the worker
            cluster.paused.clear()

    cluster.after_step = unpause
    table = EventTable()
    with gt.client.stream.connect.use(first):
        first.listen(table.add)
        assert (sums[0] * 2).sum().item() > 6
        first.stop_listening()
    rows = table.rows(-1, first.id)
    sent = {(worker, execute): serial for worker, execute, serial, *_ in rows.tolist() if worker >= 0}
    events = [event for event in table.events() if event.execute]
    assert len(events) >= 2
    assert all(sent[event.worker, event.execute] > 0 for event in events)
    first.close(), second.close()


# -- processes -----------------------------------------------------------------------------


@pytest.fixture
def viewer_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    monkeypatch.delenv("GT_OPERATOR_TOKEN", raising=False)
    copy_server_key(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return monkeypatch


def test_a_viewer_of_a_shared_server(system: System, viewer_environment: pytest.MonkeyPatch) -> None:
    address = f"tcp://localhost:{system.port}"
    program = "x = gt.ones(8, 8)\nwhile True:\n  y = gt.relu(x @ x)\n  y.sum().item(); say('step')"
    client = system.client(program)
    client.expect("step")
    with Viewer(address) as viewer:
        assert viewer.listening is not None
        assert not viewer.listening.operator
        quiet = EventTable()
        for batch in viewer.batches(0.5):
            if batch is not None:
                quiet.add(batch)
    assert quiet.count == 0
    assert {share.family for share in quiet.shares} >= {"matmul", "elementwise", "reduction", "dispatcher"}
    viewer_environment.setenv("GT_OPERATOR_TOKEN", "wrong")
    with pytest.raises(Refused, match="not the operator's token"), Viewer(address):
        pytest.fail("it was accepted")
    viewer_environment.setenv("GT_OPERATOR_TOKEN", OPERATOR)
    with Viewer(address) as viewer:
        full = EventTable()
        for batch in viewer.batches(0.5):
            if batch is not None:
                full.add(batch)
        for batch in viewer.rest():
            full.add(batch)
    counts = ops(list(full.events()))
    assert counts["matmul"] > 3
    assert max(counts.values()) - min(counts.values()) <= 2
    dispatched = full.rows(-1, 1)
    sent = {(row[0], row[1]): row for row in dispatched.tolist() if row[0] >= 0}
    for event in full.events():
        if event.execute:
            received, arrived = sent[event.worker, event.execute][3], event.queued
            assert received <= arrived + 1_000_000
    assert (np.diff(np.sort(full.rows(0, 1)[:, 5])) >= 0).all()


def test_the_operators_token_is_private(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GT_OPERATOR_TOKEN", raising=False)
    token = make_operator_token()
    assert len(token) == 64
    assert token == make_operator_token() == operator_file().read_text()
    assert stat.S_IMODE(os.stat(operator_file()).st_mode) == 0o600
