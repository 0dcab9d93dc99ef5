"""What clients asked all workers, until the last has answered."""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.forward import Violation
from gt.wire.messages import Answer, Report, WorkerStats

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
