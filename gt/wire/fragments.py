"""Fragments: pieces of programs that come again, with slots in the place of ids.

A training loop emits the same words again and again, but for the ids of its tensors and some of its numbers. In a
fragment's canonical form a tensor is a *slot*:

    0 … inputs-1       tensors that were there before, in the order they are first named
    then ``made``      what the fragment makes: the k-th is the id ``base + k``
    then ``own``       what the dispatcher makes for it on several workers: the k-th is the id ``own + k``

and a number is left out. So ``RUN, fragment, part, base, own, inputs…, numbers…`` says all there is to say about a
repetition. Its words are those of a stream, without control words: ``code, site, slots…, operands…`` and ``-1 - slot``
to free one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gt.ops.signature import HEAD
from gt.wire.messages import FIRST_CODE, FIRST_OWN, MAX_FRAGMENT, RUN, Fragment

#: words of a RUN before its inputs
RUN_HEAD = 5


class Shape(Protocol):
    """How the words of an instruction are laid out; signatures are such, and all that stands for one."""

    @property
    def width(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def offsets(self) -> tuple[int, ...]: ...


class NoFragment(Exception):
    """These words cannot be run again as they are."""


@dataclass(slots=True)
class Sorted:
    """The words of a piece of a stream, by what they are; each with its place."""

    #: (place, which input, counted by first mention), where a tensor is used or written, and where it is freed
    given: list[tuple[int, int]] = field(default_factory=list)
    given_freed: list[tuple[int, int]] = field(default_factory=list)
    #: (place, id - base)
    made: list[tuple[int, int]] = field(default_factory=list)
    made_freed: list[tuple[int, int]] = field(default_factory=list)
    #: (place, id - own)
    own: list[tuple[int, int]] = field(default_factory=list)
    own_freed: list[tuple[int, int]] = field(default_factory=list)
    #: places of numbers; of codes and sites
    numbers: list[int] = field(default_factory=list)
    fixed: list[int] = field(default_factory=list)
    #: the inputs' ids, in the order they are first mentioned
    inputs: list[int] = field(default_factory=list)


def sort(words: list[Any], codes: Mapping[int, Any], base: int, own: int = FIRST_OWN, fresh: bool = False) -> Sorted:
    """Raises NoFragment if there are control words among them; or, where results must be ``fresh``, older ids."""
    found = Sorted()
    slots: dict[int, int] = {}

    def tensor(place: int, id: int, given: list[Any], made: list[Any], owned: list[Any]) -> None:
        if id >= own:
            owned.append((place, id - own))
        elif base <= id < base + MAX_FRAGMENT:
            made.append((place, id - base))
        else:
            if id not in slots:
                slots[id] = len(slots)
                found.inputs.append(id)
            given.append((place, slots[id]))

    i, end = 0, len(words)
    while i < end:
        code = words[i]
        if code < 0:
            tensor(i, -code, found.given_freed, found.made_freed, found.own_freed)
            i += 1
            continue
        if code < FIRST_CODE or code not in codes:
            raise NoFragment
        shape = codes[code]
        if fresh and _stray(words[i : i + shape.width], shape.start, base):
            raise NoFragment
        found.fixed += (i, i + 1)
        for place in range(i + HEAD, i + shape.start):
            tensor(place, words[place], found.given, found.made, found.own)
        for offset in range(shape.start, shape.width):
            if offset in shape.offsets:
                tensor(i + offset, words[i + offset], found.given, found.made, found.own)
            else:
                found.numbers.append(i + offset)
        i += shape.width
    if i != end:
        raise NoFragment
    return found


def _stray(words: list[Any], start: int, base: int) -> bool:
    """Is a result none of what the piece makes, nor written in place?"""
    return any(id < base and id not in words[start:] for id in words[HEAD:start])


def canonical(
    number: int, words: list[Any], found: Sorted, compile: bool = False, constant: list[int] | None = None
) -> Fragment:
    n = len(found.inputs)
    made = 1 + max((k for _, k in found.made + found.made_freed), default=-1)
    own = 1 + max((k for _, k in found.own + found.own_freed), default=-1)
    written = words[:]
    for first, used, freed in (
        (0, found.given, found.given_freed),
        (n, found.made, found.made_freed),
        (n + made, found.own, found.own_freed),
    ):
        for place, k in used:
            written[place] = first + k
        for place, k in freed:
            written[place] = -1 - first - k
    for place in found.numbers:
        written[place] = 0
    baked = [(k, words[found.numbers[k]]) for k in constant or ()]
    return Fragment(number, n, made, own, written, compile, baked)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a fragment, or, without a code, the freeing of a tensor."""

    #: where its words begin
    place: int
    code: int
    site: int
    outs: tuple[int, ...]
    #: a slot, or ~k for the k-th number
    operands: tuple[int, ...]


