"""The dispatcher as a pure state machine: ``handle(peer, message) -> actions``.

No socket, clock, thread or tensor library is used here; `server.py` owns those, and a test checks the imports.

    event              what happens                                           messages sent
    Hello              a peer becomes a client or a worker                    Welcome, Roster; or Refusal
    Configure          is queued; defines the signals of later submissions
    Recover            the client's program is kept from here on
    Keep, Fork         is queued; copies tensors into a snapshot or out of it Execute; CopyKept
    Submit             is queued for its client, and the scheduler runs       Define, Execute to workers
    ValuesTaken        reads that waited for it are forwarded                 Execute
    Cancel             what nobody needs is dropped from the client's queue   Credit, Execute
    Done               a worker has room again; the client gets credit        Execute, Credit
    Reply              a worker's value is passed on to its client            (the same bytes)
    Chunk, ChunkTaken  chunks of large values are passed on                   (the same bytes)
    Ask, Locate, Trace are handled after what was submitted before            Query, Answer; Located; Blocks, Execute
    ExplainWait        is answered at once                                    WaitExplained
    Listen, BatchTaken begin and end of events, and which were read           Record, Listening, EventBatch
    Inspect            a viewer asks for fragments, large tensors and the log  Query, Inspection
    Recorded, Sites    events of a worker, source lines of a client           EventBatch, DescribeSites
    FailureReport      is passed on to its client, like a Notice              (the same message)
    Dropped, Restarted the program of a client begins again everywhere
    gone(peer)         a client's tensors are dropped; a worker's are lost,   Drop; NoValue, Leave, Roster
                       or computed again                                      Drop, Restarted
    tick(now)          reads of a client without workers are answered         NoValue, Credit, Execute

A message that breaks the protocol raises `Violation`: its sender gets a `Refusal` and loses its connection.

The parts: `Delivery` addresses the workers, `Requests` keeps the open requests, and `Scheduler` decides whose work is
forwarded next. They share the tables of clients and workers. Only `Dispatcher` adds and removes entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gt.dispatcher import admission
from gt.dispatcher.actions import Action, Close, SendMessage
from gt.dispatcher.cancelling import cancel
from gt.dispatcher.delivery import Delivery
from gt.dispatcher.inspection import Inspections
from gt.dispatcher.ledger import GroupCount, Ledger
from gt.dispatcher.listeners import Clocks, Listeners
from gt.dispatcher.lost_workers import NO_WORKERS, answer_stranded_reads, has_waited_for_workers
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.topology import Topology
from gt.dispatcher.recovery.kept_snapshots import QUEUED, KeptSnapshots
from gt.dispatcher.recovery.recoveries import Recoveries
from gt.dispatcher.recovery.snapshots import SnapshotKeeper, SnapshotStorage
from gt.dispatcher.relay import Relay
from gt.dispatcher.requests import Requests
from gt.dispatcher.scheduling import Scheduler
from gt.dispatcher.segments import Segment
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.dispatcher.tenants.access import Access
from gt.dispatcher.violations import Violation
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import BadFrame
from gt.wire.event_messages import BatchTaken, ClockReading, ExplainWait, Inspect, Listen, Recorded, Sites
from gt.wire.identities import PeerIdentity
from gt.wire.link_messages import LinkMeasured, ProbeOpen
from gt.wire.messages import (
    Ask,
    Bye,
    Cancel,
    Chunk,
    ChunkTaken,
    Configure,
    Done,
    Drop,
    FailureReport,
    Hello,
    Locate,
    Message,
    Notice,
    Refusal,
    Reply,
    Report,
    Roster,
    Submit,
    Trace,
    ValuesTaken,
    Welcome,
)
from gt.wire.recovery_messages import Dropped, FindKept, Kept, Recover, Restarted, Saved, TakeSnapshot
from gt.wire.settings import WORKER_SETTINGS
from gt.wire.structures import WorkerInfo
from gt.wire.words import DISCARD

#: handler(sender, message, frames after the message); the sender is a bare peer before its Hello
Handler = Callable[[Any, Any, Any], None]


class Dispatcher:
    def __init__(
        self,
        host: str = "localhost",
        port: int = 9000,
        batch_size: int | None = None,
        no_workers: str | None = None,
        access: Access | None = None,
        clocks: Clocks | None = None,
        settings: Iterable[str] = (),
        cuda_ipc: bool = False,
        storage: SnapshotStorage | None = None,
        prefetch: bool = True,
    ) -> None:
        #: whether workers that share a GPU may share its memory; whether gathers of fragments start ahead of their use
        self._cuda_ipc, self._prefetch = cuda_ipc, prefetch
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, WorkerState] = {}
        self.by_peer: dict[Peer, Client | WorkerState | ViewerState] = {}
        #: worker -> its description
        self.infos: dict[int, WorkerInfo] = {}
        self.next_client, self.next_worker, self._groups = 1, 0, GroupCount()
        #: the error text for a client when no worker is connected
        self.no_workers = no_workers or NO_WORKERS.format(host=host, port=port)
        self.delivery = Delivery(self.workers, batch_size)
        #: the names of the server's settings that are on
        self._access, self._settings = access or Access(), frozenset(settings)
        tables, clocks = (self.clients, self.workers, self.delivery), clocks or Clocks()
        self.topology = Topology(self.workers, self.delivery.send)
        self.listeners = Listeners(*tables, clocks)
        self.inspections = Inspections(*tables, clocks.wall)
        self.snapshots = SnapshotKeeper(*tables, storage, self.inspections.log)
        self.kept = KeptSnapshots(*tables, self.snapshots)
        self.requests = Requests(*tables, self.listeners, self.kept, self.no_workers)
        self.relay = Relay(*tables, self.inspections.log)
        self.recoveries = Recoveries(*tables, self._new_ledger, self.snapshots, self.kept)
        parts = self.requests, self.listeners, self.relay
        self.scheduler = Scheduler(*tables, *parts, self.snapshots, self.kept, self.topology)
        #: the size in bytes of the message that is being handled
        self._nbytes = 0
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[tuple[type, type], Handler]:
        return {
            (type(None), Hello): self._hello,
            (Client, Configure): self._configure,
            (Client, Submit): self._submit,
            (Client, Cancel): self._cancel,
            (Client, ValuesTaken): self._values_taken,
            (Client, Chunk): self._then_schedule(self.relay.chunk),
            (Client, ChunkTaken): self.relay.chunk_taken_by_client,
            (Client, Recover): self.recoveries.begin,
            (Client, Restarted): self.recoveries.seen,
            (Client, TakeSnapshot): self._then_schedule(self.snapshots.request),
            **{(Client, kind): self.requests.add for kind in (Ask, Locate, Trace, Listen, FindKept)},
            **{(Client, kind): self._then_schedule(self.kept.enqueue) for kind in QUEUED},
            (Client, ExplainWait): self.requests.explain_wait,
            (Client, Sites): self.listeners.sites,
            (ViewerState, Listen): lambda viewer, m, rest: self.listeners.listen(viewer, m),
            **{(kind, BatchTaken): self.listeners.taken for kind in (Client, ViewerState)},
            (ViewerState, Inspect): self.inspections.inspect,
            **{(kind, Bye): self._bye for kind in (Client, ViewerState, WorkerState)},
            (WorkerState, ClockReading): self.listeners.clock_reading,
            (WorkerState, Recorded): self.listeners.recorded,
            (WorkerState, Done): self._done,
            (WorkerState, Reply): self._reply,
            (WorkerState, FailureReport): self.relay.failure,
            (WorkerState, Notice): self.relay.notice,
            (WorkerState, ChunkTaken): self._then_schedule(self.relay.chunk_taken_by_worker),
            (WorkerState, Dropped): self.recoveries.dropped,
            (WorkerState, Saved): self.snapshots.saved,
            (WorkerState, Kept): self.kept.kept,
            (WorkerState, Report): self._report,
            (WorkerState, ProbeOpen): self.topology.probe_open,
            (WorkerState, LinkMeasured): self.topology.measured,
        }

    def restored(self) -> None:
        """All attributes except the handlers were read from a journal."""
        self._handlers = self._make_handlers()

    def _then_schedule(self, handler: Handler) -> Handler:
        """The handler, and then the scheduler: the message may let work go on that waits in a queue."""

        def handle(sender: Any, message: Any, rest: Any) -> None:
            handler(sender, message, rest)
            self._schedule()

        return handle

    # -- events --------------------------------------------------------------------------

    def handle(self, peer: Peer, message: Message, rest: tuple[Any, ...] = (), nbytes: int = 0) -> list[Action]:
        """Handle a message of ``nbytes`` bytes; ``rest`` are the frames after it, which are not read here."""
        self._nbytes = nbytes
        try:
            sender = self.by_peer.get(peer)
            handler = self._handlers.get((type(sender), type(message)))
            if handler is None:
                raise Violation(f"unexpected message {type(message).__name__}")
            handler(sender if sender is not None else peer, message, rest)
        except (Violation, BadFrame) as error:
            self._refuse(peer, str(error))
        return self.delivery.take_actions()

    def gone(self, peer: Peer) -> list[Action]:
        """The peer disconnected, with or without a `Bye`."""
        self._forget(peer)
        return self.delivery.take_actions()

    def refuse(self, peer: Peer, reason: str) -> list[Action]:
        """The peer sent a frame that is not a message, or its token was revoked."""
        self._refuse(peer, reason)
        return self.delivery.take_actions()

    def tick(self, now: float) -> list[Action]:
        """Call this about once a second, with the time of a monotonic clock in seconds."""
        self.listeners.tick()
        self.requests.tick(now)
        self.kept.tick(now)
        if self.recoveries.tick(now):
            self._schedule()
        for client in list(self.clients.values()):
            self.scheduler.send_credit(client, at_least=1)
            if client.unrequested:
                self.delivery.request_confirmations(client)
            if has_waited_for_workers(client, self.workers, now):
                try:
                    self.delivery.send_each(client, answer_stranded_reads(client, self.no_workers))
                except Violation as violation:
                    self._refuse(client.peer, str(violation))
        return self.delivery.take_actions()

    def name_of(self, peer: Peer) -> str:
        """The peer's name in debug output."""
        if (state := self.by_peer.get(peer)) is None or isinstance(state, ViewerState):
            return "a stranger" if state is None else "a viewer"
        return f"client {state.id}" if isinstance(state, Client) else f"worker {state.id}"

    # -- peers that connect and end ------------------------------------------------------

    def _hello(self, peer: Peer, m: Hello, rest: object) -> None:
        if m.protocol != PROTOCOL:
            versions = f"server is GT {VERSION} (protocol {PROTOCOL}), the {m.role} is GT {m.version}"
            raise Violation(f"this {versions} (protocol {m.protocol}); install the same version on both sides")
        identity = self._access.admit(peer, m.role, self.clients.values())
        if m.role == "client":
            self._client_hello(peer, m, identity)
        elif m.role == "worker":
            self._worker_hello(peer, m)
        else:
            self.by_peer[peer] = ViewerState(peer, self._access.is_operator(identity, m.operator))
            self.delivery.actions.append(SendMessage(peer, Welcome(0, VERSION, self._roster())))

    def _client_hello(self, peer: Peer, m: Hello, identity: PeerIdentity) -> None:
        client = Client(self.next_client, peer, m.host, self._new_ledger(), identity)
        self.next_client += 1
        self.clients[client.id] = self.by_peer[peer] = client
        quota = identity.quota.definitions, identity.quota.transfers
        self.delivery.send(client, Welcome(client.id, VERSION, self._roster(), self._settings_on(), *quota))
        self.inspections.log(f"client {client.id} connected (pid {m.pid})")
        self.listeners.peers_changed()

    def _new_ledger(self) -> Ledger:
        return Ledger(self.infos, self._groups.next, self._cuda_ipc, self._prefetch, self.topology)

    def _worker_hello(self, peer: Peer, m: Hello) -> None:
        self._access.admit_worker(m, self.topology.one_of_each_address())
        id, self.next_worker = self.next_worker, self.next_worker + 1
        info = self.infos[id] = WorkerInfo(id, m.backend, m.device, m.host, m.pid, m.gpu, m.store, m.place, m.speed)
        worker = WorkerState(id, peer, info, Layout(Mesh((id,))), frozenset(m.settings).intersection(WORKER_SETTINGS))
        self.workers[id] = self.by_peer[peer] = worker
        self.delivery.send(worker, Welcome(id, VERSION, data_secret=self._access.data_secret))
        self.inspections.log(f"worker {id} connected ({m.device}, {m.backend}, pid {m.pid})")
        self.topology.joined(worker)
        self.listeners.worker_joined(worker)
        self._announce(Roster([info], [], sorted(worker.settings)))
        self._schedule()

    def _roster(self) -> list[WorkerInfo]:
        return [w.info for w in self.workers.values()]

    def _settings_on(self) -> list[str]:
        return sorted(self._settings.union(*(worker.settings for worker in self.workers.values())))

    def _announce(self, change: Roster) -> None:
        for client in self.clients.values():
            self.delivery.send(client, change)
        self.listeners.peers_changed()

    def _bye(self, sender: Client | WorkerState | ViewerState, m: Bye, rest: object) -> None:
        if isinstance(sender, WorkerState):
            sender.exit_reason = m.reason[:400]
        self._forget(sender.peer)
        self.delivery.actions.append(Close(sender.peer, ""))

    def _refuse(self, peer: Peer, reason: str) -> None:
        self.inspections.log(f"{self.name_of(peer)} was refused: {reason}")
        self.delivery.actions.append(SendMessage(peer, Refusal(reason)))
        self._forget(peer)
        self.delivery.actions.append(Close(peer, reason))

    def _forget(self, peer: Peer) -> None:
        state = self.by_peer.pop(peer, None)
        if isinstance(state, Client):
            self._client_gone(state)
        elif isinstance(state, WorkerState):
            self._worker_gone(state)
        self.listeners.gone(peer)
        self.inspections.gone(peer)
        self._schedule()

    def _client_gone(self, client: Client) -> None:
        del self.clients[client.id]
        self.inspections.log(f"client {client.id} has ended")
        for worker in self.workers.values():
            if worker.forget_client(client.id):
                self.delivery.send(worker, Drop(client.id))
        self.requests.client_gone(client.id)
        self.listeners.client_gone(client.id)
        self.snapshots.client_gone(client)
        self.kept.client_gone(client)

    def _worker_gone(self, worker: WorkerState) -> None:
        del self.workers[worker.id], self.infos[worker.id]
        for client in self.clients.values():
            client.config.forget_rules()
            client.forget_plans()
            if client.id in worker.admitted and not self.recoveries.restart(client, worker):
                self.delivery.lose_worker(client, worker)
        for client_id, weight, _, _ in worker.unconfirmed:
            if client_id in self.clients:
                self.clients[client_id].done += weight
        self.topology.gone(worker.id)
        self.kept.worker_gone(worker)
        self.requests.worker_gone(worker.id)
        self.listeners.worker_gone(worker)
        self.inspections.log(f"worker {worker.id} has ended{': ' * bool(worker.exit_reason)}{worker.exit_reason}")
        self.inspections.worker_gone(worker.id)
        for client in self.clients.values():
            self.requests.handle_waiting(client)
        self._announce(Roster([], [worker.id]))

    # -- a client's program --------------------------------------------------------------

    def _submit(self, client: Client, m: Submit, rest: object) -> None:
        self.scheduler.resume(client)
        if admission.admit_submission(client, m, self._nbytes):
            client.enqueue(m)
            if client.log is not None:
                self.recoveries.submitted(client, client.log, m)
            self._schedule()

    def _cancel(self, client: Client, m: Cancel, rest: object) -> None:
        if client.queued_chunks:  # a transfer that is still in the queue cannot be discarded
            return
        for layout, transfer in cancel(client, set(m.reads)):
            self.delivery.execute(client, Segment(layout.workers, [DISCARD, transfer]), 0, [])
        self.scheduler.send_credit(client, at_least=1)
        self.requests.handle_waiting(client)
        self._schedule()

    def _configure(self, client: Client, m: Configure, rest: object) -> None:
        """The signals apply to later submissions, so the message goes through the queue."""
        admission.admit_configuration(client, m, self._nbytes)
        client.enqueue_configuration(m)
        if client.log is not None:
            client.log.add_configuration(m)
        self._schedule()

    def _values_taken(self, client: Client, m: ValuesTaken, rest: object) -> None:
        client.untaken = max(0, client.untaken - max(0, m.nbytes))
        self._schedule()

    def _done(self, worker: WorkerState, m: Done, rest: object) -> None:
        self.scheduler.confirm(worker, m)
        self._schedule()

    def _schedule(self) -> None:
        while (violation := self.scheduler.run()) is not None:
            client, reason = violation
            self._refuse(client.peer, reason)

    # -- values and reports that are passed on -------------------------------------------

    def _reply(self, worker: WorkerState, m: Reply, rest: tuple[Any, ...]) -> None:
        client = self.relay.client_of(worker, m.client)
        if client is not None and not (m.lost and self.recoveries.hold(client, worker, m, rest)):
            if m.last:
                waiting_for = client.reads.get(m.request, set())
                waiting_for.discard(worker.id)
                if not waiting_for:
                    client.reads.pop(m.request, None)
                worker.parked.pop(m.client, None)
            else:  # the worker runs nothing more of this client until the client has taken some of the value
                worker.park(m.client)
            self.delivery.send(client, None, rest)
        if m.done is not None:
            self._done(worker, m.done, ())
        elif m.last:
            self._schedule()

    def _report(self, worker: WorkerState, m: Report, rest: object) -> None:
        (self.inspections if m.request < 0 else self.requests).report(worker, m)
