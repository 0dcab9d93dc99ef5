"""What the dispatcher makes of a client's program for several workers: codes, ids and groups of its own.

An instruction is the same few words for every worker of a mesh; what its code stands for may differ from worker to
worker (a block may be longer, a group another), and that each of them is told once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.layouts import Layout
from gt.dispatcher.moves import ALONE, Step, share
from gt.dispatcher.planner import Choice
from gt.errors import DimError, DTypeError, ShapeError
from gt.ops import OPS, Attrs, Signature, sign
from gt.ops.split import Cut
from gt.types import Scalar, Shape, TensorType
from gt.wire.codec import definition, to_wire
from gt.wire.fragments import Form
from gt.wire.messages import FIRST_LOCAL, FIRST_OWN, Definition, Fragment, Group, Move, WorkerInfo


@dataclass(slots=True)
class News:
    """What one worker has to be told before the instructions that follow."""

    definitions: list[Definition] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)

    def add(self, more: News) -> None:
        self.definitions += more.definitions
        self.moves += more.moves
        self.groups += more.groups
        self.fragments += more.fragments


#: worker -> its news
Telling = Callable[[int], News]


class Misfit(Exception):
    """A rule promised what the blocks' types do not keep."""


@dataclass(frozen=True, slots=True)
class Told:
    """A code of the dispatcher's own, for whoever reads a stream."""

    text: str
    width: int
    start: int
    offsets: tuple[int, ...]
    nbytes: int
    layout: str
    signal: str = ""


class Book:
    def __init__(self, roster: dict[int, WorkerInfo], next_group: Callable[[], int]) -> None:
        self._roster, self._next_group = roster, next_group
        self.next_code, self.next_id, self._next_fragment = FIRST_LOCAL, FIRST_OWN, FIRST_LOCAL
        #: number -> a fragment of the dispatcher's own
        self.fragments: dict[int, Form] = {}
        self.told: dict[int, Told] = {}
        self._steps: dict[tuple[TensorType, Step], int] = {}
        #: members in the order of their ranks -> the group's number
        self.groups: dict[tuple[int, ...], int] = {}

    def id(self) -> int:
        self.next_id += 1
        return self.next_id

    def ids(self, count: int) -> int:
        """The first of so many."""
        self.next_id += count
        return self.next_id + 1 - count

    def fragment(self) -> int:
        self._next_fragment += 1
        return self._next_fragment

    def _code(self, told: Told) -> int:
        code = self.next_code
        self.next_code += 1
        self.told[code] = told
        return code

    # -- ops -------------------------------------------------------------------------------

    def op(self, signature: Signature, choice: Choice, signal: str, telling: Telling) -> int:
        """A code for this call cut this way. Raises Misfit, and tells nobody, if the blocks do not fit together."""
        workers = choice.outs[0].workers
        local = {w: _cut(signature, choice, w) for w in workers}
        shown = ", ".join(map(str, dict.fromkeys(choice.outs)))
        outs = signature.outs
        code = self._code(
            Told(
                str(signature),
                signature.width,
                signature.start,
                signature.offsets,
                sum(t.nbytes for t in outs),
                shown,
                signal,
            )
        )
        for worker, cut in local.items():
            telling(worker).definitions.append(definition(code, cut))
        return code

    # -- moves -----------------------------------------------------------------------------

    def step(self, t: TensorType, step: Step, telling: Telling) -> int:
        """A code for this step of a tensor of this type."""
        known = self._steps.get((t, step))
        if known is not None:
            return known
        code = self._code(Told(f"{step.kind}({t})", 4, 3, (3,), t.nbytes, str(step.target)))
        self._steps[t, step] = code
        for worker in step.workers:
            news = telling(worker)
            if step.alone:
                before = step.source.local(t, worker)
                attrs = tuple(ALONE[step.kind](step, t, worker).items())
                news.definitions.append(definition(code, sign(OPS[step.kind], attrs, (before,))))
            else:
                news.moves.append(self._move(code, t, step, worker, telling))
        return code

    def _move(self, code: int, t: TensorType, step: Step, worker: int, telling: Telling) -> Move:
        members, how = share(step, t, worker)
        before, after = (_block(t, layout, worker) for layout in (step.source, step.target))
        return Move(code, step.kind, self._group(members, telling), list(how.items()), before, after)

    def _group(self, members: tuple[int, ...], telling: Telling) -> int:
        known = self.groups.get(members)
        if known is None:
            known = self.groups[members] = self._next_group()
            infos = [self._roster[w] for w in members]
            gpus = {info.gpu for info in infos}
            backend = "nccl" if len(gpus) == len(members) and "" not in gpus else "gloo"
            for worker in members:
                telling(worker).groups.append(Group(known, list(members), infos[0].store, backend))
        return known

    def lose(self, worker: int) -> list[tuple[int, tuple[int, ...]]]:
        """The groups that cannot work any more, with their members; nothing made for them is used again."""
        gone = [(number, members) for members, number in self.groups.items() if worker in members]
        for _, members in gone:
            del self.groups[members]
        self._steps = {key: code for key, code in self._steps.items() if worker not in key[1].workers}
        return gone

    def reset(self) -> int:
        """Forget all codes; the next one."""
        self._steps.clear()
        self.told.clear()
        return self.next_code


def _block(t: TensorType, layout: Layout, worker: int) -> Any:
    return to_wire(layout.local(t, worker)) if worker in layout.mesh.places else None


def _cut(signature: Signature, choice: Choice, worker: int) -> Signature:
    """One worker's share of a call."""
    if all(layout.whole for layout in (*choice.ins, *choice.outs)):
        return signature
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    ins_at, ins = _blocks(choice.ins, tensors, worker)
    outs_at, outs = _blocks(choice.outs, signature.outs, worker)
    attrs: Attrs = signature.attrs
    if signature.op.local is not None:
        whole = tuple(tensors), signature.outs
        attrs = tuple(signature.op.local(dict(attrs), Cut(ins, outs, ins_at, outs_at, *whole)).items())
    blocks = iter(ins)
    operands = tuple(t if isinstance(t, Scalar) else next(blocks) for t in signature.ins)
    try:
        made = sign(signature.op, attrs, operands, signature.into)
    except (ShapeError, DimError, DTypeError) as problem:
        raise Misfit(f"worker {worker} cannot do its part: {problem}") from None
    if made.outs != outs:
        raise Misfit(f"{signature} on worker {worker}: {made.outs} instead of {outs}")
    return made


def _blocks(layouts: tuple[Layout, ...], types: Any, worker: int) -> tuple[tuple[Shape, ...], tuple[TensorType, ...]]:
    found = [(layout.block(t.shape, worker), t.dtype) for layout, t in zip(layouts, types, strict=True)]
    return tuple(at for (at, _), _ in found), tuple(TensorType(sizes, dtype) for (_, sizes), dtype in found)
