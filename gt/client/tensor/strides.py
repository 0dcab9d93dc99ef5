"""Strides: the distances in memory between neighbouring elements of a view, as torch has them.

They decide whether a tensor can be viewed in another shape, or must be copied. GT's blocks need no strides, so they are
computed only where `view`, `reshape` or `stride` need them. A new result is contiguous, unless the device of torch
says otherwise (`Tensor._strides`). The strides of a view follow from the steps that lead from its base to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.ops import OPS, Attrs, Op
from gt.types import Shape

VIEW, PERMUTE, EXPAND, SLICE = OPS["view"], OPS["permute"], OPS["expand"], OPS["slice"]
DIAGONAL, UNFOLD, PLACED = OPS["diagonal"], OPS["unfold"], OPS["placed"]
REAL, IMAG, AS_REAL, AS_COMPLEX = OPS["real"], OPS["imag"], OPS["view_as_real"], OPS["view_as_complex"]

#: shape and strides
Strided = tuple[Shape, Shape]

# -- strides -------------------------------------------------------------------------------


def strides_of(x: Tensor) -> Shape:
    """The strides of x in elements, as torch would have them."""
    view = x._view
    if view is None:
        return _own_strides(x)
    return _chain_strides(view.base._type.shape, _own_strides(view.base), tuple([step[:2] for step in view.chain]))


def _own_strides(x: Tensor) -> Shape:
    """The strides of a tensor that is not a view."""
    return contiguous_strides(x._type.shape) if x._strides is None else x._strides


@lru_cache(maxsize=4096)
def _chain_strides(shape: Shape, strides: Shape, chain: tuple[tuple[Op, Attrs], ...]) -> Shape:
    strided: Strided = shape, strides
    for op, attrs in chain:
        strided = _STRIDE_RULES[op](*strided, **dict(attrs))
    return strided[1]


def offset_of(x: Tensor) -> int:
    """The distance in elements between the first element of x and the first one of its base, as torch would have it."""
    if x._view is None:
        return 0
    strided, offset = (x._view.base._type.shape, _own_strides(x._view.base)), 0
    for op, attrs, starts in x._view.chain:
        if op in _OFFSET_RULES:
            offset = _OFFSET_RULES[op](offset, strided[1], starts, **dict(attrs))
        strided = _STRIDE_RULES[op](*strided, **dict(attrs))
    return offset


def memory_order(strides: Shape) -> tuple[Shape, Shape]:
    """The dims in the order in which they are stored, and the places of the dims in that order."""
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    return tuple(order), tuple(sorted(range(len(order)), key=order.__getitem__))


def contiguous_strides(shape: Shape) -> Shape:
    return tuple(accumulate((max(n, 1) for n in shape[:0:-1]), lambda a, b: a * b, initial=1))[::-1] if shape else ()


def _sliced(shape: Shape, strides: Shape, *, items: tuple[Any, ...]) -> Strided:
    dims = iter(zip(shape, strides, strict=True))
    new_dims: list[tuple[int, int]] = []
    for kind, *numbers in items:
        if kind == "n":
            new_dims.append((1, 1))
            continue
        _, stride = next(dims)
        if kind == "s":
            length, step = numbers
            new_dims.append((length, stride * step))
    return tuple(n for n, _ in new_dims), tuple(s for _, s in new_dims)


def _permuted(shape: Shape, strides: Shape, *, dims: Shape) -> Strided:
    return tuple(shape[d] for d in dims), tuple(strides[d] for d in dims)


def _expanded(old: Shape, strides: Shape, *, shape: Shape) -> Strided:
    added = len(shape) - len(old)
    old_dims = zip(old, strides, shape[added:], strict=True)
    return shape, (0,) * added + tuple(0 if n == 1 and m != 1 else s for n, s, m in old_dims)


def _viewed(old: Shape, strides: Shape, *, shape: Shape) -> Strided:
    new_strides = view_strides(old, strides, shape)
    assert new_strides is not None, f"{old} with strides {strides} cannot be viewed as {shape}"
    return shape, new_strides


def _on_diagonal(shape: Shape, strides: Shape, *, offset: int, dim1: int, dim2: int) -> Strided:
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    n, m = shape[dim1], shape[dim2]
    length = max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))
    return (*(shape[d] for d in rest), length), (*(strides[d] for d in rest), strides[dim1] + strides[dim2])


def _unfolded(shape: Shape, strides: Shape, *, dim: int, size: int, step: int) -> Strided:
    if not shape:
        return (size,), (1,)
    n = (shape[dim] - size) // step + 1
    return (
        (*shape[:dim], n, *shape[dim + 1 :], size),
        (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]),
    )


def _part(shape: Shape, strides: Shape) -> Strided:
    """A complex number is two real ones."""
    return shape, tuple(2 * n for n in strides)


_STRIDE_RULES: dict[Op, Callable[..., Strided]] = {
    SLICE: _sliced,
    PERMUTE: _permuted,
    EXPAND: _expanded,
    VIEW: _viewed,
    DIAGONAL: _on_diagonal,
    UNFOLD: _unfolded,
    PLACED: lambda shape, strides, *, signal: (shape, strides),
    REAL: _part,
    IMAG: _part,
    AS_REAL: lambda shape, strides: ((*shape, 2), (*(2 * n for n in strides), 1)),
    AS_COMPLEX: lambda shape, strides: (shape[:-1], tuple(n // 2 for n in strides[:-1])),
}

#: (offset, strides, starts of slices, attributes) -> new offset; other views begin at the same element
_OFFSET_RULES: dict[Op, Callable[..., int]] = {
    SLICE: lambda offset, strides, starts, *, items: offset + sum(a * b for a, b in zip(starts, strides, strict=True)),
    DIAGONAL: lambda first, strides, _, *, offset, dim1, dim2: (
        first + (offset * strides[dim2] if offset >= 0 else -offset * strides[dim1])
    ),
    REAL: lambda offset, *_: 2 * offset,
    IMAG: lambda offset, *_: 2 * offset + 1,
    AS_REAL: lambda offset, *_: 2 * offset,
    AS_COMPLEX: lambda offset, *_: offset // 2,
}


@lru_cache(maxsize=4096)
def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """The strides of a view in another shape; None if there can be no such view.

    Neighbouring dims without gaps in memory form a run. Each run must be the product of some of the new dims.
    """
    if 0 in shape or not shape:
        return strides if new == shape else contiguous_strides(new)
    new_strides, dim = [0] * len(new), len(new)
    for length, stride in _runs(shape, strides):
        covered = 1
        while dim and (covered < length or new[dim - 1] == 1):
            dim -= 1
            new_strides[dim] = covered * stride
            covered *= new[dim]
        if covered != length:
            return None
    return None if dim else tuple(new_strides)


def _runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """The runs, from the last dim to the first: the number of elements of each, and the stride between them."""
    runs, length, stride = [], 1, strides[-1]
    for d in range(len(shape) - 1, -1, -1):
        length *= shape[d]
        if d == 0 or (shape[d - 1] != 1 and strides[d - 1] != length * stride):
            runs.append((length, stride))
            length, stride = 1, strides[d - 1]
    return runs


# -- attributes of view ops ----------------------------------------------------------------


@lru_cache(maxsize=4096)
def reordered(dims: tuple[int, ...], ndim: int) -> Attrs:
    """The attributes of a permutation. A dim that is out of range stays as it is: `infer` refuses it."""
    n = ndim or 1
    return (("dims", tuple([d % n if -n <= d < n else d for d in dims])),)


@lru_cache(maxsize=4096)
def exchanged(ndim: int, a: int, b: int) -> Attrs:
    """The attributes of the permutation that exchanges two dims."""
    order = list(range(ndim))
    if order:
        order[a], order[b] = b, a
    return (("dims", tuple(order)),)


@lru_cache(maxsize=4096)
def slice_items(shape: Shape, dim: int, item: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    """The attribute ``items`` of a `slice` that applies ``item`` to one dim: ("i",), or ("s", length, step)."""
    return tuple(item if d == dim else ("s", n, 1) for d, n in enumerate(shape))
