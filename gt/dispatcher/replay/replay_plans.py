"""What the dispatcher remembers of a fragment: data for `gt.dispatcher.replay.replay`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.plan.layouts import AnyState, Layout, Lost
from gt.dispatcher.segments import Workers
from gt.dispatcher.state import NUMBER_TYPES, Client
from gt.wire.fragments import ParsedFragment
from gt.wire.structures import Fragment

#: where an id comes from: (k, None) is the k-th input, (k, layout) its copy in that layout, and k alone is the k-th id
#: that the dispatcher creates
IdSource = tuple[int, Layout | None] | int


class NumberSlot:
    """Stands for a number while a fragment is forwarded for the first time, so that its position can be traced.

    It compares and hashes like the number.
    """

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
class InputSources:
    """Where the inputs of a section come from. Most are inputs of the fragment, so these are kept apart."""

    #: for each of them which input of the fragment it is; any number for one of ``others``
    plain: tuple[int, ...]
    #: (position, source) of those that are not inputs of the fragment themselves
    others: tuple[tuple[int, IdSource], ...]

    @classmethod
    def of(cls, sources: Iterable[IdSource]) -> InputSources:
        plain, others = [], []
        for position, source in enumerate(sources):
            is_plain = isinstance(source, tuple) and source[1] is None
            plain.append(source[0] if isinstance(source, tuple) and is_plain else 0)
            others += [] if is_plain else [(position, source)]
        return cls(tuple(plain), tuple(others))

    def ids(self, inputs: list[int], id_of: Callable[[IdSource], int]) -> list[int]:
        """The ids of the inputs in one run; ``inputs``: those of the fragment."""
        ids = [inputs[k] for k in self.plain] if self.plain and inputs else [0] * len(self.plain)
        for position, source in self.others:
            ids[position] = id_of(source)
        return ids


@dataclass(frozen=True, slots=True)
class ReplaySection:
    """A section of a fragment for one set of workers. The dispatcher gives it a fragment number."""

    workers: Workers
    parsed: ParsedFragment
    #: where its inputs come from, and which of the fragment's numbers it takes
    inputs: InputSources
    numbers: tuple[int, ...]
    #: estimated microseconds on each worker
    cost: float


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Everything the dispatcher stores about one tensor after a replay."""

    state: AnyState
    copies: tuple[tuple[Layout, IdSource], ...]
    origin: Any
    uncached: bool


@dataclass(frozen=True, slots=True)
class TensorRecords:
    """The records of several tensors, by column, so that all of them are stored at once."""

    #: which inputs or created tensors of the fragment they are
    indices: tuple[int, ...] = ()
    states: tuple[AnyState, ...] = ()
    origins: tuple[Any, ...] = ()
    #: whether all of them have an origin
    have_origins: bool = True
    #: (position among them, copies) of those with copies; the positions of those whose copies are not cached
    copies: tuple[tuple[int, tuple[tuple[Layout, IdSource], ...]], ...] = ()
    uncached: tuple[int, ...] = ()

    @classmethod
    def of(cls, records: Iterable[tuple[int, TensorRecord]]) -> TensorRecords:
        indices, rows = [k for k, _ in records], [record for _, record in records]
        return cls(
            tuple(indices),
            tuple(row.state for row in rows),
            tuple(row.origin for row in rows),
            all(row.origin is not None for row in rows),
            tuple((at, row.copies) for at, row in enumerate(rows) if row.copies),
            tuple(at for at, row in enumerate(rows) if row.uncached),
        )


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a repetition of a fragment does, for inputs with certain states."""

    #: the worker that gets the client's words unchanged, because it holds everything
    pass_to: Layout | None
    #: estimated microseconds of all its sections
    cost: float
    #: the inputs that are freed
    freed: tuple[int, ...]
    #: with ``pass_to``: the tensors that the fragment creates and does not free, with their states
    created: tuple[tuple[int, AnyState], ...]
    #: without ``pass_to``: the sections, how many ids the dispatcher creates for them, the records of inputs that
    #: change, and the records of tensors that the fragment creates and does not free
    sections: tuple[ReplaySection, ...] = ()
    new_ids: int = 0
    changed_inputs: TensorRecords = TensorRecords()
    created_records: TensorRecords = TensorRecords()
    #: for each number: it is finite and not zero; None if the plan does not depend on that
    number_classes: tuple[bool, ...] | None = None
    #: the layout in which the transfers among its numbers must be
    transfers_at: Layout | Lost | None = None
    #: how many bytes more a worker may need because gathers start ahead of their use
    prefetched_bytes: int = 0


class KnownFragment:
    """A client's fragment and its cached replay plans."""

    __slots__ = ("announced", "blobs", "number_types", "parsed", "plans")

    def __init__(self, fragment: Fragment, client: Client) -> None:
        """Raises what `ParsedFragment` raises."""
        self.parsed = parsed = ParsedFragment(fragment, client.codes)
        #: `plan_key` -> plan, oldest first
        self.plans: OrderedDict[tuple[Any, ...], ReplayPlan] = OrderedDict()
        #: (workers, number) of the fragment itself and its sections, as announced to workers
        self.announced: set[tuple[Workers, int]] = set()
        types = {
            ~operand: NUMBER_TYPES.get(t, bytes)
            for instruction in parsed.instructions
            if instruction.code >= 0
            for operand, t in zip(instruction.operands, client.codes[instruction.code].signature.ins, strict=True)
            if operand < 0
        }
        constants = len(parsed.constants)
        if any(type(value) is not types[k] for k, value in enumerate(parsed.constants)):
            raise ValueError("a constant does not have the type that its instruction takes")
        #: the Python types of the numbers it is run with
        self.number_types = [types[constants + k] for k in range(parsed.numbers)]
        #: which of them may be transfers
        self.blobs = tuple(k for k, number_type in enumerate(self.number_types) if number_type is bytes)

    def uses_only(self, codes: Container[int]) -> bool:
        """Whether all its instructions have one of these codes."""
        return all(one.code < 0 or one.code in codes for one in self.parsed.instructions)
