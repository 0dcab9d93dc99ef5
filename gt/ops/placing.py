"""Ops about where a tensor lies: its values stay as they are."""

from __future__ import annotations

from msgspec.structs import replace

from gt.errors import DTypeError
from gt.ops.core import dtype_named, op
from gt.ops.split import Split, elementwise
from gt.types import BYTES, OperandType, Scalar, TensorType

# The signal says where; an instruction is emitted under it as well, and the attribute lets a view be made anew.
op(
    "placed",
    infer=lambda x, *, signal: x,
    vjp=(lambda g, _y, _x, *, signal: g,),
    view=True,
    places=True,
    kernel=lambda xp, x, *, signal: x[...],
    inplace=lambda torch, x, *, signal: x,
)


def _like(x: TensorType, value: OperandType, *, dtype: str) -> TensorType:
    if not isinstance(value, Scalar) or value is BYTES:
        raise DTypeError(f"takes a plain number here, not {value}")
    return TensorType(x.shape, dtype_named(dtype))


def _alike(x: TensorType, value: OperandType, *, dtype: str) -> Split:
    """Of its operand only the shape counts: where that is terms, the result is whole."""
    return replace(elementwise(x), linear=((0,),), still=(0,))


# `full` lies where new tensors do; this one lies where its operand does
op(
    "full_like",
    infer=_like,
    split=_alike,
    torch=lambda torch, x, value, *, dtype: torch.full(x.shape, value, dtype=getattr(torch, dtype), device=x.device),
    kernel=lambda np, x, value, *, dtype: np.full(x.shape, np.asarray(value).astype(dtype)),
)
