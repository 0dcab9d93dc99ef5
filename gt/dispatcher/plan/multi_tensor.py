"""One instruction on many tensors that are placed on different meshes, such as an optimizer step of a staged model.

If its op allows it (`gt.ops.split.Apart.calls`), the instruction becomes one call for each mesh. Then only operands
that the calls share have to move.

A tensor written in place keeps its mesh, with one exception: an optimizer step of a whole parameter runs on the mesh of
its gradient, if the parameter's workers are among those. There each worker has a copy of the parameter already, for
the forward pass. So after the first step of data parallel training each worker updates its own copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gt.dispatcher.plan.layouts import Mesh
from gt.dispatcher.plan.planner import Held, split_of
from gt.ops import Signature, sign
from gt.ops.signature import HEAD
from gt.ops.split import Apart
from gt.types import Scalar, TensorType


@dataclass(frozen=True, slots=True)
class MeshCall:
    """The share of an instruction that runs on one mesh."""

    mesh: Mesh
    signature: Signature
    #: which of the instruction's tensor operands it takes, and which of its words
    operands: tuple[int, ...]
    words: tuple[int, ...]


def split_by_mesh(signature: Signature, held: Held) -> list[MeshCall]:
    """One call for each mesh; empty if the operands are on one mesh, or the op cannot be split into calls."""
    if len({layouts[0].mesh for layouts in held}) < 2:
        return []
    split = split_of(signature)
    if not isinstance(split, Apart) or split.calls is None:
        return []
    tensors = [t for t in signature.ins if isinstance(t, TensorType)]
    by_mesh: dict[Mesh, list[int]] = {}
    for number, (ins, _, _) in enumerate(split.parts):
        by_mesh.setdefault(_mesh_of(signature, ins, tensors, held), []).append(number)
    if len(by_mesh) < 2 and not signature.op.steps:
        return []
    return [_mesh_call(signature, split, mesh, numbers) for mesh, numbers in by_mesh.items()]


def _mesh_of(signature: Signature, ins: tuple[int, ...], tensors: list[TensorType], held: Held) -> Mesh:
    """The mesh of the tensor that is written in place (see the top); otherwise the one that holds most of the bytes."""
    if signature.into:
        written, grad = held[ins[0]][0], held[ins[-1]][0].mesh
        follows = signature.op.steps and written.replicated and set(written.workers) <= set(grad.workers)
        return grad if follows else written.mesh
    weights: Counter[Mesh] = Counter()
    for i in ins:
        weights[held[i][0].mesh] += tensors[i].nbytes + 1
    return max(weights, key=lambda m: (weights[m], len(m.workers)))


def _mesh_call(signature: Signature, split: Apart, mesh: Mesh, numbers: list[int]) -> MeshCall:
    operands = sorted({i for number in numbers for i in split.parts[number][0]})
    outs = sorted({o for number in numbers for o in split.parts[number][1]})
    taken = {signature.offsets[i] for i in operands}
    words = [at for at, t in enumerate(signature.ins, signature.start) if isinstance(t, Scalar) or at in taken]
    attrs = tuple((name, len(numbers) if name == split.calls else value) for name, value in signature.attrs)
    call = sign(signature.op, attrs, tuple(signature.ins[at - signature.start] for at in words), signature.into)
    assert call.outs == tuple(signature.outs[o] for o in outs), f"{signature} cannot be split by mesh"
    return MeshCall(mesh, call, tuple(operands), (*range(HEAD), *(HEAD + o for o in outs), *words))
