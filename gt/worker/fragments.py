"""Fragments in the worker: linked once, run ever after.

A fragment is divided into parts: pieces of instructions that depend on nothing but their operands, and between them
what moves a tensor or takes bytes that were sent. A piece runs on a list of registers, without looking anything up:
each of its instructions knows its kernel and the registers it reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import length_hint
from typing import Any

from gt.types import BYTES
from gt.wire.fragments import Form, Instruction
from gt.wire.messages import Fragment
from gt.worker.hot.piece import Piece, Step
from gt.worker.space import Entry, MoveEntry

FREE, ONE, TWO, ANY, INTO = 0, 1, 2, 3, 4


class Stopped(Exception):
    """An instruction of a piece failed."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__(str(error))
        #: its number among the fragment's
        self.at, self.error = at, error


class Part:
    """Some of a fragment's instructions, one after the other."""

    __slots__ = (
        "ahead", "bucket", "calls", "first", "freed", "inputs", "last", "numbers", "piece", "places", "results",
        "runs", "slots", "writes",
    )  # fmt: skip

    def __init__(self, first: int, last: int) -> None:
        #: the instructions from ``first`` to before ``last``
        self.first, self.last = first, last
        #: None: one instruction that is run by itself, or a bucket of reductions that are begun together
        self.piece: Piece | None = None
        self.bucket = False
        #: slots it is given, and that live on after it; those it frees that it does not use
        self.inputs: tuple[int, ...] = ()
        self.results: tuple[int, ...] = ()
        self.ahead: tuple[int, ...] = ()
        #: registers of inputs it frees
        self.freed: tuple[int, ...] = ()
        #: which of the fragment's numbers are its
        self.numbers: tuple[int, ...] = ()
        self.writes = False
        self.runs = 0
        #: (kind, kernel, result, operand, operand) with registers, and the instruction's number among the fragment's
        self.calls: list[tuple[int, Any, Any, Any, Any]] = []
        self.places: list[int] = []
        #: register -> slot
        self.slots: list[int] = []

    def run(self, registers: list[Any], numbers: list[Any], ids: list[int], store: dict[int, Any]) -> None:
        """``registers`` begins with the inputs, whose ids are ``ids``. Raises Stopped."""
        calls = iter(self.calls)
        try:
            for kind, kernel, out, a, b in calls:
                if kind == TWO:
                    registers[out] = kernel(registers[a], registers[b])
                elif kind == FREE:
                    registers[a] = None
                    if b is not None:
                        store.pop(ids[b], None)
                elif kind == ONE:
                    registers[out] = kernel(registers[a])
                else:
                    made = kernel(*[registers[x] if x >= 0 else numbers[~x] for x in a])
                    if kind == ANY:
                        for register, value in zip(out, made if b else (made,), strict=True):
                            registers[register] = value
        except Exception as error:
            at = len(self.calls) - length_hint(calls) - 1
            raise Stopped(self.places[at], error) from None


class Program:
    """A fragment, ready to run."""

    __slots__ = ("codes", "form", "parts")

    def __init__(self, fragment: Fragment, codes: Mapping[int, Any]) -> None:
        used = {code: codes[code] for code in fragment.words if code in codes}
        self.form = Form(fragment, {code: _shape(entry) for code, entry in used.items()})
        self.codes = {one.code for one in self.form.instructions if one.code >= 0}
        self.parts = [_part(self.form, codes, first, last) for first, last in _bounds(self.form, codes)]


class _MoveShape:
    """A move's operand is a tensor for all, though not all have it."""

    width, start, offsets = 4, 3, (3,)


def _shape(entry: Entry | MoveEntry) -> Any:
    return _MoveShape if isinstance(entry, MoveEntry) else entry.signature


def _bounds(form: Form, codes: Mapping[int, Any]) -> list[tuple[int, int]]:
    """What moves a tensor, or takes bytes, stands alone; but reductions that can be begun together are."""
    bounds, first = [], 0
    for at, one in enumerate(form.instructions):
        entry = codes.get(one.code)
        if isinstance(entry, MoveEntry) or (isinstance(entry, Entry) and BYTES in entry.signature.ins):
            if at > first:
                bounds.append((first, at))
            if bounds and bounds[-1][1] == at and _together(form, codes, *bounds[-1], at):
                bounds[-1] = bounds[-1][0], at + 1
            else:
                bounds.append((at, at + 1))
            first = at + 1
    if len(form.instructions) > first:
        bounds.append((first, len(form.instructions)))
    return bounds


