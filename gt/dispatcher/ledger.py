"""The codes, ids, fragments and groups that the dispatcher numbers itself when it shards a client's program.

An instruction has the same few words for every worker of a mesh. The meaning of its code may differ from worker to
worker (a longer block, another group). So each worker gets its own definition of the code, once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.plan.hierarchy import HostSteps, LineProfile, host_steps
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import ALONG_AN_AXIS, LOCAL_OPS, REDUCTIONS, MoveStep, route, same_shares, worker_share
from gt.dispatcher.plan.planner import Choice
from gt.dispatcher.plan.topology import Topology
from gt.errors import DimError, DTypeError, ShapeError
from gt.ops import OPS, Attrs, Signature, sign
from gt.ops.split import Share
from gt.types import Scalar, Shape, TensorType
from gt.wire.codec import definition, to_wire
from gt.wire.fragments import ParsedFragment
from gt.wire.structures import Definition, Fragment, GroupSpec, Move, WorkerInfo
from gt.wire.words import FIRST_DISPATCHER_CODE, FIRST_DISPATCHER_ID


@dataclass(slots=True)
class Announcements:
    """The definitions that one worker must get before the instructions that use them."""

    definitions: list[Definition] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    groups: list[GroupSpec] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)

    def add(self, more: Announcements) -> None:
        self.definitions += more.definitions
        self.moves += more.moves
        self.groups += more.groups
        self.fragments += more.fragments

    def key(self) -> Any:
        """A key that is equal for the same objects in the same order."""
        return tuple(tuple(map(id, items)) for items in (self.definitions, self.moves, self.groups, self.fragments))

    @property
    def only_definitions(self) -> bool:
        return not (self.moves or self.groups or self.fragments)


#: worker -> the announcements to add to
Announce = Callable[[int], Announcements]
#: the members of a group, in the order of their ranks
Members = tuple[int, ...]

#: A worker may always be in this many groups of a client.
MIN_GROUPS = 8
#: Beyond that, its groups may use this many descriptors together. If a new group does not fit, the worker leaves the
#: group that was unused for the longest time.
MAX_GROUP_DESCRIPTORS = 256
#: Descriptors that a group uses besides one for each member.
DESCRIPTORS_PER_GROUP = 8


class Misfit(Exception):
    """The blocks of a split do not have the types that its rule promised."""


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """The format and the meaning of an instruction with a code of the dispatcher, for code that reads streams."""

    text: str
    width: int
    start: int
    offsets: tuple[int, ...]
    nbytes: int
    #: the layouts of its results, and those in which it takes its operands
    layout: str
    operands: str
    signal: str = ""
    is_move: bool = False


@dataclass(slots=True)
class CodedStep:
    """The code of one step of a move, and when and where it is used."""

    code: int
    #: when it was last used, counted in uses of steps
    used: int
    #: the groups of workers that run it
    groups: list[Members] = field(default_factory=list)


def group_backend(members: Sequence[WorkerInfo], cuda_ipc: bool) -> str:
    """What moves tensors between workers: NCCL if each has a GPU of its own; CUDA IPC, if it is enabled, for those that
    share one; otherwise gloo, through the host."""
    gpus = {member.gpu for member in members}
    if "" in gpus:
        return "gloo"
    if len(gpus) == len(members):
        return "nccl"
    one_gpu = len({(member.host, member.gpu) for member in members}) == 1
    return "ipc" if cuda_ipc and one_gpu else "gloo"


class GroupCount:
    """Numbers the groups of all clients."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


