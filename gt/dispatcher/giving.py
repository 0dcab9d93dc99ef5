"""Giving workers what was forwarded: first what codes stand for, then the runs of words, all in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.dispatcher.actions import Action, Send, SendAll
from gt.dispatcher.book import News
from gt.dispatcher.loss import lose
from gt.dispatcher.segments import Forwarded, Segment, batches
from gt.dispatcher.state import Client, Worker
from gt.wire.messages import Admit, Define, Definition, Execute, Leave, Message

#: Moves that are told in one message.
MOVES = 256


class Giving:
    """The part of the dispatcher that addresses workers."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.out: list[Action] = []

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

    def _give(self, client: Client, forwarded: Forwarded, weight: int) -> None:
        """Everything in order: what codes stand for, then the runs of words. The last of them owes the weight."""
        news = forwarded.news
        for segment in forwarded.segments:
            for id in segment.workers:
                self._admit(client, self.workers[id])
        first = {w: segment for segment in reversed(forwarded.segments) for w in segment.workers}
        for id in list(news):
            if news[id].moves or news[id].groups or news[id].fragments or id not in first or len(first[id].workers) > 1:
                self._tell(client, self.workers[id], news.pop(id))
        last = len(forwarded.segments) - 1
        for i, segment in enumerate(forwarded.segments):
            # a worker that works alone hears what its codes stand for along with the words
            told = news.pop(segment.workers[0], None) if len(segment.workers) == 1 else None
            self._give_segment(client, segment, weight if i == last else 0, told.definitions if told else [])
        if last < 0:
            client.done += weight

    def _tell(self, client: Client, worker: Worker, news: News) -> None:
        self._admit(client, worker)
        for batch in batches(news.definitions):
            self._send(worker, Define(client.id, batch, [], news.groups))
            news.groups = []
        for at in range(0, len(news.moves), MOVES):
            self._send(worker, Define(client.id, [], news.moves[at : at + MOVES], []))
        for fragment in news.fragments:
            self._send(worker, Define(client.id, [], [], [], [fragment]))

    def _give_segment(self, client: Client, segment: Segment, weight: int, definitions: list[Definition]) -> None:
        cost = segment.cost * client.pace
        client.used += cost
        *ahead, definitions = batches(definitions)
        for batch in ahead:
            self.workers[segment.workers[0]].give(client.id, 0, 0.0)
            self._send(self.workers[segment.workers[0]], Execute(client.id, batch, [], 0))
        peers = [self.workers[id] for id in segment.workers]
        for worker in peers:
            worker.give(client.id, weight if worker is peers[0] else 0, cost, len(peers))
        # the weight is one worker's to confirm, and all get the same bytes: the dispatcher knows whose it is
        message = Execute(client.id, definitions, segment.words, weight)
        if len(peers) == 1:
            self._send(peers[0], message)
        else:
            self.out.append(SendAll(tuple(worker.peer for worker in peers), message))

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
