"""What clients asked all workers, until the last has answered."""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.delivery import Giving
from gt.dispatcher.explain import locate
from gt.dispatcher.plan.segments import Segment
from gt.dispatcher.state import Client, Violation, Worker
from gt.wire.messages import TRACE, Answer, Ask, Blocks, Locate, NoValue, Query, Report, Trace, WorkerStats

#: Questions a client may have open.
MOST = 100
#: (client, request)
Key = tuple[int, int]


class Questions:
    def __init__(self) -> None:
        #: what the workers answered so far, and who has still to
        self._open: dict[Key, tuple[list[WorkerStats], set[int]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, client: int, request: int, workers: set[int]) -> None:
        """Raises Violation for one who asks on without waiting for any answer."""
        if sum(owner == client for owner, _ in self._open) >= MOST:
            raise Violation(f"more than {MOST} questions at once")
        self._open[client, request] = [], workers

    def report(self, worker: int, m: Report) -> None:
        if (found := self._open.get((m.client, m.request))) is not None and worker in found[1]:
            found[1].discard(worker)
            found[0].append(m.stats)

    def worker_gone(self, worker: int) -> None:
        for _, missing in self._open.values():
            missing.discard(worker)

    def client_gone(self, client: int) -> None:
        for key in [k for k in self._open if k[0] == client]:
            del self._open[key]

    def answered(self) -> Iterator[tuple[int, Answer]]:
        """(client, answer) for what nobody has still to answer; each once."""
        for key in [k for k, (_, missing) in self._open.items() if not missing]:
            stats, _ = self._open.pop(key)
            yield key[0], Answer(key[1], sorted(stats, key=lambda s: s.worker))


class Asking(Giving):
    """The part of the dispatcher that puts questions to workers."""

    #: what a client is told when there are none
    no_workers: str

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[int, Client] = {}
        self.asked = Questions()

    def _ask(self, client: Client, m: Ask | Locate | Trace, rest: object) -> None:
        if len(client.questions) >= MOST:
            raise Violation(f"more than {MOST} questions at once")
        client.questions.append(m)
        self._put_questions(client)

    def _put_questions(self, client: Client) -> None:
        """A question comes after what was submitted before it, unless there is nobody to do that."""
        if client.queue and self.workers:
            return
        questions, client.questions = client.questions, []
        for question in questions:
            if isinstance(question, Locate):
                self._send(client, locate(client, question))
            elif isinstance(question, Trace):
                self._trace(client, question)
            else:
                self.asked.ask(client.id, question.request, set(self.workers))
                for worker in self.workers.values():
                    self._send(worker, Query(client.id, question.request))
        self._answer()

    def _trace(self, client: Client, m: Trace) -> None:
        """Of the workers it uses, and to begin with of those that nobody uses: its program may come to them. It goes
        in order with the instructions, so that each worker answers when it has done those before."""
        client.traces = [request for request in client.traces if request in client.reads]
        if len(client.traces) >= MOST:
            raise Violation(f"more than {MOST} questions at once")
        if self._home(client) is None:
            self._send(client, NoValue(m.request, "NoWorkers", self.no_workers))
            return
        ids = [w.id for w in self.workers.values() if client.id in w.admitted or (m.begin and not w.admitted)]
        client.traces.append(m.request)
        client.reads[m.request] = set(ids)
        self._send(client, Blocks(m.request, (), 1, [], ids))
        for id in ids:
            self._give_segment(client, Segment((id,), [TRACE, m.request, int(m.begin)]), 0, [])

    def _report(self, worker: Worker, m: Report, rest: object) -> None:
        self.asked.report(worker.id, m)
        self._answer()

    def _answer(self) -> None:
        for client, answer in self.asked.answered():
            self._send(self.clients[client], answer)
