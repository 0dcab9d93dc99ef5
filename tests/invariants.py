"""What must hold in a cluster after every message, and what once nothing is under way any more."""

from __future__ import annotations

from collections import Counter

from gt.dispatcher.state import Client, Layout, Worker
from gt.testing import Cluster
from gt.worker.core import Failure


def always(cluster: Cluster) -> None:
    core = cluster.dispatcher
    assert {id(p) for p in core.by_peer.values()} == {id(p) for p in (*core.clients.values(), *core.workers.values())}
    for worker in core.workers.values():
        _worker(worker)
    for client in core.clients.values():
        _client(client, core.workers)
    assert all(client in core.clients for client, _ in core.asked._open)
    assert all(missing <= set(core.workers) for _, missing in core.asked._open.values())


def _worker(worker: Worker) -> None:
    given = Counter[int]()
    for client, weight, cost in worker.given:
        given[client] += cost
        assert weight >= 0
        assert cost >= 0
    assert abs(worker.ahead - sum(given.values())) < 1e-3
    for client, parked in worker.parked.items():
        assert abs(parked - given[client]) < 1e-3
        assert client in worker.admitted


def _client(client: Client, workers: dict[int, Worker]) -> None:
    waiting = sum(submit.weight for submit, _ in client.queue)
    given = sum(weight for w in workers.values() for owner, weight, _ in w.given if owner == client.id)
    assert client.received - client.done == waiting + given
    assert 0 <= client.told_done <= client.done <= client.received
    assert client.home is None or client.id in workers[client.home].admitted
    assert set(client.told) == ({client.home} - {None})
    assert set(client.reads.values()) <= set(workers)
    for where in (*client.tensors.values(), *client.plans.values(), *client.transfers.values()):
        assert not isinstance(where, Layout) or where is workers[where.worker].layout
    assert client.parts_ahead == sum(in_frames for _, _, in_frames in client.parts)


def settled(cluster: Cluster) -> None:
    """Everything was delivered, and every client takes what it is sent."""
    always(cluster)
    core = cluster.dispatcher
    assert not core.asked
    by_id = {worker.id: worker for worker in cluster.workers.values()}
    assert set(by_id) == set(core.workers)
    assert {s.id for s in cluster.clients.values() if s.ended is None} == set(core.clients)
    for known in core.workers.values():
        assert not known.given
        assert not known.parked
        assert known.ahead == 0
        assert set(by_id[known.id].spaces) == known.admitted
    for client in core.clients.values():
        _settled_client(client, core.workers)
    for known in core.workers.values():
        for owner, space in by_id[known.id].spaces.items():
            client = core.clients[owner]
            here = {id for id, where in client.tensors.items() if where is known.layout}
            assert here == set(space.store)
            assert space.failures == sum(isinstance(v, Failure) for v in space.store.values())
            assert not space.waiting
            assert space.outgoing is None
            assert set(space.transfers) <= {t for t, where in client.transfers.items() if where is known.layout}
            assert set(space.codes) == {code for code in client.told[known.id] if code in client.codes}


def _settled_client(client: Client, workers: dict[int, Worker]) -> None:
    if workers:
        assert not client.queue
        assert client.received == client.done
    assert not client.reads
    assert not client.parts
