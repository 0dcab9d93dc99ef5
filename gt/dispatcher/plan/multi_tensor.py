"""One instruction on many tensors that lie on different workers, as an optimizer's step of a model in stages.

Where its op lets it (`gt.ops.split.Apart.calls`), it becomes an instruction for each mesh: nothing moves but what the
parts share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.planner import split_of
from gt.ops import Signature, sign
from gt.ops.signature import HEAD
from gt.ops.split import Apart
from gt.types import Scalar, TensorType

Layouts = Sequence[tuple[Layout, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """What of an instruction is done on one mesh."""

    mesh: Mesh
    signature: Signature
    #: which of the instruction's tensor operands, and which of its words
    operands: tuple[int, ...]
    words: tuple[int, ...]


def parts(signature: Signature, held: Layouts) -> list[Part]:
    """One for each mesh; none if there is but one, or the op does not let itself be taken apart."""
    if len({layouts[0].mesh for layouts in held}) < 2:
        return []
    split = split_of(signature)
    if not isinstance(split, Apart) or split.calls is None:
        return []
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    together: dict[Mesh, list[int]] = {}
    for number, (ins, _, _) in enumerate(split.parts):
        together.setdefault(_mesh(signature, ins, tensors, held), []).append(number)
    return [_part(signature, split, mesh, numbers) for mesh, numbers in together.items()] if len(together) > 1 else []


def _mesh(signature: Signature, ins: tuple[int, ...], tensors: list[TensorType], held: Layouts) -> Mesh:
    """Where what is written is; else where most of the bytes are."""
    if signature.into:
        return held[ins[0]][0].mesh
    weights: Counter[Mesh] = Counter()
    for i in ins:
        weights[held[i][0].mesh] += tensors[i].nbytes + 1
    return max(weights, key=lambda m: (weights[m], len(m.workers)))


def _part(signature: Signature, split: Apart, mesh: Mesh, numbers: list[int]) -> Part:
    operands = sorted({i for number in numbers for i in split.parts[number][0]})
    outs = sorted({o for number in numbers for o in split.parts[number][1]})
    taken = {signature.offsets[i] for i in operands}
    words = [at for at, t in enumerate(signature.ins, signature.start) if isinstance(t, Scalar) or at in taken]
    attrs = tuple((name, len(numbers) if name == split.calls else value) for name, value in signature.attrs)
    made = sign(signature.op, attrs, tuple(signature.ins[at - signature.start] for at in words), signature.into)
    assert made.outs == tuple(signature.outs[o] for o in outs), f"{signature} does not come apart"
    return Part(mesh, made, tuple(operands), (*range(HEAD), *(HEAD + o for o in outs), *words))
