"""What a client is told when it has no worker any more, or not yet."""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.forward import fetches
from gt.dispatcher.state import Client, Lost, Worker
from gt.wire.messages import Message, NoValue, PartTaken

NO_WORKERS = "no worker is connected; start one with: python -m gt.worker --host {host} -p {port}"


def lose(client: Client, worker: Worker) -> Iterator[Message]:
    """All this client had on the worker is lost; reads of it say so, and it starts anew elsewhere."""
    info = worker.info
    why = f": {worker.last_words}" if worker.last_words else ""
    lost = Lost(f"worker {worker.id} ({info.device}, pid {info.pid}) is gone, and what it held with it{why}")
    for id, where in client.tensors.items():
        if where is worker.layout:
            client.tensors[id] = lost
    for request in [r for r, w in client.reads.items() if w == worker.id]:
        del client.reads[request]
        yield NoValue(request, "WorkerLost", lost.text)
    for transfer, where in client.transfers.items():
        if where is worker.layout:
            client.transfers[transfer] = lost
    # the parts it had not confirmed count as taken, so that the client does not wait for room for ever
    for transfer, nbytes, _ in client.parts:
        yield PartTaken(transfer, nbytes)
    client.parts.clear()
    client.parts_ahead = 0
    client.plans.clear()
    client.told.pop(worker.id, None)
    if client.home == worker.id:
        client.home = None


def strand(client: Client, text: str) -> Iterator[Message]:
    """Its reads have waited long enough for a first worker."""
    for request in fetches(client):
        if request not in client.given_up:
            client.given_up.add(request)
            yield NoValue(request, "NoWorkers", text)