class Ledger:
    """One client's numbers: every code, id, fragment and group that the dispatcher created for it."""

    def __init__(
        self,
        roster: dict[int, WorkerInfo],
        next_group: Callable[[], int],
        cuda_ipc: bool = False,
        prefetch: bool = True,
        topology: Topology | None = None,
    ) -> None:
        self._roster, self._next_group, self._cuda_ipc = roster, next_group, cuda_ipc
        #: whether gathers of fragments start ahead of their use
        self._prefetch = prefetch
        self._topology = topology
        self._profiles: dict[tuple[Mesh, int], LineProfile | None] = {}
        #: (shape of a mesh, axis) -> its profile when it was first used; None: a profile is that of its workers.
        #: With recovery, a mesh with other workers in it must add in the same order as before.
        self.kept_profiles: dict[tuple[Shape, int], LineProfile | None] | None = None
        self.next_code, self.next_id, self._next_fragment = (
            FIRST_DISPATCHER_CODE,
            FIRST_DISPATCHER_ID,
            FIRST_DISPATCHER_CODE,
        )
        #: number -> fragment, of those the dispatcher created
        self.fragments: dict[int, ParsedFragment] = {}
        self.codes: dict[int, CodeInfo] = {}
        #: codes of reductions -> the bytes they reduce
        self.reductions: dict[int, int] = {}
        #: codes of gathers that may start ahead of their use -> the bytes of their results
        self.gathers: dict[int, int] = {}
        #: codes of views
        self.views: set[int] = set()
        self._steps: dict[tuple[TensorType, MoveStep], CodedStep] = {}
        self._step_uses = 0
        self.groups: dict[Members, int] = {}
        #: worker -> the groups it is in, oldest first
        self._groups_of: dict[int, dict[Members, None]] = {}
        #: (number, members) of groups that the workers must leave, and of groups that some may not have left yet
        self._to_leave: list[tuple[int, Members]] = []
        self._leaving: deque[tuple[int, Members]] = deque(maxlen=64)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def new_ids(self, count: int) -> int:
        """The first of ``count`` new ids."""
        self.next_id += count
        return self.next_id + 1 - count

    def new_fragment(self) -> int:
        self._next_fragment += 1
        return self._next_fragment

    def _new_code(self, info: CodeInfo) -> int:
        code = self.next_code
        self.next_code += 1
        self.codes[code] = info
        return code

    # -- ops -------------------------------------------------------------------------------

    def code_of_op(self, signature: Signature, choice: Choice, signal: str, announce: Announce) -> int:
        """A new code for this call split this way. Raises Misfit, and announces nothing, if the blocks do not fit."""
        shares = _shares(signature, choice)
        code = self._new_code(
            CodeInfo(
                str(signature),
                signature.width,
                signature.start,
                signature.offsets,
                sum(t.nbytes for t in signature.outs),
                ", ".join(map(str, dict.fromkeys(choice.outs))),
                ", ".join(" ".join(map(str, layout.placements)) for layout in choice.ins),
                signal,
            )
        )
        if signature.op.view:
            self.views.add(code)
        for share, workers in shares:
            meaning = definition(code, share, signal)
            for worker in workers:
                announce(worker).definitions.append(meaning)
        return code

    # -- moves -----------------------------------------------------------------------------

    def steps(self, t: TensorType, source: Layout, target: Layout) -> tuple[MoveStep, ...]:
        """The steps of a move, with those between hosts in the quickest order."""
        steps = route(t, source, target)
        if self._topology is None or not self._topology.several_hosts:
            return steps
        return tuple(part for step in steps for part in self.step_options(t, step)[0].steps)

    def step_options(self, t: TensorType, step: MoveStep) -> tuple[HostSteps, HostSteps]:
        """The steps that replace a step, and the flat one; see `host_steps`."""
        profile = self._profile(step.source.mesh, step.axis) if step.kind in ALONG_AN_AXIS else None
        return (HostSteps((step,), 0.0),) * 2 if profile is None else host_steps(t, step, profile)

    def _profile(self, mesh: Mesh, axis: int) -> LineProfile | None:
        if (mesh, axis) not in self._profiles:
            kept, key = self.kept_profiles, (mesh.shape, axis)
            profile = kept[key] if kept is not None and key in kept else self._find_profile(mesh, axis)
            if kept is not None:
                kept.setdefault(key, profile)
            self._profiles[mesh, axis] = profile
        return self._profiles[mesh, axis]

    def _find_profile(self, mesh: Mesh, axis: int) -> LineProfile | None:
        infos = [self._roster[w] for w in mesh.workers if w in self._roster]
        # NCCL knows the machine, and orders its rings by itself
        if self._topology is None or group_backend(infos, self._cuda_ipc) != "gloo":
            return None
        return self._topology.profile(mesh, axis)

    def code_of_step(self, t: TensorType, step: MoveStep, announce: Announce) -> int:
        """The code for this step of a move of a tensor of this type."""
        coded = self._steps.get((t, step))
        self._step_uses += 1
        if coded is not None:
            coded.used = self._step_uses
            return coded.code
        text, source, target = f"{step.kind}({t})", str(step.source), str(step.target)
        code = self._new_code(CodeInfo(text, 4, 3, (3,), t.nbytes, target, source, is_move=True))
        coded = self._steps[t, step] = CodedStep(code, self._step_uses)
        if step.is_local:
            for worker in step.workers:
                attrs = tuple(LOCAL_OPS[step.kind](step, t, worker).items())
                signature = sign(OPS[step.kind], attrs, (step.source.local(t, worker),))
                announce(worker).definitions.append(definition(code, signature))
        else:
            self._announce_collective(coded, t, step, announce)
        if step.kind in REDUCTIONS:
            self.reductions[code] = step.source.largest(t).nbytes
        if step.kind == "all_gather" and self._prefetch:
            self.gathers[code] = step.target.largest(t).nbytes
        return code

    def _announce_collective(self, coded: CodedStep, t: TensorType, step: MoveStep, announce: Announce) -> None:
        """Workers with the same share get the same object, so it is encoded once."""
        moves: dict[Any, Move] = {}
        for worker, *others in same_shares(step, t):
            members, attributes = worker_share(step, t, worker)
            before, after = (_wire_block(t, layout, worker) for layout in (step.source, step.target))
            key = members, *attributes.values(), before, after
            if key not in moves:
                if members not in coded.groups:
                    coded.groups.append(members)
                group = self._group(members, announce)
                moves[key] = Move(coded.code, step.kind, group, list(attributes.items()), before, after)
            for one in (worker, *others):
                announce(one).moves.append(moves[key])

    # -- groups ----------------------------------------------------------------------------

    def _group(self, members: Members, announce: Announce) -> int:
        """The number of the group with these members; a new group is announced to them."""
        group = self.groups.get(members)
        if group is None:
            for worker in members:
                self._make_room(self._groups_of.setdefault(worker, {}))
                self._groups_of[worker][members] = None
            group = self.groups[members] = self._next_group()
            infos = [self._roster[w] for w in members]
            spec = GroupSpec(group, list(members), infos[0].store, group_backend(infos, self._cuda_ipc))
            for worker in members:
                announce(worker).groups.append(spec)
        return group

    def _make_room(self, groups: dict[Members, None]) -> None:
        """Leave groups of a worker until one more fits."""
        while len(groups) >= MIN_GROUPS and _descriptors(groups) > MAX_GROUP_DESCRIPTORS:
            used = dict.fromkeys(groups, 0)
            for coded in self._steps.values():
                for members in coded.groups:
                    if members in used:
                        used[members] = max(used[members], coded.used)
            oldest = min(used, key=used.__getitem__)
            self._to_leave.append((self._remove(oldest), oldest))
            self._steps = {key: coded for key, coded in self._steps.items() if oldest not in coded.groups}

    def _remove(self, members: Members) -> int:
        for worker in members:
            self._groups_of[worker].pop(members, None)
        return self.groups.pop(members)

    def take_groups_to_leave(self) -> list[tuple[int, Members]]:
        """The groups that their members must leave; each is returned once. No code refers to them."""
        groups, self._to_leave = self._to_leave, []
        self._leaving.extend(groups)
        return groups

    def lose_worker(self, worker: int) -> list[tuple[int, Members]]:
        """Forget the groups and codes of a lost worker; returns the groups that it was in."""
        broken = [(self.groups[members], members) for members in self._groups_of.pop(worker, ())]
        for _, members in broken:
            del self.groups[members]
            for other in members:
                self._groups_of.get(other, {}).pop(members, None)
        self._steps = {key: coded for key, coded in self._steps.items() if worker not in key[1].workers}
        return broken + [(number, members) for number, members in self._leaving if worker in members]

    def forget_codes(self) -> int:
        """Forget all codes of the dispatcher; returns the next one: all forgotten ones are below it."""
        self._steps.clear()
        self.codes.clear()
        self.reductions.clear()
        self.gathers.clear()
        self.views.clear()
        return self.next_code


