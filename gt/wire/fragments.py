"""Fragments: repeated stretches of a program, with slots in place of tensor ids.

A training loop emits the same words again and again. Only the ids of its tensors and some of its numbers differ. In a
fragment each tensor is a *slot*:

    0 … inputs-1              tensors that existed before, in the order they are first mentioned
    then ``created``          tensors that the fragment creates: the k-th has the id ``base + k``
    then ``dispatcher_created``   tensors that the dispatcher creates for it on several workers: the k-th has the id
                              ``dispatcher_base + k``

Numbers are left out. So ``RUN, fragment, section, base, dispatcher_base, inputs…, numbers…`` describes a repetition
completely. The words of a fragment are those of a stream without control words: ``code, site, slots…, operands…``, and
``-1 - slot`` to free a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from gt.ops.signature import HEAD
from gt.wire.structures import Fragment
from gt.wire.words import FIRST_CODE, FIRST_DISPATCHER_ID, MAX_FRAGMENT_WORDS, RUN

#: The number of words in a RUN before its inputs.
RUN_HEAD = 5


class InstructionFormat(Protocol):
    """How the words of an instruction are arranged. Signatures have this form, and so do moves."""

    @property
    def width(self) -> int:
        """How many words it has."""

    @property
    def start(self) -> int:
        """The offset of its first operand; before it are the code, the site and the results."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of the tensors among its operands; the other operands are numbers."""


class NoFragment(Exception):
    """These words cannot become a fragment."""


class SortedWords(Struct):
    """The words of a stretch of a stream, sorted by kind. Each word is identified by its position."""

    #: (position, index of the input by first mention), where an input is used or written; where it is freed
    input_uses: list[tuple[int, int]] = field(default_factory=list)
    input_frees: list[tuple[int, int]] = field(default_factory=list)
    #: (position, id - base), the same for tensors that the stretch creates
    created_uses: list[tuple[int, int]] = field(default_factory=list)
    created_frees: list[tuple[int, int]] = field(default_factory=list)
    #: (position, id - dispatcher_base), the same for tensors that the dispatcher creates
    dispatcher_uses: list[tuple[int, int]] = field(default_factory=list)
    dispatcher_frees: list[tuple[int, int]] = field(default_factory=list)
    #: positions of numbers; positions of codes and sites
    numbers: list[int] = field(default_factory=list)
    fixed: list[int] = field(default_factory=list)
    #: the ids of the inputs, in the order of first mention
    inputs: list[int] = field(default_factory=list)


def sort_words(
    words: list[Any],
    codes: Mapping[int, Any],
    base: int,
    dispatcher_base: int = FIRST_DISPATCHER_ID,
    fresh: bool = False,
) -> SortedWords:
    """Sort the words by kind. Ids from ``base`` on are those that the stretch creates.

    Raises NoFragment if there are control words, unknown codes or an incomplete instruction. With ``fresh`` also if a
    result has an id below ``base``, unless it is written in place.
    """
    result = SortedWords()
    add_tensor = _tensor_adder(result, base, dispatcher_base)
    uses = result.input_uses, result.created_uses, result.dispatcher_uses
    frees = result.input_frees, result.created_frees, result.dispatcher_frees
    i, end = 0, len(words)
    while i < end:
        code = words[i]
        if code < 0:
            add_tensor(i, -code, frees)
            i += 1
            continue
        if code < FIRST_CODE or code not in codes:
            raise NoFragment
        format = codes[code]
        if fresh and _has_old_result(words[i : i + format.width], format.start, base):
            raise NoFragment
        result.fixed += (i, i + 1)
        for offset in range(HEAD, format.width):
            if offset < format.start or offset in format.offsets:
                add_tensor(i + offset, words[i + offset], uses)
            else:
                result.numbers.append(i + offset)
        i += format.width
    if i != end:
        raise NoFragment
    return result


#: lists of (position, index) of inputs, created tensors, and tensors of the dispatcher
_Lists = tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]


def _tensor_adder(result: SortedWords, base: int, dispatcher_base: int) -> Callable[[int, int, _Lists], None]:
    """A function that adds (position, tensor id) to the list of its kind."""
    slots: dict[int, int] = {}

    def add_tensor(position: int, id: int, lists: _Lists) -> None:
        if id >= dispatcher_base:
            lists[2].append((position, id - dispatcher_base))
        elif base <= id < base + MAX_FRAGMENT_WORDS:
            lists[1].append((position, id - base))
        else:
            if id not in slots:
                slots[id] = len(slots)
                result.inputs.append(id)
            lists[0].append((position, slots[id]))

    return add_tensor


def _has_old_result(words: list[Any], start: int, base: int) -> bool:
    """Whether a result is neither created by the stretch nor written in place."""
    return any(id < base and id not in words[start:] for id in words[HEAD:start])


