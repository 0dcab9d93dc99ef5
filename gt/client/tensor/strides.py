"""Strides: how far apart in memory the elements of a view lie, which says what other views of it are possible.

A fresh result counts as contiguous. A view's strides follow from the way to it, as torch's do, and are worked out only
when somebody asks: `view` and `reshape` do, for a way between two shapes exists or not depending on them.
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

#: shape and strides
Layout = tuple[Shape, Shape]

# -- strides -------------------------------------------------------------------------------


def strides(x: Tensor) -> Shape:
    view = x._view
    if view is None:
        return contiguous_strides(x._type.shape)
    return _strides(view.base._type.shape, tuple((op, attrs) for op, attrs, _ in view.chain))


@lru_cache(maxsize=4096)
def _strides(shape: Shape, chain: tuple[tuple[Op, Attrs], ...]) -> Shape:
    layout: Layout = shape, contiguous_strides(shape)
    for op, attrs in chain:
        layout = _STEPS[op](*layout, **dict(attrs))
    return layout[1]


def contiguous_strides(shape: Shape) -> Shape:
    return tuple(accumulate((max(n, 1) for n in shape[:0:-1]), lambda a, b: a * b, initial=1))[::-1] if shape else ()


def _sliced(shape: Shape, steps: Shape, *, items: tuple[Any, ...]) -> Layout:
    at = iter(zip(shape, steps, strict=True))
    made: list[tuple[int, int]] = []
    for kind, *how in items:
        if kind == "n":
            made.append((1, 1))
            continue
        _, step = next(at)
        if kind == "s":
            made.append((how[0], step * how[1]))
    return tuple(n for n, _ in made), tuple(s for _, s in made)


def _permuted(shape: Shape, steps: Shape, *, dims: Shape) -> Layout:
    return tuple(shape[d] for d in dims), tuple(steps[d] for d in dims)


def _expanded(old: Shape, steps: Shape, *, shape: Shape) -> Layout:
    new = len(shape) - len(old)
    kept = zip(old, steps, shape[new:], strict=True)
    return shape, (0,) * new + tuple(0 if n == 1 and m != 1 else s for n, s, m in kept)


def _viewed(old: Shape, steps: Shape, *, shape: Shape) -> Layout:
    made = view_strides(old, steps, shape)
    assert made is not None, f"a view of {old} with strides {steps} as {shape} was let through"
    return shape, made


def _on_diagonal(shape: Shape, steps: Shape, *, offset: int, dim1: int, dim2: int) -> Layout:
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    n, m = shape[dim1], shape[dim2]
    length = max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))
    return (*(shape[d] for d in rest), length), (*(steps[d] for d in rest), steps[dim1] + steps[dim2])


def _unfolded(shape: Shape, steps: Shape, *, dim: int, size: int, step: int) -> Layout:
    if not shape:
        return (size,), (1,)
    n = (shape[dim] - size) // step + 1
    return (
        (*shape[:dim], n, *shape[dim + 1 :], size),
        (*steps[:dim], steps[dim] * step, *steps[dim + 1 :], steps[dim]),
    )


_STEPS: dict[Op, Callable[..., Layout]] = {
    SLICE: _sliced,
    PERMUTE: _permuted,
    EXPAND: _expanded,
    VIEW: _viewed,
    DIAGONAL: _on_diagonal,
    UNFOLD: _unfolded,
    PLACED: lambda shape, steps, *, signal: (shape, steps),
}


def view_strides(shape: Shape, steps: Shape, new: Shape) -> Shape | None:
    """The strides a view of another shape has, if there can be one.

    The dims fall into runs that lie in memory as one; each run must be divided among the new dims without a rest.
    """
    if 0 in shape or not shape:
        return steps if new == shape else contiguous_strides(new)
    made, rest = [0] * len(new), len(new)
    for length, step in _runs(shape, steps):
        taken = 1
        while rest and (taken < length or new[rest - 1] == 1):
            rest -= 1
            made[rest] = taken * step
            taken *= new[rest]
        if taken != length:
            return None
    return None if rest else tuple(made)


def _runs(shape: Shape, steps: Shape) -> list[tuple[int, int]]:
    """From the last dim to the first: how many elements lie evenly, and how far apart."""
    runs, length, step = [], 1, steps[-1]
    for d in range(len(shape) - 1, -1, -1):
        length *= shape[d]
        if d == 0 or (shape[d - 1] != 1 and steps[d - 1] != length * step):
            runs.append((length, step))
            length, step = 1, steps[d - 1]
    return runs
