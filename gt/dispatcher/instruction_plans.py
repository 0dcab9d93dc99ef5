"""Planning one instruction: where it runs, which operands move, and the layouts of its results.

The forwarding loop calls `make_plan` when it finds no cached plan.

    an op on many tensors            without a signal: one call for each mesh (`gt.dispatcher.plan.multi_tensor`)
    an op on own blocks              runs where its tensor is, each worker on its block
    an op with side effects          runs once, on the client's home worker
    an op under a signal             runs on the signal's workers; a tensor it creates is laid out as the signal says
    creation without a signal        runs on the home worker, or as auto-sharding says
    any other op                     runs on the mesh that holds most bytes of its operands

The first line that applies is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.ledger import Misfit
from gt.dispatcher.plan.layouts import Layout, Lost, Mesh, TensorState
from gt.dispatcher.plan.moves import PlannedMove, cost, route
from gt.dispatcher.plan.multi_tensor import MeshCall, split_by_mesh
from gt.dispatcher.plan.own_blocks import choose_own_blocks
from gt.dispatcher.plan.planner import Choice, Held, choose, replicated
from gt.dispatcher.plan.signals import SignalRule
from gt.dispatcher.segments import ForwardOutput
from gt.dispatcher.state import Client, CodedSignature
from gt.dispatcher.violations import Violation
from gt.ops import Signature
from gt.ops.cost import MIN_CALL_US
from gt.types import Scalar, TensorType
from gt.wire.codec import definition
from gt.wire.messages import Notice
from gt.wire.words import MAX_INLINE_BYTES

#: The most notices a client gets from the planner.
MAX_NOTICES = 100


@dataclass(frozen=True, slots=True)
class WorkerView:
    """The workers as a client's program sees them: its home, and all that are connected."""

    home: Layout
    workers: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class PassThrough:
    """The plan of an instruction whose words are passed on unchanged to one worker, and that is not the simplest case:
    it has several results, works in place, or takes a transfer. (In the simplest case the plan is the result's state.)
    """

    workers: tuple[int, ...]
    outs: tuple[TensorState, ...]


@dataclass(slots=True, eq=False)
class InstructionPlan:
    """The plan of an instruction for several workers, or with operands that move."""

    workers: tuple[int, ...]
    code: int
    #: the operands that move; those at offsets below ``targets`` are written in place, so they are not copied but
    #: change their layout
    moves: tuple[PlannedMove, ...]
    targets: int
    outs: tuple[TensorState, ...]
    #: the results that move afterwards
    result_moves: tuple[PlannedMove, ...]
    #: estimated microseconds on each worker
    cost: float
    #: some operands may be transfers
    takes_blobs: bool
    #: copies of its results are freed after use
    uncached: bool
    signature: Signature
    #: the estimated cost of moving its operands, in bytes
    moved: float
    #: the calls it is split into, one a mesh, each with the words it takes; then the other fields are not used
    calls: tuple[tuple[CodedSignature, InstructionPlan, tuple[int, ...]], ...] = ()
    #: offsets of numbers that multiply a partial sum: if one is zero or not finite, the plan is ``otherwise``,
    #: which combines the sum first
    numbers: tuple[int, ...] = ()
    otherwise: InstructionPlan | None = None
    #: it does nothing but move its operand, so the result of the move is its result
    is_move: bool = False
    #: if nothing moves and there is one new result: the code, the result's state, and its origin
    simple: tuple[int, TensorState, tuple[InstructionPlan, int]] | None = None


def make_plan(
    client: Client, view: WorkerView, coded: CodedSignature, states: tuple[Any, ...], output: ForwardOutput
) -> TensorState | PassThrough | Lost | InstructionPlan:
    """The plan for operands with these states. Adds to ``output`` the definitions that the workers need for it.

    Raises Violation if the operands' types are not those of the signature. The check is needed only here: plans are
    looked up by the operands' states, and a state has one type.
    """
    for state in states:
        if isinstance(state, Lost):
            return state
    _check_types(coded.signature, states)
    rule = client.config.rule(coded.definition.signal, view.workers) if client.config else None
    if isinstance(rule, Lost):
        return rule
    held = [state.layouts for state in states]
    if (rule is None or rule.spec.auto) and (calls := split_by_mesh(coded.signature, held)):
        return _plan_calls(client, coded, calls, held, output)
    mesh = _choose_mesh(coded.signature, rule, held, view)
    if len(mesh.workers) == 1:
        return _plan_single_worker(client, coded, rule, held, Layout(mesh), output)
    return _plan_mesh(client, coded, rule, held, mesh, output)


