"""Which workers confirm work: one of a set for all of it, or each, and what their times count for."""

from __future__ import annotations

from typing import Any

import pytest

import gt
from gt.dispatcher import delivery
from gt.dispatcher.actions import SendAll
from gt.testing import Cluster
from gt.wire.messages import Done, Execute
from tests.support.invariants import always
from tests.test_dispatcher import CLIENT, FULL, WORKER, Desk


class Mesh:
    """A client whose program runs on all of several workers, which confirm when the test says so."""

    def __init__(self, workers: int) -> None:
        self.cluster = Cluster(workers, backend="numpy")
        self.executes: list[Execute] = []
        act = self.cluster._act

        def listen(actions: list[Any]) -> None:
            self.executes += [a.message for a in actions if isinstance(a, SendAll) and isinstance(a.message, Execute)]
            act(actions)

        self.cluster._act = listen  # type: ignore[method-assign]

    def add(self, session: Any, x: gt.Tensor, count: int = 40) -> list[Execute]:
        """The messages of this many additions of a tensor on all workers."""
        self.executes.clear()
        y = x
        for _ in range(count):
            y = y + x
        session.outbox.flush()
        self.cluster.settle()
        always(self.cluster)
        return [m for m in self.executes if m.client == session.id and m.confirm]


def test_one_worker_confirms_for_all_while_there_is_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CONFIRM_AFTER_US_PER_WORKER", 0.0)
    monkeypatch.setenv("GT_TEMPLATES", "0")
    mesh = Mesh(3)
    gt.auto_shard()
    try:
        with mesh.cluster.client() as session:
            x = gt.ones(3000, 2)
            first = [m.confirmer for m in mesh.add(session, x)]
            assert first
            assert set(first) == {0}
            (worker_set,) = [s for s in mesh.cluster.dispatcher.clients[1].worker_sets.values() if len(s.workers) == 3]
            assert worker_set.behind > 0
            monkeypatch.setattr(delivery, "OTHERS_CONFIRM_AFTER_US", 0.0)
            assert {m.confirmer for m in mesh.add(session, x)} == {-1}
            assert worker_set.behind == 0
            monkeypatch.setattr(delivery, "OTHERS_CONFIRM_AFTER_US", 1e9)
            assert {m.confirmer for m in mesh.add(session, x)} == {0}
            used = mesh.cluster.dispatcher.clients[1].share.used
            with mesh.cluster.client() as second:
                z = gt.ones(3000, 2)
                mesh.add(second, z)
                assert {m.confirmer for m in mesh.add(session, x)} == {-1}, "others wait for these workers now"
                assert worker_set.behind == 0
                z.sum().item()
            # the times that the others report late were counted when the first one reported them
            assert mesh.cluster.dispatcher.clients[1].share.used < 2 * used + 100_000
            assert x.sum().item() == 6000
    finally:
        gt.auto_shard(False)


def test_a_confirmation_that_is_counted_already_changes_no_account() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 1.0)
    desk.say(WORKER, Done(1, 1, 50))
    client, worker = desk.client(CLIENT), desk.worker(WORKER)
    before = client.share.used, client.pace, client.done
    worker.expect(client.id, 0, 500.0, 0)
    desk.say(WORKER, Done(1, 1, 90_000))
    assert (client.share.used, client.pace, client.done) == before
    assert worker.ahead == 0


def test_only_the_named_worker_confirms() -> None:
    message = Execute(1, [], [], 1, True, False, 2)
    assert [message.confirmed_by(worker) for worker in (1, 2)] == [False, True]
    assert Execute(1, [], [], 1).confirmed_by(7)
    assert not Execute(1, [], [], 1, False).confirmed_by(7)
