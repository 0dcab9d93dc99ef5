"""Scheduling: which client's queue is forwarded next, and how much of it.

A worker gets a few milliseconds of work ahead and no more. The next turn goes to the client that has used the least
worker time, as measured by the workers. A client that submits more work, or larger work, waits in its own queue. When
its credit is used up, it stops submitting. The clients of one user count as one, and take turns; the time of a user
with a greater weight counts less.

A client whose work is all done, for example an interactive one, does not wait for the work that others have ahead: its
next turn is forwarded at once, and if that is short, the worker runs it first. A client may do so as long as it has
used no more time than the others, so it takes nothing from them. Only clients on one worker may: they have no moves,
and the order of moves must be the same on all workers.
"""

from __future__ import annotations

from msgspec.structs import replace

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.forward import forward
from gt.dispatcher.instruction_plans import WorkerView
from gt.dispatcher.listeners import Listeners
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.plan.topology import Topology
from gt.dispatcher.rebalancing import rebalance
from gt.dispatcher.recovery.kept_snapshots import KeptSnapshots
from gt.dispatcher.recovery.program_log import QueuedChunk
from gt.dispatcher.recovery.snapshots import ProgramSnapshot, RestoreMark, SnapshotKeeper
from gt.dispatcher.relay import Relay
from gt.dispatcher.requests import Requests
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.messages import Configure, Credit, Done, NoValue, Submit
from gt.wire.words import MAX_UNTAKEN_BYTES, WINDOW_WORDS

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
        relay: Relay,
        snapshots: SnapshotKeeper,
        kept: KeptSnapshots,
        topology: Topology,
    ) -> None:
        self._clients, self._workers, self._relay = clients, workers, relay
        self._snapshots, self._kept, self._topology = snapshots, kept, topology
        self._delivery, self._requests, self._listeners = delivery, requests, listeners

    def resume(self, client: Client) -> None:
        """The client submits: if it returns from a pause, it gets no advantage over those that kept working.

        Its next turn is urgent if all its work is done, or is urgent too, and if it is ahead of nobody who waits.
        """
        share = client.share
        if client.queue or client.home is None:
            return
        home = self._workers[client.home]
        if client.done >= client.received:
            client.only_urgent = True
        client.urgent = client.only_urgent and len(client.announced) == 1 and self._may_overtake(client, home)
        if not share.common or not any(other.queue for other in self._clients.values() if other.share is share):
            share.used = max(share.used, home.clock)

    def _may_overtake(self, client: Client, home: WorkerState) -> bool:
        """Whether others have work at its home, and it has used at most one turn more than each of these."""
        if len(home.admitted) == 1:
            return False
        others = [
            other.share.used
            for other in self._clients.values()
            if other.home == home.id and other.done < other.received and other is not client
        ]
        return client.share.used <= min(others, default=home.clock) + TURN_US * client.share.rate

    def run(self) -> tuple[Client, str] | None:
        """Give the workers as much as they have room for, the least served client first.

        Stops at a client that broke the protocol, and returns it with the reason. Call it again without that client.
        """
        workers, home = self._workers, self._delivery.home
        while True:
            client = None
            for other in self._clients.values():
                if (
                    not other.queue
                    or (other.home is None and home(other) is None)
                    or other.untaken >= MAX_UNTAKEN_BYTES
                ):
                    continue
                if other.urgent:
                    client = other
                    break
                if other.has_room(workers, MAX_AHEAD_US) and (client is None or other.share.used < client.share.used):
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
        urgent, client.urgent = client.urgent, False
        home.clock = max(home.clock, client.share.used)
        if client.share.common:  # the last in turn among the clients of its user
            self._clients[client.id] = self._clients.pop(client.id)
        message, position = head = client.queue[0]
        if not isinstance(message, Submit):
            client.queue.popleft()
            if isinstance(message, Configure):
                self._configure(client, message)
            elif isinstance(message, QueuedChunk):
                self._relay.forward_chunk(client, home, message)
            elif isinstance(message, ProgramSnapshot):
                self._snapshots.take(client, message)
            elif isinstance(message, RestoreMark):
                self._snapshots.restore(client, message.snapshot)
            else:
                self._kept.turn(client, message)
            if client.waiting_requests:
                self._requests.handle_waiting(client)
            return
        first_action = len(self._delivery.actions)
        view = WorkerView(home.layout, self._topology.ordered())
        output = forward(client, view, message.stream, position, TURN_US / client.pace)
        head[1] = output.stop
        weight = 0
        if output.stop >= len(message.stream):
            client.queue.popleft()
            weight = message.weight
        for request, text in output.unreadable:
            self._delivery.send(client, NoValue(request, "WorkerLost", text))
        self._delivery.send_each(client, output.messages_to_client)
        self._delivery.deliver(client, output, weight, urgent)
        if self._listeners.listeners:
            self._listeners.turn(client, message, first_action)
        if client.waiting_requests:
            self._requests.handle_waiting(client)

    def _configure(self, client: Client, m: Configure) -> None:
        if client.log is not None:
            client.log.configuration = replace(m, rebalanced=None)
        before, workers = client.config, list(self._workers)
        substitutes, kept_parts = (None, None) if client.log is None else (client.substitutes, client.kept_parts)
        client.config = Signals(m.signals, m.auto, substitutes, self._workers, kept_parts)
        client.forget_plans()
        if m.rebalanced is not None:
            self._delivery.deliver(client, rebalance(client, before, workers, set(m.rebalanced)), 0)
        client.done += m.weight
        self.send_credit(client, at_least=WINDOW_WORDS // 8)

    def confirm(self, worker: WorkerState, m: Done) -> None:
        """A worker has done work: correct the client's account by the measured time, and give it credit."""
        confirmed = worker.confirm(m.client)
        if confirmed is None:
            raise Violation("a worker confirmed work that it did not get")
        weight, cost, sharing = confirmed
        client = self._clients.get(m.client)
        if client is None:
            return
        if sharing and len(worker.admitted) > 1 and self._others_wait(worker, m.client):
            worker.blocked_us[m.client] = worker.blocked_us.get(m.client, 0) + m.microseconds
        if cost > 0 and sharing:
            # one odd measurement must not change the pace much; nor must the same one from each of many workers
            ratio = (m.microseconds + 1) / (cost + 1)
            pace = client.pace * (2.0 if ratio > 2.0 else ratio if ratio > 0.5 else 0.5) ** (0.25 / sharing)
            client.pace = 100.0 if pace > 100.0 else pace if pace > 0.001 else 0.001
        if sharing:
            client.share.used += (m.microseconds - cost) / sharing * client.share.rate
        if weight:
            client.done += weight
            self.send_credit(client, at_least=WINDOW_WORDS // 8)

    def _others_wait(self, worker: WorkerState, client: int) -> bool:
        """Whether another client has work at this worker, or work in its queue that would go there."""
        if any(owner != client for owner, *_ in worker.unconfirmed):
            return True
        clients = self._clients
        return any(id in clients and clients[id].queue for id in worker.admitted if id != client)

    def send_credit(self, client: Client, at_least: int) -> None:
        """Report to the client how much of its work is done, if that grew by ``at_least`` this much since the last."""
        if client.done - client.credited >= at_least:
            client.credited = client.done
            self._delivery.send(client, Credit(client.done))
