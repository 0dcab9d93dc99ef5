"""Emitting moves: a tensor is brought to another layout, kept there as a copy, or moved for good."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost, Where, placed
from gt.dispatcher.plan.moves import route
from gt.dispatcher.plan.segments import Forwarded
from gt.dispatcher.state import Client
from gt.types import TensorType
from gt.wire.messages import LEAVE


def overwritten(client: Client, id: int, before: Layout | None, after: Layout, done: Forwarded) -> None:
    """A tensor gets a new value: its copies are out of date, and where it lay it lies no more."""
    free_copies(client, id, done)
    if before is not None:
        leave(id, before, after, done)


def free_copies(client: Client, id: int, done: Forwarded) -> None:
    for target, copy in client.copies.pop(id, {}).items():
        done.segment(target.workers).words.append(-copy)


def leave(id: int, before: Layout, after: Layout, done: Forwarded) -> None:
    """Who has it no more is told so."""
    if before.mesh is after.mesh:
        return
    left = tuple(w for w in before.workers if w not in after.mesh.places)
    if left:
        done.segment(left).words.append(-id)


def bring(
    client: Client,
    id: int,
    site: Any,
    source: Layout,
    target: Layout,
    t: TensorType,
    done: Forwarded,
    temporary: list[tuple[int, Layout]],
    alone: bool,
) -> int:
    """The tensor as a copy in another layout: the one there is, or a new one.

    What is needed in several layouts at once (not ``alone``) stays what it is meanwhile. Terms are of no more use to
    anybody once they are combined: they are replaced.
    """
    place: Any = client.tensors[id]
    home = place.home
    copies = client.copies.get(id)
    if copies is not None:
        if not place.copies:  # they are of a tensor that had this id before, perhaps of another type
            free_copies(client, id, done)
        elif target in copies:
            return copies[target]
    if source.terms and source is home and alone:
        relay(client, id, site, source, target, t, done)
        return id
    made = move(client, id if source is home else client.copies[id][source], site, source, target, t, done, 0)
    if id in client.loose or not alone:
        temporary.append((made, target))
        return made
    client.copies.setdefault(id, {})[target] = made
    client.tensors[id] = placed(t, home, (*place.copies, target))
    return made


def relay(client: Client, id: int, site: Any, source: Layout, target: Layout, t: TensorType, done: Forwarded) -> None:
    """Move a tensor for good: what it was is of no use to anybody."""
    move(client, id, site, source, target, t, done, id)
    overwritten(client, id, source, target, done)
    client.tensors[id] = placed(t, target)


def move(
    client: Client, id: int, site: Any, source: Layout, target: Layout, t: TensorType, done: Forwarded, into: int
) -> int:
    """Emit the steps of a move; the last makes ``into``, or a fresh tensor."""
    steps = route(t, source, target)
    now, now_on = id, source.workers
    for step in steps:
        made = into if into and step is steps[-1] else client.book.id()
        code = client.book.step(t, step, done.tell)
        for group, members in client.book.unneeded():
            done.segment(members).words += (LEAVE, group)
            client.forget_courses()  # some may lead through it
        done.segment(step.workers).words += (code, site, made, now)
        if now != id:
            done.segment(now_on).words.append(-now)
        now, now_on = made, step.target.workers
    return now


def free(client: Client, id: int, where: Where, done: Forwarded) -> None:
    if not isinstance(where, Lost):
        done.segment(where.workers).words.append(-id)
    free_copies(client, id, done)
    forget_made(client, id)


def forget_made(client: Client, id: int) -> None:
    client.made.pop(id, None)
    if client.loose:
        client.loose.discard(id)
