"""Requests of clients: statistics (Ask), traces (Trace), the layout of a tensor (Locate), events (Listen) and what is
in a snapshot (FindKept). And the question what the client waits for (ExplainWait), which is answered at once.

A request is handled after everything the client submitted before it. Statistics are requested from all workers; the
answer is sent when the last worker has reported.
"""

from __future__ import annotations

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.explain import locate
from gt.dispatcher.listeners import Listeners
from gt.dispatcher.recovery.kept_snapshots import KeptSnapshots
from gt.dispatcher.segments import Segment
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.tenants.waits import MAX_ANSWERS, BusyTimes, explain_wait
from gt.dispatcher.violations import Violation
from gt.wire.event_messages import ExplainWait, Listen, WaitExplained
from gt.wire.messages import Answer, Ask, Blocks, Locate, NoValue, Query, Report, Trace
from gt.wire.recovery_messages import FindKept
from gt.wire.structures import WorkerStats
from gt.wire.words import TRACE

#: The most requests of each kind that a client may have open.
MAX_OPEN_REQUESTS = 100


class Requests:
    """The open requests of all clients. ``len()`` counts the requests for statistics that wait for workers."""

    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        listeners: Listeners,
        kept: KeptSnapshots,
        no_workers: str,
    ) -> None:
        self._kept = kept
        self._clients, self._workers, self._delivery, self._listeners = clients, workers, delivery, listeners
        #: the error text for a client when no worker is connected
        self._no_workers = no_workers
        self._busy_times = BusyTimes(workers)
        #: client -> how often it was told what it waits for, in this second
        self._explained: dict[int, int] = {}
        #: (client, request) -> the reports so far, and the workers that have not reported yet
        self._open: dict[tuple[int, int], tuple[list[WorkerStats], set[int]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, client: Client, m: Ask | Locate | Trace | Listen | FindKept, rest: object) -> None:
        """Handle the request as soon as the client's queue is empty."""
        if len(client.waiting_requests) >= MAX_OPEN_REQUESTS:
            raise _too_many()
        client.waiting_requests.append(m)
        self.handle_waiting(client)

    def explain_wait(self, client: Client, m: ExplainWait, rest: object) -> None:
        """Tell the client what it waits for, but not too often."""
        answers = self._explained.get(client.id, 0)
        if answers < MAX_ANSWERS:
            self._explained[client.id] = answers + 1
            text = explain_wait(client, self._workers, self._busy_times, self._no_workers)
            self._delivery.send(client, WaitExplained(text))

    def tick(self, now: float) -> None:
        self._explained.clear()
        self._busy_times.tick(now)

    def handle_waiting(self, client: Client) -> None:
        """Handle the client's requests if its queue is empty, or if there is no worker to empty it."""
        if client.queue and self._workers:
            return
        requests, client.waiting_requests = client.waiting_requests, []
        for request in requests:
            if isinstance(request, Locate):
                self._delivery.send(client, locate(client, request))
            elif isinstance(request, Trace):
                self._trace(client, request)
            elif isinstance(request, Listen):
                self._listeners.listen(client, request)
            elif isinstance(request, FindKept):
                self._kept.find(client, request)
            else:
                self._query(client, request)
        self._answer()

    def _query(self, client: Client, m: Ask) -> None:
        if sum(owner == client.id for owner, _ in self._open) >= MAX_OPEN_REQUESTS:
            raise _too_many()
        self._open[client.id, m.request] = [], set(self._workers)
        for worker in self._workers.values():
            self._delivery.send(worker, Query(client.id, m.request))

    def _trace(self, client: Client, m: Trace) -> None:
        """Trace the workers that the client uses. A trace that begins also includes workers without clients, because
        the program may use them later. The request goes in order with the instructions, so each worker answers when
        it has run those before it."""
        client.traces = [request for request in client.traces if request in client.reads]
        if len(client.traces) >= MAX_OPEN_REQUESTS:
            raise _too_many()
        if self._delivery.home(client) is None:
            self._delivery.send(client, NoValue(m.request, "NoWorkers", self._no_workers))
            return
        ids = [w.id for w in self._workers.values() if client.id in w.admitted or (m.begin and not w.admitted)]
        client.traces.append(m.request)
        client.reads[m.request] = set(ids)
        self._delivery.send(client, Blocks(m.request, (), 1, [], ids))
        for id in ids:
            self._delivery.execute(client, Segment((id,), [TRACE, m.request, int(m.begin)]), 0, [])

    def report(self, worker: WorkerState, m: Report) -> None:
        """A worker's statistics for an open request."""
        if (entry := self._open.get((m.client, m.request))) is not None and worker.id in entry[1]:
            entry[1].discard(worker.id)
            entry[0].append(m.stats)
        self._answer()

    def worker_gone(self, worker: int) -> None:
        for _, missing in self._open.values():
            missing.discard(worker)
        self._answer()

    def client_gone(self, client: int) -> None:
        for key in [k for k in self._open if k[0] == client]:
            del self._open[key]

    def _answer(self) -> None:
        """Answer the requests for which all workers have reported."""
        for key in [k for k, (_, missing) in self._open.items() if not missing]:
            stats, _ = self._open.pop(key)
            client, request = key
            self._delivery.send(self._clients[client], Answer(request, sorted(stats, key=lambda s: s.worker)))


def _too_many() -> Violation:
    return Violation(f"more than {MAX_OPEN_REQUESTS} open requests")
