"""How an op may be split across workers, written as one index string.

    "mk,kn->mn"    a letter names a dim; the same letter means that both are split together
    "a.->a."       a dot is a dim that stays whole on every worker
    "ab->a"        a letter missing on the right is reduced: each worker has a term of the result
    "->ab"         a letter missing on the left is created: each worker creates its own block
    "ab->a,a"      several results
    "bk,nk,n->bn"  with ``added=(2,)``: a bias, which only one worker may add when ``k`` is split

The string counts tensor operands only; Python numbers are the same everywhere. `rows` derives from it every legal
placement of operands and results along one axis of a mesh. For more axes it is applied again to the blocks: the string
is that of the whole, the types are those of the blocks, and where blocks differ in size, a row must be legal for each
of them. A letter may stand for dims of different sizes, as in a reshape: it is split only where both are split at the
same places. Some kernels refuse blocks without elements: ``filled`` names the letters that need blocks that are not
empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from gt.ops.infer import broadcast_shapes
from gt.ops.placement import P, Partial, Parts, Placement, R, Shard, aligned, block_lengths
from gt.types import OperandType, Scalar, Shape, TensorType, result_dtype

#: for dims in order; capitals are for dims with a special role, as in "MK,KN->MN"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Groups = tuple[tuple[int, ...], ...]


class Split(msgspec.Struct, frozen=True):
    indices: str
    #: how the terms of a result that lacks a letter are combined; one for each result if they differ: "sum,max"
    reduce: str = "sum"
    #: groups of operands through which a sum may pass: f(a+b) = f(a)+f(b)
    linear: Groups = ()
    #: results that do not depend on such operands: where those are terms, these are whole
    still: tuple[int, ...] = ()
    #: operands that are added to the result: where it is a term, they are too
    added: tuple[int, ...] = ()
    #: letters that are split only if no block is empty
    filled: str = ""
    #: the results are terms even where nothing here is split: they combine several parts, which may be split (see
    #: `Apart`)
    terms: bool = False


class Apart(msgspec.Struct, frozen=True):
    """An op on many tensors at once, which are split independently of each other.

    An operand may belong to several parts if it is whole in each; a result belongs to one.
    """

    #: (its operands, its results, how they are split together)
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...], Split], ...]
    #: the attribute that counts the parts, or "", if some of them may be done by one call and some by another
    calls: str | None = None


class Row(msgspec.Struct, frozen=True):
    """One legal choice of placements along one axis."""

    ins: tuple[Placement, ...]
    outs: tuple[Placement, ...]


class Share(msgspec.Struct, frozen=True):
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


def rows(split: Split, ins: Sequence[TensorType], outs: Sequence[TensorType], parts: Parts) -> list[Row]:
    """Every legal row along an axis. The first, everything replicated, is always legal."""
    left, right = split.indices.split("->")
    in_dims = left.split(",") if ins else []
    out_dims = right.split(",") if outs else []
    reduces = split.reduce.split(",") * (len(out_dims) if "," not in split.reduce else 1)
    legal = [Row((R,) * len(ins), tuple(map(Partial, reduces)) if split.terms else (R,) * len(outs))]
    for letter in dict.fromkeys(c for c in left + right if c not in ",."):
        if not _split_alike(letter, (*in_dims, *out_dims), (*ins, *outs), parts, letter in split.filled):
            continue
        results = tuple(
            Shard(dims.index(letter)) if letter in dims else Partial(how)
            for dims, how in zip(out_dims, reduces, strict=True)
        )
        term = bool(results) and isinstance(results[0], Partial)
        operands = tuple(
            Shard(dims.index(letter)) if letter in dims else P if term and i in split.added else R
            for i, dims in enumerate(in_dims)
        )
        legal.append(Row(operands, results))
    for group in split.linear:
        if any(ins[i].dtype.kind == "b" for i in group):  # a sum of bools is not a bool
            continue
        passed = tuple(R if i in split.still else P for i in range(len(outs)))
        legal.append(Row(tuple(P if i in group else R for i in range(len(ins))), passed))
    return legal


def _split_alike(letter: str, dims: Sequence[str], types: Sequence[TensorType], parts: Parts, filled: bool) -> bool:
    sizes = {t.shape[names.index(letter)] for names, t in zip(dims, types, strict=True) if letter in names}
    if filled and any(0 in block_lengths(size, parts) for size in sizes):
        return False
    first = sizes.pop()
    return all(aligned(first, other, parts) for other in sizes)


# -- strings -------------------------------------------------------------------------------


def letters(n: int, start: int = 0) -> str:
    """Names for this many dims; dims beyond the alphabet stay whole."""
    return LETTERS[start : start + n].ljust(n, ".")


def without(dims: str, whole: Sequence[int]) -> str:
    """The same with dots in place of these dims."""
    return "".join("." if i in whole else c for i, c in enumerate(dims))


def stretched(names: str, shape: Shape, x: Shape) -> str:
    """The dims of an operand that broadcasts to this shape, whose dims have these names: dots where it is stretched."""
    aligned_dims = names[len(names) - len(x) :], shape[len(shape) - len(x) :]
    return "".join(c if n == m else "." for c, m, n in zip(*aligned_dims, x, strict=True))


def tensors(types: Sequence[OperandType]) -> list[TensorType]:
    return [t for t in types if isinstance(t, TensorType)]


def counted(groups: Groups, types: Sequence[OperandType]) -> Groups:
    """Groups of operands, counted without the numbers. A group with a number is dropped: a number is not a sum."""
    place = {i: n for n, i in enumerate(i for i, t in enumerate(types) if isinstance(t, TensorType))}
    return tuple(tuple(place[i] for i in group) for group in groups if all(i in place for i in group))


def summable(x: OperandType, result: Any) -> bool:
    """True if terms of this type may be cast to that dtype before they are summed.

    Bools may not, dtypes that wrap around may not, and in a narrower dtype terms overflow or round where their sum
    would not.
    """
    wider = x.dtype.kind in "fc" and x.dtype.kind == result.kind and result.itemsize > x.dtype.itemsize
    return wider or (x.dtype is result and result.kind in "iufc")


# -- families of ops -----------------------------------------------------------------------


def elementwise(*types: OperandType, linear: Groups = (), floating: bool = False, **attrs: Any) -> Split:
    """Operands that broadcast. ``linear`` counts numbers as operands too; ``floating``: the result is floating."""
    xs = tensors(types)
    shape = broadcast_shapes(*(x.shape for x in xs))
    names = letters(len(shape))
    dtype = result_dtype(*types)
    passing = tuple(
        g for g in linear if all(types[i].dtype.kind in "fc" or (not floating and summable(types[i], dtype)) for i in g)
    )
    left = ",".join(stretched(names, shape, x.shape) for x in xs)
    return Split(f"{left}->{names}", linear=counted(passing, types))


def scaling(*types: OperandType, divides: bool = False, **attrs: Any) -> Split:
    """A sum passes through a product with a number, or a quotient by one. Through a product with a tensor it does not:
    with infinities or zeros in it, the result for each term is not that for the sum. (The dispatcher checks the value
    of a number.)"""
    factors = [i for i, t in enumerate(types) if isinstance(t, Scalar)]
    passing = tuple((i,) for i in range(len(types)) if i not in factors and len(factors) == len(types) - 1)
    return elementwise(*types, linear=passing[:1] if not divides or factors == [1] else (), floating=divides)


def linear(*groups: tuple[int, ...], floating: bool = False) -> dict[str, Any]:
    """The same for a family of ops that is declared by ``**fields``."""
    return {"split": partial(elementwise, linear=groups, floating=floating)}


def folding(
    x: TensorType,
    *,
    dim: Any,
    keepdim: bool,
    how: str = "",
    passes: bool = False,
    fills: bool = False,
    results: int = 1,
    **attrs: Any,
) -> Split:
    """A reduction of dims (all if None), whose terms are combined like this; else those dims stay whole.

    ``passes``: a sum passes through. ``fills``: it is not defined for a block without elements.
    """
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = tuple(d % x.ndim for d in dims) if x.ndim else ()
    names = letters(x.ndim) if how else without(letters(x.ndim), dims)
    kept = "".join("." if i in dims else c for i, c in enumerate(names) if keepdim or i not in dims)
    filled = "".join(names[d] for d in dims) if fills else ""
    result = ",".join([kept] * results)
    return Split(f"{names}->{result}", reduce=how or "sum", linear=((0,),) if passes else (), filled=filled)


def along(*types: OperandType, dim: Any, results: int = 1, linear: Groups = (), **attrs: Any) -> Split:
    """Operands and results of one shape; some dims stay whole."""
    xs = tensors(types)
    ndim = xs[0].ndim
    dims = tuple(d % ndim for d in ((dim,) if isinstance(dim, int) else dim)) if ndim else ()
    names = without(letters(ndim), dims)
    return Split(f"{','.join([names] * len(xs))}->{','.join([names] * results)}", linear=linear)


def leading(
    *types: OperandType, inner: Sequence[int], outer: Sequence[int], linear: Groups = (), **attrs: Any
) -> Split:
    """The first dims of each operand, all but this many at its end, broadcast and are letters; the same for results."""
    xs = tensors(types)
    batches = [x.shape[: x.ndim - n] for x, n in zip(xs, inner, strict=True)]
    batch = broadcast_shapes(*batches)
    names = letters(len(batch))
    left = [stretched(names, batch, b) + "." * n for b, n in zip(batches, inner, strict=True)]
    return Split(f"{','.join(left)}->{','.join(names + '.' * n for n in outer)}", linear=linear)


# -- attributes of a share -----------------------------------------------------------------


def shaped(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    """The shape is that of the block."""
    return {**attrs, "shape": share.outs[0].shape}


def placed(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    """Random numbers depend on their position in the whole tensor."""
    return {**attrs, "block": (share.outs_at[0], share.whole_outs[0].shape)}


def shaped_and_placed(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    return placed(shaped(attrs, share), share)
