"""Emitting instructions: from a call of an op to words in the session's stream.

Ops are pure. An in-place op of PyTorch is, on the wire, an op whose result is written *into* an existing tensor.

A view is a recipe: it keeps its base tensor and the steps that lead from there. When the base is written, the value of
the view is out of date, and is computed again when it is next used. When a view is written, the recipe says where in
the base the values go. So aliasing works as in torch, no matter on which workers the blocks of a tensor are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gt.client.stream import configuration, scope, sites
from gt.client.stream.session import Session
from gt.client.stream.signatures import Coded
from gt.client.stream.uploads import BackgroundUpload
from gt.client.tensor import tape
from gt.client.tensor.element_reads import element
from gt.client.tensor.operands import MAX_INT, MIN_INT, number_type, operand_error, session_error, session_of, words_of
from gt.client.tensor.strides import memory_order
from gt.client.tensor.tensor import Tensor, View, ViewStep, fresh, on_cell
from gt.ops import OPS, Attrs, Op
from gt.types import BYTES, INT, NUMBER_OF, OperandType, TensorType
from gt.wire.interrupts import deferred

PLACED, PERMUTE = OPS["placed"], OPS["permute"]

#: (op, operands, attributes) -> the same, cast as `gt.autocast` says, and the site if an operand was cast, else 0
casting: Callable[[Op, tuple[Any, ...], Attrs], tuple[tuple[Any, ...], Attrs, int]] | None = None


class ViewRecipe:
    """How the value of a view is computed from its base."""

    __slots__ = ("base", "chain", "version")

    def __init__(self, base: Tensor, chain: tuple[ViewStep, ...]) -> None:
        self.base, self.chain = base, chain
        #: the base's version that the view's value was computed from
        self.version = base._cell.version

    @deferred
    def refresh(self, x: Tensor) -> None:
        """Compute the view's value again, if its base was written since."""
        if self.version == self.base._cell.version:
            return
        value = self.base
        # A view belongs to its base's history, also if it is refreshed under `no_grad`.
        recording, tape.mode.enabled = tape.mode.enabled, True
        try:
            for op, attrs, scalars in self.chain:
                value = call(op, (value, *scalars), attrs) if op is not PLACED else placed(value, attrs[0][1])
        finally:
            tape.mode.enabled = recording
        if x._node is not None or value._node is not None:
            tape.set_node(x, value._node, value._index)
        x._cell = value._cell
        self.version = self.base._cell.version

    def element(self, x: Tensor) -> Any:
        """See `gt.client.tensor.element_reads`."""
        return element(x)


