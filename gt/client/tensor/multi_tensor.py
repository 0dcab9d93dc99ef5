"""One instruction that writes many tensors, such as the step of an optimizer."""

from __future__ import annotations

from typing import Any

from gt.client.stream import sites
from gt.client.tensor.emit import coded_call
from gt.client.tensor.operands import number_type, session_error
from gt.client.tensor.tensor import Tensor
from gt.ops import Attrs, Op
from gt.types import OperandType
from gt.wire.interrupts import deferred


@deferred
def call_into_many(
    op: Op, targets: tuple[Tensor, ...], others: tuple[Tensor, ...], numbers: tuple[Any, ...], attrs: Attrs = ()
) -> None:
    """`call_into` for several targets at once, without a gradient. ``others``: further tensors."""
    session, tensors = targets[0]._cell.session, (*targets, *others)
    for x in tensors:
        if x._view is not None:
            x._view.refresh(x)
        if x._cell.session is not session:
            raise session_error(session, x._cell.session)
    types: tuple[OperandType, ...] = (*[x._type for x in tensors], *[number_type(op, x) for x in numbers])
    coded = coded_call(session, op, attrs, types, True)
    outbox, ids = session.outbox, [x._cell.id for x in tensors]
    if outbox.recorder is not None:
        outbox.recorder.note_operands(tensors)
    outbox.free()
    outbox.extend((coded[0], sites.here(), *ids[: len(targets)], *ids, *numbers))
    for target in targets:
        assert target._view is None, "a view is written through its base"
        target._cell.version += 1
    if len(outbox.words) >= outbox.limit:
        outbox.full()
