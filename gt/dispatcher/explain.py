"""Where a tensor lies and why, for people: what `x.layout`, `gt.debug.show_layout` and `gt.debug.explain` tell."""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.plan.layouts import Layout, Lost, Place
from gt.dispatcher.plan.moves import cost, route
from gt.dispatcher.plan.plan import Plan
from gt.dispatcher.state import Client
from gt.types import TensorType
from gt.wire.messages import Locate, Located


def locate(client: Client, m: Locate) -> Located:
    where = client.tensors.get(m.id, Lost("there is no such tensor"))
    if isinstance(where, Lost):
        return Located(m.request, [], [], [], [], [f"lost: {where.text}"])
    home, shape = where.home, where.type.shape
    blocks = [(w, *home.block(shape, w)) for w in home.workers] if tuple(m.shape) == shape else []
    return Located(
        m.request,
        list(home.workers),
        list(home.mesh.shape),
        [str(p) for p in home.placements],
        blocks,
        list(_story(client, m.id, home, where)),
    )


def _story(client: Client, id: int, home: Layout, where: Place) -> Iterator[str]:
    if id in client.made:
        chosen, number = client.made[id]
        yield from _made(chosen, number)
        if chosen.outs[number].home is not home and all(i != number for i, _, _ in chosen.after):
            yield f"later it was moved to {home} for good, since somebody needed the sum"
    else:
        yield "it was made there, where its operands were or where new tensors of this program go"
    for layout in where.copies:
        yield f"a copy is kept as {layout}, until the tensor is written or freed"
    if id in client.loose:
        yield "it is a parameter placed by its name: copies of it are let go after use"


def _made(chosen: Plan, number: int) -> Iterator[str]:
    yield f"made by {chosen.signature} as {chosen.outs[number].home}"
    tensors = [t for t in chosen.signature.ins if isinstance(t, TensorType)]
    for offset, source, target, t in chosen.moves:
        which = chosen.signature.offsets.index(offset)
        ways = ", ".join(step.kind for step in route(t, source, target)) or "nothing to do"
        moved = _size(cost(t, source, target))
        yield f"operand {which}, {tensors[which]}: {source} -> {target} by {ways}; about {moved}"
    if not chosen.moves and tensors:
        yield "its operands were where they were needed: nothing moved"
    for which, target, t in chosen.after:
        if which == number:
            ways = ", ".join(step.kind for step in route(t, chosen.outs[number].home, target))
            yield f"then brought to {target} by {ways}, because its signal says so"
    yield f"bytes moved for it, a worker: about {_size(chosen.moved)}"


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
