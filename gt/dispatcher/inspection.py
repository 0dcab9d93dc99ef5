"""What an operator may ask about a running system beside its events: repeated fragments, large tensors, what happened.

`Inspect` is answered by `Inspection`. How the workers run the fragments of a client is requested from them; the answer
is sent when the last of them has reported. Such a request has a negative number, which tells its `Report` from one that
a client asked for. A viewer that is not the operator gets an empty answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import nlargest
from itertools import islice

from gt.dispatcher.actions import SendMessage
from gt.dispatcher.delivery import Delivery
from gt.dispatcher.explain import locate
from gt.dispatcher.plan.layouts import Lost
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.event_messages import Inspect, Inspection
from gt.wire.messages import Locate, Query, Report
from gt.wire.structures import HotSection, LargeTensor

#: How many lines of the log are kept, and the longest line.
MAX_LOG_LINES, MAX_LOG_CHARACTERS = 500, 400
#: The most tensors and sections in an answer, and how many clients' fragments it has.
MAX_TENSORS, MAX_SECTIONS, MAX_CLIENTS = 24, 200, 8
#: The most tensors of a client that are compared: a search must not delay the messages of others.
MAX_SEARCHED = 20_000
#: The most requests of a viewer that wait for workers.
MAX_OPEN = 4


class Inspections:
    """The open requests of viewers, and the log. ``len()`` counts the requests that wait for workers."""

    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        wall: Callable[[], int],
    ) -> None:
        self._clients, self._workers, self._delivery, self._wall = clients, workers, delivery, wall
        #: (nanoseconds since 1970, text) of what happened last
        self._log: deque[tuple[int, str]] = deque(maxlen=MAX_LOG_LINES)
        self._last_number = 0
        #: number -> (viewer, its request, the sections so far, the (worker, client) that have not reported)
        self._open: dict[int, tuple[Peer, int, list[HotSection], set[tuple[int, int]]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def log(self, text: str) -> None:
        """Add a line to the log."""
        self._log.append((self._wall(), text[:MAX_LOG_CHARACTERS]))

    def inspect(self, viewer: ViewerState, m: Inspect, rest: object) -> None:
        if not viewer.operator:
            self._delivery.actions.append(SendMessage(viewer.peer, Inspection(m.request, [], [], [])))
            return
        if sum(peer == viewer.peer for peer, *_ in self._open.values()) >= MAX_OPEN:
            raise Violation(f"more than {MAX_OPEN} open requests")
        clients = nlargest(MAX_CLIENTS, self._clients.values(), key=lambda client: client.share.used)
        asked = [(worker, client.id) for worker in self._workers.values() for client in clients]
        self._last_number = number = self._last_number + 1
        self._open[number] = viewer.peer, m.request, [], {(worker.id, client) for worker, client in asked}
        for worker, client in asked:
            self._delivery.send(worker, Query(client, -number))
        self._answer()

    def report(self, worker: WorkerState, m: Report) -> None:
        """A worker reports how it runs a client's fragments."""
        entry = self._open.get(-m.request)
        if entry is None or (worker.id, m.client) not in entry[3]:
            return
        entry[3].discard((worker.id, m.client))
        for title, s in islice(m.stats.compilation_stats.items(), MAX_SECTIONS):
            seconds = s["compile_seconds"], s["saved_seconds"]
            entry[2].append(
                HotSection(worker.id, m.client, title, s["length"], s["runs"], s["level"], *seconds, s["reasons"])
            )
        self._answer()

    def gone(self, peer: Peer) -> None:
        """A peer disconnected."""
        for number in [n for n, (viewer, *_) in self._open.items() if viewer == peer]:
            del self._open[number]

    def worker_gone(self, worker: int) -> None:
        for *_, missing in self._open.values():
            missing -= {key for key in missing if key[0] == worker}
        self._answer()

    def _answer(self) -> None:
        """Answer the requests for which all workers have reported."""
        for number in [n for n, (*_, missing) in self._open.items() if not missing]:
            peer, request, sections, _ = self._open.pop(number)
            sections = nlargest(MAX_SECTIONS, sections, key=lambda s: s.length * s.runs)
            answer = Inspection(request, sections, self._largest(), list(self._log))
            self._delivery.actions.append(SendMessage(peer, answer))

    def _largest(self) -> list[LargeTensor]:
        """The largest tensors of all clients, with their layouts and the reasons for them."""
        tensors = [
            (state.type.nbytes, client.id, id)
            for client in self._clients.values()
            for id, state in islice(client.tensors.items(), MAX_SEARCHED)
            if not isinstance(state, Lost)
        ]
        return [self._describe(*entry) for entry in nlargest(MAX_TENSORS, tensors)]

    def _describe(self, nbytes: int, client: int, id: int) -> LargeTensor:
        owner = self._clients[client]
        state = owner.tensors[id]
        assert not isinstance(state, Lost)
        shape = state.type.shape
        where = locate(owner, Locate(0, id, shape))
        return LargeTensor(client, str(state.type), shape, nbytes, str(state.home), where.blocks, where.history)
