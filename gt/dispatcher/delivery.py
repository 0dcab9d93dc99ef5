"""Giving workers what was forwarded: first what codes stand for, then the runs of words, all in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.dispatcher.actions import Action, Send, SendAll
from gt.dispatcher.batching import split
from gt.dispatcher.ledger import News
from gt.dispatcher.lost_workers import lose
from gt.dispatcher.plan.segments import Forwarded, Segment, Workers, batches
from gt.dispatcher.state import Client, Crew, Worker
from gt.wire.messages import WINDOW_WORDS, Admit, Define, Definition, Execute, Leave, Message

#: Moves that are told in one message.
MOVES = 256
#: Microseconds of work for each other worker of a crew before it is asked to confirm, so that the dispatcher spends
#: little of its time on confirmations, however many they are; and the most.
EACH, LATEST = 50.0, 3000.0
#: The most crews of a client.
CREWS = 256


class Giving:
    """The part of the dispatcher that addresses workers."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.out: list[Action] = []
        #: the most instructions in one message to a worker, if there is a most
        self.batch: int | None = None

    def _send(self, to: Client | Worker, message: Message | None, rest: tuple[Any, ...] = ()) -> None:
        self.out.append(Send(to.peer, message, rest))

    def _send_all(self, to: Client | Worker, messages: Iterable[Message]) -> None:
        for message in messages:
            self._send(to, message)

    def _admit(self, client: Client, worker: Worker) -> None:
        if client.id not in worker.admitted:
            worker.admitted.add(client.id)
            client.told.setdefault(worker.id, set())
            self._send(worker, Admit(client.id, client.host))

    def _home(self, client: Client) -> Worker | None:
        """The worker with the fewest clients, from a client's first instruction until one of both ends."""
        if client.home is None and self.workers:
            chosen = min(self.workers.values(), key=lambda w: (len(w.admitted), w.id))
            client.home = chosen.id
            client.used = chosen.clock
            self._admit(client, chosen)
        return None if client.home is None else self.workers[client.home]

    def _give(self, client: Client, forwarded: Forwarded, weight: int) -> None:
        """Everything in order: what codes stand for, then the runs of words. The last of them owes the weight."""
        news = forwarded.news
        if news:
            first = {w: segment for segment in reversed(forwarded.segments) for w in segment.workers}
            ahead = [
                (self.workers[id], news.pop(id))
                for id in list(news)
                if not news[id].only_definitions or id not in first or len(first[id].workers) > 1
            ]
            self._tell(client, ahead)
        last = len(forwarded.segments) - 1
        for i, segment in enumerate(forwarded.segments):
            # a worker that works alone hears what its codes stand for along with the words
            told = news.pop(segment.workers[0], None) if len(segment.workers) == 1 else None
            self._give_segment(client, segment, weight if i == last else 0, told.definitions if told else [])
        if last < 0:
            client.done += weight

    def _tell(self, client: Client, ahead: list[tuple[Worker, News]]) -> None:
        """Who has the same news gets the same bytes."""
        told: dict[Any, tuple[News, list[Worker]]] = {}
        for worker, news in ahead:
            self._admit(client, worker)
            told.setdefault(news.key(), (news, []))[1].append(worker)
        for news, workers in told.values():
            peers, groups = tuple(worker.peer for worker in workers), news.groups
            for batch in batches(news.definitions):
                self.out.append(SendAll(peers, Define(client.id, batch, [], groups)))
                groups = []
            for at in range(0, len(news.moves), MOVES):
                self.out.append(SendAll(peers, Define(client.id, [], news.moves[at : at + MOVES], [])))
            for fragment in news.fragments:
                self.out.append(SendAll(peers, Define(client.id, [], [], [], [fragment])))

    def _give_segment(self, client: Client, segment: Segment, weight: int, definitions: list[Definition]) -> None:
        crew = client.crews.get(segment.workers) or self._crew(client, segment.workers)
        cost = segment.cost * client.pace
        client.used += cost
        *ahead, definitions = batches(definitions)
        for batch in ahead:
            self._send(crew.workers[0], Execute(client.id, batch, [], crew.number, False))
        crew.cost += cost
        crew.weight += weight
        client.unasked += weight
        confirm = crew.cost >= min(EACH * (len(crew.peers) - 1), LATEST) or client.unasked >= WINDOW_WORDS // 8
        if confirm:
            self._await(client, crew)
        words = segment.words
        if self.batch is not None:
            *first, words = split(client, words, self.batch)
            for part in first:
                self._send_crew(crew, Execute(client.id, definitions, part, crew.number, False))
                definitions = []
        self._send_crew(crew, Execute(client.id, definitions, words, crew.number, confirm))

    def _send_crew(self, crew: Crew, message: Execute) -> None:
        self.out.append(Send(crew.peers[0], message) if len(crew.peers) == 1 else SendAll(crew.peers, message))

    def _crew(self, client: Client, ids: Workers) -> Crew:
        if len(client.crews) >= CREWS:  # most will be of no more use; those that are come again
            self._ask_all(client)
            client.crews.clear()
        workers = tuple(self.workers[id] for id in ids)
        for worker in workers:
            self._admit(client, worker)
        client.crewed += 1
        crew = client.crews[ids] = Crew(client.crewed, workers, tuple(worker.peer for worker in workers))
        return crew

    def _ask_all(self, client: Client) -> None:
        for crew in client.crews.values():
            if crew.cost or crew.weight:
                self._await(client, crew)
                self.out.append(SendAll(crew.peers, Execute(client.id, [], [], crew.number)))

    def _await(self, client: Client, crew: Crew) -> None:
        """All of a crew will confirm what they were given; the weight is the first one's."""
        client.unasked -= crew.weight
        for worker in crew.workers:
            worker.give(client.id, crew.weight, crew.cost, len(crew.workers))
            crew.weight = 0
        crew.cost = 0.0

    def _lose(self, client: Client, worker: Worker) -> None:
        """What a client had there is lost; the workers that worked together with it go on without it."""
        for group, members in client.book.lose(worker.id):
            for other in members:
                if other in self.workers:
                    reason = f"worker {worker.id} ({worker.info.device}, pid {worker.info.pid}) is gone"
                    self._send(self.workers[other], Leave(client.id, group, reason))
        messages, orphans = lose(client, worker)
        self._send_all(client, messages)
        for other, ids in orphans.items():
            self._give_segment(client, Segment((other,), [-id for id in ids]), 0, [])
