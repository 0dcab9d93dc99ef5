"""The layout of a tensor and the reasons for it, for `x.layout`, `gt.debug.show_layout` and
`gt.debug.explain`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gt.dispatcher.instruction_plans import InstructionPlan
from gt.dispatcher.plan.layouts import Layout, Lost, TensorState
from gt.dispatcher.plan.moves import MoveStep, cost, route
from gt.dispatcher.state import Client
from gt.types import TensorType
from gt.wire.messages import Locate, Located


def locate(client: Client, m: Locate) -> Located:
    """The answer. It lists no blocks if the requested shape is not the tensor's."""
    state = client.tensors.get(m.id, Lost("there is no such tensor"))
    if isinstance(state, Lost):
        return Located(m.request, [], [], [], [], [f"lost: {state.text}"])
    home, shape = state.home, state.type.shape
    blocks = [(w, *home.block(shape, w)) for w in home.workers] if tuple(m.shape) == shape else []
    return Located(
        m.request,
        list(home.workers),
        list(home.mesh.shape),
        [str(p) for p in home.placements],
        blocks,
        list(_history(client, m.id, home, state)),
    )


def _history(client: Client, id: int, home: Layout, state: TensorState) -> Iterator[str]:
    """How the tensor got its layout, one line a fact."""
    if id in client.origins:
        plan, number = client.origins[id]
        yield from _origin(client, plan, number)
        if plan.outs[number].home is not home and all(move.position != number for move in plan.result_moves):
            steps = _steps(client, state.type, plan.outs[number].home, home)
            why = "by gt.rebalance or since its combined value was needed"
            yield f"later it was moved to {home} for good, {why}: {steps}"
    else:
        yield "it was made there, where its operands were or where new tensors of this program go"
    for layout in state.copies:
        yield f"a copy is kept as {layout}, until the tensor is written or freed"
    if id in client.uncached:
        yield "it is a parameter placed by its name: copies of it are freed after use"


def _origin(client: Client, plan: InstructionPlan, number: int) -> Iterator[str]:
    yield f"made by {plan.signature} as {plan.outs[number].home}"
    tensors = [t for t in plan.signature.ins if isinstance(t, TensorType)]
    for move in plan.moves:
        operand = plan.signature.offsets.index(move.position)
        steps = _steps(client, move.type, move.source, move.target) or "nothing to do"
        nbytes = size_text(cost(move.type, move.source, move.target))
        yield f"operand {operand}, {tensors[operand]}: {move.source} -> {move.target} by {steps}; about {nbytes}"
    if not plan.moves and tensors:
        yield "its operands were where they were needed: nothing moved"
    for move in plan.result_moves:
        if move.position == number:
            steps = _steps(client, move.type, plan.outs[number].home, move.target)
            yield f"then brought to {move.target} by {steps}, because its signal says so"
    yield f"bytes moved for it, a worker: about {size_text(plan.moved)}"


def _steps(client: Client, t: TensorType, source: Layout, target: Layout) -> str:
    """The kinds of the steps of a move; empty if it has none. For steps between hosts, the estimates too."""
    texts = []
    for step in route(t, source, target):
        best, flat = client.ledger.step_options(t, step)
        kinds = ", ".join(part.kind if part is step else _part(part) for part in best.steps)
        times = f" (about {best.us / 1e3:.2f} ms; flat {flat.us / 1e3:.2f} ms)" if flat.us else ""
        texts.append(f"{kinds}{times}")
    return ", ".join(texts)


def _part(step: MoveStep) -> str:
    """A step that is a part of a collective between hosts."""
    line = step.source.mesh.line(step.axis, step.source.worker)
    return f"{step.kind} among {' '.join(map(str, line))}{' …' * (len(line) < len(step.source.workers))}"


def size_text(nbytes: float) -> str:
    """The bytes in a readable unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
