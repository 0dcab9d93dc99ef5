"""Emitting instructions: from a call of an op to words in the session's stream.

Ops are pure. What PyTorch calls in-place is, on the wire, an op whose result is written *into* an existing tensor.
Views are recipes: a view remembers the tensor it looks at and the way there. When that tensor is written, the view's
own value is out of date, and is made anew when next used; when a view is written, the recipe says where in the base
the values go. So aliasing works as in torch wherever the pieces of a tensor may lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.stream import scope, sites
from gt.client.stream.session import Session
from gt.client.tensor import foreign, tape
from gt.client.tensor.tensor import Tensor, fresh
from gt.errors import ClusterError, DTypeError
from gt.ops import OPS, Attrs, Op, Signature
from gt.types import BYTES, INT, NUMBER_OF, OperandType, Scalar, TensorType

PLACED = OPS["placed"]

#: what an integer on the wire holds
MIN_INT, MAX_INT = -(2**63), 2**63 - 1

#: (view op, its attributes, its scalar operands): one step from a base to a view
Step = tuple[Op, Attrs, tuple[int, ...]]

#: a code, the type of its (first) result, and its signature
Known = tuple[int, TensorType, Signature]

#: brings operands, or the result, to the dtypes of `gt.autocast`; None as long as nobody is in one
casting: Callable[[Op, tuple[Any, ...], Attrs], tuple[tuple[Any, ...], Attrs]] | None = None


class View:
    """How a tensor looks at another."""

    __slots__ = ("base", "chain", "version")

    def __init__(self, base: Tensor, chain: tuple[Step, ...]) -> None:
        self.base, self.chain, self.version = base, chain, base._cell.version


def call(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit one instruction with one result. The hot path: every step here is counted in nanoseconds."""
    count = len(operands)
    if count == 1 and isinstance(operands[0], Tensor):
        return unary(op, operands[0], attrs)
    if count == 2 and isinstance(operands[0], Tensor) and isinstance(operands[1], Tensor):
        return binary(op, operands[0], operands[1], attrs)
    if casting is not None:
        operands, attrs = casting(op, operands, attrs)
    session = operands[0]._cell.session if count and isinstance(operands[0], Tensor) else _session_of(op, operands)
    key: list[Any] = [op, attrs, False]
    words: list[Any] = []
    tracked = False
    for x in operands:
        if isinstance(x, Tensor):
            if x._view is not None:
                current(x)
            cell = x._cell
            if cell.session is not session:
                raise _strangers(session, cell.session)
            if x._node is not None:
                tracked = True
            key.append(x._type)
            words.append(cell.id)
        else:
            key.append(_number(op, x))
            words.append(x)
    found = (session.table() if scope.active else session.signatures).get(tuple(key))
    if found is None:
        found = session.define(op, attrs, tuple(key[3:]), False)
    if session.dropped:
        session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, *words))
    made = fresh(id, session, found[1])  # before the flush: an interrupt there must not leave it to nobody
    if len(session.words) >= session.limit:
        session.full()
    if tracked:
        tape.record(op, attrs, operands, (made,))
    return made


def unary(op: Op, a: Tensor, attrs: Attrs = ()) -> Tensor:
    """`call` for one operand, a tensor."""
    if casting is not None:
        (a,), attrs = casting(op, (a,), attrs)
    if a._view is not None:
        current(a)
    cell = a._cell
    session = cell.session
    found = (session.table() if scope.active else session.signatures).get((op, attrs, False, a._type))
    if found is None:
        found = session.define(op, attrs, (a._type,), False)
    if session.dropped:
        session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, cell.id))
    made = fresh(id, session, found[1])
    if len(session.words) >= session.limit:
        session.full()
    if a._node is not None:
        tape.record(op, attrs, (a,), (made,))
    return made


def binary(op: Op, a: Tensor, b: Any, attrs: Attrs = ()) -> Tensor:
    """`call` for two operands, of which the first is a tensor. A KeyError says that the second is no operand."""
    if casting is not None:
        (a, b), attrs = casting(op, (a, b), attrs)
    if a._view is not None:
        current(a)
    cell = a._cell
    session = cell.session
    tracked = a._node is not None
    if isinstance(b, Tensor):
        if b._view is not None:
            current(b)
        cell_b = b._cell
        if cell_b.session is not session:
            raise _strangers(session, cell_b.session)
        if b._node is not None:
            tracked = True
        type_b: OperandType = b._type
        word_b: Any = cell_b.id
    else:
        type_b = NUMBER_OF[type(b)]
        if type_b is INT and not MIN_INT <= b <= MAX_INT:
            raise _no_operand(op, b)
        word_b = b
    found = (session.table() if scope.active else session.signatures).get((op, attrs, False, a._type, type_b))
    if found is None:
        found = session.define(op, attrs, (a._type, type_b), False)
    if session.dropped:
        session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, cell.id, word_b))
    made = fresh(id, session, found[1])  # before the flush: an interrupt there must not leave it to nobody
    if len(session.words) >= session.limit:
        session.full()
    if tracked:
        tape.record(op, attrs, (a, b), (made,))
    return made


