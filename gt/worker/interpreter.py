"""Runs the instructions of a stream one by one: one kernel call each.

A failed instruction leaves a `Failure` in place of its results. Instructions that depend on it become the same
failure, so the first cause is the one that the client sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.types import BYTES
from gt.wire.words import FIRST_CODE
from gt.worker.failures import FailureRecorder, propagate
from gt.worker.linked import LinkedMove, LinkedSignature
from gt.worker.mover import Mover
from gt.worker.space import ClientSpace

if TYPE_CHECKING:
    from gt.worker.recording import EventRecorder


class Interpreter:
    def __init__(self, mover: Mover, failures: FailureRecorder) -> None:
        self._mover, self._failures = mover, failures
        #: how many instructions it has run, in fragments and outside of them
        self.instructions = 0
        #: while somebody listens to events
        self.recorder: EventRecorder | None = None

    def run(self, space: ClientSpace, client: int, stream: list[Any], i: int) -> int:
        """Run a stream from word ``i`` on; returns the index of the first word that did not run.

        It stops at the end, at a control word, and at an instruction whose operand is pending. In the last case
        ``space.awaited`` is set.
        """
        store, end, count, recorder = space.store, len(stream), 0, self.recorder
        codes: Any = space.codes if recorder is None else recorder.codes(space)
        begin = i
        while i < end:
            code = stream[i]
            if code < FIRST_CODE:
                if code >= 0:
                    break
                space.drop(-code)
                i += 1
                continue
            linked = codes[code]
            if space.placeholders or space.sends:
                if not self._operands_ready(space, linked.signature, stream, i):
                    break
                if propagate(space, linked, stream, i):
                    i += linked.width
                    continue
            count += 1
            try:
                plain = linked.plain
                if plain == 2:
                    store[stream[i + 2]] = linked.run(store[stream[i + 3]], store[stream[i + 4]])
                elif plain == 1:
                    store[stream[i + 2]] = linked.run(store[stream[i + 3]])
                else:
                    self._run_general(space, linked, stream, i)
            except Exception as error:  # whatever a kernel raises is the failure of its instruction
                self._failures.record(space, client, linked.signature, stream, i, error)
            i += linked.width
        self.instructions += count
        if recorder is not None:
            recorder.interpreted(space, stream, begin, i, count)
        return i

    def _run_general(self, space: ClientSpace, linked: LinkedSignature | LinkedMove, stream: list[Any], i: int) -> None:
        """Run any instruction: a move, or a kernel with numbers, bytes, several results, or results in place."""
        if isinstance(linked, LinkedMove):
            self._mover.start(space, linked, stream[i + 1], stream[i + 2], stream[i + 3])
            return
        signature, store = linked.signature, space.store
        operands = stream[i + signature.start : i + signature.width]
        for offset in signature.offsets:
            operands[offset - signature.start] = store[stream[i + offset]]
        if BYTES in signature.ins:
            operands = [space.received(w) if t is BYTES else w for w, t in zip(operands, signature.ins, strict=True)]
        results = linked.run(*operands)
        if signature.into:
            return
        if len(signature.outs) == 1:
            results = (results,)
        for id, value in zip(stream[i + 2 : i + signature.start], results, strict=True):
            space.put(id, value)

    def _operands_ready(self, space: ClientSpace, signature: Any, stream: list[Any], i: int) -> bool:
        """Whether all operands have arrived; and, for an instruction in place, whether no move still reads them."""
        ids = [stream[i + offset] for offset in signature.offsets]
        arrived = all(self._mover.arrived(space, id) for id in ids)
        return arrived and (not signature.into or self._mover.may_write(space, space.arrays(ids)))
