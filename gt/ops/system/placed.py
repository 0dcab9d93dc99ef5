"""Ops that concern placement and do not change values."""

from __future__ import annotations

from gt.ops.elements import element
from gt.ops.op import NUMBER, dtype_named, op
from gt.ops.shape.creation import FILLED
from gt.ops.split import Split, letters
from gt.types import OperandType, TensorType

# The instruction is emitted under the signal, which gives the placement. The attribute lets a view be recomputed.
op(
    "placed",
    complex="rule",
    whole="its signal gives its placement",
    operands="t",
    infer=lambda x, *, signal: x,
    vjp=(lambda g, _y, _x, *, signal: g,),
    view=True,
    places=True,
    kernel=lambda xp, x, *, signal: x[...],
    inplace=lambda torch, x, *, signal: x,
)


def _like(x: TensorType, value: OperandType, *, dtype: str) -> TensorType:
    return TensorType(x.shape, dtype_named(dtype))


def _following(x: TensorType, value: OperandType, *, dtype: str) -> Split:
    names = letters(x.ndim)
    return Split(f"{names}->{names}", linear=((0,),), still=(0,))


# `full` is placed as new tensors are; this op is placed as its operand is
op(
    "full_like",
    complex="rule",
    varying=FILLED,
    no_gradient="it reads no tensor",
    operands=f"t{NUMBER}",
    infer=_like,
    split=_following,
    torch=lambda torch, x, value, *, dtype: torch.full(x.shape, value, dtype=getattr(torch, dtype), device=x.device),
    kernel=lambda np, x, value, *, dtype: np.full(x.shape, element(np, value, dtype)),
)
