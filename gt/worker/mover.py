"""A worker's part in moves: it joins groups, starts collectives, and takes the results of completed ones.

Every worker of a group takes part in a move, even if it has no operand because of a failure. Then it sends zeros, so
that the others do not wait. In a move within a mesh the others need not know of the failure: all workers of the mesh
answer when the value is read. In a move between meshes (`NOTED`) the receivers must know: the number of the failure, or
0, travels with the value as its note.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gt.errors import QuotaExceeded
from gt.wire.structures import GroupSpec
from gt.worker.collectives.interface import NOTED, DataPlane, GroupBroken, OnDone
from gt.worker.engines import Engine
from gt.worker.errors import DeviceBroken, first_line
from gt.worker.failures import FailureRecorder
from gt.worker.linked import LinkedMove
from gt.worker.memory_account import MemoryAccount
from gt.worker.space import LOST_WORKER_BIT, ClientSpace, Failure, PendingMove
from gt.worker.tracing import Tracer

if TYPE_CHECKING:
    from gt.worker.recording import EventRecorder


class Mover:
    def __init__(self, engine: Engine, plane: DataPlane | None, tracer: Tracer, failures: FailureRecorder) -> None:
        self._engine, self.plane, self._tracer, self._failures = engine, plane, tracer, failures
        #: group with a lost member -> the reason
        self._lost: dict[int, str] = {}
        #: while somebody listens to events
        self.recorder: EventRecorder | None = None

    # -- groups --------------------------------------------------------------------------

    def join(self, space: ClientSpace, group: GroupSpec, worker: int) -> None:
        members = space.groups[group.id] = tuple(group.members)
        if self.plane is not None:
            self.plane.join(group.id, members, members.index(worker), group.store, group.backend)

    def leave_all(self, space: ClientSpace) -> None:
        """The client disconnected: leave all its groups."""
        for group in space.groups:
            self._lost.pop(group, None)
            if self.plane is not None:
                self.plane.leave(group)

    def lose(self, space: ClientSpace, group: int, reason: str) -> None:
        """A member is lost: the pending moves of the group fail."""
        if group not in space.groups:
            return
        self._lost[group] = reason
        if self.plane is not None:
            self.plane.leave(group)

    def leave(self, space: ClientSpace, group: int) -> bool:
        """Leave a group that is not needed any more; False if the stream must wait first.

        The first member that leaves ends the group for all members. So the members run a last collective as a barrier:
        when it is complete, everything before it has arrived.
        """
        if self.plane is not None and group not in self._lost:
            barrier = space.leave_barriers.get(group)
            if barrier is None:
                zero, options = self._engine.int_array(0), {"op": "max", "overwrite": True}
                handle = self.plane.start(group, "all_reduce", zero, options)
                barrier = space.leave_barriers[group] = PendingMove("leaving a group", 0, handle, None)
            if not barrier.done():
                space.awaited = barrier
                return False
            with contextlib.suppress(GroupBroken):
                self._engine.int_value(barrier.handle.result())
            self.plane.leave(group)
        self._lost.pop(group, None)
        space.leave_barriers.pop(group, None)
        space.groups.pop(group, None)
        for code in [
            code for code, linked in space.codes.items() if type(linked) is LinkedMove and linked.group == group
        ]:
            del space.codes[code]
        return True

    # -- starting ------------------------------------------------------------------------

    def start(self, space: ClientSpace, move: LinkedMove, site: int, out: int, operand: int) -> None:
        """Start this worker's part in a move. The first instruction that needs the result waits for it."""
        plane = self._plane_for(move)
        self._drop_done_sends(space)
        value, failure = self._operand(space, move, operand)
        on_done, cause = self._on_done([move], site), 0 if failure is None else failure.cause
        if failure is None and move.after is not None and space.account is not None:
            failure = self._over_quota(space.account, move, site)
        handle = plane.start(move.group, move.kind, value, move.options, on_done, cause)
        pending = PendingMove(str(move), site, handle, failure, value)
        pending.is_noted = move.kind in NOTED
        if move.after is not None:
            space.put(out, pending)
        else:
            space.sends.append(pending)

    def _over_quota(self, account: MemoryAccount, move: LinkedMove, site: int) -> Failure | None:
        """Why the result of a move may not stay here. This worker takes part all the same: the others have room."""
        assert move.after is not None
        try:
            account.check(move.after.nbytes)
        except QuotaExceeded as error:
            return self._failures.create("QuotaExceeded", move, str(error), site)
        return None

    def start_all(self, space: ClientSpace, moves: list[tuple[LinkedMove, int, int, int]]) -> None:
        """Start several reductions in one group as one. Each is (move, site, id of the result, id of the operand)."""
        first = moves[0][0]
        plane = self._plane_for(first)
        operands = [self._operand(space, move, operand) for move, _, _, operand in moves]
        on_done = self._on_done([move for move, *_ in moves], moves[0][1])
        handles = plane.reduce_all(first.group, [value for value, _ in operands], first.options, on_done)
        for (move, site, out, _), (_, failure), handle in zip(moves, operands, handles, strict=True):
            pending = PendingMove(str(move), site, handle, failure)
            pending.reads_operand = False
            space.put(out, pending)

    def _on_done(self, moves: list[LinkedMove], site: int) -> OnDone | None:
        """What to call when moves that start now, as one, are done."""
        calls = [self._tracer.span(moves)] if self._tracer.on else []
        if self.recorder is not None:
            assert self.plane is not None
            calls.append(self.recorder.moving(moves, site, self.plane.ends_on_device(moves[0].group)))
        if len(calls) < 2:
            return calls[0] if calls else None

        def on_done() -> None:
            for call in calls:
                call()

        return on_done

    def _plane_for(self, move: LinkedMove) -> DataPlane:
        if self.plane is None or move.group in self._lost:
            raise GroupBroken(self._lost.get(move.group, "this worker cannot reach others"))
        return self.plane

    def _operand(self, space: ClientSpace, move: LinkedMove, operand: int) -> tuple[Any, Failure | None]:
        """The array to send, and the failure if there is none."""
        value = space.store[operand] if move.before is not None else None
        if type(value) is not Failure:
            return value, None
        assert move.before is not None
        return self._engine.zeros(move.before), value

    # -- waiting -------------------------------------------------------------------------

    def arrived(self, space: ClientSpace, id: int) -> bool:
        """Whether a tensor is not pending. Stores the result of a complete move; else the stream waits for the move."""
        move = space.pending.get(id)
        if move is None:
            return True
        if not move.done():
            space.awaited = move
            return False
        try:
            value = self._result(move)
            if space.account is not None and type(value) is not Failure:
                space.account.add(value)
        except Exception as error:  # whatever a collective raises is the failure of what reads its result
            if self._engine.is_broken(error):
                raise DeviceBroken(first_line(error)) from error
            kind = "WorkerLost" if isinstance(error, GroupBroken) else "RemoteError"
            # the dispatcher knows which worker was lost
            elsewhere = isinstance(error, GroupBroken) and not error.certain
            value = self._failures.create(kind, move.text, first_line(error), move.site, elsewhere)
        del space.pending[id]
        space.put(id, value)
        return True

    def _result(self, move: PendingMove) -> Any:
        """The array of a completed move, or a failure. Raises GroupBroken."""
        result = move.handle.result()
        cause = move.handle.note() if move.is_noted else 0
        if move.failure is not None:
            return move.failure
        if cause:
            text = f"{move.text} failed: a value on one of them could not be computed"
            kind = "WorkerLost" if cause & LOST_WORKER_BIT else "RemoteError"
            return Failure(cause, kind, text, move.site, elsewhere=True)
        return result

    def may_write(self, space: ClientSpace, arrays: list[Any]) -> bool:
        """Whether no move still reads memory of these arrays, the operands of an instruction or section that writes in
        place. If one does, the stream waits for it: this worker's until it is done, and then the device's.

        Other moves go on while an instruction in place runs: a stage of a pipeline adds up gradients while it sends the
        activations of one microbatch and receives those of the next.
        """
        self._drop_done_sends(space)
        shares = self._engine.shares_memory
        for move in (*space.sends, *space.pending.values()):
            if move.operand is None or not any(shares(move.operand, array) for array in arrays):
                continue
            if not move.done():
                space.awaited = move
                return False
            move.handle.wait_on_device()
        return True

    def idle(self, space: ClientSpace) -> bool:
        """Whether no move is pending. If one is, the stream waits for it."""
        self._drop_done_sends(space)
        if space.sends:
            space.awaited = space.sends[0]
        return not space.sends and all(self.arrived(space, id) for id in list(space.pending))

    def _drop_done_sends(self, space: ClientSpace) -> None:
        """Forget the moves without a result here that are complete. They complete in order."""
        while space.sends and space.sends[0].done():
            with contextlib.suppress(GroupBroken):
                space.sends.pop(0).handle.result()
