"""torch's functions that read and write at positions: the scatter, index and take families, each in place too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast, normalize_dim, operands, refuse, require_tensor
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, views
from gt.functions.derive import documented, with_prefix
from gt.functions.indexing import positions
from gt.ops import OPS, Attrs, Op
from gt.ops.infer import broadcast_shapes
from gt.types import bool_, int64

__all__ = [
    "diagonal_scatter", "fill", "gather", "index_add", "index_copy", "index_fill", "index_put", "index_reduce",
    "index_select", "put", "scatter", "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter", "take",
    "take_along_dim",
]  # fmt: skip

GATHER, SCATTER, SCATTER_ADD, SCATTER_REDUCE = OPS["gather"], OPS["scatter"], OPS["scatter_add"], OPS["scatter_reduce"]
INDEX, INDEX_PUT, COPY = OPS["index"], OPS["index_put"], OPS["copy"]

#: (op, operands after the first, attributes): what a function and its in-place form have in common
Call = tuple[Op, tuple[Any, ...], Attrs]


#: torch's words for what `scatter` does with the value that is there -> the op's words
SCATTER_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def _both(plan: Callable[..., Call]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A function and its in-place form, from their common plan: ``_scatter`` gives `scatter` and ``scatter_``."""
    name = plan.__name__.removeprefix("_")

    def function(input: Tensor, *args: Any, **options: Any) -> Tensor:
        x = require_tensor(name, input)
        op, rest, attrs = plan(x, *args, **options)
        return call(op, (x, *rest), attrs)

    def in_place(input: Tensor, *args: Any, **options: Any) -> Tensor:
        op, rest, attrs = plan(input, *args, **options)
        return call_into(op, input, rest, attrs)

    documented(function, name, with_prefix("In a copy: ", plan.__doc__), plan)
    documented(in_place, name + "_", with_prefix("In place: ", plan.__doc__), plan)
    return function, in_place


