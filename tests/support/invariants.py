"""The invariants of a cluster after every message, and those that hold when nothing is pending."""

from __future__ import annotations

from collections import Counter

from gt.dispatcher.plan.layouts import Layout, Lost, Place
from gt.dispatcher.state import Client, Worker
from gt.testing import Cluster
from gt.wire.messages import FIRST_LOCAL, WINDOW, Submit
from gt.worker.space import ODD


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
    for client, weight, cost, _ in worker.given:
        given[client] += cost
        assert weight >= 0
        assert cost >= 0
    assert abs(worker.ahead - sum(given.values())) < 1e-3
    for client, parked in worker.parked.items():
        assert abs(parked - given[client]) < 1e-3
        assert client in worker.admitted


def _client(client: Client, workers: dict[int, Worker]) -> None:
    waiting = sum(submit.weight for submit, _ in client.queue if isinstance(submit, Submit))
    given = sum(weight for w in workers.values() for owner, weight, _, _ in w.given if owner == client.id)
    unasked = sum(crew.weight for crew in client.crews.values())
    assert client.unasked == unasked <= WINDOW // 8
    assert client.received - client.done == waiting + given + unasked
    assert 0 <= client.told_done <= client.done <= client.received
    assert client.home is None or client.id in workers[client.home].admitted
    assert set(client.told) == {w.id for w in workers.values() if client.id in w.admitted}
    assert set().union(*client.reads.values()) <= set(workers)
    for id, where in client.tensors.items():
        assert isinstance(where, Lost) or set(workers) >= {w for layout in layouts(where) for w in layout.workers}
        copies = client.copies.get(id, {})
        assert tuple(copies) == (where.copies if isinstance(where, Place) else ())
    assert set(client.copies) <= set(client.tensors)
    assert set(client.made) <= set(client.tensors)
    assert client.loose <= set(client.tensors)
    for transfer in client.transfers.values():
        assert not isinstance(transfer, Layout) or transfer is workers[transfer.worker].layout
    assert client.parts_ahead == sum(in_frames for _, _, in_frames in client.parts)


def layouts(where: Place | Lost) -> tuple[Layout, ...]:
    return () if isinstance(where, Lost) else where.layouts


def held_by(client: Client, worker: int) -> set[int]:
    """The tensors of which the worker should have a block, a copy or a term."""
    found = {id for id, where in client.tensors.items() if any(worker in x.workers for x in layouts(where)[:1])}
    copies = [(copy, layout) for of in client.copies.values() for layout, copy in of.items()]
    return found | {copy for copy, layout in copies if worker in layout.workers}


def settled(cluster: Cluster) -> None:
    """Everything was delivered, and every client takes its messages."""
    always(cluster)
    core = cluster.dispatcher
    assert not core.asked
    by_id = {worker.id: worker for worker in cluster.workers.values()}
    assert set(by_id) == set(core.workers)
    assert {s.id for s in cluster.clients.values() if s.connection.ended is None} == set(core.clients)
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
            assert set(space.store) == held_by(client, known.id)
            assert space.odd == sum(type(v) in ODD for v in space.store.values())
            assert space.awaited is None
            assert not space.waiting
            assert space.outgoing is None
            assert set(space.transfers) <= {t for t, where in client.transfers.items() if where is known.layout}
            told = {code for code in space.codes if code < FIRST_LOCAL}
            groups = set(space.groups) - set(by_id[known.id].mover._lost)
            assert groups == {n for members, n in client.book.groups.items() if known.id in members}
            assert not space.farewells
            assert told == {code for code in client.told[known.id] if code in client.codes}


def _settled_client(client: Client, workers: dict[int, Worker]) -> None:
    if workers:
        assert not client.queue
        assert client.received == client.done + client.unasked
    assert not client.reads
    assert not client.parts