@deferred
def call(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit one instruction with one result. This is the hot path: every step counts in nanoseconds."""
    if (count := len(operands)) == 1 and isinstance(operands[0], Tensor):
        return unary(op, operands[0], attrs)
    if count == 2 and isinstance(operands[0], Tensor) and isinstance(operands[1], Tensor):
        return binary(op, operands[0], operands[1], attrs)
    site = 0
    if casting is not None and op.autocast:
        operands, attrs, site = casting(op, operands, attrs)
    session, coded, words, tracked = _coded(op, operands, attrs)
    outbox = session.outbox
    if outbox.freed_late:
        outbox.free()
    id = outbox.next_id()
    outbox.extend((coded[0], site or sites.here(), id, *words))
    result = fresh(id, session, coded[1])  # before the flush, so that an interrupt there does not leak the id
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    if tracked:
        tape.record(coded, operands, (result,))
    return result


@deferred
def unary(op: Op, a: Tensor, attrs: Attrs = (), site: int = 0) -> Tensor:
    """`call` for one operand, a tensor. The site is looked up if it is not given."""
    if casting is not None and op.autocast:
        (a,), attrs, site = casting(op, (a,), attrs)
    if (view := a._view) is not None and view.version != view.base._cell.version:
        view.refresh(a)
    cell = a._cell
    session = cell.session
    table = session.signatures.active() if scope.active else session.signatures.plain
    coded = table.get((op, attrs, False, a._type)) or session.signatures.define(op, attrs, (a._type,), False)
    outbox = session.outbox
    if outbox.recorder is not None:
        outbox.recorder.note_use(cell)
    if outbox.freed_late:
        outbox.free()
    id = outbox.next_id()
    outbox.extend((coded[0], site or sites.here(), id, cell.id))
    result = fresh(id, session, coded[1])
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    if a._node is not None:
        tape.record(coded, (a,), (result,))
    return result


@deferred
def binary(op: Op, a: Tensor, b: Any, attrs: Attrs = ()) -> Tensor:
    """`call` for a tensor and a second operand. Raises KeyError if that is neither a tensor nor a number."""
    site = 0
    if casting is not None and op.autocast:
        (a, b), attrs, site = casting(op, (a, b), attrs)
    if (view := a._view) is not None and view.version != view.base._cell.version:
        view.refresh(a)
    cell = a._cell
    session = cell.session
    tracked = a._node is not None
    if isinstance(b, Tensor):
        if (view := b._view) is not None and view.version != view.base._cell.version:
            view.refresh(b)
        cell_b = b._cell
        if cell_b.session is not session:
            raise session_error(session, cell_b.session)
        tracked = tracked or b._node is not None
        type_b: OperandType = b._type
        word_b: Any = cell_b.id
    else:
        type_b = NUMBER_OF[type(b)]
        if type_b is INT and not MIN_INT <= b <= MAX_INT:
            raise operand_error(op, b)
        word_b = b
    table = session.signatures.active() if scope.active else session.signatures.plain
    key = op, attrs, False, a._type, type_b
    coded = table.get(key) or session.signatures.define(op, attrs, (a._type, type_b), False)
    outbox = session.outbox
    if outbox.recorder is not None:
        outbox.recorder.note_operands((a, b))
    if outbox.freed_late:
        outbox.free()
    id = outbox.next_id()
    outbox.extend((coded[0], site or sites.here(), id, cell.id, word_b))
    result = fresh(id, session, coded[1])  # before the flush, so that an interrupt there does not leak the id
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    if tracked:
        tape.record(coded, (a, b), (result,))
    return result


@deferred
def call_many(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> tuple[Tensor, ...]:
    """`call` for an op with several results."""
    site = 0
    if casting is not None and op.autocast:
        operands, attrs, site = casting(op, operands, attrs)
    session, coded, words, tracked = _coded(op, operands, attrs)
    outbox = session.outbox
    if outbox.freed_late:
        outbox.free()
    outs, next_id = coded[2].outs, outbox.next_id
    ids = [next_id() for _ in outs]
    outbox.extend((coded[0], site or sites.here(), *ids, *words))
    result = tuple([fresh(id, session, t) for id, t in zip(ids, outs, strict=True)])
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    if tracked:
        tape.record(coded, operands, result)
    return result


def _coded(
    op: Op, operands: tuple[Any, ...], attrs: Attrs, into: bool = False
) -> tuple[Session, Coded, list[Any], bool]:
    """The session and the coded call of these operands, their words, and whether one of them has a node."""
    session = operands[0]._cell.session if operands and isinstance(operands[0], Tensor) else session_of(op, operands)
    key: list[Any] = [op, attrs, into]
    words: list[Any] = []
    tracked = False
    for x in operands:
        if isinstance(x, Tensor):
            if (view := x._view) is not None and view.version != view.base._cell.version:
                view.refresh(x)
            cell = x._cell
            if cell.session is not session:
                raise session_error(session, cell.session)
            if x._node is not None:
                tracked = True
            key.append(x._type)
            words.append(cell.id)
        else:
            key.append(number_type(op, x))
            words.append(x)
    table = session.signatures.active() if scope.active else session.signatures.plain
    coded = table.get(tuple(key)) or session.signatures.define(op, attrs, tuple(key[3:]), into)
    if session.outbox.recorder is not None:
        session.outbox.recorder.note_operands(operands)
    return session, coded, words, tracked


@deferred
def call_into(op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit an op whose first operand is ``target`` and whose result is written into it."""
    tape.before_write(target if target._view is None else target._view.base)
    if target._view is not None:
        _write_through(target._view, op, target, rest, attrs)
        return target
    operands = (target, *rest)
    session, coded, words, tracked = _coded(op, operands, attrs, into=True)
    if tracked and (tracked := tape.mode.enabled):
        tape.check_writable(target)
        if tape.needs_old_target(op, operands):
            operands = (_as_it_was(target), *rest)
    outbox = session.outbox
    outbox.free()
    outbox.extend((coded[0], sites.here(), words[0], *words))
    if tracked:
        tape.record_into(coded, operands, target)
    target._cell.version += 1
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    return target


def _as_it_was(target: Tensor) -> Tensor:
    """A copy, with the same history, of a tensor that is about to be written: its gradient needs the old value."""
    result = call(OPS["clone"], (detached(target),))
    result._node, result._index = target._node, target._index
    return result


def create(op: Op, operands: tuple[Any, ...], attrs: Attrs, session: Session) -> Tensor:
    """Emit an op without tensor operands."""
    coded = coded_call(session, op, attrs, tuple(NUMBER_OF[type(x)] for x in operands), False)
    session.outbox.free()
    return _created(coded, operands, session)


def uploading() -> AbstractContextManager[None]:
    """A context in which tensors are placed as the configuration places uploads, unless there is a signal already."""
    signal = configuration.current.uploads
    return scope.under(signal) if signal and not scope.thread.signal else nullcontext()


@deferred
def upload(data: memoryview | BackgroundUpload, type: TensorType, session: Session) -> Tensor:
    """A tensor of these bytes; they may change as soon as this returns."""
    attrs = (("shape", type.shape), ("dtype", type.dtype.name))
    # The code first: defining it may flush the outbox, and the bytes must be counted with the words they are sent with.
    with uploading():
        coded = coded_call(session, OPS["upload"], attrs, (BYTES,), False)
    session.outbox.free()  # before the bytes are sent: if this wait is interrupted, no instruction would use them
    return _created(coded, (session.upload(data),), session)


@deferred
def call_with(op: Op, data: bytes, operands: tuple[Tensor, ...], attrs: Attrs, session: Session) -> tuple[Tensor, ...]:
    """Emit an op whose first operand is bytes, without a gradient."""
    types, words = words_of(op, session, operands)
    coded = coded_call(session, op, attrs, (BYTES, *types), False)
    outbox = session.outbox
    outbox.free()
    sent = session.upload(memoryview(data))
    ids = [outbox.next_id() for _ in coded[2].outs]
    outbox.extend((coded[0], sites.here(), *ids, sent, *words))
    result = tuple([fresh(id, session, t) for id, t in zip(ids, coded[2].outs, strict=True)])
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    return result


@deferred
def _created(coded: Coded, operands: tuple[Any, ...], session: Session) -> Tensor:
    """Emit a coded call whose operands are words already, after `Outbox.free`."""
    outbox = session.outbox
    id = outbox.next_id()
    outbox.extend((coded[0], sites.here(), id, *operands))
    result = fresh(id, session, coded[1])
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    return result


def coded_call(session: Session, op: Op, attrs: Attrs, types: tuple[OperandType, ...], into: bool) -> Coded:
    """The code, result type and signature of a call under this thread's signal. A wrong call raises."""
    signatures = session.signatures
    table = signatures.active() if scope.active else signatures.plain
    return table.get((op, attrs, into, *types)) or signatures.define(op, attrs, types, into)


# -- views -------------------------------------------------------------------------------


def view_of(x: Tensor, op: Op, attrs: Attrs, scalars: tuple[int, ...] = ()) -> Tensor:
    """A view of x, one step away from it."""
    result = call(op, (x, *scalars), attrs) if scalars else unary(op, x, attrs)
    make_view(result, x, (op, attrs, scalars))
    return result


def make_view(result: Tensor, x: Tensor, step: ViewStep) -> None:
    """Make ``result``, which holds the value of the step applied to x, a view of x."""
    view = x._view
    result._view = ViewRecipe(x, (step,)) if view is None else ViewRecipe(view.base, (*view.chain, step))


def current(x: Tensor) -> None:
    """Compute the value of x again, if x is a view of a tensor that was written since."""
    if x._view is not None:
        x._view.refresh(x)


def placed(x: Tensor, signal: str) -> Tensor:
    """The value where the signal places it, whatever signal is in force now. Not a view: x may be freed."""
    with scope.under(signal):
        return call(PLACED, (x,), (("signal", signal),))


def detached(x: Tensor) -> Tensor:
    """The same value without gradients; writes to one are seen in the other."""
    current(x)
    result = on_cell(x._cell, x._type)
    if x._view is not None:
        result._view = ViewRecipe(detached(x._view.base), x._view.chain)
    return result


def _write_through(view: View, op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs) -> None:
    """Write a view in place: compute its new value, and write that into the base."""
    session = target._cell.session
    types, _ = words_of(op, session, (target, *rest))
    # Check both signatures before anything is emitted, so that a refused call changes nothing.
    coded_call(session, op, attrs, types, True)
    _check_put(view.base, view.chain, target._type)
    if tape.tracked((view.base, target, *rest)):
        tape.check_writable(view.base)
    operands = (target, *rest)
    if tape.tracked(operands) and tape.needs_old_target(op, operands):
        operands = (_as_it_was(target), *rest)
    value = call(op, operands, attrs)
    put(view.base, view.chain, value)
    if view.base._node is not None:
        current(target)  # from here on its history goes through the write into the base


def put(x: Tensor, steps: tuple[ViewStep, ...], value: Any) -> None:
    """Write a value into the view of x that the steps make."""
    base, steps = (x, steps) if x._view is None else (x._view.base, (*x._view.chain, *steps))
    if base._strides is not None:
        _put_in_order(base, base._strides, steps, value)
        return
    chain, starts = _as_attribute(steps)
    before = base._node
    call_into(OPS["put_view"], base, (value, *starts), (("chain", chain),))
    if base._node is not before:
        tape.free_after_backward(base)


def _put_in_order(base: Tensor, strides: tuple[int, ...], steps: tuple[ViewStep, ...], value: Any) -> None:
    """`put` into a tensor that is stored in another order of its dims. The steps may need that order, and workers know
    only that of the dims: a copy in the other order is written, and copied back."""
    order, places = memory_order(strides)
    there, back = (("dims", order),), (("dims", places),)
    copy = call(OPS["clone"], (call(PERMUTE, (base,), there),))
    put(copy, ((PERMUTE, back, ()), *steps), value)
    call_into(OPS["copy"], base, (call(PERMUTE, (copy,), back),))


def _as_attribute(steps: tuple[ViewStep, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The steps as the attribute ``chain`` of an op, and the scalar operands of all steps in a row."""
    return tuple((op.name, attrs) for op, attrs, _ in steps), tuple(s for _, _, scalars in steps for s in scalars)


def _check_put(base: Tensor, steps: tuple[ViewStep, ...], value: TensorType) -> None:
    """Raise if a value of this type cannot be written into the view of the base that the steps make."""
    chain, starts = _as_attribute(steps)
    types: tuple[OperandType, ...] = (base._type, value, *(INT,) * len(starts))
    coded_call(base._cell.session, OPS["put_view"], (("chain", chain),), types, True)
