"""A client with recovery loses no tensor when a worker is lost: its program runs again on the workers that remain.

The client's *space* on every worker is dropped, and all its tensors with it. Then the client begins again, with its
whole program in its queue, as if it had just submitted it. Reads that were answered are left out; reads that were
waiting get their values. Nothing is merged with what the workers still hold, because a tensor may have been written in
place since. What the workers have sent from the dropped spaces is ignored: a worker reports with `Dropped` when
everything after it comes from the new space.

A loss is sometimes seen by another worker before the dispatcher sees it: a collective breaks, and a read that needs it
fails. Such replies are held, because the restart will answer the read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gt.dispatcher.delivery import Delivery
from gt.dispatcher.ledger import Ledger
from gt.dispatcher.lost_workers import find_reads, queued_reads
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.recovery.kept_snapshots import KeptSnapshots
from gt.dispatcher.recovery.program_log import ProgramLog, QueuedChunk
from gt.dispatcher.recovery.snapshots import RestoreMark, SnapshotKeeper
from gt.dispatcher.state import Client, WorkerState
from gt.dispatcher.violations import Violation
from gt.wire.messages import ChunkTaken, Configure, Drop, Notice, NoValue, Reply, Submit
from gt.wire.recovery_messages import Dropped, Recover, Restarted

#: Seconds that a read which failed because of a lost worker waits for the loss to be noticed.
HOLD_S = 10.0
#: The longest wait for a new worker that a client may ask for, in seconds.
MAX_WAIT_S = 600.0


class Recoveries:
    """The clients that have recovery, and what happens to them when a worker is lost."""

    def __init__(
        self,
        clients: dict[int, Client],
        workers: dict[int, WorkerState],
        delivery: Delivery,
        new_ledger: Callable[[], Ledger],
        snapshots: SnapshotKeeper,
        kept: KeptSnapshots,
    ) -> None:
        self._kept = kept
        self._clients, self._workers, self._delivery = clients, workers, delivery
        self._new_ledger, self._snapshots = new_ledger, snapshots

    # -- messages ------------------------------------------------------------------------

    def begin(self, client: Client, m: Recover, rest: object) -> None:
        """Keep the client's program from here on."""
        if client.log is not None or client.received or client.transfers:
            raise Violation("recovery begins before the first instruction")
        if not 0 <= m.wait <= MAX_WAIT_S:
            raise Violation(f"recovery may wait up to {MAX_WAIT_S:g} s for a worker, not {m.wait}")
        client.log = ProgramLog(m.wait, m.every)
        client.ledger.kept_profiles = {}

    def submitted(self, client: Client, log: ProgramLog, m: Submit) -> None:
        """Keep a submission. A snapshot follows it if the log is long."""
        log.add_submission(m, client.codes, client.fragments)
        if log.is_half_full():
            self._snapshots.begin(client, [])

    def seen(self, client: Client, m: Restarted, rest: object) -> None:
        """The client has seen that its program began again. The acknowledgements before this are for old chunks."""
        client.unseen_restarts = max(0, client.unseen_restarts - 1)

    def dropped(self, worker: WorkerState, m: Dropped, rest: object) -> None:
        if m.client not in worker.dropping:
            raise Violation("a worker reported a dropped space that it was not told to drop")
        worker.dropping.remove(m.client)

    def hold(self, client: Client, worker: WorkerState, m: Reply, frames: tuple[Any, ...]) -> bool:
        """Keep a reply that says that a worker is lost. False if the client must get it."""
        log = client.log
        if log is None or log.refusal:
            return False
        log.held.append((worker.id, m, frames))
        return True

    def tick(self, now: float) -> bool:
        """Give up waiting where it took too long. True if a client may go on."""
        resumed = False
        for client in self._clients.values():
            log = client.log
            if log is None:
                continue
            if not log.held:
                log.held_since = None
            elif log.held_since is None:
                log.held_since = now
            elif now - log.held_since >= HOLD_S:
                self._release(client, log)
            if log.snapshot_is_due(now):
                self._snapshots.begin(client, [])
                resumed = True
            if client.home is not None or client.min_workers == 1:
                log.waiting_since, client.min_workers = None, 1
            elif log.waiting_since is None:
                log.waiting_since = now
            elif now - log.waiting_since >= log.wait_s:
                client.min_workers, log.most_workers, resumed = 1, len(self._workers), True
                if self._workers:
                    count = f"{len(self._workers)} worker{'s' * (len(self._workers) > 1)}"
                    text = f"no worker has joined within {log.wait_s:g} s; the program runs again on {count}"
                    self._delivery.send(client, Notice(text))
        return resumed

    def _release(self, client: Client, log: ProgramLog) -> None:
        """No worker was lost: the network between two of them is broken. The reads fail."""
        held, log.held = log.held, []
        for worker, reply, frames in held:
            waiting_for = client.reads.get(reply.request, set())
            waiting_for.discard(worker)
            if not waiting_for:
                client.reads.pop(reply.request, None)
            self._delivery.send(client, None, frames)

    # -- a lost worker -------------------------------------------------------------------

    def restart(self, client: Client, lost: WorkerState) -> bool:
        """Run the client's program again without the lost worker. False if that is not possible."""
        log = client.log
        if log is None or log.refusal:
            return False
        try:
            open_reads = set(client.reads).difference(client.traces)
            open_reads.update(request for request, _ in queued_reads(client) if request not in client.abandoned_reads)
            messages = [*_beginning(log), *log.messages()]
            answered = _reads(client, log, messages) - open_reads
        except Violation:  # it is refused when the malformed submission is forwarded
            return False
        if not log.may_try_again((len(answered), client.received)):
            return False
        self._end_traces(client, lost)
        for chunk in log.unacknowledged:  # the log has them, so the client need not wait
            self._delivery.send(client, ChunkTaken(chunk.transfer, chunk.nbytes))
        log.unacknowledged.clear()
        log.held.clear()
        self._drop_spaces(client, lost)
        if log.wait_s:  # until there are as many workers as the program has used
            log.most_workers = client.min_workers = max(log.most_workers, len(client.announced))
        _begin_again(client, log, self._new_ledger(), messages, answered)
        self._snapshots.begin_again(client)
        self._kept.restarted(client)
        client.unseen_restarts += 1
        self._delivery.send(client, Restarted(sorted(open_reads)))
        self._report(client, log, lost)
        return True

    def _report(self, client: Client, log: ProgramLog, lost: WorkerState) -> None:
        """Tell the user what their program waits for."""
        text = f"worker {lost.id} ({lost.info.device}, pid {lost.info.pid}) is gone"
        text += f": {lost.exit_reason}" if lost.exit_reason else ""
        if len(self._workers) >= client.min_workers:
            text += "; the program runs again"
        elif not log.wait_s:
            text += "; no other worker is connected"
        else:
            few = f"{len(self._workers)} of {client.min_workers} workers are connected"
            text += f"; {few}, so the program waits for another one, at most {log.wait_s:g} s"
        self._delivery.send(client, Notice(text))

    def _end_traces(self, client: Client, lost: WorkerState) -> None:
        text = f"worker {lost.id} ({lost.info.device}, pid {lost.info.pid}) is gone, and the trace with it"
        for request in [request for request in client.traces if request in client.reads]:
            self._delivery.send(client, NoValue(request, "WorkerLost", text))

    def _drop_spaces(self, client: Client, lost: WorkerState) -> None:
        for worker in (*self._workers.values(), lost):
            # what they confirm from here on is not part of the client's account any more
            for i, (owner, _, cost, sharing) in enumerate(worker.unconfirmed):
                if owner == client.id:
                    worker.unconfirmed[i] = owner, 0, cost, sharing
            worker.parked.pop(client.id, None)
            if worker is not lost and client.id in worker.admitted:
                worker.admitted.discard(client.id)
                worker.dropping.append(client.id)
                self._delivery.send(worker, Drop(client.id, again=True))


