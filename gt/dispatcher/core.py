"""The dispatcher as a pure state machine: ``handle(peer, message) -> actions``.

No socket, clock, thread or tensor library is here; `server.py` owns those, and a test checks the imports.

    Hello            a peer becomes a client or a worker                  Welcome, or Refusal
    Configure        says what the signals of later submissions mean
    Submit           goes into its client's queue, and `_schedule` runs   Execute to workers
    Done             a worker has room again; the client gets credit      Execute, Credit
    Reply            a worker's value for a client is passed on           (the same bytes)
    Chunk, ChunkTaken  pieces of large values are passed on                 (the same bytes)
    Ask, Trace       are put to the workers, behind what was submitted    Query, Answer; Execute
    gone(peer)       a client's tensors are dropped; a worker's are lost  Drop, NoValue
    tick(now)        a client without workers is told so                  NoValue, Credit

**Fairness.** A worker is given a few milliseconds of work ahead, no more; who comes next is the client that has used
the least worker time, as the workers measured it. A client that sends more, or larger, work waits in its own queue,
and at the end of its credit it waits at home.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec.structs import replace

from gt.dispatcher import admission
from gt.dispatcher.actions import Action, Close, Send
from gt.dispatcher.forward import forward
from gt.dispatcher.ledger import Book
from gt.dispatcher.lost_workers import NO_WORKERS, strand
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.plan import Ground
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.questions import Asking
from gt.dispatcher.state import Client, Peer, Violation, Worker
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import BadFrame
from gt.wire.messages import (
    WINDOW_WORDS,
    Ask,
    Bye,
    Chunk,
    ChunkTaken,
    Configure,
    Credit,
    Done,
    Drop,
    FailureReport,
    Hello,
    Locate,
    Message,
    Notice,
    NoValue,
    Refusal,
    Reply,
    Report,
    Roster,
    Submit,
    Trace,
    Welcome,
    WorkerInfo,
)

#: Estimated microseconds a worker is given ahead, and the most of it one client gets before the next is asked.
AHEAD, TURN = 6000.0, 2000.0
#: Seconds a client with work waits for a first worker before its reads are told.
PATIENCE = 2.0
#: What a client hears unasked from its workers, at most.
NOTICES = 3


class Dispatcher(Asking):
    def __init__(self, host: str = "localhost", port: int = 9000) -> None:
        super().__init__()
        self.no_workers = NO_WORKERS.format(host=host, port=port)
        #: what is known of each of them
        self.infos: dict[int, WorkerInfo] = {}
        self.by_peer: dict[Peer, Client | Worker] = {}
        self.next_client, self.next_worker = 1, 0
        self.next_group = count(1).__next__
        #: the size of the message that is being handled
        self.nbytes = 0

    # -- events --------------------------------------------------------------------------

    def handle(self, peer: Peer, message: Message, rest: tuple[Any, ...] = (), nbytes: int = 0) -> list[Action]:
        """One message of so many bytes and, behind it, frames that are not the dispatcher's to read."""
        self.nbytes = nbytes
        try:
            known = self.by_peer.get(peer)
            handler = HANDLERS.get((type(known), type(message)))
            if handler is None:
                raise Violation(f"{type(message).__name__} is out of place here")
            handler(self, known if known is not None else peer, message, rest)
        except (Violation, BadFrame) as error:
            self._refuse(peer, str(error))
        return self._actions()

    def gone(self, peer: Peer) -> list[Action]:
        """The peer ended, cleanly or not."""
        self._forget(peer)
        return self._actions()

    def bad_frame(self, peer: Peer, reason: str) -> list[Action]:
        """The peer sent what is no message."""
        self._refuse(peer, f"a frame that does not decode: {reason}")
        return self._actions()

    def tick(self, now: float) -> list[Action]:
        """Called about once a second, with a clock that only runs forward."""
        for client in list(self.clients.values()):
            self._credit(client, at_least=1)
            if client.unasked:
                self._ask_all(client)
            if self.workers or not client.queue:
                client.stranded = None
            elif client.stranded is None:
                client.stranded = now
            elif now - client.stranded >= PATIENCE:
                try:
                    self._send_all(client, strand(client, self.no_workers))
                except Violation as violation:
                    self._refuse(client.peer, str(violation))
        return self._actions()

    def name_of(self, peer: Peer) -> str:
        known = self.by_peer.get(peer)
        return "a stranger" if known is None else f"{type(known).__name__.lower()} {known.id}"

    def _actions(self) -> list[Action]:
        out, self.out = self.out, []
        return out

    # -- coming and going ----------------------------------------------------------------

    def _hello(self, peer: Peer, m: Hello, rest: object) -> None:
        if m.protocol != PROTOCOL:
            raise Violation(
                f"this server is GT {VERSION} (protocol {PROTOCOL}), the {m.role} is GT {m.version} "
                f"(protocol {m.protocol}); install the same version on both sides"
            )
        if m.role == "client":
            self._client_hello(peer, m)
        elif m.role == "worker":
            self._worker_hello(peer, m)
        else:
            raise Violation(f"nobody here is a {m.role!r}")

    def _client_hello(self, peer: Peer, m: Hello) -> None:
        client = Client(self.next_client, peer, m.host, Book(self.infos, self.next_group))
        self.next_client += 1
        self.clients[client.id] = self.by_peer[peer] = client
        self._send(client, Welcome(client.id, VERSION, self._roster()))

    def _worker_hello(self, peer: Peer, m: Hello) -> None:
        id = self.next_worker
        self.next_worker += 1
        info = self.infos[id] = WorkerInfo(id, m.backend, m.device, m.host, m.pid, m.gpu, m.store)
        worker = Worker(id, peer, info, Layout(Mesh((id,))))
        self.workers[id] = self.by_peer[peer] = worker
        self._send(worker, Welcome(id, VERSION))
        self._announce()
        self._schedule()

    def _roster(self) -> list[WorkerInfo]:
        return [w.info for w in self.workers.values()]

    def _announce(self) -> None:
        for client in self.clients.values():
            self._send(client, Roster(self._roster()))

    def _bye(self, known: Client | Worker, m: Bye, rest: object) -> None:
        if isinstance(known, Worker):
            known.last_words = m.reason[:400]
        self._forget(known.peer)
        self.out.append(Close(known.peer, ""))

    def _refuse(self, peer: Peer, reason: str) -> None:
        self.out.append(Send(peer, Refusal(reason)))
        self._forget(peer)
        self.out.append(Close(peer, reason))

    def _forget(self, peer: Peer) -> None:
        known = self.by_peer.pop(peer, None)
        if isinstance(known, Client):
            self._client_gone(known)
        elif isinstance(known, Worker):
            self._worker_gone(known)
        self._schedule()

    def _client_gone(self, client: Client) -> None:
        del self.clients[client.id]
        for worker in self.workers.values():
            if client.id in worker.admitted:
                worker.admitted.discard(client.id)
                self._send(worker, Drop(client.id))
            worker.parked.pop(client.id, None)
        self.asked.client_gone(client.id)

    def _worker_gone(self, worker: Worker) -> None:
        del self.workers[worker.id], self.infos[worker.id]
        for client in self.clients.values():
            client.config.forget()
            client.forget_plans()
            if client.id in worker.admitted:
                self._lose(client, worker)
        for client_id, weight, _, _ in worker.given:
            if client_id in self.clients:
                self.clients[client_id].done += weight
        self.asked.worker_gone(worker.id)
        self._answer()
        for client in self.clients.values():
            self._put_questions(client)
        self._announce()

    # -- a client's program --------------------------------------------------------------

    def _submit(self, client: Client, m: Submit, rest: object) -> None:
        if not admission.submission(client, m, self.nbytes):
            return
        if not client.queue and client.home is not None:
            # whoever comes back from a pause starts level with those who worked on
            client.used = max(client.used, self.workers[client.home].clock)
        client.enqueue(m)
        self._schedule()

    def _configure(self, client: Client, m: Configure, rest: object) -> None:
        """It holds for what is submitted from here on."""
        client.queue.append([m, 0])
        self._schedule()

    def _schedule(self) -> None:
        """Give the workers what they have room for, the least served client first."""
        while True:
            client = None
            for other in self.clients.values():
                if other.queue and self._has_room(other) and (client is None or other.used < client.used):
                    client = other
            if client is None:
                return
            try:
                self._turn(client)
            except Violation as violation:
                self._refuse(client.peer, str(violation))

    def _has_room(self, client: Client) -> bool:
        """May all the workers it has work on get more of it?"""
        home = self._home(client)
        return home is not None and client.has_room(self.workers, AHEAD)

    def _turn(self, client: Client) -> None:
        """Forward about one turn's worth of the client's program."""
        assert client.home is not None
        home = self.workers[client.home]
        home.clock = max(home.clock, client.used)
        submit, position = head = client.queue[0]
        if isinstance(submit, Configure):
            client.queue.popleft()
            client.config = Signals(submit.signals, submit.auto)
            client.forget_plans()
            return
        ground = Ground(home.layout, list(self.workers))
        forwarded = forward(client, ground, submit.stream, position, TURN / client.pace)
        head[1] = forwarded.stop
        weight = 0
        if forwarded.stop >= len(submit.stream):
            client.queue.popleft()
            weight = submit.weight
        for request, text in forwarded.unreadable:
            self._send(client, NoValue(request, "WorkerLost", text))
        self._send_all(client, forwarded.said)
        self._give(client, forwarded, weight)
        self._put_questions(client)

    def _done(self, worker: Worker, m: Done, rest: object) -> None:
        finished = worker.finish(m.client)
        if finished is None:
            raise Violation("done with what it was not given")
        weight, cost, among = finished
        if (client := self.clients.get(m.client)) is not None:
            if cost > 0:
                # one odd measurement must not swing the pace far, nor the same one of many workers
                swing = (m.microseconds + 1) / (cost + 1)
                pace = client.pace * (2.0 if swing > 2.0 else swing if swing > 0.5 else 0.5) ** (0.25 / among)
                client.pace = 100.0 if pace > 100.0 else pace if pace > 0.001 else 0.001
            client.used += (m.microseconds - cost) / among
            if weight:
                client.done += weight
                self._credit(client, at_least=WINDOW_WORDS // 8)
        self._schedule()

    def _credit(self, client: Client, at_least: int) -> None:
        if client.done - client.told_done >= at_least:
            client.told_done = client.done
            self._send(client, Credit(client.done))

    # -- values, passed on ---------------------------------------------------------------

    def _reply(self, worker: Worker, m: Reply, rest: tuple[Any, ...]) -> None:
        client = self.clients.get(m.client)
        if client is not None:  # else it ended while its value was under way
            if m.last:
                waited_for = client.reads.get(m.request, set())
                waited_for.discard(worker.id)
                if not waited_for:
                    client.reads.pop(m.request, None)
                worker.parked.pop(m.client, None)
            else:  # the rest of its program waits there until it has taken some of this: others need not
                worker.park(m.client)
            self._send(client, None, rest)
        if m.done is not None:
            self._done(worker, m.done, ())
        elif m.last:
            self._schedule()

    def _trouble(self, worker: Worker, m: FailureReport, rest: object) -> None:
        if (client := self.clients.get(m.client)) is not None:
            self._send(client, m)

    def _advice(self, worker: Worker, m: Notice, rest: object) -> None:
        """Several workers say the same; and there is more to say than anybody would read."""
        client = self.clients.get(m.client)
        if client is not None and m.text not in client.advised and client.noticed < NOTICES:
            client.advised.add(m.text)
            client.noticed += 1
            self._send(client, m)

    def _part(self, client: Client, m: Chunk, rest: tuple[Any, ...]) -> None:
        home = self._home(client)
        layout = None if home is None else home.layout
        if admission.part(client, layout, m, rest) and home is not None:
            self._send(home, replace(m, client=client.id), rest)
        else:
            self._send(client, ChunkTaken(m.transfer, m.nbytes))

    def _part_taken_by_worker(self, worker: Worker, m: ChunkTaken, rest: object) -> None:
        client = self.clients.get(m.client)
        if client is not None and client.parts:
            client.parts_ahead -= client.parts.popleft()[2]
            self._send(client, m)

    def _part_taken_by_client(self, client: Client, m: ChunkTaken, rest: object) -> None:
        worker = self.workers.get(m.worker)
        if worker is not None and client.id in worker.admitted:
            self._send(worker, replace(m, client=client.id))


HANDLERS: dict[tuple[type, type], Callable[[Dispatcher, Any, Any, Any], None]] = {
    (type(None), Hello): Dispatcher._hello,
    (Client, Configure): Dispatcher._configure,
    (Client, Submit): Dispatcher._submit,
    (Client, Chunk): Dispatcher._part,
    (Client, ChunkTaken): Dispatcher._part_taken_by_client,
    (Client, Ask): Dispatcher._ask,
    (Client, Locate): Dispatcher._ask,
    (Client, Trace): Dispatcher._ask,
    (Client, Bye): Dispatcher._bye,
    (Worker, Bye): Dispatcher._bye,
    (Worker, Done): Dispatcher._done,
    (Worker, Reply): Dispatcher._reply,
    (Worker, FailureReport): Dispatcher._trouble,
    (Worker, Notice): Dispatcher._advice,
    (Worker, ChunkTaken): Dispatcher._part_taken_by_worker,
    (Worker, Report): Dispatcher._report,
}
