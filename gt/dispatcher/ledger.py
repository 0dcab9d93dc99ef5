"""What the dispatcher makes of a client's program for several workers: codes, ids and groups of its own.

An instruction is the same few words for every worker of a mesh; what its code stands for may differ from worker to
worker (a block may be longer, a group another), and that each of them is told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.plan.layouts import Layout
from gt.dispatcher.plan.moves import ALONE, REDUCTIONS, Step, share
from gt.dispatcher.plan.planner import Choice
from gt.errors import DimError, DTypeError, ShapeError
from gt.ops import OPS, Attrs, Signature, sign
from gt.ops.split import Cut
from gt.types import Scalar, Shape, TensorType
from gt.wire.codec import definition, to_wire
from gt.wire.fragments import ParsedFragment
from gt.wire.messages import (
    FIRST_DISPATCHER_CODE,
    FIRST_DISPATCHER_ID,
    Definition,
    Fragment,
    GroupSpec,
    Move,
    WorkerInfo,
)


@dataclass(slots=True)
class News:
    """What one worker has to be told before the instructions that follow."""

    definitions: list[Definition] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    groups: list[GroupSpec] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)

    def add(self, more: News) -> None:
        self.definitions += more.definitions
        self.moves += more.moves
        self.groups += more.groups
        self.fragments += more.fragments

    def key(self) -> Any:
        """Equal for the same objects in the same order."""
        return tuple(tuple(map(id, told)) for told in (self.definitions, self.moves, self.groups, self.fragments))

    @property
    def only_definitions(self) -> bool:
        return not (self.moves or self.groups or self.fragments)


#: worker -> its news
Telling = Callable[[int], News]
#: the members of a group, in the order of their ranks
Members = tuple[int, ...]

#: A worker has no more than so many groups of a client if they take more than so many descriptors: each about as many
#: as it has members, and these. Who needs another group leaves the one that was not used for the longest time.
GROUPS, DESCRIPTORS, EACH = 8, 256, 8


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


@dataclass(slots=True)
class Known:
    """A step that has a code."""

    code: int
    #: when it was last taken, by the book's own clock
    used: int
    #: the groups it takes place in
    groups: list[Members] = field(default_factory=list)


class Book:
    def __init__(self, roster: dict[int, WorkerInfo], next_group: Callable[[], int]) -> None:
        self._roster, self._next_group = roster, next_group
        self.next_code, self.next_id, self._next_fragment = (
            FIRST_DISPATCHER_CODE,
            FIRST_DISPATCHER_ID,
            FIRST_DISPATCHER_CODE,
        )
        #: number -> a fragment of the dispatcher's own
        self.fragments: dict[int, ParsedFragment] = {}
        self.told: dict[int, Told] = {}
        #: of these, what combines terms -> their bytes
        self.reductions: dict[int, int] = {}
        self._steps: dict[tuple[TensorType, Step], Known] = {}
        self._clock = 0
        self.groups: dict[Members, int] = {}
        #: worker -> the groups it is in
        self._of: dict[int, set[Members]] = {}
        #: groups that are not needed any more; and those whose members may still be on their way out
        self._unneeded: list[tuple[int, Members]] = []
        self._parting: deque[tuple[int, Members]] = deque(maxlen=64)

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
        shares = _shares(signature, choice)
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
        for cut, workers in shares:
            told = definition(code, cut)
            for worker in workers:
                telling(worker).definitions.append(told)
        return code

    # -- moves -----------------------------------------------------------------------------

    def step(self, t: TensorType, step: Step, telling: Telling) -> int:
        """A code for this step of a tensor of this type."""
        known = self._steps.get((t, step))
        self._clock += 1
        if known is not None:
            known.used = self._clock
            return known.code
        code = self._code(Told(f"{step.kind}({t})", 4, 3, (3,), t.nbytes, str(step.target)))
        known = self._steps[t, step] = Known(code, self._clock)
        if step.alone:
            for worker in step.workers:
                attrs = tuple(ALONE[step.kind](step, t, worker).items())
                alone = sign(OPS[step.kind], attrs, (step.source.local(t, worker),))
                telling(worker).definitions.append(definition(code, alone))
        else:
            self._move(known, t, step, telling)
        if step.kind in REDUCTIONS:
            self.reductions[code] = step.source.local(t, step.source.worker).nbytes
        return code

    def _move(self, known: Known, t: TensorType, step: Step, telling: Telling) -> None:
        """Who does the same is told the same: it is encoded once."""
        made: dict[Any, Move] = {}
        for worker in step.workers:
            members, how = share(step, t, worker)
            before, after = (_block(t, layout, worker) for layout in (step.source, step.target))
            key = members, *how.values(), before, after
            if key not in made:
                if members not in known.groups:
                    known.groups.append(members)
                group = self._group(members, telling)
                made[key] = Move(known.code, step.kind, group, list(how.items()), before, after)
            telling(worker).moves.append(made[key])

    # -- groups ----------------------------------------------------------------------------

    def _group(self, members: Members, telling: Telling) -> int:
        known = self.groups.get(members)
        if known is None:
            for worker in members:
                self._make_room(self._of.setdefault(worker, set()))
                self._of[worker].add(members)
            known = self.groups[members] = self._next_group()
            infos = [self._roster[w] for w in members]
            gpus = {info.gpu for info in infos}
            backend = "nccl" if len(gpus) == len(members) and "" not in gpus else "gloo"
            told = GroupSpec(known, list(members), infos[0].store, backend)
            for worker in members:
                telling(worker).groups.append(told)
        return known

    def _make_room(self, groups: set[Members]) -> None:
        """For one more of a worker's groups."""
        while len(groups) >= GROUPS and sum(map(len, groups)) + EACH * len(groups) > DESCRIPTORS:
            used = dict.fromkeys(groups, 0)
            for known in self._steps.values():
                for members in known.groups:
                    if members in used:
                        used[members] = max(used[members], known.used)
            oldest = min(used, key=used.__getitem__)
            self._unneeded.append((self._remove(oldest), oldest))
            self._steps = {key: known for key, known in self._steps.items() if oldest not in known.groups}

    def _remove(self, members: Members) -> int:
        for worker in members:
            self._of[worker].discard(members)
        return self.groups.pop(members)

    def unneeded(self) -> list[tuple[int, Members]]:
        """The groups to leave, each told once: nothing made for them is used again."""
        found, self._unneeded = self._unneeded, []
        self._parting.extend(found)
        return found

    def lose(self, worker: int) -> list[tuple[int, Members]]:
        """The groups that cannot work any more, with their members; nothing made for them is used again."""
        gone = [(self.groups[members], members) for members in self._of.pop(worker, ())]
        for _, members in gone:
            del self.groups[members]
            for other in members:
                self._of.get(other, set()).discard(members)
        self._steps = {key: known for key, known in self._steps.items() if worker not in key[1].workers}
        return gone + [(number, members) for number, members in self._parting if worker in members]

    def reset(self) -> int:
        """Forget all codes; the next one."""
        self._steps.clear()
        self.told.clear()
        self.reductions.clear()
        return self.next_code