class Form:
    """A fragment, read. Its numbers are those that never change, then those it is run with."""

    __slots__ = ("compile", "constant", "fragment", "inputs", "instructions", "made", "numbers", "own", "width")

    def __init__(self, fragment: Fragment, codes: Mapping[int, Shape]) -> None:
        """Raises ValueError, KeyError or IndexError if it is none."""
        self.fragment = fragment
        self.inputs, self.made, self.own, self.compile = fragment.inputs, fragment.made, fragment.own, fragment.compile
        self.constant = [value for _, value in fragment.constant]
        self.instructions: list[Instruction] = []
        #: how many it is run with
        self.numbers = self._read(fragment.words, codes, {k: at for at, (k, _) in enumerate(fragment.constant)})
        #: of the words that run it
        self.width = RUN_HEAD + self.inputs + self.numbers

    def _read(self, words: list[int], codes: Mapping[int, Shape], constant: dict[int, int]) -> int:
        """How many numbers there are besides those that never change."""
        i, slots, end, seen, given = 0, self.inputs + self.made + self.own, len(words), 0, 0
        while i < end:
            code = words[i]
            if code < 0:
                self._add(i, code, 0, (), (-1 - code,), slots)
                i += 1
                continue
            shape = codes[code]
            operands = []
            for offset in range(shape.start, shape.width):
                if offset in shape.offsets:
                    operands.append(words[i + offset])
                elif seen in constant:
                    operands.append(~constant[seen])
                    seen += 1
                else:
                    operands.append(~(len(constant) + given))
                    seen, given = seen + 1, given + 1
            self._add(i, code, words[i + 1], tuple(words[i + HEAD : i + shape.start]), tuple(operands), slots)
            i += shape.width
        if i != end or min(self.inputs, self.made, self.own) < 0 or seen - given != len(self.constant):
            raise ValueError("a fragment that ends inside an instruction")
        return given

    def _add(self, place: int, code: int, site: int, outs: tuple[int, ...], ins: tuple[int, ...], slots: int) -> None:
        if any(not 0 <= slot < slots for slot in outs) or any(slot >= slots for slot in ins):
            raise ValueError("a fragment that names a slot it has not")
        self.instructions.append(Instruction(place, code, site, outs, ins))

    def names(self, base: int, own: int, inputs: list[int]) -> list[int]:
        """The ids of its slots."""
        return [*inputs, *range(base, base + self.made), *range(own, own + self.own)]

    def expand(self, names: list[int], numbers: list[Any], first: int = 0, last: int | None = None) -> list[Any]:
        """The words of its instructions from ``first`` to before ``last``, as a client would emit them."""
        words: list[Any] = []
        for one in self.instructions[first:last]:
            if one.code < 0:
                words.append(-names[one.operands[0]])
            else:
                words += (one.code, one.site)
                words += [names[slot] for slot in one.outs]
                words += [names[slot] if slot >= 0 else numbers[~slot] for slot in one.operands]
        return words

    def run(self, stream: list[Any], i: int) -> tuple[int, int, list[int], list[Any]]:
        """What the words at ``i`` run it with: base, own, inputs, and all its numbers."""
        at = i + RUN_HEAD + self.inputs
        numbers = [*self.constant, *stream[at : at + self.numbers]]
        return stream[i + 3], stream[i + 4], stream[i + RUN_HEAD : at], numbers


def run_words(number: int, part: int, base: int, own: int, inputs: Any, numbers: Any) -> list[Any]:
    return [RUN, number, part, base, own, *inputs, *numbers]
