"""Diagonals, sliding windows, and borders around a tensor."""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, ShapeError
from gt.ops.core import NUMBER, op
from gt.ops.infer import shown, sizes, wrap_dim, wrap_dims
from gt.ops.split import shaped
from gt.ops.splits_shape import bordering, diagonals, unwindowed, windows
from gt.types import OperandType, Scalar, Shape, TensorType

# -- diagonals -----------------------------------------------------------------------------


def _length(n: int, m: int, offset: int) -> int:
    return max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))


def _diagonal(x: TensorType, *, offset: int, dim1: int, dim2: int) -> TensorType:
    if x.ndim < 2:
        raise DimError("needs a tensor of at least two dims")
    a, b = wrap_dims((dim1, dim2), x.ndim)
    rest = tuple(n for d, n in enumerate(x.shape) if d not in (a, b))
    return TensorType((*rest, _length(x.shape[a], x.shape[b], offset)), x.dtype)


def _diagonal_numpy(np: Any, x: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    made = np.diagonal(x, offset, dim1, dim2)
    if x.flags.writeable:
        made.flags.writeable = True
    return made


def _diagonal_back(g: Any, _y: Any, _x: Any, **how: int) -> Any:
    return g._op("view_backward", chain=(("diagonal", tuple(how.items())),), shape=tuple(_x.shape))


op(
    "diagonal",
    infer=_diagonal,
    split=diagonals,
    vjp=(_diagonal_back,),
    view=True,
    torch=lambda torch, x, **how: torch.diagonal(x, **how),
    kernel=_diagonal_numpy,
)

# -- windows -------------------------------------------------------------------------------


def _unfolded(x: TensorType, *, dim: int, size: int, step: int) -> TensorType:
    dim = wrap_dim(dim, x.ndim)
    length = x.shape[dim] if x.ndim else 1
    if not 0 <= size <= length or step < 1:
        raise ShapeError(f"windows of {size} with step {step} do not fit into size {length}")
    if not x.ndim:
        return TensorType((size,), x.dtype)
    return TensorType((*x.shape[:dim], (length - size) // step + 1, *x.shape[dim + 1 :], size), x.dtype)


def _unfold_numpy(np: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return x.reshape(1)[:size]
    n = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], n, *x.shape[dim + 1 :], size)
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    return np.lib.stride_tricks.as_strided(x, shape, strides)


def _unfold_back_numpy(np: Any, g: Any, *, shape: Shape, dim: int, size: int, step: int) -> Any:
    made = np.zeros(shape or (1,), dtype=g.dtype)
    seen = made[(slice(None),) * dim + (slice(None),)]
    for at in range(size):
        n = g.shape[dim] if shape else 1
        part = (slice(None),) * dim + (slice(at, at + n * step, step),)
        seen[part] += g[..., at] if shape else g[at]
    return made.reshape(shape)


def _refolded(g: TensorType, *, shape: Shape, dim: int, size: int, step: int) -> TensorType:
    made = TensorType(sizes(shape), g.dtype)
    if _unfolded(made, dim=dim, size=size, step=step).shape != g.shape:
        raise ShapeError(f"{shown(g.shape)} are not the windows of {shown(shape)}")
    return made


op(
    "unfold",
    infer=_unfolded,
    split=windows,
    vjp=(lambda g, _y, _x, **how: g._op("unfold_backward", shape=tuple(_x.shape), **how),),
    view=True,
    torch=lambda torch, x, *, dim, size, step: x.unfold(dim, size, step),
    kernel=_unfold_numpy,
)

op(
    "unfold_backward",
    infer=_refolded,
    split=unwindowed,
    local=shaped,
    vjp=(lambda g, _y, _x, *, shape, **how: g._op("unfold", **how),),
    torch=lambda torch, g, *, shape, dim, size, step: torch.ops.aten.unfold_backward(g, shape, dim, size, step),
    kernel=_unfold_back_numpy,
)

# -- borders -------------------------------------------------------------------------------


def _padded(x: TensorType, value: OperandType, *, pads: tuple[tuple[int, int], ...]) -> TensorType:
    if not isinstance(value, Scalar):
        raise ShapeError(f"pads with a number, not {value}")
    if len(pads) != x.ndim:
        raise ShapeError(f"pads {pads} must be a pair for each of the {x.ndim} dims")
    made = tuple(n + before + after for n, (before, after) in zip(x.shape, pads, strict=True))
    if any(n < 0 for n in made):
        raise ShapeError(f"pads {pads} take away more than there is")
    return TensorType(made, x.dtype)


def _pad_torch(torch: Any, x: Any, value: Any, *, pads: tuple[tuple[int, int], ...]) -> Any:
    return torch.constant_pad_nd(x, [n for pair in reversed(pads) for n in pair], value)


def _pad_numpy(np: Any, x: Any, value: Any, *, pads: tuple[tuple[int, int], ...]) -> Any:
    grown = (
        np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pads], constant_values=np.asarray(value).astype(x.dtype))
        if x.ndim
        else x.copy()
    )
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(grown.shape, pads, strict=True))
    return grown[cut].copy() if cut else grown


op(
    "pad",
    operands=f"t{NUMBER}",
    infer=_padded,
    split=bordering,
    vjp=(lambda g, _y, _x, _value, *, pads: g._op("pad", 0, pads=tuple((-a, -b) for a, b in pads)), None),
    torch=_pad_torch,
    kernel=_pad_numpy,
)
