"""Random programs over the whole op table, each with its expected values from an engine called directly.

A program draws rows from `tests.support.samples`, replaces the row's own operands by tensors it already has, and asks
`sign` whether the call is legal. The engine in this process computes the expected result first; then the same call is
emitted. So every value that is read can be compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gt.client.stream.session import Session
from gt.client.tensor.emit import binary, call, call_into, call_many, create, current, upload, view_of
from gt.client.tensor.tensor import Tensor
from gt.errors import GtError, NoWorkers, RemoteError, WorkerLost
from gt.functions import views
from gt.ops import OPS, Attrs, Op, Signature, sign
from gt.ops.split import Apart
from gt.types import BYTES, DTYPES, Scalar, TensorType
from gt.worker.engines import Engine, make_engine
from tests.support.samples import Sample, samples, type_of

#: without the ops that write and read files, which do not concern a cluster
SAMPLES = [sample for sample in samples() if not OPS[sample.op].effects]
ENGINES = {name: make_engine(name, "cpu") for name in ("torch", "numpy")}
LARGEST = 4000
TOLERANCES = {
    "float64": 1e-11,
    "complex128": 1e-11,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float16": 4e-3,
    "bfloat16": 2e-2,
}


@dataclass(eq=False)
class Memory:
    """The state that several views share: if it fails or is lost, they all do."""

    #: the names of the ops that may have failed first; empty if none failed
    failed: tuple[str, ...] = ()
    maybe_lost: bool = False


@dataclass(eq=False)
class Slot:
    """One of the program's tensors, and its expected value."""

    tensor: Tensor
    value: Any
    memory: Memory = field(default_factory=Memory)
    is_view: bool = False


