"""torch's functions that return views (see `gt.client.tensor.strides`), and those that flip, roll or cut a copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from gt.client.tensor import tape
from gt.client.tensor.arguments import normalize_dim, refuse, sizes, to_int, with_aliases
from gt.client.tensor.emit import call, call_many, make_view, view_of
from gt.client.tensor.strides import (
    DIAGONAL,
    EXPAND,
    PERMUTE,
    SLICE,
    UNFOLD,
    VIEW,
    contiguous_strides,
    exchanged,
    reordered,
    slice_items,
    strides_of,
    view_strides,
)
from gt.client.tensor.tensor import Tensor
from gt.errors import DimError, DTypeError, ShapeError
from gt.ops import OPS
from gt.ops.infer import wrap_dim, wrap_dims
from gt.types import Shape

__all__ = [
    "adjoint", "broadcast_to", "chunk", "diagonal", "flatten", "flip", "moveaxis", "movedim", "narrow", "permute",
    "ravel", "reshape", "roll", "select", "split", "squeeze", "swapaxes", "swapdims", "t", "transpose", "tril",
    "triu", "unbind", "unflatten", "unsqueeze",
]  # fmt: skip
#: functions that torch has as methods only
METHODS = (
    "contiguous", "expand", "expand_as", "is_contiguous", "reshape_as", "stride", "unfold", "view", "view_as",
)  # fmt: skip

RESHAPE, SPLIT = OPS["reshape"], OPS["split"]
#: The most slices whose gradients `unbind` joins: one instruction has all of them.
MAX_JOINED = 4096
FLIP, ROLL, TRIL, TRIU = OPS["flip"], OPS["roll"], OPS["tril"], OPS["triu"]

# -- strides -------------------------------------------------------------------------------


def is_contiguous(input: Tensor) -> bool:
    """Whether the elements are stored in the order of the dims."""
    if (input._view is None and input._strides is None) or not input._type.numel:
        return True
    shape, steps = input._type.shape, strides_of(input)
    return all(n == 1 or a == b for n, a, b in zip(shape, steps, contiguous_strides(shape), strict=True))


def stride(input: Tensor, dim: int | None = None) -> Any:
    """The distances between neighbours of each dim in elements, as torch would report them."""
    steps = strides_of(input)
    return steps if dim is None else steps[dim_of("stride", input, dim)]


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself, or a copy in the order of its dims if it is a view in another order."""
    return input if is_contiguous(input) else call(RESHAPE, (input,), (("shape", input._type.shape),))


# -- arguments -----------------------------------------------------------------------------


def dim_of(name: str, x: Tensor, dim: int, extra: int = 0) -> int:
    """A dim of x counted from the start; raises if it does not exist. ``extra`` counts dims that will be added."""
    if type(dim) is int and 0 <= dim < x._type.ndim + extra:
        return dim
    dim = to_int(dim, f"{name}(): a dim is an int")
    try:
        return wrap_dim(dim, x._type.ndim + extra)
    except DimError as problem:
        raise refuse(DimError, str(problem), name, x, dim=dim) from None


def dims_of(name: str, x: Tensor, dims: Sequence[int]) -> tuple[int, ...]:
    """`dim_of` for several dims, which must be different."""
    dims = [to_int(d, f"{name}(): dims are ints") for d in dims]
    try:
        return wrap_dims(dims, x._type.ndim)
    except (DimError, ShapeError) as problem:
        raise refuse(type(problem), str(problem), name, x, dims=tuple(dims)) from None


