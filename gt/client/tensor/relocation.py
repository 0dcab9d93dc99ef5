"""Moving a tensor to other workers without changing what it is."""

from __future__ import annotations

from gt.client.stream import scope, sites
from gt.client.tensor.emit import PLACED, coded_call
from gt.client.tensor.tensor import Tensor
from gt.wire.interrupts import deferred


@deferred
def place_by(x: Tensor, signal: str) -> None:
    """Move x to where the signal places it. Its value, version and history stay the same."""
    if x._view is not None:
        return
    session = x._cell.session
    with scope.under(signal):
        coded = coded_call(session, PLACED, (("signal", signal),), (x._type,), True)
    outbox = session.outbox
    if outbox.recorder is not None:
        outbox.recorder.note_use(x._cell)
    outbox.free()
    outbox.extend((coded[0], sites.here(), x._cell.id, x._cell.id))
    if len(outbox.words) >= outbox.limit:
        outbox.full()