def _check_types(signature: Signature, states: tuple[TensorState, ...]) -> None:
    operands = iter(states)
    for number, declared in enumerate(signature.ins):
        if isinstance(declared, TensorType) and (t := next(operands).type) is not declared:
            raise Violation(f"{str(signature)[:400]} was given a {t} as operand {number}")


def _choose_mesh(signature: Signature, rule: SignalRule | None, held: Held, view: WorkerView) -> Mesh:
    """The workers that run the instruction; see the table at the top."""
    op = signature.op
    if op.own_blocks:
        return held[0][0].mesh
    if op.effects:
        return view.home.mesh
    if rule is not None and (op.creates or op.places or not rule.spec.auto):
        large = op.creates and any(t.nbytes > MAX_INLINE_BYTES for t in signature.outs) and not op.split
        return view.home.mesh if large else rule.mesh  # a large value is transferred to the home first
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    weights: Counter[Mesh] = Counter()
    for t, layouts in zip(tensors, held, strict=True):
        weights[layouts[0].mesh] += t.nbytes + 1
    return max(weights, key=lambda m: (weights[m], len(m.workers))) if weights else view.home.mesh


def _plan_calls(
    client: Client, coded: CodedSignature, calls: list[MeshCall], held: Held, output: ForwardOutput
) -> InstructionPlan:
    plans = []
    for call in calls:
        coded_call = CodedSignature(definition(0, call.signature, coded.definition.signal), call.signature)
        plan = _plan_mesh(client, coded_call, None, [held[i] for i in call.operands], call.mesh, output)
        plans.append((coded_call, plan, call.words))
    cost, moved = max(plan.cost for _, plan, _ in plans), sum(plan.moved for _, plan, _ in plans)
    return InstructionPlan((), 0, (), 0, (), (), cost, False, False, coded.signature, moved, tuple(plans))


def _plan_single_worker(
    client: Client,
    coded: CodedSignature,
    rule: SignalRule | None,
    held: Held,
    where: Layout,
    output: ForwardOutput,
) -> TensorState | PassThrough | InstructionPlan:
    """The plan for one worker, with the client's code. If the operands are there, the words are passed on unchanged."""
    announced = client.announced.setdefault(where.worker, set())
    if coded.definition.code not in announced:
        announced.add(coded.definition.code)
        output.announce(where.worker).definitions.append(coded.definition)
    signature = coded.signature
    result_moves = _result_moves(signature, rule, (where,) * len(signature.outs))
    if not result_moves and all(layouts[0] is where for layouts in held) and (rule is None or rule.keep):
        outs = tuple(TensorState(t, where) for t in signature.outs)
        simple = len(outs) == 1 and not coded.into and not coded.blobs
        return outs[0] if simple else PassThrough(where.workers, outs)
    choice = Choice((where,) * len(held), (where,) * len(signature.outs), 0.0)
    return _make_plan(coded, choice, held, coded.definition.code, result_moves, rule)


def _plan_mesh(
    client: Client,
    coded: CodedSignature,
    rule: SignalRule | None,
    held: Held,
    mesh: Mesh,
    output: ForwardOutput,
) -> InstructionPlan:
    signature = coded.signature
    choice = _choose(signature, rule, held, mesh)
    try:
        plan = _plan_choice(client, coded, rule, held, choice, output)
    except Misfit as problem:
        _notify(client, output, f"{signature.op.name} is gathered: {problem}")
        choice = replicated(signature, mesh)
        plan = _plan_choice(client, coded, rule, held, choice, output)
    if any(layout.partial for layout in choice.ins):
        plan.numbers = tuple(at for at, t in enumerate(signature.ins, signature.start) if isinstance(t, Scalar))
    if plan.numbers:
        plan.simple = None
        plan.otherwise = _plan_choice(client, coded, rule, held, replicated(signature, mesh), output)
    op = signature.op
    if op.split is None and not (op.creates or op.places or op.own_blocks) and _sends_anything(plan.moves):
        why = op.whole or "it has no rule"
        _notify(client, output, f"the operands of {op.name} are gathered, and every worker does all of it: {why}")
    return plan


