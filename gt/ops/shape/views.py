"""Ops that move elements and do not change their values. Those marked ``view`` move no memory."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.infer import check_dim, check_dims, expandable, require_ints, shown, sizes
from gt.ops.op import Types, op
from gt.ops.split import shaped
from gt.ops.splits_shape import (
    expanding,
    keeping,
    parting,
    permuting,
    reshaping,
    shifted,
    triangular,
)
from gt.types import Shape, TensorType

# -- views ---------------------------------------------------------------------------------


def _reshaped(x: TensorType, *, shape: Shape) -> TensorType:
    if prod(sizes(shape)) != x.numel:
        raise ShapeError(f"{shown(shape)} holds {prod(shape)} elements, not {x.numel}")
    return TensorType(shape, x.dtype)


# a gradient has other strides: where they allow no view, this is a copy
_BACK = (lambda g, _y, _x, *, shape: g.reshape(_x.shape),)

op(
    "view",
    complex="rule",
    operands="t",
    infer=_reshaped,
    split=reshaping,
    local=shaped,
    vjp=_BACK,
    view=True,
    kernel=lambda xp, x, *, shape: x.reshape(shape),
)

op(
    "reshape",
    complex="rule",
    operands="t",
    infer=_reshaped,
    split=reshaping,
    local=shaped,
    vjp=_BACK,
    torch=lambda torch, x, *, shape: x.clone(memory_format=torch.contiguous_format).view(shape),
    kernel=lambda np, x, *, shape: np.array(x, order="C").reshape(shape),
)


def _permuted(x: TensorType, *, dims: tuple[int, ...]) -> TensorType:
    if len(dims) != x.ndim:
        raise ShapeError(f"dims {dims} must name each of the {x.ndim} dims once")
    return TensorType(tuple(x.shape[d] for d in check_dims(dims, x.ndim)), x.dtype)


op(
    "permute",
    complex="rule",
    operands="t",
    infer=_permuted,
    split=permuting,
    vjp=(lambda g, _y, _x, *, dims: g.permute(tuple(dims.index(d) for d in range(len(dims)))),),
    view=True,
    torch=lambda torch, x, *, dims: x.permute(dims),
    kernel=lambda np, x, *, dims: x.transpose(dims),
)


def _expanded(x: TensorType, *, shape: Shape) -> TensorType:
    expandable(x.shape, sizes(shape))
    return TensorType(shape, x.dtype)


op(
    "expand",
    complex="rule",
    operands="t",
    infer=_expanded,
    split=expanding,
    local=shaped,
    vjp=(lambda g, _y, _x, *, shape: g,),
    view=True,
    torch=lambda torch, x, *, shape: x.expand(shape),
    kernel=lambda np, x, *, shape: np.broadcast_to(x, shape),
)


def _parts(x: TensorType, *, sizes: tuple[int, ...], dim: int) -> Types:
    if not x.ndim:
        raise ShapeError("needs a tensor of at least one dim")
    check_dim(dim, x.ndim)
    for n in sizes:
        require_ints(size=n)
    if not sizes or min(sizes) < 0 or sum(sizes) != x.shape[dim]:
        raise ShapeError(f"sizes {sizes} must be 0 or more and add up to {x.shape[dim]}, the size of dim {dim}")
    return tuple(TensorType((*x.shape[:dim], n, *x.shape[dim + 1 :]), x.dtype) for n in sizes)


def _one_or_all(parts: Any) -> Any:
    return parts if len(parts) > 1 else parts[0]  # an op with one result returns no tuple


def _split_back(needs: Any, g: Any, _y: Any, _x: Any, *, sizes: tuple[int, ...], dim: int) -> list[Any]:
    parts = g if isinstance(g, tuple) else (g,)
    if len(parts) == 1:
        return [parts[0]]
    shapes = [(*_x.shape[:dim], n, *_x.shape[dim + 1 :]) for n in sizes]
    some = next(part for part in parts if part is not None)
    whole = [some.new_zeros(n) if part is None else part for part, n in zip(parts, shapes, strict=True)]
    return [whole[0]._op("cat", *whole[1:], dim=dim)]


op(
    "split",
    complex="rule",
    operands="t",
    infer=_parts,
    split=parting,
    vjp=_split_back,
    view=True,
    torch=lambda torch, x, *, sizes, dim: _one_or_all(torch.split(x, sizes, dim)),
    kernel=lambda np, x, *, sizes, dim: _one_or_all(np.split(x, list(accumulate(sizes))[:-1], axis=dim)),
)

# -- fresh memory --------------------------------------------------------------------------


def _flipped(x: TensorType, *, dims: tuple[int, ...]) -> TensorType:
    check_dims(dims, x.ndim)
    return x


op(
    "flip",
    complex="rule",
    operands="t",
    infer=_flipped,
    split=keeping,
    vjp=(lambda g, _y, _x, *, dims: g.flip(dims),),
    torch=lambda torch, x, *, dims: torch.flip(x, dims),
    kernel=lambda np, x, *, dims: np.flip(x, dims if x.ndim else ()).copy(),
)


def _rolled(x: TensorType, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> TensorType:
    if not shifts or len(shifts) != len(dims) or not x.ndim:
        raise ShapeError(f"shifts {shifts} and dims {dims} must go in pairs, on a tensor of at least one dim")
    for d, shift in zip(dims, shifts, strict=True):
        check_dim(d, x.ndim)
        require_ints(shift=shift)
    return x


def _shifts(x: Any, shifts: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The shifts modulo their dims: torch computes size - shift, which may overflow."""
    return tuple(n % max(x.shape[d], 1) for n, d in zip(shifts, dims, strict=True))


op(
    "roll",
    complex="rule",
    operands="t",
    infer=_rolled,
    split=keeping,
    vjp=(lambda g, _y, _x, *, shifts, dims: g.roll(tuple(-n for n in shifts), dims),),
    torch=lambda torch, x, *, shifts, dims: torch.roll(x, _shifts(x, shifts, dims), dims),
    kernel=lambda np, x, *, shifts, dims: np.roll(x, _shifts(x, shifts, dims), dims),
)


def _triangle(x: TensorType, *, diagonal: int) -> TensorType:
    if x.ndim < 2:
        raise ShapeError("needs a tensor of at least two dims")
    require_ints(diagonal=diagonal)
    return x


def _diagonal(x: Any, diagonal: int) -> int:
    """The same diagonal, or the nearest outside the matrix: kernels add to it, and numpy takes 32 bits."""
    rows, columns = x.shape[-2:]
    return max(-int(rows), min(diagonal, int(columns)))


op(
    "tril",
    complex="rule",
    operands="t",
    infer=_triangle,
    split=triangular,
    local=shifted,
    vjp=(lambda g, _y, _x, *, diagonal: g.tril(diagonal),),
    torch=lambda torch, x, *, diagonal: torch.tril(x, _diagonal(x, diagonal)),
    kernel=lambda np, x, *, diagonal: np.tril(x, _diagonal(x, diagonal)),
)

op(
    "triu",
    complex="rule",
    operands="t",
    infer=_triangle,
    split=triangular,
    local=shifted,
    vjp=(lambda g, _y, _x, *, diagonal: g.triu(diagonal),),
    torch=lambda torch, x, *, diagonal: torch.triu(x, _diagonal(x, diagonal)),
    kernel=lambda np, x, *, diagonal: np.triu(x, _diagonal(x, diagonal)),
)
