"""Fragments on a worker: linked on their first run, then run many times.

A linked fragment consists of sections. A section is one move, several reductions that start together (a bucket), one
instruction that takes bytes from the client, or a range of other instructions. Only such a range has a *body*. It runs
on a list of registers: first its inputs, then the tensors that it creates. A slot numbers a tensor of the fragment, a
register a tensor of the section. A run looks nothing up, because each call has its kernel and its registers.

Between two calls of a long range the worker may pause, to run an urgent message of another client.

The range exists in two forms: `LinkedSection.calls` is what `LinkedSection.run` interprets; the body, a `Section`, is
what the levels in `gt.worker.hot` translate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Any

from gt.ops.cost import estimate
from gt.types import BYTES
from gt.wire.fragments import Instruction, ParsedFragment
from gt.wire.structures import Fragment
from gt.worker.hot.section import KernelCall, Section
from gt.worker.linked import LinkedMove, LinkedSignature

#: The kinds of entries of `LinkedSection.calls`: free a register; call a kernel with one or two tensors and one result;
#: call a kernel with any operands and results; call one that writes in place.
FREE, ONE, TWO, ANY, INTO = 0, 1, 2, 3, 4
#: The worker may pause after this many estimated microseconds of a section.
PAUSE_AFTER_US = 250.0


class InstructionFailed(Exception):
    """An instruction of a section raised an error."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(str(error))
        #: its index among the fragment's instructions
        self.index, self.error = index, error


