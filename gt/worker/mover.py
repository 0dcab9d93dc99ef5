"""A worker's part in moves: it joins groups, begins flights, and takes what has landed.

Everybody takes part in a move, also with a value that could not be made: then with zeros, so that nobody waits. Who
moves within a mesh need not be told: all of it answer when the value is read. Who gets a value from other workers does
(`ACROSS`): with the value goes the number of the failure, if there was one.
"""

from __future__ import annotations

import contextlib
from typing import Any

from gt.wire.messages import GroupSpec
from gt.worker.collectives import Broken, Plane
from gt.worker.engines import Engine
from gt.worker.space import LOST, Failure, Flying, MoveEntry, Space
from gt.worker.tracing import Tracer

#: Moves from workers whose failures those they go to may not see.
ACROSS = ("exchange", "broadcast")


class Mover:
    def __init__(self, engine: Engine, plane: Plane | None, tracer: Tracer) -> None:
        self._engine, self.plane, self._tracer = engine, plane, tracer
        #: groups that are no more, and why
        self._lost: dict[int, str] = {}

    def join(self, space: Space, group: GroupSpec, me: int) -> None:
        members = space.groups[group.id] = tuple(group.members)
        if self.plane is not None:
            self.plane.join(group.id, members, members.index(me), group.store, group.backend)

    def leave(self, space: Space) -> None:
        """Its client is gone."""
        for group in space.groups:
            self._lost.pop(group, None)
            if self.plane is not None:
                self.plane.leave(group)

    def lose(self, space: Space, group: int, reason: str) -> None:
        """A member is gone: what is under way in the group breaks."""
        if group not in space.groups:
            return
        self._lost[group] = reason
        if self.plane is not None:
            self.plane.leave(group)

    def parted(self, space: Space, group: int) -> bool:
        """Leave a group that is needed no more. Who leaves ends the group for the others, too: so all of them say
        farewell to each other, and whoever heard from all knows that everything before has arrived. Until then the
        rest of the program waits."""
        if self.plane is not None and group not in self._lost:
            last = space.farewells.get(group)
            if last is None:
                flight = self.plane.start(group, "all_reduce", self._engine.number(0), {"op": "max", "own": True})
                last = space.farewells[group] = Flying("a farewell", 0, flight, None, None)
            if not last.landed():
                space.awaited = last
                return False
            with contextlib.suppress(Broken):
                self._engine.value(last.flight.result())
            self.plane.leave(group)
        self._lost.pop(group, None)
        space.farewells.pop(group, None)
        space.groups.pop(group, None)
        for code in [code for code, entry in space.codes.items() if type(entry) is MoveEntry and entry.group == group]:
            del space.codes[code]
        return True

    def start(self, space: Space, entry: MoveEntry, site: int, out: int, operand: int) -> None:
        """Begin this worker's part in a move; who first needs the result waits for it."""
        plane = self._plane(entry)
        value, failure = self._given(space, entry, operand)
        ended = self._tracer.span([entry]) if self._tracer.on else None
        flight = plane.start(entry.group, entry.kind, value, entry.how, ended)
        cause = None
        if entry.kind in ACROSS:
            number = self._engine.number(failure.cause if failure is not None else 0)
            cause = plane.start(entry.group, "all_reduce", number, {"op": "max", "own": True})
        flying = Flying(str(entry), site, flight, cause, failure)
        if entry.after is not None:
            space.put(out, flying)
        else:
            space.sent.append(flying)

    def start_all(self, space: Space, moves: list[tuple[MoveEntry, int, int, int]]) -> None:
        """Begin several reductions among the same workers at once: (entry, site, out, operand)."""
        first = moves[0][0]
        plane = self._plane(first)
        given = [self._given(space, entry, operand) for entry, _, _, operand in moves]
        ended = self._tracer.span([entry for entry, *_ in moves]) if self._tracer.on else None
        flights = plane.reduce_all(first.group, [value for value, _ in given], first.how, ended)
        for (entry, site, out, _), (_, failure), flight in zip(moves, given, flights, strict=True):
            flying = Flying(str(entry), site, flight, None, failure)
            flying.reads = False
            space.put(out, flying)

    def _plane(self, entry: MoveEntry) -> Plane:
        if self.plane is None or entry.group in self._lost:
            raise Broken(self._lost.get(entry.group, "this worker cannot reach others"))
        return self.plane

    def _given(self, space: Space, entry: MoveEntry, operand: int) -> tuple[Any, Failure | None]:
        """What this worker takes part with, and what became of it if it could not be made."""
        value = space.store[operand] if entry.before is not None else None
        if type(value) is not Failure:
            return value, None
        assert entry.before is not None
        return self._engine.zeros(entry.before), value

    def land(self, value: Flying) -> Any:
        """The array, or what became of it. Raises Broken."""
        made = value.flight.result()
        cause = 0 if value.cause is None else self._engine.value(value.cause.result())
        if value.failure is not None:
            return value.failure
        if cause:
            text = f"{value.what} failed: a value on one of them could not be made"
            return Failure(cause, "WorkerLost" if cause & LOST else "RemoteError", text, value.site, elsewhere=True)
        return made

    def all_left(self, space: Space) -> bool:
        """Has all been read that others read from here? If not, that is waited for from here on."""
        while space.sent:
            if not space.sent[0].landed():
                space.awaited = space.sent[0]
                return False
            with contextlib.suppress(Broken):
                space.sent.pop(0).flight.result()
        return True
