"""Scheduling: which client's queue is forwarded next, and how much of it.

A worker gets a few milliseconds of work ahead and no more. The next turn goes to the client that has used the least
worker time, as measured by the workers. A client that submits more work, or larger work, waits in its own queue. When
its credit is used up, it stops submitting.
"""

from __future__ import annotations

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.forward import forward
from gt.dispatcher.instruction_plans import WorkerView
from gt.dispatcher.listeners import Listeners
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.requests import Requests
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.messages import Configure, Credit, Done, NoValue, Submit
from gt.wire.words import WINDOW_WORDS

#: Estimated microseconds of work that a worker gets ahead.
MAX_AHEAD_US = 6000.0
#: Estimated microseconds that one client gets before the next client has its turn.
TURN_US = 2000.0


class Scheduler:
    """Forwards the clients' queues turn by turn, and keeps account of the time and the credit of each client."""

    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        requests: Requests,
        listeners: Listeners,
    ) -> None:
        self._clients, self._workers = clients, workers
        self._delivery, self._requests, self._listeners = delivery, requests, listeners

    def submit(self, client: Client, m: Submit) -> None:
        """Queue a submission."""
        if not client.queue and client.home is not None:
            # a client that returns from a pause gets no advantage over those that kept working
            client.used = max(client.used, self._workers[client.home].clock)
        client.enqueue(m)

    def run(self) -> tuple[Client, str] | None:
        """Give the workers as much as they have room for, the least served client first.

        Stops at a client that broke the protocol, and returns it with the reason. Call it again without that client.
        """
        workers, home = self._workers, self._delivery.home
        while True:
            client = None
            for other in self._clients.values():
                if (
                    other.queue
                    and (other.home is not None or home(other) is not None)
                    and other.has_room(workers, MAX_AHEAD_US)
                    and (client is None or other.used < client.used)
                ):
                    client = other
            if client is None:
                return None
            try:
                self._turn(client)
            except Violation as violation:
                return client, str(violation)

    def _turn(self, client: Client) -> None:
        """Forward about one turn's worth of the client's queue."""
        assert client.home is not None
        home = self._workers[client.home]
        home.clock = max(home.clock, client.used)
        message, position = head = client.queue[0]
        if isinstance(message, Configure):
            client.queue.popleft()
            client.config = Signals(message.signals, message.auto)
            client.forget_plans()
            return
        first_action = len(self._delivery.actions)
        view = WorkerView(home.layout, list(self._workers))
        output = forward(client, view, message.stream, position, TURN_US / client.pace)
        head[1] = output.stop
        weight = 0
        if output.stop >= len(message.stream):
            client.queue.popleft()
            weight = message.weight
        for request, text in output.unreadable:
            self._delivery.send(client, NoValue(request, "WorkerLost", text))
        self._delivery.send_each(client, output.messages_to_client)
        self._delivery.deliver(client, output, weight)
        if self._listeners.listeners:
            self._listeners.turn(client, message, first_action)
        if client.waiting_requests:
            self._requests.handle_waiting(client)

    def confirm(self, worker: WorkerState, m: Done) -> None:
        """A worker has done work: correct the client's account by the measured time, and give it credit."""
        confirmed = worker.confirm(m.client)
        if confirmed is None:
            raise Violation("a worker confirmed work that it did not get")
        weight, cost, sharing = confirmed
        client = self._clients.get(m.client)
        if client is None:
            return
        if cost > 0:
            # one odd measurement must not change the pace much; nor must the same one from each of many workers
            ratio = (m.microseconds + 1) / (cost + 1)
            pace = client.pace * (2.0 if ratio > 2.0 else ratio if ratio > 0.5 else 0.5) ** (0.25 / sharing)
            client.pace = 100.0 if pace > 100.0 else pace if pace > 0.001 else 0.001
        client.used += (m.microseconds - cost) / sharing
        if weight:
            client.done += weight
            self.send_credit(client, at_least=WINDOW_WORDS // 8)

    def send_credit(self, client: Client, at_least: int) -> None:
        """Report to the client how much of its work is done, if that grew by ``at_least`` this much since the last."""
        if client.done - client.credited >= at_least:
            client.credited = client.done
            self._delivery.send(client, Credit(client.done))
