"""A cluster whose workers run urgent messages before others, as real workers do."""

from __future__ import annotations

from typing import Any

from gt.testing import Cluster, frames_of
from gt.worker.arrivals import Arrivals
from gt.worker.core import Worker
from gt.worker.linked import LinkedMove


class OvertakingCluster(Cluster):
    """Messages wait at a worker for a while, drawn from the seed. Sections pause, and urgent messages run then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arrivals: dict[bytes, Arrivals] = {}
        #: how many messages overtook others; how many ran in a pause of another client
        self.overtaken = self.in_pauses = 0
        #: worker -> the moves it has started: (client, code, group, members)
        self.moves: dict[bytes, list[tuple[Any, ...]]] = {}
        super().__init__(*arguments, **options)

    def add_worker(self) -> bytes:
        name = super().add_worker()
        worker, arrivals = self.workers[name], self.arrivals[name]
        worker.pause = lambda client: self._pause(name, worker, arrivals, client)
        self._note_moves(name, worker)
        return name

    def _note_moves(self, name: bytes, worker: Worker) -> None:
        started = self.moves[name] = []
        start, start_all = worker.mover.start, worker.mover.start_all

        def note(space: Any, move: LinkedMove) -> None:
            client = next(client for client, other in worker.spaces.items() if other is space)
            started.append((client, move.group, move.kind, move.members))

        def noted_start(space: Any, move: LinkedMove, *rest: Any) -> None:
            note(space, move)
            start(space, move, *rest)

        def noted_start_all(space: Any, moves: list[Any]) -> None:
            for move in moves:
                note(space, move[0])
            start_all(space, moves)

        worker.mover.start, worker.mover.start_all = noted_start, noted_start_all  # type: ignore[method-assign]

    def kill_worker(self, name: bytes) -> None:
        self.arrivals.pop(name)
        super().kill_worker(name)

    def step(self) -> bool:
        waiting = [name for name, arrivals in self.arrivals.items() if arrivals and name not in self.paused]
        if waiting and self.rng.random() < 0.4:
            return self._handle_one(waiting)
        return super().step() or bool(waiting and self._handle_one(waiting))

    def _handle_one(self, waiting: list[bytes]) -> bool:
        name = self.rng.choice(waiting)
        arrivals = self.arrivals[name]
        oldest = arrivals._messages[0]
        arrival = arrivals.next()
        if arrival is not oldest:
            self.overtaken += 1
            assert not self.workers[name].spaces[arrival[0].client].groups, "it has moves, whose order is fixed"
        super()._to_worker(name, arrival[1])
        if self.after_step is not None:
            self.after_step(self)
        return True

    def _to_worker(self, name: bytes, frames: list[Any]) -> None:
        self.arrivals.setdefault(name, Arrivals()).add(self._decode[1](frames[0]), frames)

    def _pause(self, name: bytes, worker: Worker, arrivals: Arrivals, client: int) -> None:
        while (urgent := arrivals.next_urgent(client)) is not None:
            self.in_pauses += 1
            message, frames = urgent
            assert not worker.spaces[message.client].groups, "it has moves, whose order is fixed"
            for outgoing in worker.handle_in_pause(message, memoryview(frames[1]) if len(frames) > 1 else None):
                self._post(name, b"", frames_of(outgoing))
