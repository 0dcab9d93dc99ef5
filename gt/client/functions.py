"""torch's functions that join, multiply, order and pick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client import pointwise, reductions, views
from gt.client.arguments import a_tensor, one_dim, operands, refuse, sizes, tensor_list, whole
from gt.client.emit import binary, call, call_many
from gt.client.reductions import ValuesAndIndices
from gt.client.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes

__all__ = [
    "argsort", "argwhere", "bmm", "cat", "concat", "concatenate", "dot", "flip", "gather", "hstack", "index_select",
    "masked_select", "matmul", "mm", "mv", "nonzero", "outer", "roll", "scatter_add", "sort", "stack", "tile", "topk",
    "tril", "triu", "vstack",
]  # fmt: skip

CAT, MATMUL, SORT, TOPK, GATHER = (OPS[name] for name in ("cat", "matmul", "sort", "topk", "gather"))
SCATTER_ADD, INDEX = OPS["scatter_add"], OPS["index"]
MASKED_SELECT, NONZERO, FLIP, ROLL = (OPS[name] for name in ("masked_select", "nonzero", "flip", "roll"))
REPEAT, TRIL, TRIU = (OPS[name] for name in ("repeat", "tril", "triu"))

# -- joining and repeating -----------------------------------------------------------------


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    xs = tensor_list("cat", tensors)
    return call(CAT, xs, (("dim", one_dim(dim, max(x._type.ndim for x in xs))),))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    xs = tensor_list("stack", tensors)
    for x in xs:
        if x._type.shape != xs[0]._type.shape:
            raise refuse(ShapeError, "shapes must be equal", "stack", *xs, dim=dim)
    dim = views.dim_of("stack", xs[0], dim, extra=1)
    return cat([views.unsqueeze(x, dim) for x in xs], dim)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    xs = [views.reshape(x, 1) if not x._type.ndim else x for x in tensor_list("hstack", tensors)]
    return cat(xs, 0 if xs[0]._type.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    xs = tensor_list("vstack", tensors)
    return cat([views.reshape(x, (1, x._type.numel)) if x._type.ndim < 2 else x for x in xs])


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    return call(REPEAT, (input,), (("repeats", sizes(repeats, "repeat")),))


def tile(input: Tensor, *dims: Any) -> Tensor:
    """`repeat`, with 1 for the dims not named."""
    given = sizes(dims, "tile")
    return repeat(input, (1,) * (input._type.ndim - len(given)) + given)


def flip(input: Tensor, *dims: Any) -> Tensor:
    ndim = input._type.ndim
    return call(FLIP, (input,), (("dims", tuple(one_dim(d, ndim) for d in sizes(dims, "flip"))),))


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    moved = sizes((shifts,), "roll")
    if dims is None:
        return views.reshape(roll(views.flatten(input), moved, 0), input._type.shape)
    ndim = input._type.ndim
    along = tuple(one_dim(d, ndim) for d in sizes((dims,), "roll"))
    return call(ROLL, (input,), (("shifts", moved), ("dims", along)))


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    return call(TRIL, (input,), (("diagonal", whole(diagonal, "tril(): the diagonal is an int")),))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    return call(TRIU, (input,), (("diagonal", whole(diagonal, "triu(): the diagonal is an int")),))


# -- products ------------------------------------------------------------------------------


def matmul(input: Tensor, other: Tensor) -> Tensor:
    return binary(MATMUL, a_tensor("matmul", input), a_tensor("matmul", other))


def _product(name: str, a: Any, b: Any, ndims: tuple[int, int]) -> Tensor:
    """`matmul` for operands of just these many dims."""
    a, b = a_tensor(name, a), a_tensor(name, b)
    if (a._type.ndim, b._type.ndim) != ndims:
        raise refuse(ShapeError, f"needs tensors of {ndims[0]} and {ndims[1]} dims; see matmul", name, a, b)
    return binary(MATMUL, a, b)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    return _product("dot", input, tensor, (1, 1))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    return _product("mv", input, vec, (2, 1))


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    return _product("mm", input, mat2, (2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    a, b = a_tensor("bmm", input), a_tensor("bmm", mat2)
    if a._type.ndim == b._type.ndim == 3 and a._type.shape[0] != b._type.shape[0]:
        raise refuse(ShapeError, f"batches differ: {a._type.shape[0]} and {b._type.shape[0]}", "bmm", a, b)
    return _product("bmm", a, b, (3, 3))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    a, b = a_tensor("outer", input), a_tensor("outer", vec2)
    if a._type.ndim != 1 or b._type.ndim != 1:
        raise refuse(ShapeError, "needs tensors of 1 and 1 dims", "outer", a, b)
    return pointwise.mul(views.unsqueeze(a, 1), b)


# -- order ---------------------------------------------------------------------------------


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesAndIndices:
    x = a_tensor("sort", input)
    attrs = (("dim", one_dim(dim, x._type.ndim)), ("descending", descending), ("stable", stable))
    return ValuesAndIndices(*call_many(SORT, (x,), attrs))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return sort(input, dim, descending, stable).indices


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    x = a_tensor("topk", input)
    attrs = (
        ("k", whole(k, "topk(): k is an int")),
        ("dim", one_dim(dim, x._type.ndim)),
        ("largest", largest),
        ("sorted", sorted),
    )
    return ValuesAndIndices(*call_many(TOPK, (x,), attrs))


# -- picking -------------------------------------------------------------------------------


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    x = a_tensor("gather", input)
    return call(GATHER, (x, a_tensor("gather", index)), (("dim", one_dim(dim, x._type.ndim)),))


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    given = operands("scatter_add", input, index, src)
    return call(SCATTER_ADD, given, (("dim", one_dim(dim, input._type.ndim)),))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = views.dim_of("index_select", input, dim)
    if not isinstance(index, Tensor) or index._type.ndim != 1:
        raise refuse(DTypeError, "the index is a tensor of one dim", "index_select", input, index, dim=dim)
    return call(INDEX, (input, index), (("dims", (dim,)),))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Reads how many elements the mask chooses."""
    x, mask = a_tensor("masked_select", input), a_tensor("masked_select", mask)
    try:
        shape = broadcast_shapes(x._type.shape, mask._type.shape)
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), "masked_select", x, mask) from None
    x, mask = _stretched(x, shape), _stretched(mask, shape)
    return call(MASKED_SELECT, (x, mask), (("n", count(mask)),))


def _stretched(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x._type.shape == shape else views.expand(x, shape)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Reads how many there are."""
    x = a_tensor("nonzero", input)
    if as_tuple and not x._type.ndim:
        x = views.reshape(x, 1)
    found = call(NONZERO, (x,), (("n", count(x)),))
    return views.unbind(found, 1) if as_tuple else found


def argwhere(input: Tensor) -> Any:
    return nonzero(input)


def count(x: Tensor) -> int:
    """How many elements are not zero, which is waited for: a shape depends on it."""
    return int(reductions.count_nonzero(x).item())
