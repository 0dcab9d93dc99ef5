"""The words of a fragment as instructions, in the form that is needed to reorder them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gt.wire.fragments import InstructionFormat, NoFragment
from gt.wire.words import FIRST_CODE


@dataclass(slots=True)
class InstructionWords:
    """One instruction. With a negative code it frees a tensor."""

    words: list[Any]
    #: the tensors that it creates, writes or frees
    outs: list[int]
    operands: list[int] = field(default_factory=list)

    @property
    def code(self) -> int:
        code: int = self.words[0]
        return code


def parse(words: list[Any], codes: Mapping[int, InstructionFormat]) -> list[InstructionWords]:
    """Raises NoFragment if there is a control word, and KeyError if there is an unknown code."""
    instructions: list[InstructionWords] = []
    i, end = 0, len(words)
    while i < end:
        code = words[i]
        if code < 0:
            instructions.append(InstructionWords([code], [-code]))
            i += 1
            continue
        if code < FIRST_CODE:
            raise NoFragment
        format = codes[code]
        operands = [words[i + offset] for offset in format.offsets]
        instructions.append(InstructionWords(words[i : i + format.width], words[i + 2 : i + format.start], operands))
        i += format.width
    return instructions