def complete_shape(name: str, x: Tensor, arguments: tuple[Any, ...], numel: int | None = None) -> Shape:
    """The shape with its -1 replaced by a size."""
    shape = sizes(arguments, name)
    if -1 not in shape:
        return shape
    others = prod(n for n in shape if n != -1)
    total = x._type.numel if numel is None else numel
    if shape.count(-1) > 1:
        raise refuse(ShapeError, "only one size can be -1", name, x, shape=shape)
    if not others or total % others:
        raise refuse(ShapeError, f"{total} elements do not divide into {others}", name, x, shape=shape)
    return tuple(total // others if n == -1 else n for n in shape)


# -- other shapes --------------------------------------------------------------------------


def view(input: Tensor, *shape: Any) -> Tensor:
    """The same elements in another shape, as a view; refused if that would need a copy."""
    new = complete_shape("view", input, shape)
    if new != input._type.shape and prod(new) == input._type.numel and not _can_view(input, new):
        text = "its memory has no view of that shape; use reshape"
        raise refuse(ShapeError, text, "view", input, shape=new)
    return view_of(input, VIEW, (("shape", new),))


def _can_view(x: Tensor, shape: Shape) -> bool:
    """Do the strides of x permit a view of this shape?"""
    return (x._view is None and x._strides is None) or view_strides(x._type.shape, strides_of(x), shape) is not None


def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The same elements in another shape: a view where possible, else a copy."""
    new = complete_shape("reshape", input, sizes if shape is None else (shape,))
    if new == input._type.shape:
        return _view_in_shape(input, new)
    attrs = (("shape", new),)
    if prod(new) != input._type.numel or not _can_view(input, new):
        return call(RESHAPE, (input,), attrs)
    return view_of(input, VIEW, attrs)


def _view_in_shape(input: Tensor, shape: Shape) -> Tensor:
    """A view in the same shape, or with dims of size 1 added or removed. This is always possible."""
    return view_of(input, VIEW, (("shape", shape),))


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dims from start_dim to end_dim into one."""
    shape = input._type.shape
    if not shape:
        return reshape(input, 1)
    first, last = dim_of("flatten", input, start_dim), dim_of("flatten", input, end_dim)
    if first > last:
        text = "start_dim comes after end_dim"
        raise refuse(ShapeError, text, "flatten", input, start_dim=start_dim, end_dim=end_dim)
    if first == last:
        return input
    return reshape(input, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """All elements as one dim."""
    return reshape(input, -1 if input._type.numel else 0)


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dim into several."""
    dim, shape = dim_of("unflatten", input, dim), input._type.shape
    parts = complete_shape("unflatten", input, (tuple(sizes),), shape[dim])
    if prod(parts) != shape[dim]:
        raise refuse(ShapeError, f"the sizes do not make up {shape[dim]}", "unflatten", input, dim=dim, sizes=parts)
    return reshape(input, (*shape[:dim], *parts, *shape[dim + 1 :]))


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None, *, axis: Any = None) -> Tensor:
    """Remove dims of size 1."""
    shape, dim = input._type.shape, axis if dim is None else dim
    arguments = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {d for d in dims_of("squeeze", input, tuple(arguments)) if shape and shape[d] == 1}
    return _view_in_shape(input, tuple(n for d, n in enumerate(shape) if d not in gone))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Insert a dim of size 1."""
    dim, shape = dim_of("unsqueeze", input, dim, extra=1), input._type.shape
    return _view_in_shape(input, (*shape[:dim], 1, *shape[dim:]))


def expand(input: Tensor, *shape: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """The tensor with dims of size 1 repeated to these sizes, without a copy; -1 keeps a size."""
    shape, old = sizes(shape if size is None else (size,), "expand"), input._type.shape
    new = len(shape) - len(old)
    if -1 in shape[: max(new, 0)]:
        raise refuse(ShapeError, "-1 names a size the tensor does not have", "expand", input, shape=shape)
    if new >= 0 and -1 in shape:
        shape = (*shape[:new], *(n if m == -1 else m for n, m in zip(old, shape[new:], strict=True)))
    if shape == (1,) * new + old:  # nothing is stretched, so the view can be written
        return _view_in_shape(input, shape)
    return view_of(input, EXPAND, (("shape", shape),))


def broadcast_to(input: Tensor, size: Any) -> Tensor:
    """The tensor expanded to a shape."""
    return expand(input, size)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """The same elements in the shape of another tensor."""
    return view(input, other._type.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor in the shape of another."""
    return reshape(input, other._type.shape)


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor expanded to the shape of another."""
    return expand(input, other._type.shape)


# -- other orders --------------------------------------------------------------------------


def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """The dims in another order."""
    arguments = sizes(order if dims is None else (dims,), "permute")
    return view_of(input, PERMUTE, reordered(arguments, input._type.ndim))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two dims."""
    a, b = dim_of("transpose", input, dim0), dim_of("transpose", input, dim1)
    return view_of(input, PERMUTE, exchanged(input._type.ndim, a, b))


swapdims = transpose
swapaxes = with_aliases(transpose, axis0="dim0", axis1="dim1")
swapaxes.__name__ = swapaxes.__qualname__ = "swapaxes"


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix."""
    if input._type.ndim > 2:
        text = f"a tensor of {input._type.ndim} dims has no transpose; use transpose or mT"
        raise refuse(ShapeError, text, "t", input)
    return reversed_dims(input)


def reversed_dims(input: Tensor) -> Tensor:
    """The tensor with its dims in reverse order."""
    return view_of(input, PERMUTE, (("dims", tuple(range(input._type.ndim))[::-1]),))


def matrix_transpose(input: Tensor) -> Tensor:
    """The matrices with rows and columns exchanged."""
    if not input._type.ndim:
        return input
    if input._type.ndim < 2:
        raise refuse(ShapeError, "needs a tensor of at least two dims", "mT", input)
    return transpose(input, -2, -1)


def adjoint(input: Tensor) -> Tensor:
    """The matrices with rows and columns exchanged, and each element conjugated."""
    return matrix_transpose(input).conj()


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Move dims to other positions."""
    sources = dims_of("movedim", input, (source,) if isinstance(source, int) else source)
    targets = dims_of("movedim", input, (destination,) if isinstance(destination, int) else destination)
    if len(sources) != len(targets):
        text = "source and destination must name equally many dims"
        raise refuse(ShapeError, text, "movedim", input, source=source, destination=destination)
    fixed = dict(zip(targets, sources, strict=True))
    rest = iter(d for d in range(input._type.ndim) if d not in sources)
    return permute(input, tuple(fixed[d] if d in fixed else next(rest) for d in range(input._type.ndim)))


moveaxis = movedim


# -- parts ---------------------------------------------------------------------------------


def _starts(ndim: int, dim: int, start: int) -> tuple[int, ...]:
    return tuple([start if d == dim else 0 for d in range(ndim)])


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice of a dim."""
    dim, shape = _existing_dim("select", input, dim), input._type.shape
    index = to_int(index, "select(): the index is an int")
    if not -shape[dim] <= index < shape[dim]:
        text = f"index {index} is out of bounds for dim {dim} of size {shape[dim]}"
        raise refuse(DimError, text, "select", input, dim=dim, index=index)
    attrs = (("items", slice_items(shape, dim, ("i",))),)
    return view_of(input, SLICE, attrs, _starts(len(shape), dim, index % shape[dim]))


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A range of slices of a dim."""
    dim, shape = _existing_dim("narrow", input, dim), input._type.shape
    if isinstance(start, Tensor) and start._type.dtype.kind == "b":
        raise refuse(DTypeError, "start must be an integer", "narrow", input, dim=dim, start=start._type)
    start, length = (to_int(n, "narrow(): start and length are ints") for n in (start, length))
    size, first = shape[dim], start + shape[dim] if start < 0 else start
    if not (0 <= first <= size and 0 <= length <= size - first):
        text = f"{length} elements from {start} are not within size {size}"
        raise refuse(DimError, text, "narrow", input, dim=dim, start=start, length=length)
    attrs = (("items", slice_items(shape, dim, ("s", length, 1))),)
    return view_of(input, SLICE, attrs, _starts(len(shape), dim, first))


def _existing_dim(name: str, x: Tensor, dim: int) -> int:
    if not x._type.ndim:
        raise refuse(DimError, "needs a tensor of at least one dim", name, x, dim=dim)
    return dim_of(name, x, dim)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dims, as the last dim."""
    ndim = input._type.ndim
    offset = to_int(offset, "diagonal(): the offset is an int")
    attrs = (("offset", offset), ("dim1", normalize_dim(dim1, ndim)), ("dim2", normalize_dim(dim2, ndim)))
    return view_of(input, DIAGONAL, attrs)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """All windows of a size along a dim, ``step`` apart, as a new last dim."""
    size, step = (to_int(n, "unfold(): size and step are ints") for n in (size, step))
    return view_of(input, UNFOLD, (("dim", normalize_dim(dimension, input._type.ndim)), ("size", size), ("step", step)))


def split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor along a dim into views: parts of one size, or parts of the given sizes."""
    dim = _existing_dim("split", input, dim)
    part_size, size = split_size_or_sections, input._type.shape[dim]
    if not isinstance(part_size, int):
        return _parts(input, sizes((part_size,), "split"), dim)
    if part_size < 0 or (part_size == 0 and size):
        raise refuse(ShapeError, "parts must have a size of at least 1", "split", input, part_size, dim=dim)
    full, rest = divmod(size, part_size or 1)
    return _parts(input, (part_size,) * full + ((rest,) if rest else ()) or (0,), dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor along a dim into this many parts."""
    dim = _existing_dim("chunk", input, dim)
    if chunks < 1:
        raise refuse(ShapeError, "needs at least one chunk", "chunk", input, chunks=chunks, dim=dim)
    size = input._type.shape[dim]
    return split(input, -(-size // chunks), dim) if size else _parts(input, (0,) * chunks, dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of a dim, as a tuple."""
    dim = _existing_dim("unbind", input, dim)
    count = input._type.shape[dim]
    if input._node is not None and tape.mode.enabled and 1 < count <= MAX_JOINED:
        # their gradients are joined: that of each slice alone would be as large as the whole tensor
        shape = input._type.shape
        rest = (*shape[:dim], *shape[dim + 1 :])
        return tuple([_view_in_shape(part, rest) for part in _parts(input, (1,) * count, dim)])
    return tuple(select(input, dim, i) for i in range(count))


def _parts(x: Tensor, parts: Shape, dim: int) -> tuple[Tensor, ...]:
    """One instruction computes all parts; then each becomes the view that a slice gives."""
    result = call_many(SPLIT, (x,), (("sizes", parts), ("dim", dim)))
    shape = x._type.shape
    for part, start, n in zip(result, accumulate(parts, initial=0), parts, strict=False):
        make_view(part, x, (SLICE, (("items", slice_items(shape, dim, ("s", n, 1))),), _starts(len(shape), dim, start)))
    return result


# -- copies: flipped, rolled, triangles ----------------------------------------------------


def flip(input: Tensor, *arguments: Any, dims: Any = None, axis: Any = None) -> Tensor:
    """Reverse dims; all of them if none are given."""
    ndim, dims = input._type.ndim, axis if dims is None else dims
    arguments = (dims,) if dims is not None else arguments or (range(ndim),)
    return call(FLIP, (input,), (("dims", tuple(normalize_dim(d, ndim) for d in sizes(arguments, "flip"))),))


def roll(input: Tensor, shifts: Any, dims: Any = None, *, axis: Any = None) -> Tensor:
    """Shift the elements of dims; those at the end return at the start."""
    moved, dims = sizes((shifts,), "roll"), axis if dims is None else dims
    if dims is None:
        return reshape(roll(flatten(input), moved, 0), input._type.shape)
    along = tuple(normalize_dim(d, input._type.ndim) for d in sizes((dims,), "roll"))
    return call(ROLL, (input,), (("shifts", moved), ("dims", along)))


def tril(input: Tensor, diagonal: int = 0, *, k: int = 0) -> Tensor:
    """The lower triangle of matrices, with zeros above it."""
    return call(TRIL, (input,), (("diagonal", to_int(diagonal or k, "tril(): the diagonal is an int")),))


def triu(input: Tensor, diagonal: int = 0, *, k: int = 0) -> Tensor:
    """The upper triangle of matrices, with zeros below it."""
    return call(TRIU, (input,), (("diagonal", to_int(diagonal or k, "triu(): the diagonal is an int")),))