def call_many(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> tuple[Tensor, ...]:
    """`call` for an op with several results."""
    if casting is not None:
        operands, attrs = casting(op, operands, attrs)
    session = _session_of(op, operands)
    types, words = _operands(op, session, operands)
    found = known(session, op, attrs, types, False)
    session.free()
    ids = [session.next_id() for _ in found[2].outs]
    session.extend((found[0], sites.here(), *ids, *words))
    made = tuple([fresh(id, session, t) for id, t in zip(ids, found[2].outs, strict=True)])
    if len(session.words) >= session.limit:
        session.full()
    if tape.tracked(operands):
        tape.record(op, attrs, operands, made)
    return made


def call_into(op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit an op whose first operand is ``target`` and whose result is written into it."""
    if target._view is not None:
        _write_through(target._view, op, target, rest, attrs)
        return target
    operands = (target, *rest)
    session = target._cell.session
    types, words = _operands(op, session, operands)
    found = known(session, op, attrs, types, True)
    tracked = tape.tracked(operands)
    if tracked:
        tape.check_writable(target)
        if tape.keeps_target(op, operands):
            operands = (_as_it_was(target), *rest)
    session.free()
    session.extend((found[0], sites.here(), target._cell.id, *words))
    if tracked:
        tape.record_into(op, attrs, operands, target)
    target._cell.version += 1
    if len(session.words) >= session.limit:
        session.full()
    return target


def _as_it_was(target: Tensor) -> Tensor:
    """A copy, with the same history, of what is about to be written and will be asked for."""
    made = call(OPS["clone"], (detached(target),))
    made._node, made._index = target._node, target._index
    return made


def call_into_many(op: Op, targets: tuple[Tensor, ...], rest: tuple[Any, ...], attrs: Attrs = ()) -> None:
    """`call_into` for several targets at once, off the tape: what an optimizer does to its parameters."""
    session = targets[0]._cell.session
    types, words = _operands(op, session, (*targets, *rest))
    found = known(session, op, attrs, types, True)
    session.free()
    session.extend((found[0], sites.here(), *words[: len(targets)], *words))
    for target in targets:
        assert target._view is None, "a view is written through its base"
        target._cell.version += 1
    if len(session.words) >= session.limit:
        session.full()


def create(op: Op, operands: tuple[Any, ...], attrs: Attrs, session: Session) -> Tensor:
    """Emit an op without tensor operands."""
    found = known(session, op, attrs, tuple(NUMBER_OF[type(x)] for x in operands), False)
    return _created(found, operands, session)


def upload(data: memoryview, type: TensorType, session: Session) -> Tensor:
    """A tensor of these bytes; they may change as soon as this returns."""
    attrs = (("shape", type.shape), ("dtype", type.dtype.name))
    # its number first: to forget the others, all is sent, and the bytes must be counted with the words they stand in
    found = known(session, OPS["upload"], attrs, (BYTES,), False)
    return _created(found, (session.upload(data),), session)


def call_with(op: Op, data: bytes, operands: tuple[Tensor, ...], attrs: Attrs, session: Session) -> tuple[Tensor, ...]:
    """Emit an op whose first operand are bytes; off the tape."""
    types, words = _operands(op, session, operands)
    types = (BYTES, *types)
    found = known(session, op, attrs, types, False)
    sent = session.upload(memoryview(data))
    session.free()
    ids = [session.next_id() for _ in found[2].outs]
    session.extend((found[0], sites.here(), *ids, sent, *words))
    made = tuple([fresh(id, session, t) for id, t in zip(ids, found[2].outs, strict=True)])
    if len(session.words) >= session.limit:
        session.full()
    return made


def _created(found: Known, operands: tuple[Any, ...], session: Session) -> Tensor:
    session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, *operands))
    made = fresh(id, session, found[1])
    if len(session.words) >= session.limit:
        session.full()
    return made


def known(session: Session, op: Op, attrs: Attrs, types: tuple[OperandType, ...], into: bool) -> Known:
    """A call's number, result type and signature, under the signal of this thread; it may raise the first time."""
    table = session.table() if scope.active else session.signatures
    return table.get((op, attrs, into, *types)) or session.define(op, attrs, types, into)


def _operands(op: Op, session: Session, operands: tuple[Any, ...]) -> tuple[tuple[OperandType, ...], list[Any]]:
    types: list[OperandType] = []
    words: list[Any] = []
    for x in operands:
        if isinstance(x, Tensor):
            if x._view is not None:
                current(x)
            cell = x._cell
            if cell.session is not session:
                raise _strangers(session, cell.session)
            types.append(x._type)
            words.append(cell.id)
        else:
            types.append(_number(op, x))
            words.append(x)
    return tuple(types), words


def _number(op: Op, x: Any) -> Scalar:
    scalar = NUMBER_OF.get(type(x))
    if scalar is None or (scalar is INT and not MIN_INT <= x <= MAX_INT):
        raise _no_operand(op, x)
    return scalar


def _session_of(op: Op, operands: tuple[Any, ...]) -> Session:
    for x in operands:
        if isinstance(x, Tensor):
            return x._cell.session
    raise DTypeError(f"{op.name}: needs a tensor; make one with gt.tensor")


def _no_operand(op: Op, x: Any) -> DTypeError:
    if isinstance(x, int):
        return DTypeError(f"{op.name}(…, {x}): an int has at most 64 bits; use a float")
    otherwise = f"an operand is a tensor or a number, not {type(x).__name__}"
    return DTypeError(f"{op.name}: {foreign.no_tensor(x, otherwise)}")


def _strangers(one: Session, other: Session) -> ClusterError:
    if one.ended is not None or other.ended is not None:
        return ClusterError("a tensor of a session that has ended cannot be used any more")
    return ClusterError(f"tensors of two sessions cannot meet: {one.name} and {other.name}")


# -- views -------------------------------------------------------------------------------


def view_of(x: Tensor, op: Op, attrs: Attrs, scalars: tuple[int, ...] = ()) -> Tensor:
    """A view of x, by one more step."""
    made = call(op, (x, *scalars), attrs)
    look_at(made, x, (op, attrs, scalars))
    return made


def look_at(made: Tensor, x: Tensor, step: Step) -> None:
    """``made`` holds what the step makes of x: let it be a view from now on."""
    made._view = View(x, (step,)) if x._view is None else View(x._view.base, (*x._view.chain, step))


def current(x: Tensor) -> None:
    """If x is a view of something that was written since, make its value anew."""
    view = x._view
    if view is None or view.version == view.base._cell.version:
        return
    made = view.base
    recording, tape.mode.enabled = tape.mode.enabled, True  # whatever the mode, a view is a part of its base's history
    try:
        for op, attrs, scalars in view.chain:
            made = call(op, (made, *scalars), attrs) if op is not PLACED else _placed(made, attrs)
    finally:
        tape.mode.enabled = recording
    if x._node is not None or made._node is not None:
        tape.move_to(x, made._node, made._index)
    x._cell = made._cell
    view.version = view.base._cell.version


def _placed(x: Tensor, attrs: Attrs) -> Tensor:
    """What a signal laid out it lays out again, whatever is in force by then."""
    with scope.under(attrs[0][1]):
        return call(PLACED, (x,), attrs)


def lay_out(x: Tensor, signal: str) -> None:
    """Let x lie where the signal says, from here on. Its value, version and history are not touched."""
    if x._view is not None:
        return
    session = x._cell.session
    with scope.under(signal):
        found = known(session, PLACED, (("signal", signal),), (x._type,), True)
    session.free()
    session.extend((found[0], sites.here(), x._cell.id, x._cell.id))
    if len(session.words) >= session.limit:
        session.full()


def detached(x: Tensor) -> Tensor:
    """The same value, on the same cell, without a history."""
    current(x)
    made = Tensor(x._cell, x._type)
    if x._view is not None:
        made._view = View(detached(x._view.base), x._view.chain)
    return made


def _write_through(view: View, op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs) -> None:
    """In place on a view: compute its new value, and put that into the base."""
    session = target._cell.session
    types, _ = _operands(op, session, (target, *rest))
    # refused as a whole or not at all: both signatures are looked at before anything is emitted
    known(session, op, attrs, types, True)
    _check_writable(view.base, view.chain, target._type)
    if tape.tracked((view.base, target, *rest)):
        tape.check_writable(view.base)
    operands = (target, *rest)
    if tape.tracked(operands) and tape.keeps_target(op, operands):
        operands = (_as_it_was(target), *rest)
    value = call(op, operands, attrs)
    put(view.base, view.chain, value)
    if view.base._node is not None:
        current(target)  # it comes from what was written from now on


def put(x: Tensor, steps: tuple[Step, ...], value: Any) -> None:
    """Write a value into what the steps make of x."""
    base, steps = (x, steps) if x._view is None else (x._view.base, (*x._view.chain, *steps))
    chain, starts = _as_attribute(steps)
    call_into(OPS["put_view"], base, (value, *starts), (("chain", chain),))


def _as_attribute(steps: tuple[Step, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    return tuple((op.name, attrs) for op, attrs, _ in steps), tuple(s for _, _, scalars in steps for s in scalars)


def _check_writable(base: Tensor, steps: tuple[Step, ...], value: TensorType) -> None:
    chain, starts = _as_attribute(steps)
    types: tuple[OperandType, ...] = (base._type, value, *(INT,) * len(starts))
    known(base._cell.session, OPS["put_view"], (("chain", chain),), types, True)
