"""How a worker runs fragments: part by part, and word by word where anything is odd."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from gt.ops import Signature
from gt.wire.messages import Execute, Notice
from gt.worker.answering import Send
from gt.worker.collectives import Broken
from gt.worker.fragments import Part, Program, Stopped
from gt.worker.hot.levels import Levels
from gt.worker.hot.piece import Halfway, Piece
from gt.worker.mover import Mover
from gt.worker.space import ODD, Space

#: The reasons for which pieces are not compiled that a client is told of unasked; the statistics have all.
REASONS = 3


class Running(NamedTuple):
    """One run of a fragment."""

    space: Space
    client: int
    program: Program
    #: the ids of its slots, and its numbers
    names: list[int]
    numbers: list[Any]

    def words(self, first: int, last: int) -> list[Any]:
        return self.program.form.expand(self.names, self.numbers, first, last)


class Replaying:
    """The part of a worker that runs fragments."""

    mover: Mover
    out: list[Send]

    def __init__(self, levels: Levels) -> None:
        self.instructions = 0
        #: of those, how many were run as parts of fragments
        self.hot = 0
        self.levels = levels

    @abstractmethod
    def _stream(self, space: Space, m: Execute, i: int) -> int: ...

    @abstractmethod
    def _landed(self, space: Space, id: int) -> bool: ...

    @abstractmethod
    def _unread(self, space: Space) -> bool: ...

    @abstractmethod
    def _failed(
        self, space: Space, client: int, signature: Signature, stream: list[Any], i: int, error: Exception
    ) -> None: ...

    def count_hot(self, count: int) -> None:
        self.instructions += count
        self.hot += count

    def forget(self, space: Space, number: int) -> None:
        program = space.fragments.pop(number, None)
        for part in program.parts if isinstance(program, Program) else ():
            if part.piece is not None:
                self.levels.forget(part.piece)

    def _fragment(self, space: Space, m: Execute, i: int) -> int:
        """Run the fragment at word ``i``, from the part named there on; ``i`` again if it has to wait."""
        stream: list[Any] = m.stream
        program = space.fragments[stream[i + 1]]
        if not isinstance(program, Program):
            program = space.fragments[stream[i + 1]] = Program(program, space.codes)
        form = program.form
        base, own, inputs, numbers = form.run(stream, i)
        run = Running(space, m.client, program, form.names(base, own, inputs), numbers)
        for at in range(stream[i + 2], len(program.parts)):
            part = program.parts[at]
            if part.bucket:
                waits = self._bucket(run, part)
            elif part.piece is None:
                waits = self._by_word(run, part.first, part.last)
            else:
                waits = self._run_part(run, part)
            if waits:
                stream[i + 2] = at  # from there on, later
                return i
        return i + int(form.width)

    def _by_word(self, run: Running, first: int, last: int) -> bool:
        """Run instructions as if they had come as words. Must it wait for an operand?"""
        words = run.words(first, last)
        return self._stream(run.space, Execute(run.client, [], words, 0), 0) < len(words)

    def _bucket(self, run: Running, part: Part) -> bool:
        """Begin several reductions as one. Must it wait for an operand?"""
        space, names = run.space, run.names
        ones = run.program.form.instructions[part.first : part.last]
        if space.odd and not all(self._landed(space, names[one.operands[0]]) for one in ones):
            return True
        moves = [(space.codes[one.code], one.site, names[one.outs[0]], names[one.operands[0]]) for one in ones]
        try:
            self.mover.start_all(space, moves)
        except (Broken, KeyError):  # the group is lost, or an operand is not there: let that be told as it always is
            return self._by_word(run, part.first, part.last)
        self.instructions += len(ones)
        return False

    def _run_part(self, run: Running, part: Part) -> bool:
        """Run a piece. Must it wait for an operand?"""
        space, names, piece = run.space, run.names, part.piece
        store = space.store
        assert piece is not None
        ids = [names[slot] for slot in part.inputs]
        if space.odd or space.sent:
            if not all(self._landed(space, id) for id in ids) or (part.writes and not self._unread(space)):
                return True
            if any(type(store.get(id)) in ODD for id in ids):
                return self._by_word(run, part.first, part.last)
        for slot in part.ahead:
            space.drop(names[slot])
        try:
            registers = [store[id] for id in ids]
        except KeyError:  # it names what is not there: let that be told as it always is
            return self._by_word(run, part.first, part.last)
        taken = [run.numbers[k] for k in part.numbers]
        part.runs += 1
        try:
            made = self._at_its_level(space, run.client, piece, registers, taken)
        except Halfway as halfway:
            self._halfway(run, part, halfway)
            return False
        if made is not None:
            for register in part.freed:
                space.drop(ids[register])
        else:
            registers += [None] * (piece.slots - piece.inputs)
            try:
                part.run(registers, taken, ids, store)
            except Stopped as stopped:
                self._stopped(run, part, registers, stopped)
                return False
            made = [registers[register] for register in piece.results]
        for slot, value in zip(part.results, made, strict=True):
            space.put(names[slot], value)
        self.count_hot(len(piece.steps))
        return False

    def _at_its_level(
        self, space: Space, client: int, piece: Piece, inputs: list[Any], numbers: list[Any]
    ) -> list[Any] | None:
        try:
            return self.levels.run(piece, inputs, numbers, space.store)
        finally:
            if self.levels.notices:
                self._advise(space, client)

    def _advise(self, space: Space, client: int) -> None:
        """Each reason once: one that is the worker's own, as that it has no compiler, is that of all pieces."""
        for reason, text in self.levels.notices:
            if reason not in space.told and len(space.told) < REASONS:
                space.told.add(reason)
                self.out.append(Send(Notice(text, client)))
        self.levels.notices.clear()

    def _halfway(self, run: Running, part: Part, halfway: Halfway) -> None:
        """What it makes, and all that it writes, is a failure: nobody knows how far it came."""
        space, names, instructions = run.space, run.names, run.program.form.instructions
        ones = [k for k in range(part.first, part.last) if instructions[k].code >= 0]
        writing = [k for k in ones if space.codes[instructions[k].code].signature.into]
        told = writing[0] if writing else ones[0]  # without any, results were written over inputs
        words = run.words(told, told + 1)
        self._failed(space, run.client, space.codes[words[0]].signature, words, 0, halfway.error)
        failure = space.store[words[2]]
        if not writing:
            space.drop(words[2])
        written = [slot for k in writing for slot in instructions[k].outs]
        for slot in (*written, *part.results):
            space.put(names[slot], failure)
        for register in part.freed:
            space.drop(names[part.inputs[register]])

    def _stopped(self, run: Running, part: Part, registers: list[Any], stopped: Stopped) -> None:
        """An instruction failed: what was made so far is kept, it is told, and the rest runs word by word."""
        assert part.piece is not None
        space = run.space
        self.instructions += 1 + sum(step < stopped.at for step in part.places)
        for register in range(part.piece.inputs, part.piece.slots):
            if registers[register] is not None:
                space.put(run.names[part.slots[register]], registers[register])
        registers.clear()
        words = run.words(stopped.at, stopped.at + 1)
        self._failed(space, run.client, space.codes[words[0]].signature, words, 0, stopped.error)
        self._by_word(run, stopped.at + 1, part.last)
