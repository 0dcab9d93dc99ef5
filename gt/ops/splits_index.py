"""How ops that read and write at positions may be split: along dims that they use whole, and along the index's dims."""

from __future__ import annotations

from typing import Any

from gt.ops.infer import broadcast_shapes
from gt.ops.split import Groups, Share, Split, counted, letters, stretched, summable, tensors, without
from gt.types import OperandType, Scalar, Shape, TensorType

FIRST: Groups = ((0,),)
Items = tuple[tuple[Any, ...], ...]
Chain = tuple[tuple[str, Any], ...]
Dims = tuple[int, ...]

# -- basic indexing ------------------------------------------------------------------------


def _seen(shape: Shape, items: Items) -> tuple[str, str]:
    """The names of a tensor's dims and of those of its view: dims that are taken as a whole are letters."""
    names, view, dim = list(letters(len(shape))), "", 0
    for kind, *how in items:
        if kind == "n":
            view += "."
            continue
        if how != [shape[dim], 1]:
            names[dim] = "."
        view += "" if kind == "i" else names[dim]
        dim += 1
    return "".join(names), view


def slicing(x: TensorType, *starts: OperandType, items: Items) -> Split:
    names, view = _seen(x.shape, items)
    return Split(f"{names}->{view}", linear=FIRST)


def _sliced(items: Items, whole: Shape, block: Shape) -> Items:
    """The items for a block: a slice of a whole dim is a slice of the block's whole dim."""
    result, dim = [], 0
    for item in items:
        if item[0] == "n":
            result.append(item)
            continue
        result.append(("s", block[dim], 1) if item == ("s", whole[dim], 1) else item)
        dim += 1
    return tuple(result)


