"""How an op may be cut across workers, written as one index string.

    "mk,kn->mn"    a letter names a dim; the same letter means the same cut
    "a.->a."       a dot is a dim that stays whole on every worker
    "ab->a"        a letter missing on the right is reduced: each worker has a term of the result
    "->ab"         a letter missing on the left is made: each worker makes its own block
    "ab->a,a"      several results
    "bk,nk,n->bn"  with ``added=(2,)``: a bias, which only one worker may add when ``k`` is cut

Tensor operands alone are counted; Python numbers are the same everywhere. From the string `rows` derives every legal
placement of operands and results along one axis of a mesh; more axes follow by doing it again on the blocks. A letter
may stand for dims of different sizes, as in a reshape: it is cut only where both are cut at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gt.ops.placement import P, Partial, Placement, R, Shard, aligned
from gt.types import Shape, TensorType

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Split(msgspec.Struct, frozen=True):
    indices: str
    #: how the terms of a result that lacks a letter are combined; one for each result if they differ: "sum,max"
    reduce: str = "sum"
    #: groups of operands through which a sum may pass: f(a+b) = f(a)+f(b)
    linear: tuple[tuple[int, ...], ...] = ()
    #: operands that are added to the result: where it is a term, they are too
    added: tuple[int, ...] = ()


class Apart(msgspec.Struct, frozen=True):
    """An op on many tensors at once, which are cut independently of each other."""

    #: (its operands, its results, how they are cut together)
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...], Split], ...]


class Row(msgspec.Struct, frozen=True):
    """One legal way along one axis."""

    ins: tuple[Placement, ...]
    outs: tuple[Placement, ...]


class Cut(msgspec.Struct, frozen=True):
    """One worker's share of a call, for ops whose attributes depend on it (see `Op.local`)."""

    #: the blocks' types, of tensor operands and results
    ins: tuple[TensorType, ...]
    outs: tuple[TensorType, ...]
    #: where the block of each begins, dim by dim
    ins_at: tuple[Shape, ...]
    outs_at: tuple[Shape, ...]
    #: the types of the whole
    whole_ins: tuple[TensorType, ...]
    whole_outs: tuple[TensorType, ...]


def rows(split: Split, ins: Sequence[TensorType], outs: Sequence[TensorType], workers: int) -> list[Row]:
    """Every legal row over so many workers; the first, everything everywhere, always is."""
    left, right = split.indices.split("->")
    taken = left.split(",") if ins else []
    given = right.split(",")
    reduces = split.reduce.split(",") * (len(given) if "," not in split.reduce else 1)
    found = [Row((R,) * len(ins), (R,) * len(outs))]
    for letter in dict.fromkeys(c for c in left + right if c not in ",."):
        if not _cut_alike(letter, (*taken, *given), (*ins, *outs), workers):
            continue
        made = tuple(
            Shard(dims.index(letter)) if letter in dims else Partial(how)
            for dims, how in zip(given, reduces, strict=True)
        )
        term = isinstance(made[0], Partial)
        placed = tuple(
            Shard(dims.index(letter)) if letter in dims else P if term and i in split.added else R
            for i, dims in enumerate(taken)
        )
        found.append(Row(placed, made))
    for group in split.linear:
        found.append(Row(tuple(P if i in group else R for i in range(len(ins))), (P,) * len(outs)))
    return found


def _cut_alike(letter: str, dims: Sequence[str], types: Sequence[TensorType], workers: int) -> bool:
    sizes = {t.shape[names.index(letter)] for names, t in zip(dims, types, strict=True) if letter in names}
    first = sizes.pop()
    return all(aligned(first, other, workers) for other in sizes)


# -- the strings of common families --------------------------------------------------------


def letters(n: int, start: int = 0) -> str:
    return LETTERS[start : start + n]


def without(dims: str, whole: Sequence[int]) -> str:
    """The same with dots in place of these dims."""
    return "".join("." if i in whole else c for i, c in enumerate(dims))
