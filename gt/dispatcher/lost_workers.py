"""What happens to a client's tensors and reads when a worker is lost, or when no worker is connected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost, TensorState
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS, malformed_stream, request_number
from gt.wire.messages import ChunkTaken, Message, NoValue, Submit
from gt.wire.words import FETCH, FORGET, RESET, RUN

NO_WORKERS = "no worker is connected; start one with: python -m gt.worker --host {host} -p {port}"
#: The text for a system that a client started for itself.
NO_WORKERS_LEFT = "the local system has no worker; if none is starting, gt.gpu_workers(1) starts one"

#: Seconds that a client with work waits for a first worker before its reads are answered with an error.
WORKER_WAIT_S = 2.0


def lose_worker(client: Client, worker: WorkerState) -> tuple[list[Message], dict[int, list[int]]]:
    """Mark everything the client had on this worker, also together with others, as lost.

    Returns the messages for the client, and worker -> the ids of lost tensors that it still holds and must free.
    """
    info = worker.info
    reason = f": {worker.exit_reason}" if worker.exit_reason else ""
    if client.log is not None:
        reason += f"; it is not rebuilt, because {client.log.refusal}"
    lost = Lost(f"worker {worker.id} ({info.device}, pid {info.pid}) is gone, and what it held with it{reason}")
    orphans = _lose_tensors(client, worker, lost)
    messages: list[Message] = []
    for request in [r for r, workers in client.reads.items() if worker.id in workers]:
        del client.reads[request]
        messages.append(NoValue(request, "WorkerLost", lost.text))
    for transfer, where in client.transfers.items():
        if where is worker.layout:
            client.transfers[transfer] = lost
    if client.home == worker.id:
        # the chunks it had not acknowledged count as taken; otherwise the client would wait for room for ever
        messages += [ChunkTaken(transfer, nbytes) for transfer, nbytes, _ in client.chunks if nbytes >= 0]
        client.chunks.clear()
        client.chunk_bytes = 0
        client.home = None
    client.announced.pop(worker.id, None)
    for workers in [workers for workers in client.worker_sets if worker.id in workers]:
        # no worker will confirm this work, so it counts as done
        weight = client.worker_sets.pop(workers).weight
        client.unrequested -= weight
        client.done += weight
    return messages, orphans


def _lose_tensors(client: Client, worker: WorkerState, lost: Lost) -> dict[int, list[int]]:
    """Returns for each other worker what it still holds of lost tensors and lost copies."""
    orphans: dict[int, list[int]] = {}

    def add_orphan(layout: Layout, id: int) -> None:
        for other in layout.workers:
            if other != worker.id:
                orphans.setdefault(other, []).append(id)

    for id, state in client.tensors.items():
        if isinstance(state, Lost):
            continue
        home = state.home
        copies = client.copies.get(id, {})
        is_lost = worker.id in home.mesh.coordinates
        for layout in [c for c in copies if is_lost or worker.id in c.mesh.coordinates]:
            add_orphan(layout, copies.pop(layout))
        if is_lost:
            add_orphan(home, id)
            client.tensors[id] = lost
            client.forget_origin(id)
        elif state.copies:
            client.tensors[id] = TensorState(state.type, home, tuple(copies))
        if not copies:
            client.copies.pop(id, None)
    return orphans


def has_waited_for_workers(client: Client, workers: Mapping[int, WorkerState], now: float) -> bool:
    """Whether the client has had work and no worker for too long. Call this at every tick."""
    if workers or not client.queue:
        client.stranded_since = None
    elif client.stranded_since is None:
        client.stranded_since = now
    else:
        return now - client.stranded_since >= max(WORKER_WAIT_S, client.log.wait_s if client.log else 0.0)
    return False


def answer_stranded_reads(client: Client, text: str) -> Iterator[Message]:
    """Answer the reads in the queue of a client that has waited too long for a first worker."""
    for request, id in queued_reads(client):
        if request not in client.abandoned_reads:
            client.abandoned_reads.add(request)
            state = client.tensors.get(id)
            if isinstance(state, Lost):
                yield NoValue(request, "WorkerLost", f"{state.text}; {text}")
            else:
                yield NoValue(request, "NoWorkers", text)


def queued_reads(client: Client) -> list[tuple[int, Any]]:
    """(request, tensor) of the reads in the queue. Raises Violation if the queue holds a malformed stream."""
    reads: list[tuple[int, Any]] = []
    try:
        for message, position in client.queue:
            if isinstance(message, Submit):
                find_reads(client.codes, client.fragments, message.stream, position, reads)
    except MALFORMED_STREAM_ERRORS as error:
        raise malformed_stream(error) from None
    return reads


def find_reads(
    codes: Mapping[int, Any], fragments: Mapping[int, Any], stream: list[Any], i: int, reads: list[tuple[int, Any]]
) -> None:
    """Append the reads in the stream from word ``i`` on."""
    while i < len(stream):
        code = stream[i]
        if code == FETCH:
            reads.append((request_number(stream[i + 1]), stream[i + 2]))
            i += 3
        elif code in (RESET, FORGET):
            i += 2
        elif code == RUN:
            i += fragments[stream[i + 1]].parsed.width
        else:
            i += 1 if code < 0 else codes[code].width
