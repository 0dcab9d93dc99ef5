"""torch's functions that join, pad, order and pick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.tensor.arguments import a_tensor, by_numpy_names, one_dim, operands, refuse, sizes, tensor_list, whole
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, reduce, views
from gt.functions.reduce import ValuesAndIndices
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import int64

__all__ = [
    "argsort", "argwhere", "cat", "concat", "concatenate", "flip", "gather", "hstack", "index_select", "masked_select",
    "nonzero", "roll", "scatter_add", "sort", "stack", "tile", "topk", "tril", "triu", "vstack",
]  # fmt: skip

CAT, SORT, TOPK, GATHER, PAD = (OPS[name] for name in ("cat", "sort", "topk", "gather", "pad"))
SCATTER_ADD, INDEX = OPS["scatter_add"], OPS["index"]
MASKED_SELECT, NONZERO, FLIP, ROLL = (OPS[name] for name in ("masked_select", "nonzero", "flip", "roll"))
REPEAT, TRIL, TRIU, TO = (OPS[name] for name in ("repeat", "tril", "triu", "to"))

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


def repeat(input: Tensor, *given: Any, repeats: Any = None) -> Tensor:
    return call(REPEAT, (input,), (("repeats", sizes(given if repeats is None else (repeats,), "repeat")),))


def tile(input: Tensor, *given: Any, dims: Any = None) -> Tensor:
    """`repeat`, with 1 for the dims not named."""
    given = sizes(given if dims is None else (dims,), "tile")
    return repeat(input, (1,) * (input._type.ndim - len(given)) + given)


def flip(input: Tensor, *given: Any, dims: Any = None) -> Tensor:
    ndim, given = input._type.ndim, given if dims is None else (dims,)
    return call(FLIP, (input,), (("dims", tuple(one_dim(d, ndim) for d in sizes(given, "flip"))),))


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


# -- borders -------------------------------------------------------------------------------


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`torch.nn.functional.pad`: pairs of sizes, the last dim's first; a negative size takes away."""
    x, given = a_tensor("pad", input), sizes((pad,), "pad")
    if len(given) % 2 or len(given) > 2 * x._type.ndim:
        text = f"needs pairs of sizes, for at most {x._type.ndim} dims"
        raise refuse(ShapeError, text, "pad", x, given, mode=mode)
    missing = x._type.ndim - len(given) // 2
    pads = ((0, 0),) * missing + tuple(zip(given[::2], given[1::2], strict=True))[::-1]
    if mode == "constant":
        fill = 0 if value is None else value
        return call(PAD, (x, pointwise.fitting("pad", x, fill)), (("pads", pads),))
    if mode not in _BORDERS:
        raise refuse(ShapeError, "mode is constant, reflect, replicate or circular", "pad", x, given, mode=mode)
    if value:
        raise refuse(ShapeError, f"mode {mode} takes no value", "pad", x, given, value=value)
    if missing not in (1, 2) or x._type.ndim - missing not in (1, 2, 3):
        text = "pads the last 1 to 3 dims of a tensor with one or two more"
        raise refuse(ShapeError, text, "pad", x, given, mode=mode)
    for dim, (before, after) in enumerate(pads):
        if mode == "circular" and min(before, after) < 0:  # it goes round what is left
            kept = x._type.shape[dim] + min(before, 0) + min(after, 0)
            x = views.narrow(x, dim, max(-before, 0), kept)
            before, after = max(before, 0), max(after, 0)
        if before or after:
            x = _bordered(x, dim, before, after, mode)
    return x


#: (position, size) -> the position whose element stands there
_BORDERS: dict[str, Any] = {
    "reflect": lambda at, n: at if 0 <= at < n else -at if at < 0 else 2 * (n - 1) - at,
    "replicate": lambda at, n: min(max(at, 0), n - 1),
    "circular": lambda at, n: at % n,
}


def _bordered(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    n = x._type.shape[dim]
    most = {"reflect": n - 1, "circular": n, "replicate": max(before, after)}[mode]
    if max(before, after) > most or n + before + after < 1 or not n:
        text = f"a border of {max(before, after)} is too wide for dim {dim} of size {n}"
        raise refuse(ShapeError, text, "pad", x, mode=mode)
    at = [_BORDERS[mode](i, n) for i in range(-before, n + after)]
    return call(INDEX, (x, creation.tensor(at, dtype=int64)), (("dims", (dim,)),))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """`torch.nn.functional.one_hot`; reads the largest class if their number is not given."""
    x = a_tensor("one_hot", tensor)
    if x._type.dtype is not int64:
        raise refuse(DTypeError, "the classes are int64", "one_hot", x, num_classes=num_classes)
    if num_classes < 1:
        if num_classes != -1 or not x._type.numel:
            raise refuse(ShapeError, "the number of classes must be given", "one_hot", x, num_classes=num_classes)
        num_classes = int(reduce.amax(x).item()) + 1
    hot = pointwise.eq(views.unsqueeze(x, -1), creation.arange(num_classes))
    return call(TO, (hot,), (("dtype", "int64"),))


# -- order ---------------------------------------------------------------------------------


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False) -> ValuesAndIndices:
    x = a_tensor("sort", input)
    attrs = (("dim", one_dim(dim, x._type.ndim)), ("descending", descending), ("stable", bool(stable)))
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


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    x = a_tensor("gather", input)
    return call(GATHER, (x, a_tensor("gather", index)), (("dim", one_dim(dim, x._type.ndim)),))


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    given = operands("scatter_add", input, index, src)
    return call(SCATTER_ADD, given, (("dim", one_dim(dim, input._type.ndim)),))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = views.dim_of("index_select", input, dim)
    if not isinstance(index, Tensor) or index._type.ndim > 1:
        raise refuse(DTypeError, "the index is a tensor of one dim", "index_select", input, index, dim=dim)
    index = index if index._type.ndim else views.reshape(index, 1)
    if not input._type.ndim:
        return views.reshape(index_select(views.reshape(input, 1), 0, index), ())
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
    return int(reduce.count_nonzero(x).item())


cat, concat, concatenate, stack = map(by_numpy_names, (cat, concat, concatenate, stack))
sort, argsort = by_numpy_names(sort), by_numpy_names(argsort)
