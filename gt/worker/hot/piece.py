"""A piece of a program that is run again and again: its instructions, with slots in the place of tensor ids."""

from __future__ import annotations

from dataclasses import dataclass

from gt.ops import Signature
from gt.worker.engines import Linked


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction."""

    signature: Signature
    run: Linked
    #: one an operand: the number of a slot, or ~k for the k-th number the piece is run with
    operands: tuple[int, ...]
    #: the slots of its results; in place (``signature.into``) they are those of its first operands
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Slots below ``inputs`` are given to it, the others it makes. It moves nothing between workers."""

    steps: tuple[Step, ...]
    inputs: int
    slots: int
    #: how many numbers (int, float, bool) it is run with
    numbers: int
    #: slots it makes that live on after it; all others it makes are gone
    results: tuple[int, ...]
    #: inputs that are freed in it, or after it, and by nobody else
    freed: tuple[int, ...]
    #: does its signal ask for it to be compiled?
    compile: bool = False


class Halfway(Exception):
    """A piece failed that may have written some of its inputs: to run it again would write them twice."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def title(piece: Piece) -> str:
    """How messages call it."""
    names = [step.signature.op.name for step in piece.steps]
    shown = ", ".join(names if len(names) <= 4 else [*names[:2], "…", names[-1]])
    return f"{len(names)} instructions ({shown})"