def _plan_choice(
    client: Client, coded: CodedSignature, rule: SignalRule | None, held: Held, choice: Choice, output: ForwardOutput
) -> InstructionPlan:
    """Raises Misfit if the blocks of the choice do not fit together."""
    code = client.ledger.code_of_op(coded.signature, choice, coded.definition.signal, output.announce)
    return _make_plan(coded, choice, held, code, _result_moves(coded.signature, rule, choice.outs), rule)


def _sends_anything(moves: tuple[PlannedMove, ...]) -> bool:
    return any(route(move.type, move.source, move.target) for move in moves)


def _choose(signature: Signature, rule: SignalRule | None, held: Held, mesh: Mesh) -> Choice:
    if signature.op.places and rule is not None:
        target = tuple(rule.layout(t) for t in signature.outs)
        return Choice(target[:1] * len(held), target, 0.0)
    if signature.op.own_blocks:
        return choose_own_blocks(signature, held[0][0])
    wanted = _wanted_layouts(signature, rule)
    if signature.into:
        # a tensor written in place keeps its layout, or returns to it; a whole parameter stays whole on another mesh
        whole = Layout(mesh) if signature.op.steps else None
        kept = [whole if whole and h[0].replicated else h[0] if not h[0].partial else None for h in held]
        wanted = [w or k for w, k in zip(wanted, kept, strict=False)]
    choice = choose(signature, held, mesh, wanted)
    if signature.into and choice.ins[: len(choice.outs)] != choice.outs:
        return replicated(signature, mesh)
    return choice


def _wanted_layouts(signature: Signature, rule: SignalRule | None) -> list[Layout | None]:
    if rule is None:
        return [None] * len(signature.outs)
    if signature.op.creates:
        return [rule.layout(t) for t in signature.outs]
    # results of another rank are not outputs of a layer; e.g. a norm's backward also returns its weight's gradient
    dims = signature.outs[0].ndim
    return [rule.output(t) if t.ndim == dims else None for t in signature.outs]


def _result_moves(signature: Signature, rule: SignalRule | None, outs: tuple[Layout, ...]) -> tuple[PlannedMove, ...]:
    """The moves of results that are not produced in the layout the signal wants."""
    if rule is None or signature.op.places or signature.op.effects:
        return ()
    pairs = zip(outs, _wanted_layouts(signature, rule), signature.outs, strict=True)
    return tuple(PlannedMove(i, out, w, t) for i, (out, w, t) in enumerate(pairs) if w is not None and w is not out)


def _make_plan(
    coded: CodedSignature,
    choice: Choice,
    held: Held,
    code: int,
    result_moves: tuple[PlannedMove, ...],
    rule: SignalRule | None,
) -> InstructionPlan:
    signature = coded.signature
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    targets = signature.start + len(signature.outs) if signature.into else 0
    moves = []
    for offset, t, layouts, wanted in zip(signature.offsets, tensors, held, choice.ins, strict=True):
        if layouts[0] is not wanted:
            source = layouts[0] if offset < targets else min(layouts, key=lambda layout: cost(t, layout, wanted))
            moves.append(PlannedMove(offset, source, wanted, t))
    workers = choice.outs[0].workers
    uncached = rule is not None and not rule.keep and (signature.op.creates or signature.op.places)
    moved = sum(cost(move.type, move.source, move.target) for move in moves)
    worker_cost = MIN_CALL_US + (coded.cost - MIN_CALL_US) / _divided_among(choice)
    blobs = bool(coded.blobs)
    outs = tuple(TensorState(t, layout) for t, layout in zip(signature.outs, choice.outs, strict=True))
    plan = InstructionPlan(
        workers, code, tuple(moves), targets, outs, result_moves, worker_cost, blobs, uncached, signature, moved
    )
    plan.is_move = signature.op.places and not targets and _sends_anything(plan.moves)
    if len(outs) == 1 and not (moves or targets or result_moves or blobs or uncached or outs[0].home.single):
        plan.simple = code, outs[0], (plan, 0)
    return plan


def _divided_among(choice: Choice) -> int:
    """The number of workers that share the work."""
    layouts = (*choice.ins, *choice.outs)
    return max((len(layout.workers) for layout in layouts if not layout.replicated), default=1)


def _notify(client: Client, output: ForwardOutput, text: str) -> None:
    if text not in client.notices and len(client.notices) < MAX_NOTICES:
        client.notices.add(text)
        output.messages_to_client.append(Notice(text))
