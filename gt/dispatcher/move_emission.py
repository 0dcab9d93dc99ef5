"""Writing moves into the workers' segments: a tensor gets a copy in another layout, or changes its layout for good."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.instruction_plans import InstructionPlan
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost, tensor_state
from gt.dispatcher.plan.moves import PlannedMove
from gt.dispatcher.segments import ForwardOutput
from gt.dispatcher.state import Client, CodedSignature
from gt.dispatcher.violations import Violation
from gt.wire.words import LEAVE

#: operands that several calls of one instruction name
SharedOperands = set[int] | frozenset[int]


class MoveEmitter:
    """Emits the moves of one instruction of a client. ``site`` is the client's source line, to which failures refer."""

    __slots__ = ("client", "output", "site", "temporary")

    def __init__(self, client: Client, output: ForwardOutput, site: Any) -> None:
        self.client, self.output, self.site = client, output, site
        #: copies that are freed after the instruction
        self.temporary: list[tuple[int, Layout]] = []

    def copy_to(self, id: int, move: PlannedMove, sole_use: bool) -> int:
        """The id of a copy in the target layout: the cached one, or a new one.

        A partial tensor is not copied but replaced: its terms are useless once they are combined. If the instruction
        needs the tensor in several layouts (not ``sole_use``), the tensor stays as it is until the instruction has run.
        """
        client = self.client
        state: Any = client.tensors[id]
        home, target = state.home, move.target
        copies = client.copies.get(id)
        if copies is not None:
            if not state.copies:  # they belong to an earlier tensor with this id, perhaps of another type
                free_copies(client, id, self.output)
            elif target in copies:
                return copies[target]
        if move.source.partial and move.source is home and sole_use:
            self.relocate(id, move)
            return id
        source_id = id if move.source is home else client.copies[id][move.source]
        copy = self.emit(source_id, move, 0)
        if id in client.uncached or not sole_use:
            self.temporary.append((copy, target))
            return copy
        client.copies.setdefault(id, {})[target] = copy
        client.tensors[id] = tensor_state(move.type, home, (*state.copies, target))
        return copy

    def move_to(self, id: int, move: PlannedMove, into: int) -> None:
        """Create the tensor ``into`` by moving another one. No instruction waits for it: the stream goes on until the
        first use of the result."""
        source_id = id if move.source is self._home(id) else self.client.copies[id][move.source]
        self.emit(source_id, move, into)

    def _home(self, id: int) -> Layout:
        state: Any = self.client.tensors[id]
        home: Layout = state.home
        return home

    def relocate(self, id: int, move: PlannedMove) -> None:
        """Change the layout of a tensor for good."""
        self.emit(id, move, id)
        free_replaced(self.client, id, move.source, move.target, self.output)
        self.client.tensors[id] = tensor_state(move.type, move.target)

    def emit(self, id: int, move: PlannedMove, into: int) -> int:
        """Emit the steps of a move; the last one creates the tensor ``into``, or a new one if that is 0.

        Returns the id of that tensor.
        """
        client, output, t = self.client, self.output, move.type
        steps = client.ledger.steps(t, move.source, move.target)
        current, current_workers = id, move.source.workers
        for step in steps:
            result = into if into and step is steps[-1] else client.ledger.new_id()
            code = client.ledger.code_of_step(t, step, output.announce)
            for group, members in client.ledger.take_groups_to_leave():
                output.segment(members).words += (LEAVE, group)
                client.forget_replay_plans()  # a cached plan may use the group
            output.segment(step.workers).words += (code, self.site, result, current)
            if current != id:
                output.segment(current_workers).words.append(-current)
            current, current_workers = result, step.holders
        return current


def move_results(emitter: MoveEmitter, plan: InstructionPlan, outs: list[int]) -> None:
    """Move results that a signal wants in another layout than the instruction produces."""
    for move in plan.result_moves:
        id = outs[move.position]
        if emitter.client.tensors[id] is not plan.outs[move.position]:
            raise Violation(f"{plan.signature.op.name}: two results have the same id")
        emitter.relocate(id, move)


def move_operands(
    emitter: MoveEmitter, coded: CodedSignature, plan: InstructionPlan, words: list[Any], shared: SharedOperands
) -> None:
    """Move the operands, and put the ids of the copies into the words.

    A partial operand that is ``shared`` with another call of the instruction stays as it is until that call has run.
    """
    client, output = emitter.client, emitter.output
    ids = [words[offset] for offset in coded.offsets]
    for move in plan.moves:
        offset = move.position
        if offset >= plan.targets:
            sole_use = ids.count(words[offset]) == 1 and not (words[offset] in shared and move.source.partial)
            sole_use = sole_use and not coded.signature.op.own_blocks  # nothing else needs the blocks of a file
            words[offset] = emitter.copy_to(words[offset], move, sole_use)
    for move in plan.moves:
        offset = move.position
        if offset < plan.targets:
            id = words[offset]
            if ids.count(id) > 1 and [words[other] for other in coded.offsets].count(id) > 1:
                raise Violation(f"{coded.signature.op.name} writes a tensor that it also names as another operand")
            # its old copies are freed after the instruction, which may still read them
            emitter.emit(id, move, id)
            free_left_workers(id, move.source, move.target, output)
            client.tensors[id] = tensor_state(move.type, move.target)


def free_replaced(client: Client, id: int, before: Layout | None, after: Layout, output: ForwardOutput) -> None:
    """A tensor got a new value: free its outdated copies, and its old blocks on workers that have no new one."""
    free_copies(client, id, output)
    if before is not None:
        free_left_workers(id, before, after, output)


def free_copies(client: Client, id: int, output: ForwardOutput) -> None:
    for target, copy in client.copies.pop(id, {}).items():
        output.segment(target.workers).words.append(-copy)


def free_left_workers(id: int, before: Layout, after: Layout, output: ForwardOutput) -> None:
    """Free a tensor on the workers that are in its old layout and not in its new one."""
    if before.mesh is after.mesh:
        return
    left = tuple(w for w in before.workers if w not in after.mesh.coordinates)
    if left:
        output.segment(left).words.append(-id)


def free_tensor(client: Client, id: int, state: AnyState, output: ForwardOutput) -> None:
    """Free a tensor that the client freed, and its copies."""
    if not isinstance(state, Lost):
        output.segment(state.workers).words.append(-id)
    free_copies(client, id, output)
    client.forget_origin(id)
