"""The ops that change a placement without communication: take a block, or become a term of a sum."""

from __future__ import annotations

from gt.errors import ShapeError
from gt.ops.infer import require_bools, require_ints
from gt.ops.infer import sizes as checked
from gt.ops.op import op
from gt.types import Shape, TensorType


def _block(x: TensorType, *, starts: Shape, sizes: Shape) -> TensorType:
    if not len(starts) == len(sizes) == x.ndim:
        raise ShapeError(f"a start and a size for each of {x.ndim} dims, not {starts} and {sizes}")
    for start in starts:
        require_ints(start=start)
    if any(s < 0 or s + n > whole for s, n, whole in zip(starts, checked(sizes), x.shape, strict=True)):
        raise ShapeError(f"the block at {starts} of {sizes} is not inside")
    return TensorType(sizes, x.dtype)


# a copy: a view would keep the memory of the whole, and be written with it
op(
    "block",
    complex="rule",
    no_gradient="only the dispatcher emits it, below the tape",
    whole="it is how a tensor is split",
    operands="t",
    infer=_block,
    kernel=lambda xp, x, *, starts, sizes: xp.asarray(
        x[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))], copy=True
    ),
)


def _term(x: TensorType, *, mine: bool) -> TensorType:
    require_bools(mine=mine)
    return x


# one worker keeps the value, the others get zeros
op(
    "term",
    complex="rule",
    no_gradient="only the dispatcher emits it, below the tape",
    whole="it is how a tensor is split",
    operands="t",
    infer=_term,
    kernel=lambda xp, x, *, mine: xp.asarray(x, copy=True) if mine else xp.zeros_like(x),
)