class Program:
    def __init__(self, session: Session, rng: random.Random, backend: str = "torch") -> None:
        self.session, self.rng, self.backend = session, rng, backend
        self.engine: Engine = ENGINES[backend]
        self.slots: list[Slot] = []
        self.ops: set[str] = set()

    # -- what it may do --------------------------------------------------------------------

    #: how often an operand is an existing tensor
    reuse = 0.7
    #: may its tensors be sharded, so that an op on many tensors may fail only in part?
    cuts = False
    #: ops it does not use
    avoid: frozenset[str] = frozenset()

    def act(self) -> None:
        actions = (self.compute, self.compute, self.compute, self.compute, self.free, self.read, self.look, self.write)
        self.rng.choice((*actions, self.write))()

    def compute(self, sample: Sample | None = None) -> None:
        """One call drawn from the table, on its own operands or on existing tensors."""
        sample = sample or self.rng.choice(SAMPLES)
        op, attrs = OPS[sample.op], tuple(sample.attrs.items())
        operands = [self._operand(x) for x in self._makes(sample)]
        signature = self._legal(op, attrs, operands, into=False)
        if signature is None or op.view or op.name in self.avoid or (self.cuts and _fails_in_part(signature, operands)):
            return
        expected = self._expect(signature, operands)
        if expected is not None:
            self._keep(self._emit(op, operands, attrs, signature), expected, operands, signature.op.name)

    def look(self) -> None:
        """A view of a tensor, which fails or is lost with it."""
        if not self.slots or self.backend != "torch":
            return
        sample = self.rng.choice([s for s in SAMPLES if OPS[s.op].view])
        op, attrs, x = OPS[sample.op], tuple(sample.attrs.items()), self.rng.choice(self.slots)
        operands = [x, *sample.operands[1:]]
        signature = self._legal(op, attrs, operands, into=False)
        if signature is None:
            return
        expected = self._expect(signature, operands)
        if not expected and not x.memory.failed:  # starts beyond the bounds of this tensor
            return
        expected = expected or [None] * len(signature.outs)
        if any(v is not None and v.numel() and v.data_ptr() and not _shares(v, x.value) for v in expected):
            return
        self.ops.add(op.name)
        scalars = tuple(sample.operands[1:])
        if len(signature.outs) > 1:
            tensors = views.split(x.tensor, sample.attrs["sizes"], sample.attrs["dim"])
        else:
            tensors = (view_of(x.tensor, op, attrs, scalars),)
        self.slots += [Slot(t, v, x.memory, is_view=True) for t, v in zip(tensors, expected, strict=True)]

    def write(self) -> None:
        """An op in place, on a tensor or through a view."""
        if not self.slots:
            return
        sample = self.rng.choice(SAMPLES)
        op, attrs, target = OPS[sample.op], tuple(sample.attrs.items()), self.rng.choice(self.slots)
        operands = [target, *(self._operand(x) for x in self._makes(sample)[1:])]
        if not sample.operands or op.view or (target.is_view and self.backend != "torch"):
            return
        signature, apart = self._legal(op, attrs, operands, into=True), self._legal(op, attrs, operands, into=False)
        if signature is None or apart is None or len(signature.outs) > 1:
            return
        before = target.memory.failed
        try:
            call_into(op, target.tensor, tuple(self._word(x) for x in operands[1:]), attrs)
        except NoWorkers:  # then it does not happen, also not when a worker joins
            raise
        except GtError:  # a view that shows elements twice cannot be written
            if not target.is_view:
                raise
            return
        self.ops.add(op.name)
        self._expect_in_place(apart if target.is_view else signature, operands, target)
        if not before and target.memory.failed and target.is_view:
            target.memory.failed += ("put_view",)
        if self.cuts and not before and target.memory.failed and any(_uses(x, target.memory) for x in operands[1:]):
            self._forget(target.memory)  # torch refuses to read what it writes; with moved operands there is no overlap

    def _forget(self, memory: Memory) -> None:
        self.slots = [slot for slot in self.slots if slot.memory is not memory]

    def free(self) -> None:
        if self.slots:
            self.slots.pop(self.rng.randrange(len(self.slots)))

    def send_large(self, nbytes: int) -> None:
        """A value that is too large for a control message."""
        values = np.frombuffer(self.rng.randbytes(nbytes // 4 * 4), np.int32)
        tensor = upload(memoryview(values).cast("B"), TensorType(values.shape, DTYPES["int32"]), self.session)
        self.slots.append(Slot(tensor, torch.from_numpy(values.copy()) if self.backend == "torch" else values.copy()))

    def read(self, slot: Slot | None = None) -> bool:
        """Read one of the tensors, and compare. Was there a value?"""
        if not self.slots:
            return False
        slot = slot or self.rng.choice(self.slots)
        tensor, memory = slot.tensor, slot.memory
        error: GtError | None = None
        try:
            current(tensor)
            data = self.session.read(tensor._cell.id, tensor._type)
        except (WorkerLost, RemoteError) as caught:
            error = caught
        if isinstance(error, WorkerLost):
            assert memory.maybe_lost, f"{error}, and it was not there"
            assert "worker " in str(error)
            return False
        if error is not None:
            assert memory.failed, f"unexpected failure: {error}"
            assert str(error).startswith(memory.failed), (str(error), memory.failed)
            return False
        assert not memory.failed, f"{memory.failed} failed, and a value came"
        same(bytes(data), slot.value, tensor._type)
        return True

    def read_all(self) -> None:
        for slot in self.slots:
            self.read(slot)

    def lose(self) -> None:
        """Its worker dies: from here on its tensors may be lost."""
        for slot in self.slots:
            slot.memory.maybe_lost = True

    # -- one call ------------------------------------------------------------------------

    def _makes(self, sample: Sample) -> list[Any]:
        operands = sample.make()
        if self.backend == "numpy":
            operands = [x.numpy() if isinstance(x, torch.Tensor) and x.dtype != torch.bfloat16 else x for x in operands]
        return [((x + 2**63) % 2**64) - 2**63 if type(x) is int else x for x in operands]

    def _operand(self, x: Any) -> Any:
        """An operand in the place of a tensor: an existing one, or a new one."""
        if not isinstance(x, torch.Tensor | np.ndarray):
            return x
        if self.slots and self.rng.random() < self.reuse:
            return self.rng.choice(self.slots)
        if isinstance(x, torch.Tensor):
            data = memoryview(x.reshape(-1).view(torch.uint8).numpy().tobytes()) if x.numel() else memoryview(b"")
        else:
            data = memoryview(x.tobytes())
        slot = Slot(upload(data, type_of(x), self.session), x)
        if type_of(x).dtype.name == "bfloat16" and self.backend == "numpy":
            slot.memory.failed = ("upload",)
        self.slots.append(slot)
        return slot

    def _legal(self, op: Op, attrs: Attrs, operands: list[Any], into: bool) -> Signature | None:
        types = tuple(_type(x) for x in operands)
        if not op.creates and not any(isinstance(x, Slot) for x in operands):
            return None
        try:
            signature = sign(op, attrs, types, into)
        except (GtError, AttributeError, TypeError):
            return None
        return signature if sum(t.numel for t in signature.outs) <= LARGEST else None

    def _expect(self, signature: Signature, operands: list[Any]) -> list[Any] | None:
        """The results of the call, or an empty list if it fails; None if a result has another type than inferred."""
        if any(isinstance(x, Slot) and x.memory.failed for x in operands):
            return []
        try:
            results = self.engine.link(signature)(*[x.value if isinstance(x, Slot) else x for x in operands])
        except Exception:
            return []
        values = list(results) if len(signature.outs) > 1 else [results]
        kept = all(type_of(v) is t for v, t in zip(values, signature.outs, strict=True))
        return values if kept else None

    def _keep(self, tensors: tuple[Tensor, ...], values: list[Any], operands: list[Any], name: str) -> None:
        self.ops.add(name)
        sources = [x.memory for x in operands if isinstance(x, Slot)]
        failed = next((m.failed for m in sources if m.failed), ()) or (() if values else (name,))
        lost = any(m.maybe_lost for m in sources)
        for tensor, value in zip(tensors, values or [None] * len(tensors), strict=True):
            self.slots.append(Slot(tensor, value, Memory(failed, lost)))

    def _expect_in_place(self, signature: Signature, operands: list[Any], target: Slot) -> None:
        memory = target.memory
        sources = [x.memory for x in operands if isinstance(x, Slot)]
        memory.maybe_lost = any(m.maybe_lost for m in sources)
        memory.failed = next((m.failed for m in sources if m.failed), ())
        if memory.failed:
            return
        try:
            result = self.engine.link(signature)(*[x.value if isinstance(x, Slot) else x for x in operands])
            if not signature.into:  # through a view: torch itself would refuse operands that share its memory
                target.value.copy_(result)
        except Exception:
            memory.failed = (signature.op.name,)

    def _emit(self, op: Op, operands: list[Any], attrs: Attrs, signature: Signature) -> tuple[Tensor, ...]:
        words = tuple(self._word(x) for x in operands)
        if BYTES in signature.ins:
            return (upload(memoryview(words[0]), signature.outs[0], self.session),)
        if op.creates:
            return (create(op, words, attrs, self.session),)
        if len(signature.outs) > 1:
            return call_many(op, words, attrs)
        if len(words) == 2 and isinstance(words[0], Tensor):
            return (binary(op, words[0], words[1], attrs),)
        return (call(op, words, attrs),)

    @staticmethod
    def _word(x: Any) -> Any:
        return x.tensor if isinstance(x, Slot) else x


def _type(x: Any) -> TensorType | Scalar:
    if isinstance(x, Slot):
        return x.tensor._type
    return BYTES if isinstance(x, bytes) else type_of(x)


def _fails_in_part(signature: Signature, operands: list[Any]) -> bool:
    split = signature.op.split and signature.op.split(*signature.ins, **dict(signature.attrs))
    return isinstance(split, Apart) and any(isinstance(x, Slot) and x.memory.failed for x in operands)


def _uses(x: Any, memory: Memory) -> bool:
    return isinstance(x, Slot) and x.memory is memory


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same(data: bytes, want: Any, kind: TensorType) -> None:
    want = torch.from_numpy(np.ascontiguousarray(want)).reshape(want.shape) if isinstance(want, np.ndarray) else want
    want = want.clone(memory_format=torch.contiguous_format)
    assert len(data) == kind.nbytes == want.numel() * want.element_size()
    if not kind.numel or data == want.reshape(-1).clone().view(torch.uint8).numpy().tobytes():
        return
    got = torch.frombuffer(bytearray(data), dtype=want.dtype).reshape(want.shape)
    tolerance = TOLERANCES.get(kind.dtype.name, 0)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
