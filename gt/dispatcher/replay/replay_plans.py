"""What the dispatcher remembers of a fragment: data for `gt.dispatcher.replay.replay`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost, Where
from gt.dispatcher.plan.segments import Workers
from gt.dispatcher.state import KINDS, Client
from gt.wire.fragments import ParsedFragment
from gt.wire.messages import Fragment

#: where an id comes from: the k-th input; its copy in a layout; the k-th the dispatcher makes
Source = tuple[int, Layout | None] | int


class Hole:
    """Stands for a number while a fragment's words are written out, so that it is found again."""

    __slots__ = ("index", "value")

    def __init__(self, index: int, value: Any) -> None:
        self.index, self.value = index, value

    def __abs__(self) -> Any:
        return abs(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)


@dataclass(frozen=True, slots=True)
class Run:
    """What a set of workers gets."""

    workers: Workers
    form: ParsedFragment
    #: where its inputs come from, and which of the numbers it takes
    inputs: tuple[Source, ...]
    numbers: tuple[int, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a tensor."""

    place: Where
    copies: tuple[tuple[Layout, Source], ...]
    made: Any
    loose: bool


@dataclass(frozen=True, slots=True)
class Course:
    #: everything is there, and the client's own words will do
    passed: Layout | None
    cost: float
    #: inputs that are no more; what was made and lives on, if all is on one worker and there is no more to say of it
    freed: tuple[int, ...]
    live: tuple[tuple[int, Where], ...]
    runs: tuple[Run, ...] = ()
    own: int = 0
    #: inputs that lie otherwise than before, and what was made, with what is known of them
    changed: tuple[tuple[int, State], ...] = ()
    states: tuple[tuple[int, State], ...] = ()
    #: which numbers were finite and not zero, if that was asked
    numbers: tuple[bool, ...] | None = None
    #: where what comes in parts must be
    arrived: Layout | Lost | None = None


class Known:
    """A client's fragment."""

    __slots__ = ("blobs", "courses", "form", "kinds", "told")

    def __init__(self, fragment: Fragment, client: Client) -> None:
        """Raises what `ParsedFragment` raises."""
        self.form = form = ParsedFragment(fragment, client.codes)
        self.courses: OrderedDict[tuple[Any, ...], Course] = OrderedDict()
        #: the workers that know it, or a part of it: (workers, number)
        self.told: set[tuple[Workers, int]] = set()
        kinds = {
            ~operand: KINDS.get(t, bytes)
            for one in form.instructions
            if one.code >= 0
            for operand, t in zip(one.operands, client.codes[one.code].signature.ins, strict=True)
            if operand < 0
        }
        constant = len(form.constants)
        if any(type(value) is not kinds[k] for k, value in enumerate(form.constants)):
            raise ValueError("a constant of another type than its instruction takes")
        #: the Python types of the numbers it is run with
        self.kinds = [kinds[constant + k] for k in range(form.numbers)]
        #: those that may stand for a transfer
        self.blobs = tuple(k for k, kind in enumerate(self.kinds) if kind is bytes)

    def known_codes(self, codes: Container[int]) -> bool:
        return all(one.code < 0 or one.code in codes for one in self.form.instructions)