def _descriptors(groups: dict[Members, None]) -> int:
    return sum(map(len, groups)) + DESCRIPTORS_PER_GROUP * len(groups)


def _wire_block(t: TensorType, layout: Layout, worker: int) -> Any:
    """The type of the worker's block, as in a message; None if it has no block."""
    return to_wire(layout.local(t, worker)) if worker in layout.mesh.coordinates else None


def _shares(signature: Signature, choice: Choice) -> list[tuple[Signature, list[int]]]:
    """The workers' shares of a call, each with the workers that have it."""
    workers = choice.outs[0].workers
    if all(layout.replicated for layout in (*choice.ins, *choice.outs)):
        return [(signature, list(workers))]
    tensors = tuple(t for t in signature.ins if isinstance(t, TensorType))
    layouts = zip((*choice.ins, *choice.outs), (*tensors, *signature.outs), strict=True)
    with contextlib.suppress(IndexError):  # of a `local` rule that reads where a block begins
        return _alike(signature, choice, tensors, all(layout.is_even(t.shape) for layout, t in layouts))
    shares: dict[Any, tuple[Share, list[int]]] = {}
    for worker in workers:
        (ins_at, ins), (outs_at, outs) = (
            _blocks(choice.ins, tensors, worker),
            _blocks(choice.outs, signature.outs, worker),
        )
        share = Share(ins, outs, ins_at, outs_at, tensors, signature.outs)
        shares.setdefault((ins, outs, ins_at, outs_at), (share, []))[1].append(worker)
    return [(_local_signature(signature, share, workers[0]), workers) for share, workers in shares.values()]


