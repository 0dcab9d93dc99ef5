"""torch's functions that join, repeat, split and rotate tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations as chosen
from itertools import combinations_with_replacement as chosen_again
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

from gt.client.tensor.arguments import (
    accept_numpy_names,
    normalize_dim,
    refuse,
    require_tensor,
    sizes,
    tensor_list,
    to_int,
    with_aliases,
)
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, scan, views
from gt.functions.derive import documented
from gt.functions.scatter import index_select
from gt.functions.views import flip
from gt.ops import OPS
from gt.ops import infer as rules
from gt.types import Size, int64

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes", "broadcast_tensors", "cartesian_prod",
    "cat", "column_stack", "combinations", "concat", "concatenate", "diagonal_copy", "dsplit", "dstack", "expand_copy",
    "fliplr", "flipud", "hsplit", "hstack", "meshgrid", "narrow_copy", "permute_copy", "repeat_interleave", "rot90",
    "row_stack", "select_copy", "split_copy", "split_with_sizes", "split_with_sizes_copy", "squeeze_copy", "stack",
    "t_copy", "tensor_split", "tile", "transpose_copy", "unbind_copy", "unfold_copy", "unsafe_chunk", "unsafe_split",
    "unsafe_split_with_sizes", "unsqueeze_copy", "view_copy", "vsplit", "vstack",
]  # fmt: skip
#: functions that torch has as methods only
METHODS = ("repeat",)

CAT, REPEAT, PAD, INDEX, SEARCHSORTED = OPS["cat"], OPS["repeat"], OPS["pad"], OPS["index"], OPS["searchsorted"]

# -- joining ------------------------------------------------------------------------------


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along a dim."""
    xs = tensor_list("cat", tensors)
    return call(CAT, xs, (("dim", normalize_dim(dim, max(x._type.ndim for x in xs))),))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Stack tensors of one shape along a new dim."""
    xs = tensor_list("stack", tensors)
    for x in xs:
        if x._type.shape != xs[0]._type.shape:
            raise refuse(ShapeError, "shapes must be equal", "stack", *xs, dim=dim)
    dim = views.dim_of("stack", xs[0], dim, extra=1)
    return cat([views.unsqueeze(x, dim) for x in xs], dim)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along their second dim, or their only one."""
    xs = [views.reshape(x, 1) if not x._type.ndim else x for x in tensor_list("hstack", tensors)]
    return cat(xs, 0 if xs[0]._type.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along their first dim."""
    xs = tensor_list("vstack", tensors)
    return cat([views.reshape(x, (1, x._type.numel)) if x._type.ndim < 2 else x for x in xs])


def repeat(input: Tensor, *arguments: Any, repeats: Any = None) -> Tensor:
    """Repeat a tensor this many times along each dim."""
    return call(REPEAT, (input,), (("repeats", sizes(arguments if repeats is None else (repeats,), "repeat")),))


def tile(input: Tensor, *arguments: Any, dims: Any = None) -> Tensor:
    """Repeat a tensor along its last dims; dims that are not named are not repeated."""
    arguments = sizes(arguments if dims is None else (dims,), "tile")
    return repeat(input, (1,) * (input._type.ndim - len(arguments)) + arguments)


cat, stack = map(accept_numpy_names, (cat, stack))
concat = concatenate = cat

# -- more dims -----------------------------------------------------------------------------


def _map_tensors(name: str, tensors: Any, make: Any) -> Any:
    """One tensor gives one result; several, or a list, give a tuple."""
    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return make(tensors[0])
    many = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    return tuple(make(require_tensor(name, x)) for x in many)


def _one(x: Tensor) -> Tensor:
    return x if x._type.ndim else views.reshape(x, 1)


def _two(x: Tensor) -> Tensor:
    return x if x._type.ndim > 1 else views.unsqueeze(_one(x), 0)


def _three(x: Tensor) -> Tensor:
    return x if x._type.ndim > 2 else views.unsqueeze(_two(x), -1)


def atleast_1d(*tensors: Any) -> Any:
    """The tensors with at least one dim."""
    return _map_tensors("atleast_1d", tensors, _one)


def atleast_2d(*tensors: Any) -> Any:
    """The tensors with at least two dims."""
    return _map_tensors("atleast_2d", tensors, _two)


def atleast_3d(*tensors: Any) -> Any:
    """The tensors with at least three dims."""
    return _map_tensors("atleast_3d", tensors, _three)


def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that these shapes broadcast to."""
    return Size(rules.broadcast_shapes(*(sizes((s,), "broadcast_shapes") for s in shapes)))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors, expanded to one shape."""
    many = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    xs = tensor_list("broadcast_tensors", many)
    try:
        shape = rules.broadcast_shapes(*(x._type.shape for x in xs))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), "broadcast_tensors", *xs) from None
    return tuple(x if x._type.shape == shape else views.expand(x, shape) for x in xs)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid, one tensor for each dim."""
    many = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    xs = [_one(x) for x in tensor_list("meshgrid", many)]
    if indexing not in ("ij", "xy"):
        raise refuse(ShapeError, "indexing is 'ij' or 'xy'", "meshgrid", *xs, indexing=indexing)
    for x in xs:
        if x._type.ndim != 1:
            raise refuse(ShapeError, "needs tensors of at most one dim", "meshgrid", *xs)
        if x._type.dtype is not xs[0]._type.dtype:
            raise refuse(DTypeError, "dtypes differ", "meshgrid", *xs)
    swapped = indexing == "xy" and len(xs) > 1
    if swapped:
        xs[0], xs[1] = xs[1], xs[0]
    shape = tuple(x._type.shape[0] for x in xs)
    grids = [
        views.expand(views.reshape(x, tuple(n if e == d else 1 for e, n in enumerate(shape))), shape)
        for d, x in enumerate(xs)
    ]
    if swapped:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([views.reshape(grid, -1) for grid in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, as rows."""
    if input._type.ndim != 1 or r < 0:
        raise refuse(ShapeError, "needs a tensor of one dim, and r of 0 or more", "combinations", input, r=r)
    if r == 0:
        return creation.zeros(0, dtype=input._type.dtype)
    choices = list((chosen_again if with_replacement else chosen)(range(input._type.shape[0]), r))
    at = creation.tensor(choices, dtype=int64) if choices else creation.zeros((0, r), dtype=int64)
    return call(INDEX, (input, at), (("dims", (0,)),))


# -- joining along a certain dim -----------------------------------------------------------


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along their third dim."""
    return cat([_three(x) for x in tensor_list("dstack", tensors)], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate vectors and matrices as columns."""
    xs = tensor_list("column_stack", tensors)
    return cat([x if x._type.ndim > 1 else views.reshape(x, (x._type.numel, 1)) for x in xs], 1)


def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along their first dim."""
    return cat([_two(x) for x in tensor_list("row_stack", tensors)])


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with these matrices along its diagonal."""
    xs = [_two(require_tensor("block_diag", x)) for x in tensors]
    if not xs:
        return creation.zeros(1, 0)
    for x in xs:
        if x._type.ndim != 2:
            raise refuse(ShapeError, "needs tensors of at most two dims", "block_diag", *xs)
    columns = sum(x._type.shape[1] for x in xs)
    before, rows = 0, []
    for x in xs:
        after = columns - before - x._type.shape[1]
        rows.append(call(PAD, (x, 0), (("pads", ((0, 0), (before, after))),)))
        before += x._type.shape[1]
    return cat(rows)


# -- splitting -----------------------------------------------------------------------------


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor along a dim into n parts of almost equal size, or at the given positions."""
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if not input._type.ndim:
        raise refuse(ShapeError, "needs a tensor of at least one dim", "tensor_split", input, indices_or_sections)
    dim = views.dim_of("tensor_split", input, dim)
    size = input._type.shape[dim]
    if isinstance(indices_or_sections, int):
        n = indices_or_sections
        if n < 1:
            raise refuse(ShapeError, "needs at least one section", "tensor_split", input, n, dim=dim)
        each, more = divmod(size, n)
        return views.split(input, [each + (i < more) for i in range(n)], dim)
    ends = [slice(None, to_int(end, "tensor_split(): indices are ints")) for end in indices_or_sections]
    places = [0, *(end.indices(size)[1] for end in ends), size]
    return tuple(views.narrow(input, dim, start, max(end - start, 0)) for start, end in pairwise(places))


#: Dims in words, for docstrings.
ORDINALS = ("first", "second", "third")


def _splitter(name: str, least: int, dim: int) -> Any:
    def split(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        x = require_tensor(name, input)
        if x._type.ndim < least:
            raise refuse(ShapeError, f"needs a tensor of at least {least} dims", name, x, indices_or_sections)
        along = 0 if x._type.ndim == 1 else dim
        n = indices_or_sections
        if isinstance(n, int) and (n < 1 or x._type.shape[along] % n):
            raise refuse(ShapeError, f"{x._type.shape[along]} does not divide into {n} parts", name, x, n)
        return tensor_split(x, n, along)

    return documented(split, name, f"Split a tensor along its {ORDINALS[dim]} dim.")


hsplit, vsplit, dsplit, tensor_split = (
    with_aliases(split, sections="indices_or_sections", indices="indices_or_sections")
    for split in (_splitter("hsplit", 1, 1), _splitter("vsplit", 2, 0), _splitter("dsplit", 3, 2), tensor_split)
)

# -- reversing and rotating ----------------------------------------------------------------


def fliplr(input: Tensor) -> Tensor:
    """Reverse the second dim."""
    if input._type.ndim < 2:
        raise refuse(ShapeError, "needs a tensor of at least two dims", "fliplr", input)
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Reverse the first dim."""
    if not input._type.ndim:
        raise refuse(ShapeError, "needs a tensor of at least one dim", "flipud", input)
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate a plane of two dims by k quarter turns, from the first dim towards the second."""
    if len(dims) != 2 or input._type.ndim < 2:
        raise refuse(ShapeError, "turns in a plane of two dims", "rot90", input, k, dims=dims)
    a, b = views.dims_of("rot90", input, dims)
    quarter = k % 4
    if quarter == 0:
        return pointwise.clone(input)
    if quarter == 2:
        return flip(input, (a, b))
    return views.transpose(flip(input, b), a, b) if quarter == 1 else flip(views.transpose(input, a, b), b)


# -- repeating -----------------------------------------------------------------------------


def repeat_interleave(
    input: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Repeat each element, or each slice of a dim, one after the other.

    If ``repeats`` is a tensor, waits for the workers, unless ``output_size`` is passed.
    """
    if repeats is None:
        counts = require_tensor("repeat_interleave", input)
        return repeat_interleave(creation.arange(counts._type.numel), counts, 0, output_size=output_size)
    x = require_tensor("repeat_interleave", input)
    if dim is None:
        x, dim = views.reshape(x, -1 if x._type.numel else 0), 0
    x = _one(x)
    dim = views.dim_of("repeat_interleave", x, dim)
    n, shape = x._type.shape[dim], x._type.shape
    if isinstance(repeats, Tensor) and repeats._type.numel == 1 and n != 1:
        repeats = views.expand(views.reshape(repeats, 1), n)
    if isinstance(repeats, list | tuple):
        repeats = creation.tensor(repeats)
    if isinstance(repeats, Tensor):
        repeats = _one(repeats)
        if repeats._type.shape != (n,) or repeats._type.dtype.kind not in "iu":
            raise refuse(ShapeError, f"needs {n} whole numbers", "repeat_interleave", x, repeats, dim=dim)
        ends = scan.cumsum(repeats, 0)
        if output_size is None:
            output_size = int(ends[-1].item()) if n else 0
        order = call(SEARCHSORTED, (ends, creation.arange(output_size)), (("right", True), ("out_int32", False)))
        return index_select(x, dim, order)
    times = to_int(repeats, "repeat_interleave(): repeats is an int or a tensor")
    if times < 0:
        raise refuse(ShapeError, "repeats is 0 or more", "repeat_interleave", x, times, dim=dim)
    wide = (*shape[: dim + 1], times, *shape[dim + 1 :])
    spread = views.reshape(
        views.expand(views.unsqueeze(x, dim + 1), wide), (*shape[:dim], n * times, *shape[dim + 1 :])
    )
    return spread if spread._view is None else pointwise.clone(spread)


# -- as copies -----------------------------------------------------------------------------

P = ParamSpec("P")
R = TypeVar("R")


def _copying(name: str, view: Callable[P, R]) -> Callable[P, R]:
    function: Any = view

    def copied(input: Tensor, *args: Any, **options: Any) -> Any:
        result = function(input, *args, **options)
        return tuple(map(pointwise.clone, result)) if isinstance(result, tuple) else pointwise.clone(result)

    doc = f"A copy of `{name.removesuffix('_copy')}` instead of a view."
    return documented(copied, name, doc, view)  # type: ignore[return-value]


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor along a dim into parts of these sizes."""
    return views.split(input, tuple(split_sizes), dim)


unsafe_split, unsafe_chunk, unsafe_split_with_sizes = views.split, views.chunk, split_with_sizes
diagonal_copy = _copying("diagonal_copy", views.diagonal)
expand_copy = _copying("expand_copy", views.expand)
narrow_copy = _copying("narrow_copy", views.narrow)
permute_copy = _copying("permute_copy", views.permute)
select_copy = _copying("select_copy", views.select)
split_copy = _copying("split_copy", views.split)
split_with_sizes_copy = _copying("split_with_sizes_copy", split_with_sizes)
squeeze_copy = _copying("squeeze_copy", views.squeeze)
t_copy = _copying("t_copy", views.t)
transpose_copy = _copying("transpose_copy", views.transpose)
unbind_copy = _copying("unbind_copy", views.unbind)
unfold_copy = _copying("unfold_copy", views.unfold)
unsqueeze_copy = _copying("unsqueeze_copy", views.unsqueeze)
view_copy = _copying("view_copy", views.view)
