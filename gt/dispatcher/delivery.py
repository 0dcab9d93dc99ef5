"""Delivery to workers: first the definitions of new codes, then the segments of words, all in order.

A worker confirms work with `Done` only where an `Execute` asks for it. Until then the cost and the weight of the work
are summed in its `WorkerSet`. Confirmed weight becomes the client's credit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.dispatcher.actions import Action, SendAll, SendMessage
from gt.dispatcher.batching import split
from gt.dispatcher.ledger import Announcements
from gt.dispatcher.lost_workers import lose_worker
from gt.dispatcher.segments import ForwardOutput, Segment, Workers, batches
from gt.dispatcher.state import Client, WorkerSet, WorkerState
from gt.wire.messages import Admit, Define, Execute, Leave, Message
from gt.wire.structures import Definition
from gt.wire.words import WINDOW_WORDS

#: The most moves that are defined in one message.
MAX_MOVES_PER_MESSAGE = 256
#: A set of n workers is asked to confirm after (n - 1) times this many microseconds of work. So the dispatcher spends
#: little time on confirmations, however many workers send them.
CONFIRM_AFTER_US_PER_WORKER = 50.0
#: A set of any size is asked to confirm after this many microseconds of work.
MAX_CONFIRM_AFTER_US = 3000.0
#: Workers of a set that have no other client run the same work at the same time: the first one confirms for all. The
#: others confirm after this many microseconds of work, so that none of them falls behind much further than that.
OTHERS_CONFIRM_AFTER_US = 300_000.0
#: The most estimated microseconds of work in a message that overtakes those of other clients.
MAX_URGENT_US = 1000.0
#: The most worker sets that are remembered for a client.
MAX_WORKER_SETS = 256


class Delivery:
    """Turns messages and forwarded work into actions, and keeps account of what each worker has to confirm."""

    def __init__(self, workers: dict[int, WorkerState], batch_size: int | None = None) -> None:
        self._workers = workers
        #: the most instructions in one message to a worker; None: no limit
        self.batch_size = batch_size
        #: what the shell has to do next
        self.actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """The actions since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def send(self, to: Client | WorkerState, message: Message | None, rest: tuple[Any, ...] = ()) -> None:
        self.actions.append(SendMessage(to.peer, message, rest))

    def send_each(self, to: Client | WorkerState, messages: Iterable[Message]) -> None:
        for message in messages:
            self.send(to, message)

    # -- which workers -------------------------------------------------------------------

    def home(self, client: Client) -> WorkerState | None:
        """The client's home worker; None if there is no worker.

        The worker with the fewest clients becomes the home when the client first needs one. It changes only
        if the home is lost.
        """
        if client.home is None and len(self._workers) >= client.min_workers:
            chosen = min(self._workers.values(), key=lambda w: (len(w.admitted), w.id))
            client.home = chosen.id
            client.share = chosen.share_of(client.identity)
            self.admit(client, chosen)
        return None if client.home is None else self._workers[client.home]

    def admit(self, client: Client, worker: WorkerState) -> None:
        if client.id not in worker.admitted:
            worker.admitted.add(client.id)
            client.announced.setdefault(worker.id, set())
            # values that the client may need again are not left in shared memory, which ends with the worker
            host, identity = client.host if client.log is None else "", client.identity
            self.send(worker, Admit(client.id, host, identity.user, identity.quota.memory))

    def _worker_set(self, client: Client, ids: Workers) -> WorkerSet:
        """A new set of these workers, which admit the client."""
        if len(client.worker_sets) >= MAX_WORKER_SETS:  # most are not used again; the others are created again
            self.request_confirmations(client)
            client.worker_sets.clear()
        workers = tuple(self._workers[id] for id in ids)
        for worker in workers:
            self.admit(client, worker)
        client.worker_set_count += 1
        peers = tuple(worker.peer for worker in workers)
        worker_set = client.worker_sets[ids] = WorkerSet(client.worker_set_count, workers, peers)
        return worker_set

    # -- work ----------------------------------------------------------------------------

    def deliver(self, client: Client, output: ForwardOutput, weight: int, urgent: bool = False) -> None:
        """Send everything in order: announcements, then segments. The weight counts as done with the last segment.

        ``urgent``: the segments may overtake other clients at the worker, if they are short.
        """
        announcements = output.announcements
        if announcements:
            first = {w: segment for segment in reversed(output.segments) for w in segment.workers}
            self._announce(
                client,
                [
                    (self._workers[id], announcements.pop(id))
                    for id in list(announcements)
                    if not announcements[id].only_definitions or id not in first or len(first[id].workers) > 1
                ],
            )
        last = len(output.segments) - 1
        for i, segment in enumerate(output.segments):
            # a single worker gets its definitions together with the words
            with_words = announcements.pop(segment.workers[0], None) if len(segment.workers) == 1 else None
            definitions = with_words.definitions if with_words else []
            self.execute(client, segment, weight if i == last else 0, definitions, urgent)
        if last < 0:
            client.done += weight

    def _announce(self, client: Client, announcements: list[tuple[WorkerState, Announcements]]) -> None:
        """Workers with equal announcements get the same encoded bytes."""
        equal: dict[Any, tuple[Announcements, list[WorkerState]]] = {}
        for worker, one in announcements:
            self.admit(client, worker)
            equal.setdefault(one.key(), (one, []))[1].append(worker)
        for one, workers in equal.values():
            peers, groups = tuple(worker.peer for worker in workers), one.groups
            for batch in batches(one.definitions):
                self.actions.append(SendAll(peers, Define(client.id, batch, [], groups)))
                groups = []
            for at in range(0, len(one.moves), MAX_MOVES_PER_MESSAGE):
                moves = one.moves[at : at + MAX_MOVES_PER_MESSAGE]
                self.actions.append(SendAll(peers, Define(client.id, [], moves, [])))
            for fragment in one.fragments:
                self.actions.append(SendAll(peers, Define(client.id, [], [], [], [fragment])))

    def execute(
        self, client: Client, segment: Segment, weight: int, definitions: list[Definition], urgent: bool = False
    ) -> None:
        """Send one segment to its workers. ``weight`` counts as done when the words have run."""
        worker_set = client.worker_sets.get(segment.workers) or self._worker_set(client, segment.workers)
        cost = segment.cost * client.pace
        client.share.used += cost * client.share.rate
        if definitions:
            *earlier, definitions = batches(definitions)
            for batch in earlier:
                self.send(worker_set.workers[0], Execute(client.id, batch, [], worker_set.number, False))
        worker_set.cost += cost
        worker_set.weight += weight
        client.unrequested += weight
        confirm_after_us = min(CONFIRM_AFTER_US_PER_WORKER * (len(worker_set.peers) - 1), MAX_CONFIRM_AFTER_US)
        confirm = worker_set.cost >= confirm_after_us or client.unrequested >= WINDOW_WORDS // 8
        confirmer = self._expect_confirmation(client, worker_set) if confirm else -1
        words = segment.words
        if self.batch_size is not None:
            *first, words = split(client, words, self.batch_size)
            for batch_words in first:
                self._send_set(worker_set, Execute(client.id, definitions, batch_words, worker_set.number, False))
                definitions = []
        urgent = urgent and len(worker_set.peers) == 1 and cost <= MAX_URGENT_US
        client.only_urgent = client.only_urgent and urgent
        message = Execute(client.id, definitions, words, worker_set.number, confirm, urgent, confirmer)
        self._send_set(worker_set, message)

    def _send_set(self, worker_set: WorkerSet, message: Execute) -> None:
        peers = worker_set.peers
        self.actions.append(SendMessage(peers[0], message) if len(peers) == 1 else SendAll(peers, message))

    def request_confirmations(self, client: Client) -> None:
        """Ask all worker sets to confirm their work for which no confirmation was requested yet."""
        for worker_set in client.worker_sets.values():
            if worker_set.cost or worker_set.weight or worker_set.behind:
                self._expect_confirmation(client, worker_set, by_all=True)
                self.actions.append(SendAll(worker_set.peers, Execute(client.id, [], [], worker_set.number)))

    def _expect_confirmation(self, client: Client, worker_set: WorkerSet, by_all: bool = False) -> int:
        """The workers of the set will confirm what they got. Returns the only one that does; -1: all of them do.

        The first one's confirmation carries the weight. If it confirmed alone before, the others' times are of work
        that its times have covered.
        """
        first, *others = worker_set.workers
        cost, weight = worker_set.cost, worker_set.weight
        worker_set.cost, worker_set.weight = 0.0, 0
        client.unrequested -= weight
        alone = bool(others) and all(len(worker.admitted) == 1 for worker in worker_set.workers)
        sharing = 0 if alone or worker_set.behind else len(worker_set.workers)
        first.expect(client.id, weight, cost, sharing or 1)
        if alone:
            worker_set.behind += cost
            if worker_set.behind < OTHERS_CONFIRM_AFTER_US and not by_all:
                return first.id
        for worker in others:
            worker.expect(client.id, 0, cost, sharing)
        worker_set.behind = 0.0
        return -1

    # -- lost workers --------------------------------------------------------------------

    def lose_worker(self, client: Client, worker: WorkerState) -> None:
        """Report the loss to the client, and let the workers that were in a group with the lost one leave it."""
        for group, members in client.ledger.lose_worker(worker.id):
            for other in members:
                if other in self._workers:
                    reason = f"worker {worker.id} ({worker.info.device}, pid {worker.info.pid}) is gone"
                    self.send(self._workers[other], Leave(client.id, group, reason))
        messages, orphans = lose_worker(client, worker)
        self.send_each(client, messages)
        for other, ids in orphans.items():
            self.execute(client, Segment((other,), [-id for id in ids]), 0, [])