def _alike(
    signature: Signature, choice: Choice, tensors: tuple[TensorType, ...], is_even: bool
) -> list[tuple[Signature, list[int]]]:
    """The shares, if blocks of the same types have the same share. Raises IndexError if the op's ``local`` rule reads
    where a block begins. If all blocks are equal (``is_even``), the time does not depend on the number of workers."""
    workers = choice.outs[0].workers
    alike: dict[Any, list[int]] = {}
    for worker in workers[:1] if is_even else workers:
        types = _blocks(choice.ins, tensors, worker)[1], _blocks(choice.outs, signature.outs, worker)[1]
        alike.setdefault(types, []).append(worker)
    shares = [(Share(ins, outs, (), (), tensors, signature.outs), having) for (ins, outs), having in alike.items()]
    signatures = [(_local_signature(signature, share, having[0]), having) for share, having in shares]
    return [(signatures[0][0], list(workers))] if is_even else signatures


def _local_signature(signature: Signature, share: Share, worker: int) -> Signature:
    """One worker's share of a call. Raises Misfit."""
    ins, outs = share.ins, share.outs
    attrs: Attrs = signature.attrs
    if signature.op.local is not None:
        attrs = tuple(signature.op.local(dict(attrs), share).items())
    blocks = iter(ins)
    operands = tuple(t if isinstance(t, Scalar) else next(blocks) for t in signature.ins)
    try:
        local = sign(signature.op, attrs, operands, signature.into)
    except (ShapeError, DimError, DTypeError) as problem:
        raise Misfit(f"worker {worker} cannot run its share: {problem}") from None
    if local.outs != outs:
        raise Misfit(f"{signature} on worker {worker}: {local.outs} instead of {outs}")
    return local


def _blocks(layouts: tuple[Layout, ...], types: Any, worker: int) -> tuple[tuple[Shape, ...], tuple[TensorType, ...]]:
    """Where the worker's blocks begin, and their types."""
    blocks = [(layout.block(t.shape, worker), t.dtype) for layout, t in zip(layouts, types, strict=True)]
    return tuple(at for (at, _), _ in blocks), tuple(TensorType(sizes, dtype) for (_, sizes), dtype in blocks)