def _block(t: TensorType, layout: Layout, worker: int) -> Any:
    return to_wire(layout.local(t, worker)) if worker in layout.mesh.places else None


def _shares(signature: Signature, choice: Choice) -> list[tuple[Signature, list[int]]]:
    """The workers' shares of a call, each with those who have it."""
    workers = choice.outs[0].workers
    if all(layout.whole for layout in (*choice.ins, *choice.outs)):
        return [(signature, list(workers))]
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    cuts: dict[Any, tuple[Cut, list[int]]] = {}
    for worker in workers:
        ins_at, ins = _blocks(choice.ins, tensors, worker)
        outs_at, outs = _blocks(choice.outs, signature.outs, worker)
        # where a block begins matters to few
        key = (ins, outs) if signature.op.local is None else (ins, outs, ins_at, outs_at)
        if key not in cuts:
            cuts[key] = Cut(ins, outs, ins_at, outs_at, tuple(tensors), signature.outs), []
        cuts[key][1].append(worker)
    return [(_cut(signature, cut, who[0]), who) for cut, who in cuts.values()]


def _cut(signature: Signature, cut: Cut, worker: int) -> Signature:
    """One worker's share of a call."""
    ins, outs = cut.ins, cut.outs
    attrs: Attrs = signature.attrs
    if signature.op.local is not None:
        attrs = tuple(signature.op.local(dict(attrs), cut).items())
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