# -- gather --------------------------------------------------------------------------------


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Elements along a dim at the positions in index."""
    x = require_tensor("gather", input)
    return call(GATHER, (x, require_tensor("gather", index)), (("dim", normalize_dim(dim, x._type.ndim)),))


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy with the elements of src added at the positions in index."""
    arguments = operands("scatter_add", input, index, src)
    return call(SCATTER_ADD, arguments, (("dim", normalize_dim(dim, input._type.ndim)),))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of a dim with these numbers."""
    dim = views.dim_of("index_select", input, dim)
    if not isinstance(index, Tensor) or index._type.ndim > 1:
        raise refuse(DTypeError, "the index is a tensor of one dim", "index_select", input, index, dim=dim)
    index = index if index._type.ndim else views.reshape(index, 1)
    if not input._type.ndim:
        return views.reshape(index_select(views.reshape(input, 1), 0, index), ())
    return call(INDEX, (input, index), (("dims", (dim,)),))


# -- scatter -------------------------------------------------------------------------------


def _scatter(
    x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Call:
    """Write the elements of src, or a value, at the positions in index."""
    source = value if src is None else src
    if source is None:
        raise refuse(DTypeError, "needs src or value", "scatter", x, index, dim=dim)
    is_number = not isinstance(source, Tensor) and not getattr(source, "ndim", 0)
    _, index, source = operands("scatter", x, index, source)
    dim = normalize_dim(dim, x._type.ndim)
    if is_number:
        source = pointwise.fitting("scatter", x, source)
        if isinstance(source, Tensor):  # a complex number
            source = views.expand(source, index._type.shape)
    if reduce is None:
        return SCATTER, (index, source), (("dim", dim),)
    how = SCATTER_REDUCTIONS.get(reduce)
    if how is None:
        raise refuse(ShapeError, "reduce is 'add' or 'multiply'", "scatter", x, index, reduce=reduce)
    if not isinstance(source, Tensor):
        source = creation.full(index._type.shape, source, dtype=x._type.dtype)
    return SCATTER_REDUCE, (index, source), (("dim", dim), ("reduce", how), ("include_self", True))


def _scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Call:
    """Combine the elements of src with those at the positions in index."""
    rest = operands("scatter_reduce", x, index, src)[1:]
    attrs = (("dim", normalize_dim(dim, x._type.ndim)), ("reduce", reduce), ("include_self", include_self))
    return SCATTER_REDUCE, rest, attrs


scatter, scatter_ = _both(_scatter)
scatter_reduce, scatter_reduce_ = _both(_scatter_reduce)

# -- whole slices --------------------------------------------------------------------------


def _index_of(name: str, x: Tensor, dim: int, index: Any) -> tuple[int, Tensor]:
    index = require_tensor(name, index)
    if index._type.ndim > 1:
        raise refuse(ShapeError, "the index has at most one dim", name, x, index, dim=dim)
    return views.dim_of(name, x, dim), views.reshape(index, 1) if not index._type.ndim else index


def _source(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    shape = x._type.shape
    want = (*shape[:dim], index._type.numel, *shape[dim + 1 :])
    if source._type.dtype is not x._type.dtype:
        text = f"dtypes differ: {x._type.dtype.name} and {source._type.dtype.name}"
        raise refuse(DTypeError, text, name, x, index, source, dim=dim)
    if source._type.shape != want and not (source._type.ndim == 0 and index._type.numel == 1):
        raise refuse(ShapeError, f"the source has shape {list(want)}", name, x, index, source, dim=dim)
    return source


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Call:
    """Add the slices of source to those with these numbers."""
    dim, index = _index_of("index_add", x, dim, index)
    source = _source("index_add", x, dim, index, require_tensor("index_add", source))
    if alpha != 1 and x._type.dtype is bool_:
        source = pointwise.mul(source, bool(alpha))
    elif alpha != 1:
        source = pointwise.scaled("index_add", x, source, alpha)
    return INDEX_PUT, (source, index), (("dims", (dim,)), ("accumulate", True))


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Call:
    """Replace the slices with these numbers."""
    dim, index = _index_of("index_copy", x, dim, index)
    source = _source("index_copy", x, dim, index, require_tensor("index_copy", source))
    return INDEX_PUT, (source, index), (("dims", (dim,)), ("accumulate", False))


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Call:
    """Fill the slices with these numbers with a value."""
    dim, index = _index_of("index_fill", x, dim, index)
    return INDEX_PUT, (pointwise.fitting("index_fill", x, value), index), (("dims", (dim,)), ("accumulate", False))


#: torch's words for what `index_reduce` does with values for one position
INDEX_REDUCTIONS = ("prod", "mean", "amax", "amin")


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Call:
    """Combine the slices of source with those with these numbers."""
    dim, index = _index_of("index_reduce", x, dim, index)
    source = _source("index_reduce", x, dim, index, require_tensor("index_reduce", source))
    if reduce not in INDEX_REDUCTIONS:
        raise refuse(ShapeError, f"reduce is one of {', '.join(INDEX_REDUCTIONS)}", "index_reduce", x, reduce=reduce)
    shape = source._type.shape
    wide = views.reshape(index, tuple(n if d == dim else 1 for d, n in enumerate(shape)))
    attrs = (("dim", dim), ("reduce", reduce), ("include_self", include_self))
    return SCATTER_REDUCE, (views.expand(cast(wide, int64), shape), source), attrs


def _index_put(x: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Call:
    """Replace the elements at the positions in indices, or add to them."""
    values = operands("index_put", x, values)[1]
    dims, index_tensors = positions(indices)
    return INDEX_PUT, (values, *index_tensors), (("dims", dims), ("accumulate", accumulate))


def _along_rows(
    pair: tuple[Callable[..., Tensor], Callable[..., Tensor]],
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The same functions; a 0-d tensor is treated as a tensor of one element."""
    function, in_place = pair

    def of_rows(input: Tensor, dim: int, index: Any, source: Any, *args: Any, **options: Any) -> Tensor:
        if isinstance(input, Tensor) and not input._type.ndim:
            row, source = views.reshape(input, 1), _row(source)
            return views.reshape(function(row, dim, index, source, *args, **options), ())
        return function(input, dim, index, source, *args, **options)

    def of_rows_(input: Tensor, dim: int, index: Any, source: Any, *args: Any, **options: Any) -> Tensor:
        if not input._type.ndim:
            in_place(views.reshape(input, 1), dim, index, _row(source), *args, **options)
            return input
        return in_place(input, dim, index, source, *args, **options)

    for outer, inner in ((of_rows, function), (of_rows_, in_place)):
        documented(outer, inner.__name__, inner.__doc__ or "", inner)
    return of_rows, of_rows_


def _row(source: Any) -> Any:
    return views.reshape(source, 1) if isinstance(source, Tensor) and not source._type.ndim else source


index_add, index_add_ = _along_rows(_both(_index_add))
index_copy, index_copy_ = _along_rows(_both(_index_copy))
index_reduce, index_reduce_ = _along_rows(_both(_index_reduce))
_fill, _fill_ = _both(_index_fill)
index_put, index_put_ = _both(_index_put)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """In a copy: fill the slices with these numbers with a value."""
    if isinstance(value, Tensor) and value._node is not None and input._type.ndim:
        return _fill_by_mask(input, dim, index, pointwise.fitting("index_fill", input, value))
    if not input._type.ndim:
        return views.reshape(_fill(views.reshape(input, 1), dim, index, value), ())
    return _fill(input, dim, index, value)


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """In place: fill the slices with these numbers with a value."""
    if isinstance(value, Tensor) and value._node is not None:
        return call_into(COPY, input, (index_fill(input, dim, index, value),))
    _fill_(input if input._type.ndim else views.reshape(input, 1), dim, index, value)
    return input