def sliced(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    return {**attrs, "items": _sliced(attrs["items"], share.whole_ins[0].shape, share.ins[0].shape)}


def _only_slice(chain: Chain, shape: Shape) -> Items | None:
    """The items, if the chain is one slice or empty."""
    if not chain:
        return tuple(("s", n, 1) for n in shape)
    ((_, attrs), *more) = chain
    return None if more or "items" not in dict(attrs) else dict(attrs)["items"]


def putting(base: TensorType, value: OperandType, *starts: OperandType, chain: Chain) -> Split:
    """Through a slice, dims it leaves whole; through more, only what is whole."""
    items = _only_slice(chain, base.shape)
    linear: Groups = ((0, 1),) if isinstance(value, TensorType) and summable(value, base.dtype) else ()
    if items is None:
        whole = "." * base.ndim
        return Split(f"{whole}{'' if isinstance(value, Scalar) else ',' + '.' * value.ndim}->{whole}", linear=linear)
    names, view = _seen(base.shape, items)
    if isinstance(value, Scalar):
        return Split(f"{names}->{names}")
    sizes = _view_shape(base.shape, items)
    extra = max(0, value.ndim - len(sizes))  # leading sizes of 1, which torch ignores
    value_dims = "." * extra + stretched(view, sizes, value.shape[extra:])
    return Split(f"{names},{value_dims}->{names}", linear=linear)


def _view_shape(shape: Shape, items: Items) -> Shape:
    return tuple(1 if item[0] == "n" else item[1] for item in items if item[0] != "i")


def put(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    whole = share.whole_outs[0].shape
    items = _only_slice(attrs["chain"], whole)
    if items is None or not attrs["chain"]:
        return attrs
    ((name, _),) = attrs["chain"]
    return {**attrs, "chain": ((name, (("items", _sliced(items, whole, share.outs[0].shape)),)),)}


def putting_back(g: TensorType, *starts: OperandType, chain: Chain, shape: Shape) -> Split:
    items = _only_slice(chain, shape)
    names, view = _seen(shape, items) if items is not None else ("." * len(shape), "." * g.ndim)
    return Split(f"{view}->{names}", linear=FIRST)


def put_back(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    return {**put(attrs, share), "shape": share.outs[0].shape}


# -- by tensors of positions ---------------------------------------------------------------


def _places(ndim: int, indices: tuple[TensorType, ...], dims: Dims) -> tuple[str, list[str], str]:
    """The names of the dims of the tensor, of each index and of the result."""
    names = without(letters(ndim), dims)
    shape = broadcast_shapes(*(i.shape for i in indices))
    picked = letters(len(shape), ndim)
    rest = "".join(c for d, c in enumerate(names) if d not in dims)
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return names, [stretched(picked, shape, i.shape) for i in indices], rest[:front] + picked + rest[front:]


def indexing(x: TensorType, *indices: TensorType, dims: Dims) -> Split:
    names, at, result = _places(x.ndim, indices, dims)
    return Split(f"{','.join((names, *at))}->{result}", linear=FIRST)


def indexing_back(g: TensorType, *indices: TensorType, dims: Dims, shape: Shape) -> Split:
    """The positions are split: a block of them gives a term."""
    names, at, result = _places(len(shape), indices, dims)
    return Split(f"{','.join((result, *at))}->{names}", linear=FIRST)


def placing(x: TensorType, value: OperandType, *indices: TensorType, dims: Dims, accumulate: bool) -> Split:
    """Values that are added at a position may be terms; values that are written there must be whole on each worker."""
    names, at, result = _places(x.ndim, indices, dims)
    if not accumulate or x.dtype.kind == "b":
        result = "".join(c if c in names else "." for c in result)
        at = ["." * len(dims_of_index) for dims_of_index in at]
    left, linear = [names], ((0, 1),) if isinstance(value, TensorType) and summable(value, x.dtype) else ()
    if isinstance(value, TensorType):
        sizes = _picked_shape(x.shape, indices, dims)
        extra = max(0, value.ndim - len(result))
        left.append("." * extra + stretched(result, sizes, value.shape[extra:]))
    return Split(f"{','.join((*left, *at))}->{names}", linear=linear, added=(0,))


def _picked_shape(shape: Shape, indices: tuple[TensorType, ...], dims: Dims) -> Shape:
    rest = tuple(n for d, n in enumerate(shape) if d not in dims)
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return (*rest[:front], *broadcast_shapes(*(i.shape for i in indices)), *rest[front:])


# -- along one dim -------------------------------------------------------------------------


def _common(ndim: int, dim: int, *shapes: Shape) -> str:
    """The names of the dims, except this one, in which all tensors have the same size."""
    alike = [d for d in range(ndim) if d != dim and len({s[d] for s in shapes}) == 1]
    return without(letters(ndim), [d for d in range(ndim) if d not in alike])


def _with(names: str, dim: int, letter: str) -> str:
    return names[:dim] + letter + names[dim + 1 :] if names else names


def _odd(x: TensorType, index: TensorType, *source: OperandType) -> bool:
    """A tensor without dims among others, or an index of nothing."""
    shapes = [t.shape for t in (x, index, *tensors(source))]
    return not index.numel or len({len(s) for s in shapes}) > 1 or not x.ndim


def gathering(x: TensorType, index: TensorType, *, dim: int) -> Split | None:
    if _odd(x, index):
        return None
    names = _common(x.ndim, dim, x.shape, index.shape)
    index_dims = _with(names, dim, "Z")
    return Split(f"{names},{index_dims}->{index_dims}", linear=FIRST)


def scattering(x: TensorType, index: TensorType, source: OperandType, *, dim: int, **how: Any) -> Split | None:
    """Where several elements are written to one position, or combined there, one worker must have all of them."""
    if _odd(x, index, source):
        return None
    sources = tensors((source,))
    names = _common(x.ndim, dim, x.shape, index.shape, *(t.shape for t in sources))
    adds = how.get("reduce", "sum") == "sum" or (how["reduce"] == "mean" and x.dtype.kind == "f")
    linear = counted(((0, 2),), (x, index, source)) if adds else ()
    return Split(f"{','.join([names] * (2 + len(sources)))}->{names}", linear=linear)


def scattering_sums(x: TensorType, index: TensorType, source: TensorType, *, dim: int) -> Split | None:
    if _odd(x, index, source):
        return None
    names = _common(x.ndim, dim, x.shape, index.shape, source.shape)
    index_dims = _with(names, dim, "Z" if index.shape[dim] == source.shape[dim] else ".")
    return Split(f"{names},{index_dims},{index_dims}->{names}", linear=((0, 2),), added=(0,))


# -- by masks ------------------------------------------------------------------------------


def selecting(x: TensorType, mask: TensorType, *, n: int) -> Split:
    """The dims that the mask does not cover."""
    rest = letters(x.ndim - mask.ndim)
    return Split(f"{'.' * mask.ndim}{rest},{'.' * mask.ndim}->.{rest}", linear=FIRST)


def masking(x: TensorType, mask: TensorType, value: OperandType) -> Split:
    rows = x.ndim - mask.ndim
    names = letters(x.ndim)
    if isinstance(value, Scalar):
        return Split(f"{names},{names[: mask.ndim]}->{names}")
    if value.ndim > rows and value.shape[-rows - 1] != 1:  # a row for each true value of the mask
        names = "." * mask.ndim + names[mask.ndim :]
    extra = max(0, value.ndim - rows)
    value_dims = "." * extra + stretched(names[mask.ndim :], x.shape[mask.ndim :], value.shape[extra:])
    linear: Groups = ((0, 2),) if summable(value, x.dtype) else ()
    return Split(f"{names},{names[: mask.ndim]},{value_dims}->{names}", linear=linear)
