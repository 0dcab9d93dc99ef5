"""A section of a fragment as the levels run it: kernel calls on registers.

A register numbers a tensor of the section: first its inputs, then the tensors that it creates.
"""

from __future__ import annotations

from dataclasses import dataclass

from gt.ops import Signature
from gt.worker.engines import Kernel


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One instruction."""

    signature: Signature
    run: Kernel
    #: for each operand a register, or ~k for number k of the section
    operands: tuple[int, ...]
    #: the registers of its results; in place (``signature.into``) these are the registers of its first operands
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A range of instructions that moves nothing between workers."""

    calls: tuple[KernelCall, ...]
    #: how many registers are inputs: 0 to inputs - 1
    inputs: int
    #: how many registers there are
    registers: int
    #: how many numbers (int, float, bool) each run passes
    numbers: int
    #: the created registers that stay alive; the others are freed
    results: tuple[int, ...]
    #: the inputs that are freed in the section or right after it, and by no other section
    freed: tuple[int, ...]
    #: whether its signal requires that it is compiled
    compile: bool = False

    def created_bytes(self) -> int:
        """The size of everything that its instructions create."""
        calls = [call.signature for call in self.calls]
        return sum(t.nbytes for s in calls if not s.op.view and not s.into for t in s.outs)


class PartialRun(Exception):
    """A run failed that may have written some of its inputs already. Running it again would write them twice."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def title(section: Section) -> str:
    """The name of a section in messages."""
    names = [call.signature.op.name for call in section.calls]
    shown = ", ".join(names if len(names) <= 4 else [*names[:2], "…", names[-1]])
    return f"{len(names)} instructions ({shown})"
