"""A section of a fragment as the levels run it: kernel calls, with slots in place of tensor ids."""

from __future__ import annotations

from dataclasses import dataclass

from gt.ops import Signature
from gt.worker.engines import Kernel


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One instruction."""

    signature: Signature
    run: Kernel
    #: for each operand a slot, or ~k for the k-th number of the section
    operands: tuple[int, ...]
    #: the slots of its results; in place (``signature.into``) these are the slots of its first operands
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Slots below ``inputs`` are its inputs; it creates the others. It moves nothing between workers."""

    calls: tuple[KernelCall, ...]
    inputs: int
    slots: int
    #: how many numbers (int, float, bool) each run passes
    numbers: int
    #: the created slots that stay alive; the others are freed
    results: tuple[int, ...]
    #: the inputs that are freed in the section or right after it, and by no other section
    freed: tuple[int, ...]
    #: whether its signal requires that it is compiled
    compile: bool = False


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
