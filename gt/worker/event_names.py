"""What an event is called."""

from __future__ import annotations

from gt.ops.families import family
from gt.wire.structures import EventName
from gt.worker.linked import LinkedMove, LinkedSignature


def code_name(linked: LinkedSignature | LinkedMove) -> EventName:
    if isinstance(linked, LinkedMove):
        return move_name("start", [linked])
    signature = linked.signature
    nbytes = sum(t.nbytes for t in signature.outs)
    return EventName("op", family(signature.op), signature.op.name, str(signature), linked.signal, nbytes)


def move_name(kind: str, moves: list[LinkedMove], ends_on_device: bool = False) -> EventName:
    sizes = [[t.nbytes for t in (move.before, move.after) if t is not None] for move in moves]
    nbytes, first = sum(max(each, default=0) for each in sizes), moves[0]
    # between meshes some workers only send and others only receive
    role = ", sends" if first.after is None else ", receives" if first.before is None else ""
    return EventName(kind, "moves", first.kind, f"{first}{role}", "", nbytes, first.members, ends_on_device)
