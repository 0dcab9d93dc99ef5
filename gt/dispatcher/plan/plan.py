"""What happens on a miss: where an instruction runs, which of its operands move, and where its results lie.

an op under a signal            on the signal's workers; what it makes out of nothing lies as the signal says
an op that does things outside  on the client's home, once
an op on many tensors           for each of them where it lies (`gt.dispatcher.plan.multi_tensor`)
any other op                    where most of its operands' bytes lie
made out of nothing, no signal  at home; or as auto-sharding says
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.ledger import Misfit
from gt.dispatcher.plan.layouts import Layout, Lost, Mesh, Place
from gt.dispatcher.plan.moves import cost, route
from gt.dispatcher.plan.multi_tensor import Part, parts
from gt.dispatcher.plan.planner import Choice, choose, everywhere
from gt.dispatcher.plan.segments import Forwarded
from gt.dispatcher.plan.signals import Rule
from gt.dispatcher.state import FLOOR, Client, Coded, Violation
from gt.ops import Signature
from gt.types import Scalar, TensorType
from gt.wire.codec import definition
from gt.wire.messages import INLINE, Notice


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a client's program runs: its home, and the workers there are."""

    home: Layout
    workers: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """An instruction that is passed on as it is: with several results, or in place, or made of what was sent."""

    workers: tuple[int, ...]
    outs: tuple[Place, ...]


@dataclass(slots=True, eq=False)
class Plan:
    """An instruction that is not just passed on."""

    workers: tuple[int, ...]
    code: int
    #: (where the operand's word is, the layout it is taken from, the one it is needed in, its type); the first
    #: below word ``targets`` they are written in place, and move for good
    moves: tuple[tuple[int, Layout, Layout, TensorType], ...]
    targets: int
    outs: tuple[Place, ...]
    #: (which result, the layout it goes on to, its type)
    after: tuple[tuple[int, Layout, TensorType], ...]
    #: estimated microseconds on each worker
    cost: float
    #: are there operands that may have come in parts?
    blobs: bool
    #: copies of its results are let go after use
    loose: bool
    signature: Signature
    #: bytes moved for it, more or less
    moved: float
    #: the instructions it is taken apart into, each with the words it takes of it; then it is none itself
    parts: tuple[tuple[Coded, Plan, tuple[int, ...]], ...] = ()
    #: where numbers are that a sum passes by: they must be finite and not zero, or else the sum is made first
    numbers: tuple[int, ...] = ()
    otherwise: Plan | None = None
    #: nothing moves, and there is one fresh result: the code, its place, and what is remembered of it
    simple: tuple[int, Place, tuple[Plan, int]] | None = None


def plan(
    client: Client, ground: Ground, coded: Coded, places: tuple[Any, ...], done: Forwarded
) -> Place | Passed | Lost | Plan:
    """The plan for operands at these places; the workers concerned are told what they need for it.

    Raises Violation for operands of other types than the code was defined for. Nobody checks that again: plans are
    found by places, and a place has one type.
    """
    for place in places:
        if isinstance(place, Lost):
            return place
    _check(coded.signature, places)
    rule = client.config.rule(coded.definition.signal, ground.workers) if client.config else None
    if isinstance(rule, Lost):
        return rule
    held = [place.layouts for place in places]
    if (rule is None or rule.spec.auto) and (apart := parts(coded.signature, held)):
        return _taken_apart(client, coded, apart, held, done)
    mesh = _mesh(coded.signature, rule, held, ground)
    if len(mesh.workers) == 1:
        return _passed_on(client, coded, rule, held, Layout(mesh), done)
    return _written_anew(client, coded, rule, held, mesh, done)


def _check(signature: Signature, places: tuple[Place, ...]) -> None:
    given = iter(places)
    for number, declared in enumerate(signature.ins):
        if isinstance(declared, TensorType) and (found := next(given).type) is not declared:
            raise Violation(f"{str(signature)[:400]} was given a {found} as operand {number}")


def _mesh(signature: Signature, rule: Rule | None, held: list[tuple[Layout, ...]], ground: Ground) -> Mesh:
    op = signature.op
    if op.effects:
        return ground.home.mesh
    if rule is not None and (op.creates or op.places or not rule.spec.auto):
        large = op.creates and any(t.nbytes > INLINE for t in signature.outs) and not op.split
        return ground.home.mesh if large else rule.mesh  # what comes in parts comes to the home first
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    weights: Counter[Mesh] = Counter()
    for t, layouts in zip(tensors, held, strict=True):
        weights[layouts[0].mesh] += t.nbytes + 1
    return max(weights, key=lambda m: (weights[m], len(m.workers))) if weights else ground.home.mesh


def _taken_apart(
    client: Client, coded: Coded, apart: list[Part], held: list[tuple[Layout, ...]], done: Forwarded
) -> Plan:
    made = []
    for part in apart:
        one = Coded(definition(0, part.signature, coded.definition.signal), part.signature)
        chosen = _written_anew(client, one, None, [held[i] for i in part.operands], part.mesh, done)
        made.append((one, chosen, part.words))
    cost, moved = max(chosen.cost for _, chosen, _ in made), sum(chosen.moved for _, chosen, _ in made)
    return Plan((), 0, (), 0, (), (), cost, False, False, coded.signature, moved, tuple(made))