class LinkedSection:
    """A contiguous range of a fragment's instructions."""

    __slots__ = (
        "body", "calls", "first", "freed", "freed_unused", "indices", "inputs", "is_bucket", "last", "numbers",
        "pauses", "results", "runs", "slots", "writes",
    )  # fmt: skip

    def __init__(self, first: int, last: int) -> None:
        #: it has the instructions ``first`` to ``last - 1``
        self.first, self.last = first, last
        #: None for a bucket, and for a single instruction that the interpreter runs
        self.body: Section | None = None
        self.is_bucket = False
        #: slots that it reads or writes in place, and does not create
        self.inputs: tuple[int, ...] = ()
        #: slots that it creates and does not free
        self.results: tuple[int, ...] = ()
        #: slots that it frees without using them
        self.freed_unused: tuple[int, ...] = ()
        #: registers of the inputs that it frees
        self.freed: tuple[int, ...] = ()
        #: which of the fragment's numbers it uses
        self.numbers: tuple[int, ...] = ()
        #: whether it writes in place
        self.writes = False
        self.runs = 0
        #: (kind, kernel, out, a, b). FREE: a is the register, b its index in ``inputs`` or None. ONE, TWO: out, a and b
        #: are registers. ANY, INTO: out and a are tuples of registers, with ~k in a for number k; b: len(out) > 1
        self.calls: list[tuple[int, Any, Any, Any, Any]] = []
        #: for each entry of ``calls`` its index among the fragment's instructions
        self.indices: list[int] = []
        #: register -> slot
        self.slots: list[int] = []
        #: how many entries of ``calls`` run before each pause, counted from the one before
        self.pauses: list[int] = []

    def run(
        self,
        registers: list[Any],
        numbers: list[Any],
        ids: list[int],
        store: dict[int, Any],
        tick: Callable[[Any], Any] | None = None,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Interpret the section. Fills ``registers``, which begins with the inputs; ``ids`` are their tensor ids.
        ``tick`` is called before each call, ``pause`` from time to time; it must not raise. Raises InstructionFailed.
        """
        calls = iter(self.calls)
        steps = calls if pause is None else _with_pauses(calls, self.pauses, pause)
        try:
            for kind, kernel, out, a, b in steps if tick is None else map(tick, steps):
                if kind == TWO:
                    registers[out] = kernel(registers[a], registers[b])
                elif kind == FREE:
                    registers[a] = None
                    if b is not None:
                        store.pop(ids[b], None)
                elif kind == ONE:
                    registers[out] = kernel(registers[a])
                else:
                    results = kernel(*[registers[x] if x >= 0 else numbers[~x] for x in a])
                    if kind == ANY:
                        for register, value in zip(out, results if b else (results,), strict=True):
                            registers[register] = value
        except Exception as error:  # whatever a kernel raises is the failure of its instruction
            failed = len(self.calls) - length_hint(calls) - 1
            raise InstructionFailed(self.indices[failed], error) from None


def _with_pauses(calls: Iterator[Any], counts: list[int], pause: Callable[[], None]) -> Iterator[Any]:
    for count in counts:
        yield from islice(calls, count)
        pause()
    yield from calls


class LinkedFragment:
    """A fragment that is ready to run. ``codes`` are the codes it uses; without one of them it cannot run."""

    __slots__ = ("codes", "parsed", "sections")

    def __init__(self, fragment: Fragment, codes: Mapping[int, Any]) -> None:
        used = {code: codes[code] for code in fragment.words if code in codes}
        self.parsed = ParsedFragment(fragment, {code: _format(linked) for code, linked in used.items()})
        self.codes = {instruction.code for instruction in self.parsed.instructions if instruction.code >= 0}
        self.sections = [_link_section(self.parsed, codes, *bounds) for bounds in _section_bounds(self.parsed, codes)]


class _MoveFormat:
    """The words of a move: code, site, result, operand. The operand is there even if this worker has no tensor."""

    width, start, offsets = 4, 3, (3,)


def _format(linked: LinkedSignature | LinkedMove) -> Any:
    return _MoveFormat if isinstance(linked, LinkedMove) else linked.signature


def _stands_alone(linked: Any) -> bool:
    """Whether an instruction moves a tensor or takes bytes from the client: then it is in no body."""
    return isinstance(linked, LinkedMove) or (isinstance(linked, LinkedSignature) and BYTES in linked.signature.ins)


def _section_bounds(parsed: ParsedFragment, codes: Mapping[int, Any]) -> list[tuple[int, int]]:
    """(first, last) of each section: a move, a bucket of reductions, an instruction with bytes, or a range."""
    bounds, first = [], 0
    for index, instruction in enumerate(parsed.instructions):
        if _stands_alone(codes.get(instruction.code)):
            if index > first:
                bounds.append((first, index))
            if bounds and bounds[-1][1] == index and _start_together(parsed, codes, *bounds[-1], index):
                bounds[-1] = bounds[-1][0], index + 1
            else:
                bounds.append((index, index + 1))
            first = index + 1
    if len(parsed.instructions) > first:
        bounds.append((first, len(parsed.instructions)))
    return bounds


def _start_together(parsed: ParsedFragment, codes: Mapping[int, Any], first: int, last: int, index: int) -> bool:
    """Whether instruction ``index`` can start together with those from ``first`` to ``last - 1``."""
    instruction, earlier = parsed.instructions[index], parsed.instructions[first:last]
    move, other = codes[instruction.code], codes.get(earlier[0].code)
    if not isinstance(move, LinkedMove) or not isinstance(other, LinkedMove):
        return False
    if move.before is None or other.before is None or move.before.dtype != other.before.dtype:
        return False
    alike = move.kind == other.kind == "all_reduce" and (move.group, move.options) == (other.group, other.options)
    return alike and not any(slot in before.outs for before in earlier for slot in instruction.operands)


def _link_section(parsed: ParsedFragment, codes: Mapping[int, Any], first: int, last: int) -> LinkedSection:
    section, instructions = LinkedSection(first, last), parsed.instructions[first:last]
    linked = codes.get(instructions[0].code)
    section.is_bucket = last - first > 1 and isinstance(linked, LinkedMove)
    if not _stands_alone(linked):
        _SectionLinker(parsed, codes, section, instructions).link()
    return section


class _SectionLinker:
    """Builds a section's body: the fragment's slots become registers."""

    def __init__(
        self, parsed: ParsedFragment, codes: Mapping[int, Any], section: LinkedSection, instructions: list[Instruction]
    ) -> None:
        self.parsed, self.codes, self.section, self.instructions = parsed, codes, section, instructions
        #: slot -> register
        self.registers: dict[int, int] = {}
        #: index among the fragment's numbers -> index among the section's
        self.numbers: dict[int, int] = {}
        #: slots that are created and not freed so far, in order
        self.alive: dict[int, None] = {}
        #: registers of the inputs that are freed
        self.freed: list[int] = []
        self.calls: list[KernelCall] = []

    def link(self) -> None:
        section = self.section
        section.inputs = self._inputs()
        for slot in section.inputs:
            self._add_register(slot)
        freed_unused = []
        for index, instruction in enumerate(self.instructions):
            if instruction.code >= 0:
                self._add_call(index, instruction)
            elif instruction.operands[0] in self.registers:
                self._add_free(index, instruction.operands[0])
            else:
                freed_unused.append(instruction.operands[0])
        section.freed_unused, section.results = tuple(freed_unused), tuple(self.alive)
        section.numbers, section.freed = tuple(self.numbers), tuple(self.freed)
        section.pauses = self._pauses()
        section.body = Section(
            tuple(self.calls),
            len(section.inputs),
            len(section.slots),
            len(self.numbers),
            tuple(self.registers[slot] for slot in section.results),
            section.freed,
            self.parsed.compile,
        )

    def _pauses(self) -> list[int]:
        """After how many calls to pause each time: not after the last one, and never if all of them are short."""
        pauses, count, cost = [], 0, 0.0
        for index in self.section.indices:
            if cost >= PAUSE_AFTER_US:
                pauses.append(count)
                count, cost = 0, 0.0
            instruction = self.parsed.instructions[index]
            cost += estimate(self.codes[instruction.code].signature) if instruction.code >= 0 else 0.0
            count += 1
        return pauses

    def _inputs(self) -> tuple[int, ...]:
        """The slots that the section uses and does not create, in order of first use."""
        created: set[int] = set()
        inputs: dict[int, None] = {}
        for instruction in self.instructions:
            if instruction.code >= 0:
                inputs.update(dict.fromkeys(s for s in instruction.operands if s >= 0 and s not in created))
                if self.codes[instruction.code].signature.into:
                    inputs.update(dict.fromkeys(s for s in instruction.outs if s not in created))
                else:
                    created.update(instruction.outs)
        return tuple(inputs)

    def _add_register(self, slot: int) -> None:
        self.registers[slot] = len(self.section.slots)
        self.section.slots.append(slot)

    def _add_free(self, index: int, slot: int) -> None:
        section = self.section
        self.alive.pop(slot, None)
        position = section.inputs.index(slot) if slot in section.inputs else None
        if position is not None:
            self.freed.append(position)
        section.calls.append((FREE, None, None, self.registers[slot], position))
        section.indices.append(section.first + index)

    def _add_call(self, index: int, instruction: Instruction) -> None:
        linked, section = self.codes[instruction.code], self.section
        signature = linked.signature
        operands = tuple(
            self.registers[s] if s >= 0 else ~self.numbers.setdefault(~s, len(self.numbers))
            for s in instruction.operands
        )
        if not signature.into:
            for slot in instruction.outs:
                self._add_register(slot)
                self.alive[slot] = None
        outs = tuple(self.registers[slot] for slot in instruction.outs)
        section.writes = section.writes or signature.into
        self.calls.append(KernelCall(signature, linked.kernel, operands, outs))
        if signature.plain == 2:
            section.calls.append((TWO, linked.run, outs[0], *operands))
        elif signature.plain == 1:
            section.calls.append((ONE, linked.run, outs[0], operands[0], None))
        else:
            kind = INTO if signature.into else ANY
            section.calls.append((kind, linked.run, outs, operands, len(outs) > 1))
        section.indices.append(section.first + index)