def make_fragment(
    number: int, words: list[Any], sorted_words: SortedWords, compile: bool = False, constants: list[int] | None = None
) -> Fragment:
    """The fragment for these words.

    ``constants`` are the indices of the numbers that never change; their values become part of the fragment.
    """
    s = sorted_words
    inputs = len(s.inputs)
    created = 1 + max((k for _, k in s.created_uses + s.created_frees), default=-1)
    dispatcher_created = 1 + max((k for _, k in s.dispatcher_uses + s.dispatcher_frees), default=-1)
    fragment_words = words[:]
    for first, uses, frees in (
        (0, s.input_uses, s.input_frees),
        (inputs, s.created_uses, s.created_frees),
        (inputs + created, s.dispatcher_uses, s.dispatcher_frees),
    ):
        for position, k in uses:
            fragment_words[position] = first + k
        for position, k in frees:
            fragment_words[position] = -1 - first - k
    for position in s.numbers:
        fragment_words[position] = 0
    values = [(k, words[s.numbers[k]]) for k in constants or ()]
    return Fragment(number, inputs, created, dispatcher_created, fragment_words, compile, values)


class Instruction(Struct, frozen=True):
    """One instruction of a fragment. With a negative code it frees a tensor."""

    #: the position of its first word
    position: int
    code: int
    site: int
    outs: tuple[int, ...]
    #: a slot, or ~k for the k-th number
    operands: tuple[int, ...]


class ParsedFragment:
    """A fragment as a list of instructions. Its numbers are the constants, followed by those of each run."""

    __slots__ = (
        "compile", "constants", "created", "dispatcher_created", "fragment", "inputs", "instructions", "numbers",
        "width",
    )  # fmt: skip

    def __init__(self, fragment: Fragment, codes: Mapping[int, InstructionFormat]) -> None:
        """Raises ValueError, KeyError or IndexError if the fragment is not valid."""
        self.fragment, self.compile = fragment, fragment.compile
        self.inputs, self.created = fragment.inputs, fragment.created
        self.dispatcher_created = fragment.dispatcher_created
        self.constants = [value for _, value in fragment.constants]
        self.instructions: list[Instruction] = []
        #: how many numbers each run passes
        self.numbers = self._parse(fragment.words, codes, {k: i for i, (k, _) in enumerate(fragment.constants)})
        #: how many words a RUN of it has
        self.width = RUN_HEAD + self.inputs + self.numbers

    def _parse(self, words: list[int], codes: Mapping[int, InstructionFormat], constants: dict[int, int]) -> int:
        """Append the instructions; return how many numbers are not constants."""
        i, end, slots = 0, len(words), self.inputs + self.created + self.dispatcher_created
        seen = varying = 0
        while i < end:
            code = words[i]
            if code < 0:
                self._add(i, code, 0, (), (-1 - code,), slots)
                i += 1
                continue
            format = codes[code]
            operands = []
            for offset in range(format.start, format.width):
                if offset in format.offsets:
                    operands.append(words[i + offset])
                elif seen in constants:
                    operands.append(~constants[seen])
                    seen += 1
                else:
                    operands.append(~(len(constants) + varying))
                    seen, varying = seen + 1, varying + 1
            self._add(i, code, words[i + 1], tuple(words[i + HEAD : i + format.start]), tuple(operands), slots)
            i += format.width
        counts = min(self.inputs, self.created, self.dispatcher_created)
        if i != end or counts < 0 or seen - varying != len(self.constants):
            raise ValueError("the fragment's words do not match its counts or its constants")
        return varying

    def _add(
        self, position: int, code: int, site: int, outs: tuple[int, ...], operands: tuple[int, ...], slots: int
    ) -> None:
        """Append an instruction of a fragment with this many slots."""
        if any(not 0 <= slot < slots for slot in outs) or any(slot >= slots for slot in operands):
            raise ValueError("the fragment names a slot that it does not have")
        self.instructions.append(Instruction(position, code, site, outs, operands))

    def slot_ids(self, base: int, dispatcher_base: int, inputs: list[int]) -> list[int]:
        """The tensor id of each slot in one run."""
        created = range(base, base + self.created)
        return [*inputs, *created, *range(dispatcher_base, dispatcher_base + self.dispatcher_created)]

    def expand(self, ids: list[int], numbers: list[Any], first: int = 0, last: int | None = None) -> list[Any]:
        """The words of instructions ``first`` to ``last - 1``, as a client would emit them."""
        words: list[Any] = []
        for one in self.instructions[first:last]:
            if one.code < 0:
                words.append(-ids[one.operands[0]])
            else:
                words += (one.code, one.site)
                words += [ids[slot] for slot in one.outs]
                words += [ids[slot] if slot >= 0 else numbers[~slot] for slot in one.operands]
        return words

    def read_run(self, stream: list[Any], i: int) -> tuple[int, int, list[int], list[Any]]:
        """The arguments of the RUN at word ``i``: base, dispatcher_base, inputs, and all numbers with the constants."""
        end = i + RUN_HEAD + self.inputs
        numbers = [*self.constants, *stream[end : end + self.numbers]]
        return stream[i + 3], stream[i + 4], stream[i + RUN_HEAD : end], numbers


def run_words(number: int, section: int, base: int, dispatcher_base: int, inputs: Any, numbers: Any) -> list[Any]:
    """The words of a RUN."""
    return [RUN, number, section, base, dispatcher_base, *inputs, *numbers]
