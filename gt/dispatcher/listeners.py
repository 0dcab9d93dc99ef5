"""Who listens to events, and what each listener gets.

The first listener makes all workers record, the last one that goes makes them stop. Workers send what they recorded
(`Recorded`), one message for each client; it is passed on as an `EventBatch`. The rows in it are not read here.

    who listens                          of its own client        of other clients
    a client                             everything               shares of time by family of ops
    a viewer                             -                        shares
    a viewer with the operator's token   everything of all clients

Names of events and texts of source lines are kept while somebody listens, and sent to each listener once, with the
first batch that it gets after them. A listener that has not taken `MAX_UNTAKEN` batches gets no more until it has; the
next batch then tells how many it missed.

The clocks of workers on other machines are compared with each `Record` message: the worker's clock was read at some
moment between sending and receiving, so the middle of the two is wrong by at most half of the time between them. The
quickest of the last `CLOCK_READINGS` counts. Times on the server's own machine need no correction.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gt.dispatcher.actions import Action, Close, SendAll, SendMessage
from gt.dispatcher.delivery import Delivery
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.wire.event_messages import (
    DISPATCHER,
    DISPATCHING,
    BatchTaken,
    ClockReading,
    DescribeSites,
    EventBatch,
    Listen,
    Listening,
    Record,
    Recorded,
    Sites,
)
from gt.wire.messages import Execute, Submit
from gt.wire.structures import EventName, WorkerInfo

#: The most batches that are sent to a listener which has not taken them; it reports them `TAKEN_TOGETHER`.
MAX_UNTAKEN = 512
#: How many readings of a worker's clock are kept, and how many are requested at the beginning.
CLOCK_READINGS, FIRST_READINGS = 16, 5
#: How often events are sent, in nanoseconds.
BATCH_NS = 200_000_000
#: The most submissions whose time of arrival is kept.
MAX_RECEIVED = 10_000
#: The longest text of a source line that is kept, and the most lines of a client.
MAX_SITE_CHARACTERS, MAX_SITES = 300, 10_000
#: How long a listener that ends waits for the source lines of a client.
MAX_SITES_WAIT_NS = 2_000_000_000
#: (client, serial)
_Submission = tuple[int, int]
#: Words of a submission were forwarded: (index of the first action, client, serial).
_Turn = tuple[int, int, int]
#: an array keeps no objects alive, which would slow down the memory allocation of everything else
_NO_ROWS = array("q")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the server, in nanoseconds: that of events, and since 1970."""

    clock: Callable[[], int] = lambda: 0
    wall: Callable[[], int] = lambda: 0
    #: the identity of its machine; clocks of workers with the same one need no correction
    machine: str = ""


@dataclass(slots=True, eq=False)
class EventListener:
    peer: Peer
    #: the client that listens to itself; 0 for a viewer
    client: int
    #: whether it may see the instructions of all clients
    operator: bool
    detail: bool
    untaken: int = 0
    dropped: int = 0
    #: (source, client) -> how many names it has; client -> how many source lines it has
    names: dict[tuple[int, int], int] = field(default_factory=dict)
    sites: dict[int, int] = field(default_factory=dict)


