"""Invariants of a cluster: those that hold after every message, and those that hold once nothing is in transfer."""

from __future__ import annotations

from collections import Counter

from gt.dispatcher.plan.layouts import AnyState, Layout, Lost, TensorState
from gt.dispatcher.state import Client, WorkerState
from gt.testing import Cluster
from gt.wire.words import FIRST_DISPATCHER_CODE, WINDOW_WORDS
from gt.worker.space import PLACEHOLDERS


def always(cluster: Cluster) -> None:
    core = cluster.dispatcher
    assert {id(p) for p in core.by_peer.values()} == {id(p) for p in (*core.clients.values(), *core.workers.values())}
    for worker in core.workers.values():
        _worker(worker)
    for client in core.clients.values():
        _client(client, core.workers)
    assert all(client in core.clients for client, _ in core.requests._open)
    assert all(missing <= set(core.workers) for _, missing in core.requests._open.values())


def _worker(worker: WorkerState) -> None:
    costs = Counter[int]()
    for client, weight, cost, _ in worker.unconfirmed:
        costs[client] += cost
        assert weight >= 0
        assert cost >= 0
    assert abs(worker.ahead - sum(costs.values())) < 1e-3
    for client, parked in worker.parked.items():
        assert abs(parked - costs[client]) < 1e-3
        assert client in worker.admitted


def _client(client: Client, workers: dict[int, WorkerState]) -> None:
    waiting = sum(message.weight for message, _ in client.queue)
    unconfirmed = sum(weight for w in workers.values() for owner, weight, _, _ in w.unconfirmed if owner == client.id)
    unrequested = sum(worker_set.weight for worker_set in client.worker_sets.values())
    assert client.unrequested == unrequested <= WINDOW_WORDS // 8
    assert client.received - client.done == waiting + unconfirmed + unrequested
    assert 0 <= client.credited <= client.done <= client.received
    assert client.home is None or client.id in workers[client.home].admitted
    assert set(client.announced) == {w.id for w in workers.values() if client.id in w.admitted}
    assert set().union(*client.reads.values()) <= set(workers)
    for id, where in client.tensors.items():
        assert isinstance(where, Lost) or set(workers) >= {w for layout in layouts(where) for w in layout.workers}
        copies = client.copies.get(id, {})
        assert tuple(copies) == (where.copies if isinstance(where, TensorState) else ())
    assert set(client.copies) <= set(client.tensors)
    assert set(client.origins) <= set(client.tensors)
    assert client.uncached <= set(client.tensors)
    for transfer in client.transfers.values():
        assert not isinstance(transfer, Layout) or transfer is workers[transfer.worker].layout
    assert client.chunk_bytes == sum(in_frames for _, _, in_frames in client.chunks)


def layouts(where: AnyState) -> tuple[Layout, ...]:
    return () if isinstance(where, Lost) else where.layouts


def held_by(client: Client, worker: int) -> set[int]:
    """The tensors of which the worker should have a block, a copy or a partial term."""
    tensors = {id for id, where in client.tensors.items() if any(worker in x.workers for x in layouts(where)[:1])}
    copies = [(copy, layout) for of in client.copies.values() for layout, copy in of.items()]
    return tensors | {copy for copy, layout in copies if worker in layout.workers}


def settled(cluster: Cluster) -> None:
    """Everything was delivered, and every client has taken what it was sent."""
    always(cluster)
    core = cluster.dispatcher
    assert not core.requests
    by_id = {worker.id: worker for worker in cluster.workers.values()}
    assert set(by_id) == set(core.workers)
    assert {s.id for s in cluster.clients.values() if s.connection.ended is None} == set(core.clients)
    for worker in core.workers.values():
        assert not worker.unconfirmed
        assert not worker.parked
        assert worker.ahead == 0
        assert set(by_id[worker.id].spaces) == worker.admitted
    for client in core.clients.values():
        _settled_client(client, core.workers)
    for worker in core.workers.values():
        for owner, space in by_id[worker.id].spaces.items():
            client = core.clients[owner]
            assert set(space.store) == held_by(client, worker.id)
            assert space.placeholders == sum(type(v) in PLACEHOLDERS for v in space.store.values())
            assert space.awaited is None
            assert not space.waiting
            assert space.outgoing is None
            assert set(space.transfers) <= {t for t, where in client.transfers.items() if where is worker.layout}
            codes = {code for code in space.codes if code < FIRST_DISPATCHER_CODE}
            groups = set(space.groups) - set(by_id[worker.id].mover._lost)
            assert groups == {n for members, n in client.ledger.groups.items() if worker.id in members}
            assert not space.leave_barriers
            assert codes == {code for code in client.announced[worker.id] if code in client.codes}


def _settled_client(client: Client, workers: dict[int, WorkerState]) -> None:
    if workers:
        assert not client.queue
        assert client.received == client.done + client.unrequested
    assert not client.reads
    assert not client.chunks