def _together(form: Form, codes: Mapping[int, Any], first: int, last: int, at: int) -> bool:
    """Can the instruction ``at`` be begun along with those before it, from ``first`` on?"""
    one, before = form.instructions[at], form.instructions[first:last]
    entry, other = codes[one.code], codes.get(before[0].code)
    if not isinstance(entry, MoveEntry) or not isinstance(other, MoveEntry):
        return False
    if entry.before is None or other.before is None or entry.before.dtype != other.before.dtype:
        return False
    alike = entry.kind == other.kind == "all_reduce" and (entry.group, entry.how) == (other.group, other.how)
    return alike and not any(slot in past.outs for past in before for slot in one.operands)


def _part(form: Form, codes: Mapping[int, Any], first: int, last: int) -> Part:
    part, instructions = Part(first, last), form.instructions[first:last]
    entry = codes.get(instructions[0].code)
    part.bucket = last - first > 1 and isinstance(entry, MoveEntry)
    if isinstance(entry, MoveEntry) or (isinstance(entry, Entry) and BYTES in entry.signature.ins):
        return part
    _Builder(form, codes, part, instructions).build()
    return part


class _Builder:
    """Makes a part's piece: slots of the fragment become registers."""

    def __init__(self, form: Form, codes: Mapping[int, Any], part: Part, instructions: list[Instruction]) -> None:
        self.form, self.codes, self.part, self.instructions = form, codes, part, instructions
        #: slot -> register, for inputs; then for what is made
        self.registers: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.alive: dict[int, None] = {}
        self.freed: list[int] = []
        self.steps: list[Step] = []

    def build(self) -> None:
        part = self.part
        made: set[int] = set()
        given: dict[int, None] = {}
        for one in self.instructions:
            if one.code >= 0:
                given.update(dict.fromkeys(s for s in one.operands if s >= 0 and s not in made))
                if self.codes[one.code].signature.into:
                    given.update(dict.fromkeys(s for s in one.outs if s not in made))
                else:
                    made.update(one.outs)
        part.inputs = tuple(given)
        for slot in given:
            self._register(slot)
        ahead = []
        for at, one in enumerate(self.instructions):
            if one.code >= 0:
                self._instruction(at, one)
            elif one.operands[0] in self.registers:
                self._free(at, one.operands[0])
            else:
                ahead.append(one.operands[0])
        part.ahead, part.results, part.numbers = tuple(ahead), tuple(self.alive), tuple(self.numbers)
        part.freed = tuple(self.freed)
        results = tuple(self.registers[slot] for slot in part.results)
        part.piece = Piece(
            tuple(self.steps),
            len(part.inputs),
            len(part.slots),
            len(self.numbers),
            results,
            part.freed,
            self.form.compile,
        )

    def _register(self, slot: int) -> None:
        self.registers[slot] = len(self.part.slots)
        self.part.slots.append(slot)

    def _free(self, at: int, slot: int) -> None:
        self.alive.pop(slot, None)
        given = self.part.inputs.index(slot) if slot in self.part.inputs else None
        if given is not None:
            self.freed.append(given)
        self.part.calls.append((FREE, None, None, self.registers[slot], given))
        self.part.places.append(self.part.first + at)

    def _instruction(self, at: int, one: Instruction) -> None:
        entry, part = self.codes[one.code], self.part
        signature = entry.signature
        operands = tuple(
            self.registers[s] if s >= 0 else ~self.numbers.setdefault(~s, len(self.numbers)) for s in one.operands
        )
        if not signature.into:
            for slot in one.outs:
                self._register(slot)
                self.alive[slot] = None
        outs = tuple(self.registers[slot] for slot in one.outs)
        part.writes = part.writes or signature.into
        self.steps.append(Step(signature, entry.run, operands, outs))
        if signature.plain == 2:
            part.calls.append((TWO, entry.run, outs[0], *operands))
        elif signature.plain == 1:
            part.calls.append((ONE, entry.run, outs[0], operands[0], None))
        else:
            kind = INTO if signature.into else ANY
            part.calls.append((kind, entry.run, outs, operands, len(outs) > 1))
        part.places.append(part.first + at)
