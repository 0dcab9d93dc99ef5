"""What a client is told when it has no worker any more, or not yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.dispatcher.forward import NONSENSE, request_of
from gt.dispatcher.plan.layouts import Layout, Lost, Place
from gt.dispatcher.state import Client, Violation, Worker
from gt.wire.messages import FETCH, FORGET, RESET, RUN, ChunkTaken, Configure, Message, NoValue

NO_WORKERS = "no worker is connected; start one with: python -m gt.worker --host {host} -p {port}"
#: the same for a system that a client started for itself
NO_WORKERS_LEFT = "the local system has no worker any more; gt.gpu_workers(1) starts a new one"


def lose(client: Client, worker: Worker) -> tuple[list[Message], dict[int, list[int]]]:
    """All this client had on the worker, or on it and others, is lost; it starts anew elsewhere.

    Gives what the client is told, and what the other workers hold that is of no use any more.
    """
    info = worker.info
    why = f": {worker.last_words}" if worker.last_words else ""
    lost = Lost(f"worker {worker.id} ({info.device}, pid {info.pid}) is gone, and what it held with it{why}")
    orphans = _lose_tensors(client, worker, lost)
    told: list[Message] = []
    for request in [r for r, workers in client.reads.items() if worker.id in workers]:
        del client.reads[request]
        told.append(NoValue(request, "WorkerLost", lost.text))
    for transfer, where in client.transfers.items():
        if where is worker.layout:
            client.transfers[transfer] = lost
    if client.home == worker.id:
        # the parts it had not confirmed count as taken, so that the client does not wait for room for ever
        told += [ChunkTaken(transfer, nbytes) for transfer, nbytes, _ in client.parts]
        client.parts.clear()
        client.parts_ahead = 0
        client.home = None
    client.told.pop(worker.id, None)
    for workers in [known for known in client.crews if worker.id in known]:
        # nobody will be asked for it any more
        weight = client.crews.pop(workers).weight
        client.unasked -= weight
        client.done += weight
    return told, orphans


def _lose_tensors(client: Client, worker: Worker, lost: Lost) -> dict[int, list[int]]:
    """worker -> what it still holds of tensors that are lost, and of copies."""
    orphans: dict[int, list[int]] = {}

    def leave(layout: Layout, id: int) -> None:
        for other in layout.workers:
            if other != worker.id:
                orphans.setdefault(other, []).append(id)

    for id, where in client.tensors.items():
        if isinstance(where, Lost):
            continue
        home = where.home
        copies = client.copies.get(id, {})
        gone = home if worker.id in home.mesh.places else None
        for layout in [c for c in copies if gone is not None or worker.id in c.mesh.places]:
            leave(layout, copies.pop(layout))
        if gone is not None:
            leave(gone, id)
            client.tensors[id] = lost
            client.made.pop(id, None)
            client.loose.discard(id)
        elif where.copies:
            client.tensors[id] = Place(where.type, home, tuple(copies))
        if not copies:
            client.copies.pop(id, None)
    return orphans


def strand(client: Client, text: str) -> Iterator[Message]:
    """Its reads have waited long enough for a first worker."""
    for request, id in fetches(client):
        if request not in client.given_up:
            client.given_up.add(request)
            lost = client.tensors.get(id)
            if isinstance(lost, Lost):
                yield NoValue(request, "WorkerLost", f"{lost.text}; {text}")
            else:
                yield NoValue(request, "NoWorkers", text)


def fetches(client: Client) -> list[tuple[int, Any]]:
    """The requests that wait in the queue, and of what. Raises Violation if it holds what is no stream."""
    found: list[tuple[int, Any]] = []
    try:
        for submit, position in client.queue:
            if isinstance(submit, Configure):
                continue
            _find_fetches(client, submit.stream, position, found)
    except NONSENSE as error:
        raise Violation(f"a stream that names what is not there: {type(error).__name__} {error}") from None
    return found


def _find_fetches(client: Client, stream: list[Any], i: int, found: list[tuple[int, Any]]) -> None:
    while i < len(stream):
        code = stream[i]
        if code == FETCH:
            found.append((request_of(stream[i + 1]), stream[i + 2]))
            i += 3
        elif code in (RESET, FORGET):
            i += 2
        elif code == RUN:
            i += client.fragments[stream[i + 1]].form.width
        else:
            i += 1 if code < 0 else client.codes[code].width
