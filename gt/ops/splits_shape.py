"""How ops that move elements may be split: along the dims that they do not change."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gt.ops.split import Groups, Share, Split, letters, stretched, summable, without
from gt.types import Shape, TensorType, result_dtype

FIRST: Groups = ((0,),)


def reshaping(x: TensorType, *, shape: Shape) -> Split:
    """Dims that become others. Of each group, the first dim larger than 1 may be split.

    The rest of the group follows, because blocks are row-major.
    """
    left, right = ["."] * x.ndim, ["."] * len(shape)
    names = iter(letters(x.ndim))
    for x_dims, result_dims in _groups(x.shape, shape) if x.numel else ():
        name = next(names)
        left[x_dims[0]] = right[result_dims[0]] = name
    return Split(f"{''.join(left)}->{''.join(right)}", linear=FIRST)


def _groups(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """The dims of two shapes in the smallest groups with equal numbers of elements; dims of size 1 are in no group."""
    result: list[tuple[list[int], list[int]]] = []
    x_dims, result_dims = ([d for d, n in enumerate(s) if n != 1] for s in (a, b))
    while x_dims:
        left, right = [x_dims.pop(0)], [result_dims.pop(0)]
        while (n := prod(a[d] for d in left)) != (m := prod(b[d] for d in right)):
            (left if n < m else right).append((x_dims if n < m else result_dims).pop(0))
        result.append((left, right))
    return result


def permuting(x: TensorType, *, dims: tuple[int, ...]) -> Split:
    names = letters(x.ndim)
    return Split(f"{names}->{''.join(names[d] for d in dims)}", linear=FIRST)


def expanding(x: TensorType, *, shape: Shape) -> Split:
    names = letters(len(shape))
    return Split(f"{stretched(names, shape, x.shape)}->{names}", linear=FIRST)


def parting(x: TensorType, *, sizes: tuple[int, ...], dim: int) -> Split:
    names = without(letters(x.ndim), (dim % x.ndim,))
    return Split(f"{names}->{','.join([names] * len(sizes))}", linear=FIRST)


def joining(*xs: TensorType, dim: int) -> Split:
    ndim = max(x.ndim for x in xs)
    names = without(letters(ndim), (dim % ndim,))
    dtype = result_dtype(*xs)
    # torch ignores tensors of shape (0,)
    left = ",".join("." if x.shape == (0,) else names for x in xs)
    return Split(f"{left}->{names}", linear=(tuple(range(len(xs))),) if all(summable(x, dtype) for x in xs) else ())


def keeping(x: TensorType, *, dims: tuple[int, ...], **attrs: Any) -> Split:
    """These dims stay whole."""
    names = without(letters(x.ndim), [d % x.ndim for d in dims] if x.ndim else ())
    return Split(f"{names}->{names}", linear=FIRST)


def repeating(x: TensorType, *, repeats: tuple[int, ...]) -> Split:
    """Dims that are not repeated; new dims in front are."""
    new = len(repeats) - x.ndim
    names = without(letters(x.ndim), [d for d in range(x.ndim) if repeats[new + d] != 1])
    return Split(f"{names}->{'.' * new}{names}", linear=FIRST)


def triangular(x: TensorType, *, diagonal: int) -> Split:
    names = letters(x.ndim)
    return Split(f"{names}->{names}", linear=FIRST)


def shifted(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    """The diagonal, counted from the start of the block."""
    *_, row, column = share.ins_at[0]
    return {**attrs, "diagonal": attrs["diagonal"] + row - column}


def diagonals(x: TensorType, *, offset: int, dim1: int, dim2: int) -> Split:
    taken = (dim1 % x.ndim, dim2 % x.ndim)
    names = without(letters(x.ndim), taken)
    kept = "".join(c for d, c in enumerate(names) if d not in taken)
    return Split(f"{names}->{kept}.", linear=FIRST)


def windows(x: TensorType, *, dim: int, size: int, step: int) -> Split:
    names = without(letters(x.ndim), (dim,))
    return Split(f"{names}->{names}.", linear=FIRST)


def unwindowed(g: TensorType, *, shape: Shape, dim: int, size: int, step: int) -> Split:
    names = without(letters(len(shape)), (dim,))
    return Split(f"{names}.->{names}", linear=FIRST)


def bordering(x: TensorType, value: Any, *, pads: Sequence[tuple[int, int]]) -> Split:
    """A sum passes unless elements are filled in."""
    names = without(letters(x.ndim), [d for d, pair in enumerate(pads) if pair != (0, 0)])
    cropped = all(n <= 0 for pair in pads for n in pair)
    return Split(f"{names}->{names}", linear=FIRST if cropped else ())