def _reads(client: Client, log: ProgramLog, messages: list[Any]) -> set[int]:
    """The requests of all reads in the program. Raises Violation if it is malformed."""
    reads: list[tuple[int, Any]] = []
    for message in messages:
        if isinstance(message, Submit):
            find_reads(log.codes, log.fragments, message.stream, 0, reads)
    return {request for request, _ in reads}


def _beginning(log: ProgramLog) -> list[Any]:
    """What comes before the entries of the log: the snapshot."""
    if log.snapshot is None:
        return []
    configuration = log.snapshot.configuration
    configure = [] if configuration is None else [replace(configuration, weight=0)]
    return [*configure, RestoreMark(log.snapshot)]


def _begin_again(client: Client, log: ProgramLog, ledger: Ledger, messages: list[Any], answered: set[int]) -> None:
    """Put the client into the state before its first submission, with its program in its queue."""
    pending = sum(message.weight for message, _ in client.queue)
    client.done = client.received - pending
    ledger.kept_profiles = client.ledger.kept_profiles  # so that sums are added in the same order as before
    client.ledger, client.config = ledger, Signals(substitutes=client.substitutes)
    client.codes, client.fragments = dict(log.codes), dict(log.fragments)
    client.defined_bytes = sum(coded.nbytes for coded in client.codes.values())
    for fragment in client.fragments.values():
        fragment.plans.clear()
        fragment.announced.clear()
    tables: list[Any] = [client.tensors, client.plans, client.copies, client.origins, client.uncached, client.transfers]
    for table in (*tables, client.worker_sets, client.announced, client.reads, client.full_workers):
        table.clear()
    client.queue.clear()
    client.queue.extend([message, 0] for message in messages)
    client.queued_chunks = sum(isinstance(message, QueuedChunk) for message in messages)
    client.queued_chunk_bytes = 0  # those of the log are bounded by it
    # the weight that the client waits for comes back with the last message that has one
    for entry in reversed(client.queue):
        if isinstance(entry[0], Submit | Configure):
            entry[0] = replace(entry[0], weight=pending)
            break
    client.chunks.clear()
    client.chunk_bytes = client.untaken = client.unrequested = 0
    client.abandoned_reads = answered
    client.home = client.stranded_since = None
