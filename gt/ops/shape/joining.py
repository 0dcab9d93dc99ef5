"""Ops that join and repeat tensors."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from gt.errors import ShapeError
from gt.ops.infer import check_dim, common, shown, sizes
from gt.ops.op import op
from gt.ops.splits_shape import joining, repeating
from gt.types import TensorType, result_dtype


def _joined(*xs: TensorType, dim: int) -> TensorType:
    if not all(x.ndim for x in xs):
        raise ShapeError("a 0-d tensor cannot be joined; reshape it to (1,)")
    # torch ignores tensors of shape (0,), so that a loop may start with an empty tensor
    counted = [x.shape for x in xs if x.shape != (0,)] or [(0,)]
    first = counted[0]
    check_dim(dim, len(first))
    for shape in counted:
        if len(shape) != len(first) or shape[:dim] + shape[dim + 1 :] != first[:dim] + first[dim + 1 :]:
            raise ShapeError(f"{shown(shape)} and {shown(first)} differ outside dim {dim}")
    return TensorType((*first[:dim], sum(s[dim] for s in counted), *first[dim + 1 :]), result_dtype(*xs))


def _cat_numpy(np: Any, *xs: Any, dim: int) -> Any:
    return np.concatenate([x for x in xs if x.shape != (0,)] or xs, axis=dim)


def _cat_back(needs: Any, g: Any, _y: Any, *_xs: Any, dim: int) -> list[Any]:
    ends = accumulate((0 if x.shape == (0,) else x.shape[dim] for x in _xs), initial=0)
    back = []
    for x, needed, start in zip(_xs, needs, ends, strict=False):
        if needed:
            back.append(g.new_zeros((0,)) if x.shape == (0,) else g.narrow(dim, start, x.shape[dim]))
        else:
            back.append(None)
    return back


op(
    "cat",
    complex="rule",
    autocast="widest",
    infer=_joined,
    split=joining,
    vjp=_cat_back,
    common=common,
    torch=lambda torch, *xs, dim: torch.cat(xs, dim),
    kernel=_cat_numpy,
)


def _repeated(x: TensorType, *, repeats: tuple[int, ...]) -> TensorType:
    if len(repeats) < x.ndim:
        raise ShapeError(f"repeats {repeats} must have a number for each of the {x.ndim} dims")
    padded = (1,) * (len(repeats) - x.ndim) + x.shape
    return TensorType(tuple(n * r for n, r in zip(padded, sizes(repeats), strict=True)), x.dtype)


def _repeat_back(g: Any, _y: Any, _x: Any, *, repeats: tuple[int, ...]) -> Any:
    padded = (1,) * (len(repeats) - _x.ndim) + tuple(_x.shape)
    if not repeats:
        return g
    apart = g.reshape(tuple(n for pair in zip(repeats, padded, strict=True) for n in pair))
    return apart.sum(tuple(range(0, 2 * len(repeats), 2))).reshape(_x.shape)


op(
    "repeat",
    complex="rule",
    operands="t",
    infer=_repeated,
    split=repeating,
    vjp=(_repeat_back,),
    torch=lambda torch, x, *, repeats: x.repeat(repeats),
    kernel=lambda np, x, *, repeats: np.tile(x, repeats),
)