class Listeners:
    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        clocks: Clocks,
    ) -> None:
        self._clients, self._workers, self._delivery = clients, workers, delivery
        self.clock, self._wall, self._machine = clocks.clock, clocks.wall, clocks.machine
        self.listeners: dict[Peer, EventListener] = {}
        #: listeners that end -> (request, when their last events were requested, who has not sent them: workers, and
        #: peers of clients that were asked for their source lines)
        self._ending: dict[Peer, tuple[int, int, set[int | Peer]]] = {}
        self._last_flush = 0
        #: worker -> when it was told to stop. What it recorded before may still be on its way: it is for nobody.
        self._stopped: dict[int, int] = {}
        #: (worker, client) -> the names of its events
        self._names: dict[tuple[int, int], list[EventName]] = {}
        #: client -> (number, text) of its source lines
        self._sites: dict[int, list[tuple[int, str]]] = {}
        #: worker -> (round trip, offset) of its last readings
        self._clocks: dict[int, deque[tuple[int, int]]] = {}
        #: client -> rows of the dispatcher's own events (`DISPATCHER_COLUMNS`) that are not sent yet
        self._rows: dict[int, array[int]] = {}
        self._flushed = 0
        #: (peer of a worker, client) -> `Execute` messages sent to it since it records
        self._executes: dict[tuple[Peer, int], int] = {}
        #: the actions among which recording began, the index of the first one that the workers count, and the turns
        #: after it
        self._first_actions: tuple[list[Action], int, list[_Turn]] | None = None
        #: peer -> worker
        self._worker_ids: dict[Peer, int] = {}
        #: the turns that the message now handled has led to
        self._turns: list[_Turn] = []
        #: when a submission was received, of which a part waits
        self._received: dict[_Submission, int] = {}

    def __bool__(self) -> bool:
        return bool(self.listeners)

    # -- who listens ---------------------------------------------------------------------

    def listen(self, who: Client | ViewerState, m: Listen) -> None:
        if m.on:
            own, operator = (who.id, False) if isinstance(who, Client) else (0, who.operator)
            first = not self.listeners
            self.listeners[who.peer] = EventListener(who.peer, own, operator, m.detail)
            if first:
                self._executes.clear()
                self._worker_ids = {worker.peer: worker.id for worker in self._workers.values()}
                self._flushed = self.clock()
                self._record(self._workers.values())
                self._turns = []
                self._first_actions = self._delivery.actions, len(self._delivery.actions), []
            self._answer(who.peer, m.request)
        elif who.peer in self.listeners and self._workers:
            # it gets what is recorded until now; the answer is sent when all workers have sent that
            sent = self._last_flush = max(self.clock(), self._last_flush + 1)
            self._ending[who.peer] = m.request, sent, set(self._workers)
            for worker in self._workers.values():
                self._delivery.send(worker, Record(True, sent, flush=True))
        else:
            self._end(who.peer, m.request)

    def _end(self, peer: Peer, request: int) -> None:
        now = self.clock()
        self.flush(now)
        for client in list(self._sites):
            self._send_all(EventBatch(DISPATCHER, client, 0, 0, 0, now, now, [], [], b"", b"", [], 0, {}, 0))
        self._remove(peer)
        self._answer(peer, request)

    def _ended(self, who: int | Peer, sent: int | None = None) -> None:
        """A worker has sent everything that it recorded until ``sent``, or a client its source lines; or it is gone."""
        for peer, (request, flush, missing) in list(self._ending.items()):
            if sent is None or sent == flush:
                missing.discard(who)
            if not missing:
                self._end(peer, request)

    def _answer(self, peer: Peer, request: int) -> None:
        listener = self.listeners.get(peer)
        workers: list[WorkerInfo] = [worker.info for worker in self._workers.values()]
        operator = listener is not None and listener.operator
        answer = Listening(request, self.clock(), self._wall(), operator, workers, list(self._clients))
        self._delivery.actions.append(SendMessage(peer, answer))

    def gone(self, peer: Peer) -> None:
        """A peer disconnected."""
        self._remove(peer)
        self._ended(peer)
        self.peers_changed()

    def _remove(self, peer: Peer) -> None:
        self._ending.pop(peer, None)
        if self.listeners.pop(peer, None) is not None and not self.listeners:
            self._last_flush = sent = max(self.clock(), self._last_flush + 1)
            self._stopped = dict.fromkeys(self._workers, sent)
            for worker in self._workers.values():
                self._delivery.send(worker, Record(False, sent))
            for table in (self._names, self._sites, self._clocks, self._rows, self._received):
                table.clear()

    def worker_joined(self, worker: WorkerState) -> None:
        if self.listeners:
            self._worker_ids[worker.peer] = worker.id
            self._record([worker])

    def worker_gone(self, worker: WorkerState) -> None:
        self._clocks.pop(worker.id, None)
        self._stopped.pop(worker.id, None)
        self._ended(worker.id)

    def client_gone(self, client: int) -> None:
        self._executes = {key: count for key, count in self._executes.items() if key[1] != client}

    def peers_changed(self) -> None:
        """Tell the viewers which workers and clients there are."""
        for listener in self.listeners.values():
            if not listener.client:
                self._answer(listener.peer, 0)

    # -- clocks --------------------------------------------------------------------------

    def tick(self) -> None:
        """Compare the clocks again. Call this about once a second."""
        if self.listeners:
            self._record(self._workers.values())
            self.peers_changed()
        for peer, (request, sent, missing) in list(self._ending.items()):
            if self.clock() - sent > MAX_SITES_WAIT_NS and all(isinstance(who, bytes) for who in missing):
                self._end(peer, request)

    def _record(self, workers: Iterable[WorkerState]) -> None:
        for worker in workers:
            self._delivery.send(worker, Record(True, self.clock()))

    def clock_reading(self, worker: WorkerState, m: ClockReading, rest: object) -> None:
        if self._stopped.get(worker.id) == m.sent:
            del self._stopped[worker.id]
        if not self.listeners or worker.id in self._stopped:
            return
        now = self.clock()
        readings = self._clocks.setdefault(worker.id, deque(maxlen=CLOCK_READINGS))
        readings.append((now - m.sent, (m.sent + now) // 2 - m.here))
        self._ended(worker.id, m.sent)
        if self.listeners and len(readings) < FIRST_READINGS and worker.info.host != self._machine:
            self._record([worker])

    def _offset(self, worker: WorkerState) -> tuple[int, int]:
        """(nanoseconds to add to the worker's times, the largest error of that)."""
        readings = self._clocks.get(worker.id)
        if worker.info.host == self._machine or not readings:
            return 0, 0
        round_trip, offset = min(readings)
        return offset, (round_trip + 1) // 2

    # -- events of workers ---------------------------------------------------------------

    def recorded(self, worker: WorkerState, m: Recorded, rest: object) -> None:
        if not self.listeners or worker.id in self._stopped:
            return
        self._names.setdefault((worker.id, m.client), []).extend(m.names)
        client = self._clients.get(m.client)
        if client is not None and m.sites and any(self._may_see(listener, m.client) for listener in self._each()):
            self._delivery.send(client, DescribeSites(m.sites))
            for _, _, missing in self._ending.values():
                missing.add(client.peer)
        offset, error = self._offset(worker)
        batch = EventBatch(
            *(worker.id, m.client, offset, error, 0, m.begun, m.ended, [], [], m.stretches, m.rows),
            *(m.shares, m.hot, m.memory, int(worker.ahead), m.dropped_events, m.longest),
            worker.blocked_us.get(m.client, 0),
        )
        self._send_all(batch)
        if (now := self.clock()) - self._flushed >= BATCH_NS // 2:
            self.flush(now)

    def sites(self, client: Client, m: Sites, rest: object) -> None:
        """A client describes its source lines."""
        known = self._sites.setdefault(client.id, [])
        if self.listeners and len(known) + len(m.texts) <= MAX_SITES:
            known += [(number, text[:MAX_SITE_CHARACTERS]) for number, text in m.texts]
        self._ended(client.peer)

    def _each(self) -> list[EventListener]:
        return list(self.listeners.values())

    def _may_see(self, listener: EventListener, client: int) -> bool:
        """Whether it gets the client's instructions."""
        return listener.detail and (listener.operator or listener.client == client)

    def _send_all(self, batch: EventBatch) -> None:
        """Send each listener what it may see of a batch."""
        key, client = (batch.source, batch.client), batch.client
        names, sites = self._names.get(key, []), self._sites.get(client, [])
        for listener in self._each():
            if listener.untaken >= MAX_UNTAKEN:
                listener.dropped += 1
                continue
            listener.untaken += 1
            if self._may_see(listener, client):
                new_names, new_sites = names[listener.names.get(key, 0) :], sites[listener.sites.get(client, 0) :]
                own = replace(batch, dropped=listener.dropped, names=new_names, sites=new_sites)
                listener.names[key], listener.sites[client] = len(names), len(sites)
            else:
                own = replace(batch, stretches=b"", rows=b"", dropped=listener.dropped)
                if not (listener.operator or listener.client == client):
                    own = replace(own, longest=(batch.longest[0], ""))
            self._delivery.actions.append(SendMessage(listener.peer, own))

    def taken(self, who: Client | ViewerState, m: BatchTaken, rest: object) -> None:
        if (listener := self.listeners.get(who.peer)) is not None:
            listener.untaken = max(0, listener.untaken - m.count)

    # -- the dispatcher's own events -----------------------------------------------------

    def turn(self, client: Client, m: Submit, first: int) -> None:
        """The actions from index ``first`` on, until the next turn, are made from words of this submission."""
        begun = self._first_actions
        turns = begun[2] if begun is not None and begun[0] is self._delivery.actions else self._turns
        turns.append((first, client.id, m.serial))

    def handled(self, sender: Any, message: Any, actions: list[Action], begun: int, ended: int) -> None:
        """A message was handled, and its actions were carried out; None: actions without a message."""
        turns = self._turns
        if turns:
            self._turns = []
        if not self.listeners:
            return
        if self._first_actions is not None:
            self._executes_sent(*self._first_actions, begun, begun)
            self._first_actions = None
        client = sender.id if type(sender) is Client else getattr(message, "client", 0)
        serial = message.serial if type(message) is Submit else 0
        if client:
            self._rows.setdefault(client, _NO_ROWS.__copy__()).extend((-1, 0, serial, begun, begun, ended))
        if turns or message is None:  # nothing else makes an `Execute`
            self._executes_sent(actions, 0, turns, begun, ended, (client, serial))
        if serial and client and sender.queue:  # a part of it waits
            self._received[client, serial] = begun

    def _executes_sent(
        self, actions: list[Action], first: int, turns: list[_Turn], begun: int, ended: int, now: _Submission = (0, 0)
    ) -> None:
        """Note the `Execute` messages in these actions. Workers count those of each client too, so the number
        identifies a message. ``now``: the submission that was received at ``begun``."""
        executes, next_turn, serial, received = self._executes, 0, 0, 0
        for index in range(first, len(actions)):
            action = actions[index]
            if isinstance(action, Close) or type(message := action.message) is not Execute:
                continue
            while next_turn < len(turns) and turns[next_turn][0] <= index:
                submission = turns[next_turn][1:]
                received, serial = begun if submission == now else self._received.get(submission, 0), submission[1]
                next_turn += 1
            rows = self._rows.setdefault(message.client, _NO_ROWS.__copy__())
            for peer in action.peers if isinstance(action, SendAll) else (action.peer,):
                key = peer, message.client
                number = executes[key] = executes.get(key, 0) + 1
                rows.extend((self._worker_ids.get(peer, -2), number, serial, received, begun, ended))

    def due(self, now: int) -> bool:
        """Whether to call `flush`. The own events are sent together with those of a worker, if these come in time."""
        return now - self._flushed >= 2 * BATCH_NS

    def flush(self, now: int) -> None:
        """Send the dispatcher's own events."""
        begun, self._flushed = self._flushed, now
        rows, self._rows = self._rows, {}
        if len(self._received) > MAX_RECEIVED:
            self._received.clear()
        for client, numbers in rows.items():
            spent = sum(e - s for w, s, e in zip(numbers[0::6], numbers[4::6], numbers[5::6], strict=True) if w == -1)
            shares = [(DISPATCHING, len(numbers) // 6, spent, 0)]
            self._send_all(
                EventBatch(DISPATCHER, client, 0, 0, 0, begun, now, [], [], b"", numbers.tobytes(), shares, 0, {}, 0)
            )
