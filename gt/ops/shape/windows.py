"""Diagonals, sliding windows, and borders around a tensor."""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, ShapeError
from gt.ops.elements import element
from gt.ops.infer import check_dim, check_dims, require_ints, shown, sizes
from gt.ops.op import NUMBER, op
from gt.ops.split import shaped
from gt.ops.splits_shape import bordering, diagonals, unwindowed, windows
from gt.types import OperandType, Shape, TensorType

# -- diagonals -----------------------------------------------------------------------------


def _length(n: int, m: int, offset: int) -> int:
    return max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))


def _diagonal(x: TensorType, *, offset: int, dim1: int, dim2: int) -> TensorType:
    if x.ndim < 2:
        raise DimError("needs a tensor of at least two dims")
    require_ints(offset=offset)
    a, b = check_dims((dim1, dim2), x.ndim)
    rest = tuple(n for d, n in enumerate(x.shape) if d not in (a, b))
    return TensorType((*rest, _length(x.shape[a], x.shape[b], offset)), x.dtype)


def _diagonal_numpy(np: Any, x: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    result = np.diagonal(x, max(-x.shape[dim1], min(offset, x.shape[dim2])), dim1, dim2)  # numpy takes 32 bits
    if x.flags.writeable:
        result.flags.writeable = True
    return result


def _diagonal_back(g: Any, _y: Any, _x: Any, **how: int) -> Any:
    return g._op("view_backward", chain=(("diagonal", tuple(how.items())),), shape=tuple(_x.shape))


op(
    "diagonal",
    complex="rule",
    operands="t",
    infer=_diagonal,
    split=diagonals,
    vjp=(_diagonal_back,),
    view=True,
    torch=lambda torch, x, **how: torch.diagonal(x, **how),
    kernel=_diagonal_numpy,
)

# -- windows -------------------------------------------------------------------------------


def _unfolded(x: TensorType, *, dim: int, size: int, step: int) -> TensorType:
    check_dim(dim, x.ndim)
    require_ints(size=size, step=step)
    length = x.shape[dim] if x.ndim else 1
    if not 0 <= size <= length or step < 1:
        raise ShapeError(f"windows of {size} with step {step} do not fit into size {length}")
    if not x.ndim:
        return TensorType((size,), x.dtype)
    return TensorType((*x.shape[:dim], (length - size) // step + 1, *x.shape[dim + 1 :], size), x.dtype)


def _step(shape: Shape, dim: int, step: int) -> int:
    """The same step, or the least that leaves a single window: a stride would overflow."""
    return min(step, (shape[dim] if shape else 1) + 1)


def _unfold_numpy(np: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return x.reshape(1)[:size]
    n = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], n, *x.shape[dim + 1 :], size)
    apart = x.strides[dim] * _step(x.shape, dim, step)
    strides = (*x.strides[:dim], apart, *x.strides[dim + 1 :], x.strides[dim])
    return np.lib.stride_tricks.as_strided(x, shape, strides)


def _unfold_back_numpy(np: Any, g: Any, *, shape: Shape, dim: int, size: int, step: int) -> Any:
    result = np.zeros(shape or (1,), dtype=g.dtype)
    seen = result[(slice(None),) * dim + (slice(None),)]
    for at in range(size if g.size else 0):
        n = g.shape[dim] if shape else 1
        part = (slice(None),) * dim + (slice(at, at + n * step, step),)
        seen[part] += g[..., at] if shape else g[at]
    return result.reshape(shape)


def _refolded(g: TensorType, *, shape: Shape, dim: int, size: int, step: int) -> TensorType:
    result = TensorType(sizes(shape), g.dtype)
    if _unfolded(result, dim=dim, size=size, step=step).shape != g.shape:
        raise ShapeError(f"{shown(g.shape)} are not the windows of {shown(shape)}")
    return result


op(
    "unfold",
    complex="rule",
    operands="t",
    infer=_unfolded,
    split=windows,
    vjp=(lambda g, _y, _x, **how: g._op("unfold_backward", shape=tuple(_x.shape), **how),),
    view=True,
    torch=lambda torch, x, *, dim, size, step: x.unfold(dim, size, _step(x.shape, dim, step)),
    kernel=_unfold_numpy,
)

op(
    "unfold_backward",
    complex="rule",
    operands="t",
    infer=_refolded,
    split=unwindowed,
    local=shaped,
    vjp=(lambda g, _y, _x, *, shape, **how: g._op("unfold", **how),),
    torch=lambda torch, g, *, shape, dim, size, step: torch.ops.aten.unfold_backward(
        g, shape, dim, size, _step(shape, dim, step)
    ),
    kernel=_unfold_back_numpy,
)

# -- borders -------------------------------------------------------------------------------


def _padded(x: TensorType, value: OperandType, *, pads: tuple[tuple[int, int], ...]) -> TensorType:
    if len(pads) != x.ndim:
        raise ShapeError(f"pads {pads} must be a pair for each of the {x.ndim} dims")
    for n, (before, after) in zip(x.shape, pads, strict=True):
        require_ints(before=before, after=after)
        if n + min(before, 0) + min(after, 0) < 0:
            raise ShapeError(f"pads {pads} take away more than there is")
    result = tuple(n + before + after for n, (before, after) in zip(x.shape, pads, strict=True))
    return TensorType(result, x.dtype)


def _pad_torch(torch: Any, x: Any, value: Any, *, pads: tuple[tuple[int, int], ...]) -> Any:
    return torch.constant_pad_nd(x, [n for pair in reversed(pads) for n in pair], value)


def _pad_numpy(np: Any, x: Any, value: Any, *, pads: tuple[tuple[int, int], ...]) -> Any:
    borders = [(max(a, 0), max(b, 0)) for a, b in pads]
    wider = any(map(any, borders))
    grown = np.pad(x, borders, constant_values=element(np, value, x.dtype)) if wider else x.copy()
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(grown.shape, pads, strict=True))
    return grown[cut].copy() if cut else grown


op(
    "pad",
    complex="rule",
    operands=f"t{NUMBER}",
    infer=_padded,
    split=bordering,
    vjp=(lambda g, _y, _x, _value, *, pads: g._op("pad", 0, pads=tuple((-a, -b) for a, b in pads)), None),
    torch=_pad_torch,
    kernel=_pad_numpy,
)