def _fill_by_mask(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """`index_fill` by a mask: an index that appears twice must not count twice in the value's gradient."""
    dim, index = _index_of("index_fill", x, dim, index)
    mask = creation.zeros(x._type.shape[dim], dtype=bool_)
    call_into(INDEX_PUT, mask, (True, index), (("dims", (0,)), ("accumulate", False)))
    result: Tensor = pointwise.where(views.reshape(mask, (-1, *(1,) * (x._type.ndim - dim - 1))), value, x)
    return result


# -- flattened -----------------------------------------------------------------------------


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements at positions in the flattened tensor."""
    x, index = require_tensor("take", input), require_tensor("take", index)
    if index._type.dtype is not int64:
        raise refuse(DTypeError, "the index is int64", "take", x, index)
    return call(INDEX, (_flattened(x), index), (("dims", (0,)),))


def _flattened(x: Tensor) -> Tensor:
    return views.reshape(x, (x._type.numel,))


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with elements written at positions of the flattened tensor."""
    return put_(pointwise.clone(require_tensor("put", input)), index, source, accumulate)


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """In place: write elements at positions of the flattened tensor."""
    index, source = require_tensor("put", index), require_tensor("put", source)
    if index._type.numel != source._type.numel or source._type.dtype is not input._type.dtype:
        text = "the source has the tensor's dtype and as many elements as the index"
        raise refuse(ShapeError, text, "put", input, index, source)
    rest = (_flattened(source), _flattened(index))
    flat = input if input._type.ndim == 1 else views.view(input, -1) if input._type.numel else _flattened(input)
    call_into(INDEX_PUT, flat, rest, (("dims", (0,)), ("accumulate", accumulate)))
    return input


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements along a dim at the positions in indices."""
    x, indices = require_tensor("take_along_dim", input), require_tensor("take_along_dim", indices)
    if indices._type.dtype is not int64:
        raise refuse(DTypeError, "the indices are int64", "take_along_dim", x, indices, dim=dim)
    if dim is None:
        return gather(_flattened(x), 0, _flattened(indices))
    if x._type.ndim != indices._type.ndim:
        raise refuse(ShapeError, "both need equally many dims", "take_along_dim", x, indices, dim=dim)
    dim = views.dim_of("take_along_dim", x, dim)
    rest_x, rest_indices = ([n for d, n in enumerate(t._type.shape) if d != dim] for t in (x, indices))
    try:
        rest = list(broadcast_shapes(tuple(rest_x), tuple(rest_indices)))
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), "take_along_dim", x, indices, dim=dim) from None
    if not x._type.ndim:
        return gather(x, 0, indices)
    indices = pointwise.where(indices < 0, indices + x._type.shape[dim], indices)
    wide = [views.expand(t, (*rest[:dim], t._type.shape[dim], *rest[dim:])) for t in (x, indices)]
    return gather(wide[0], dim, wide[1])


# -- fill ----------------------------------------------------------------------------------


def fill(input: Tensor, value: Any) -> Tensor:
    """A copy filled with one value."""
    return call(COPY, (input, pointwise.fitting("fill", input, value)))


# -- a copy with a part replaced -----------------------------------------------------------


def _replaced(name: str, x: Tensor, src: Any, part: Callable[[Tensor], Tensor]) -> Tensor:
    result = pointwise.clone(require_tensor(name, x))
    place, src = part(result), require_tensor(name, src)
    if place._type.shape != src._type.shape:
        raise refuse(ShapeError, f"the source has shape {list(place._type.shape)}", name, x, src)
    place.copy_(src)
    return result


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with one slice of a dim replaced."""
    return _replaced("select_scatter", input, src, lambda x: views.select(x, dim, index))


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy with a diagonal replaced."""
    return _replaced("diagonal_scatter", input, src, lambda x: views.diagonal(x, offset, dim1, dim2))


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy with a range of slices of a dim replaced."""
    dim = views.dim_of("slice_scatter", input, dim)
    at = (slice(None),) * dim + (slice(start, end, step),)
    return _replaced("slice_scatter", input, src, lambda x: x[at])


#: in-place forms, attached by `gt.functions.methods`
INPLACE: dict[str, Callable[..., Tensor]] = {
    "scatter_": scatter_,
    "scatter_reduce_": scatter_reduce_,
    "index_add_": index_add_,
    "index_copy_": index_copy_,
    "index_fill_": index_fill_,
    "index_put_": index_put_,
    "index_reduce_": index_reduce_,
    "put_": put_,
}