def _passed_on(
    client: Client, coded: Coded, rule: Rule | None, held: list[tuple[Layout, ...]], where: Layout, done: Forwarded
) -> Place | Passed | Plan:
    """All on one worker: the client's own code will do. If its operands are themselves there, so will its words."""
    told = client.told.setdefault(where.worker, set())
    if coded.definition.code not in told:
        told.add(coded.definition.code)
        done.tell(where.worker).definitions.append(coded.definition)
    signature = coded.signature
    after = _after(signature, rule, (where,) * len(signature.outs))
    if not after and all(layouts[0] is where for layouts in held) and (rule is None or rule.keep):
        outs = tuple(Place(t, where) for t in signature.outs)
        simple = len(outs) == 1 and not coded.into and not coded.blobs
        return outs[0] if simple else Passed(where.workers, outs)
    choice = Choice((where,) * len(held), (where,) * len(signature.outs), 0.0)
    return _made(coded, choice, held, coded.definition.code, after, rule)


def _written_anew(
    client: Client, coded: Coded, rule: Rule | None, held: list[tuple[Layout, ...]], mesh: Mesh, done: Forwarded
) -> Plan:
    signature = coded.signature
    choice = _choice(signature, rule, held, mesh)
    after = _after(signature, rule, choice.outs)
    try:
        code = client.book.op(signature, choice, coded.definition.signal, done.tell)
    except Misfit as problem:
        _advise(client, done, f"{signature.op.name} is gathered: {problem}")
        choice = everywhere(signature, mesh)
        after = _after(signature, rule, choice.outs)
        code = client.book.op(signature, choice, coded.definition.signal, done.tell)
    chosen = _made(coded, choice, held, code, after, rule)
    if any(layout.terms for layout in choice.ins):
        chosen.numbers = tuple(at for at, t in enumerate(signature.ins, signature.start) if isinstance(t, Scalar))
    if chosen.numbers:
        chosen.simple = None
        whole = everywhere(signature, mesh)
        code = client.book.op(signature, whole, coded.definition.signal, done.tell)
        chosen.otherwise = _made(coded, whole, held, code, _after(signature, rule, whole.outs), rule)
    op = signature.op
    if op.split is None and not op.creates and not op.places and any(route(t, a, b) for _, a, b, t in chosen.moves):
        why = op.whole or "it has no rule"
        _advise(client, done, f"the operands of {op.name} are gathered, and every worker does all of it: {why}")
    return chosen


def _choice(signature: Signature, rule: Rule | None, held: list[tuple[Layout, ...]], mesh: Mesh) -> Choice:
    if signature.op.places and rule is not None:
        target = tuple(rule.layout(t) for t in signature.outs)
        return Choice(target[:1] * len(held), target, 0.0)
    wanted = _wanted(signature, rule)
    if signature.into:
        # what is written stays where it is, or goes back there
        wanted = [w or (h[0] if not h[0].terms else None) for w, h in zip(wanted, held, strict=False)]
    choice = choose(signature, held, mesh, wanted)
    if signature.into and choice.ins[: len(choice.outs)] != choice.outs:
        return everywhere(signature, mesh)
    return choice


def _wanted(signature: Signature, rule: Rule | None) -> list[Layout | None]:
    if rule is None:
        return [None] * len(signature.outs)
    if signature.op.creates:
        return [rule.layout(t) for t in signature.outs]
    # what else an op gives is no output: of a norm's gradient for its input, those for its weights
    dims = signature.outs[0].ndim
    return [rule.output(t) if t.ndim == dims else None for t in signature.outs]


def _after(
    signature: Signature, rule: Rule | None, outs: tuple[Layout, ...]
) -> tuple[tuple[int, Layout, TensorType], ...]:
    """Results that do not come out where they are wanted."""
    if rule is None or signature.op.places or signature.op.effects:
        return ()
    pairs = zip(outs, _wanted(signature, rule), signature.outs, strict=True)
    return tuple((i, w, t) for i, (out, w, t) in enumerate(pairs) if w is not None and w is not out)


def _made(
    coded: Coded,
    choice: Choice,
    held: list[tuple[Layout, ...]],
    code: int,
    after: tuple[tuple[int, Layout, TensorType], ...],
    rule: Rule | None,
) -> Plan:
    signature = coded.signature
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    moves = []
    targets = signature.start + len(signature.outs) if signature.into else 0
    for offset, t, layouts, wanted in zip(signature.offsets, tensors, held, choice.ins, strict=True):
        if layouts[0] is not wanted:
            source = layouts[0] if offset < targets else min(layouts, key=lambda layout: cost(t, layout, wanted))
            moves.append((offset, source, wanted, t))
    workers = choice.outs[0].workers
    loose = rule is not None and not rule.keep and (signature.op.creates or signature.op.places)
    moved = sum(cost(t, source, wanted) for _, source, wanted, t in moves)
    cost_each = FLOOR + (coded.cost - FLOOR) / _cut_by(choice)
    blobs = bool(coded.blobs)
    outs = tuple(Place(t, layout) for t, layout in zip(signature.outs, choice.outs, strict=True))
    made = Plan(workers, code, tuple(moves), targets, outs, after, cost_each, blobs, loose, signature, moved)
    if len(outs) == 1 and not (moves or targets or after or blobs or loose or outs[0].home.single):
        made.simple = code, outs[0], (made, 0)
    return made


def _cut_by(choice: Choice) -> int:
    """Among how many workers the work is divided."""
    layouts = (*choice.ins, *choice.outs)
    return max((len(layout.workers) for layout in layouts if not layout.whole), default=1)


def _advise(client: Client, done: Forwarded, text: str) -> None:
    if text not in client.advised and len(client.advised) < 100:
        client.advised.add(text)
        done.said.append(Notice(text))
