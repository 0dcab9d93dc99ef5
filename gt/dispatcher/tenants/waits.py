"""What a client waits for, in a line that its user can read. A client asks when a wait takes long.

Other clients appear with their number only: a user may see shares of time, and nothing else of others.
"""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.state import Client, WorkerState
from gt.wire.words import MAX_UNACKNOWLEDGED_BYTES, MAX_UNTAKEN_BYTES

#: How many workers a line names.
MAX_NAMED = 3
#: How many questions of one client are answered in a second.
MAX_ANSWERS = 8


class BusyTimes:
    """Since when each worker has work and has confirmed none, on the shell's clock, in seconds."""

    def __init__(self, workers: dict[int, WorkerState]) -> None:
        self._workers, self._now = workers, 0.0
        #: worker -> (the number of its confirmations, since when it is that)
        self._since: dict[int, tuple[int, float]] = {}

    def tick(self, now: float) -> None:
        self._now, before = now, self._since
        self._since = {}
        for worker in self._workers.values():
            confirmations, since = before.get(worker.id, (-1, now))
            same = worker.unconfirmed and confirmations == worker.confirmations
            self._since[worker.id] = worker.confirmations, since if same else now

    def seconds(self, worker: WorkerState) -> float:
        confirmations, since = self._since.get(worker.id, (-1, self._now))
        return self._now - since if confirmations == worker.confirmations else 0.0


def explain_wait(client: Client, workers: dict[int, WorkerState], busy: BusyTimes, no_workers: str) -> str:
    """The cause of a wait: that of the first part that holds the client's work back."""
    if len(workers) < client.min_workers:
        if client.min_workers == 1:
            return no_workers
        return f"{len(workers)} of {client.min_workers} workers are connected; the program waits for another one"
    if client.log is not None and client.log.held:
        return "a worker reports that another one does not answer it; the server has not lost a worker so far"
    if client.queue and client.untaken >= MAX_UNTAKEN_BYTES:
        return "the program has requested values that it does not take"
    causes = [cause for worker in workers.values() for cause in _causes(client, worker, busy)]
    if causes:
        more = f"; and {len(causes) - MAX_NAMED} more" if len(causes) > MAX_NAMED else ""
        return "; ".join(causes[:MAX_NAMED]) + more
    if client.queue or client.waiting_requests:
        return "its turn at the workers"
    return "nothing at the server: all that it has received from the program is done"


def _causes(client: Client, worker: WorkerState, busy: BusyTimes) -> Iterator[str]:
    """Why this worker lets the client wait; nothing if it does not."""
    name = f"worker {worker.id} ({worker.info.device}, pid {worker.info.pid})"
    owners = [owner for owner, *_ in worker.unconfirmed]
    if client.id in worker.dropping:
        yield f"{name} ends what it ran before the program began again"
    elif client.chunk_bytes >= MAX_UNACKNOWLEDGED_BYTES and client.home == worker.id:
        yield f"{name} has not taken what was uploaded"
    elif owners and (client.id in owners or (client.queue and client.id in worker.admitted)):
        seconds = busy.seconds(worker)
        doing = f", and has confirmed nothing for {seconds:.0f} s" if seconds >= 1 else ""
        if owners[0] == client.id:
            yield f"{name} computes for this program{doing}"
        else:
            yield f"{name} computes for client {owners[0]}{doing}"
    elif any(worker.id in waiting_for for waiting_for in client.reads.values()):
        yield f"a value from {name}"
