"""Ops that pick elements by position, and ops that write them there.

Basic indexing is the view `slice`. Its starts are operands, not attributes: a loop over rows is one signature. What a
write leaves untouched is part of its result: each ``…put…`` op gives the whole tensor.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.elements import element, single_element
from gt.ops.infer import assignable, broadcast_shapes, own_dims, require_bools, require_ints, shown, sizes
from gt.ops.op import EITHER, OPS, Attrs, op
from gt.ops.positions import in_dims
from gt.ops.split import shaped
from gt.ops.splits_index import (
    indexing,
    indexing_back,
    placing,
    put,
    put_back,
    putting,
    putting_back,
    sliced,
    slicing,
)  # fmt: skip
from gt.types import INT, OperandType, Scalar, Shape, TensorType, int32, int64

#: ("i",), ("s", length, step) or ("n",)
Item = tuple[Any, ...]
Dims = tuple[int, ...]

# -- basic indexing ------------------------------------------------------------------------


def _taken(items: tuple[Item, ...]) -> int:
    """How many dims, and so how many starts, an index expression takes up."""
    return sum(item[0] != "n" for item in items)


def _sliced(x: TensorType, *starts: OperandType, items: tuple[Item, ...]) -> TensorType:
    for item in items:
        if item not in (("i",), ("n",)) and (len(item) != 3 or item[0] != "s"):
            raise DimError(f"an index is ('i',), ('n',) or ('s', length, step), not {item}")
    if _taken(items) != x.ndim or len(starts) != x.ndim:
        raise DimError(f"{_taken(items)} indices with {len(starts)} starts for {x.ndim} dims")
    if any(start is not INT for start in starts):  # in a chain of views, nobody else has looked
        raise DTypeError("the starts are ints")
    dims = iter(x.shape)
    # a size for a slice, 1 for a new axis, and none for an int
    pieces = [(1,) if item[0] == "n" else _piece(next(dims), *item) for item in items]
    return TensorType(tuple(n for piece in pieces for n in piece), x.dtype)


def _piece(size: int, kind: str, length: int = 1, step: int = 1) -> Shape:
    require_ints(length=length, step=step)
    if step < 1:
        raise ShapeError(f"step {step} must be at least 1; flip the dim to go backwards")
    if length < 0 or (length > 0 and (length - 1) * step >= size):
        raise DimError(f"{length} elements with step {step} are not within size {size}")
    return () if kind == "i" else (length,)


def _slice(xp: Any, x: Any, *starts: int, items: tuple[Item, ...]) -> Any:
    at = zip(starts, x.shape, strict=True)
    # the ellipsis keeps numpy from making a scalar, which is no view, of a single element
    return x[(*(None if item[0] == "n" else _part(*next(at), *item) for item in items), ...)]


def _part(start: int, size: int, kind: str, length: int = 1, step: int = 1) -> int | slice:
    """Python would cut a slice that reaches beyond the end; its length is part of the result's type."""
    last = start + (length - 1) * step if length else start - 1
    if start < 0 or last >= size:
        raise IndexError(f"{length} elements with step {step} from {start} on are not within size {size}")
    return start if kind == "i" else slice(start, start + length * step, step)


def _max_start(size: int, kind: str, length: int = 1, step: int = 1) -> int:
    """The largest start that `_part` accepts."""
    return size - 1 - (length - 1) * step if length else size


def _slice_back(needs: Any, g: Any, _y: Any, _x: Any, *starts: int, items: tuple[Item, ...]) -> list[Any]:
    chain = (("slice", (("items", items),)),)
    return [g._op("view_backward", *starts, chain=chain, shape=tuple(_x.shape)), *(None,) * len(starts)]


op("slice", operands="ti*", infer=_sliced, split=slicing, local=sliced, view=True, vjp=_slice_back, kernel=_slice)

# -- writing into views --------------------------------------------------------------------

#: ((view op's name, its attributes), …): how a view was made from its base
Chain = tuple[tuple[str, Attrs], ...]


def viewed(base: Any, starts: tuple[Any, ...], chain: Chain, step: Any) -> Any:
    """The base through every op of the chain; each takes the starts it needs."""
    for name, attrs in chain:
        given = dict(attrs)
        count = _taken(given["items"]) if "items" in given else 0
        base, starts = step(OPS[name], base, starts[:count], given), starts[count:]
    if starts:
        raise DimError(f"{len(starts)} starts too many for the chain of views")
    return base


def max_starts(base: TensorType, chain: Chain) -> tuple[int, ...]:
    """The largest valid value of each start in a chain of views."""
    limits: list[int] = []

    def step(via: Any, x: TensorType, starts: tuple[OperandType, ...], attrs: dict[str, Any]) -> Any:
        if starts:
            taken = [item for item in attrs["items"] if item[0] != "n"]
            limits.extend(_max_start(n, *item) for n, item in zip(x.shape, taken, strict=True))
        return via.infer(x, *starts, **attrs)

    items = [given["items"] for given in (dict(attrs) for _, attrs in chain) if "items" in given]
    viewed(base, (INT,) * sum(map(_taken, items)), chain, step)
    return tuple(limits)


def _view_type(via: Any, x: TensorType, starts: tuple[OperandType, ...], attrs: dict[str, Any]) -> TensorType:
    made = via.infer(x, *starts, **attrs)
    if not via.view or isinstance(made, tuple):
        raise ShapeError(f"{via.name} does not make one view")
    if made.numel > x.numel or (
        via.name == "unfold" and attrs["step"] < attrs["size"] and made.shape[attrs["dim"]] > 1
    ):
        raise ShapeError(f"{via.name} shows elements more than once; write into a clone")
    return TensorType(made.shape, made.dtype)


def _put(base: TensorType, value: OperandType, *starts: OperandType, chain: Chain) -> TensorType:
    assignable(value, viewed(base, starts, chain, _view_type).shape)
    return base


def fitting(value: Any, ndim: int) -> Any:
    """Without the leading sizes of 1 that torch overlooks in an assignment."""
    return value.reshape(value.shape[value.ndim - ndim :]) if value.ndim > ndim else value


def _put_torch(torch: Any, base: Any, value: Any, *starts: int, chain: Chain) -> Any:
    whole = base if base.is_contiguous() else base.contiguous()
    view = viewed(whole, starts, chain, lambda via, x, at, attrs: (via.torch or via.kernel)(torch, x, *at, **attrs))
    if view.numel() and view.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        raise RuntimeError(f"put_view: {shown(base.shape)} has no view through {chain}; write into a reshape's base")
    if isinstance(value, torch.Tensor):
        view.copy_(fitting(value, view.ndim))
    else:
        view.fill_(value)
    return base if whole is base else base.copy_(whole)


def _put_numpy(np: Any, base: Any, value: Any, *starts: int, chain: Chain) -> Any:
    whole = np.array(base, order="C")
    view = viewed(whole, starts, chain, lambda via, x, at, attrs: (via.numpy or via.kernel)(np, x, *at, **attrs))
    if view.size and not np.may_share_memory(view, whole):
        raise RuntimeError(f"put_view: {shown(base.shape)} has no view through {chain}; write into a reshape's base")
    view[...] = _filling(np, value, view.ndim, whole.dtype, element)
    return whole


def _filling(np: Any, value: Any, ndim: int, dtype: Any, convert: Any) -> Any:
    """What is assigned to so many dims of a numpy array."""
    return fitting(value, ndim).astype(dtype) if isinstance(value, np.ndarray) else convert(np, value, dtype)


def assigned(g: Any, value: Any) -> Any:
    """The gradient of what was assigned, with the leading sizes of 1 that were overlooked."""
    extra = value.ndim - g.ndim
    return g.reshape((1,) * extra + tuple(g.shape)) if extra > 0 else g


def _through(g: Any, starts: tuple[int, ...], chain: Chain) -> Any:
    return viewed(g, starts, chain, lambda via, x, at, attrs: x._op(via.name, *at, **attrs))


def _put_back(needs: Any, g: Any, _y: Any, _base: Any, _value: Any, *starts: int, chain: Chain) -> list[Any]:
    return [
        g._op("put_view", 0, *starts, chain=chain) if needs[0] else None,
        assigned(_through(g, starts, chain), _value) if needs[1] else None,
        *(None,) * len(starts),
    ]


op(
    "put_view",
    operands=f"t{EITHER}i*",
    infer=_put,
    split=putting,
    local=put,
    vjp=_put_back,
    torch=lambda torch, base, *rest, chain: _put_torch(
        torch, base.clone(memory_format=torch.contiguous_format), *rest, chain=chain
    ),
    kernel=_put_numpy,
    inplace=_put_torch,
)


def _shown_in(g: TensorType, *starts: OperandType, chain: Chain, shape: Shape) -> TensorType:
    """Zeros of this shape, but for g in the view the chain makes of them."""
    made = TensorType(sizes(shape), g.dtype)
    seen = viewed(made, starts, chain, _view_type).shape
    if seen != g.shape:
        raise ShapeError(f"{shown(g.shape)} is not the view's shape {shown(seen)}")
    return made


op(
    "view_backward",
    operands="ti*",
    infer=_shown_in,
    split=putting_back,
    local=put_back,
    vjp=lambda needs, g, _y, _x, *starts, chain, shape: [_through(g, starts, chain), *(None,) * len(starts)],
    torch=lambda torch, g, *starts, chain, shape: _put_torch(torch, g.new_zeros(shape), g, *starts, chain=chain),
    kernel=lambda np, g, *starts, chain, shape: _put_numpy(np, np.zeros(shape, dtype=g.dtype), g, *starts, chain=chain),
)

# -- by tensors of positions ---------------------------------------------------------------


def positions(indices: tuple[OperandType, ...]) -> Shape:
    for i in indices:
        if isinstance(i, Scalar) or i.dtype not in (int64, int32):
            raise DTypeError(f"an index is an int64 or int32 tensor, not {i}; use x.to(gt.int64)")
    return broadcast_shapes(*(i.shape for i in indices if isinstance(i, TensorType)))


def _picked(x: TensorType, *indices: OperandType, dims: Dims) -> TensorType:
    if not dims or len(dims) != len(indices):
        raise DimError(f"{len(indices)} indices for the dims {dims}")
    own_dims(dims, x.ndim)
    if not x.ndim or list(dims) != sorted(dims):
        raise DimError(f"dims {dims} must be dims of the tensor, in order")
    picked = positions(indices)
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    # next to each other, the picked dims stay where they were; apart, they go to the front
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    empty = [d for d in dims if not x.shape[d]]
    if empty and 0 not in picked:
        raise DimError(f"dim {empty[0]} has size 0: there is nothing to index")
    return TensorType((*rest[:front], *picked, *rest[front:]), x.dtype)


def _expression(indices: Any, dims: Dims) -> tuple[Any, ...]:
    at = dict(zip(dims, indices, strict=True))
    return tuple(at.get(d, slice(None)) for d in range(dims[-1] + 1))


def _within(np: Any, x: Any, indices: tuple[Any, ...]) -> list[Any]:
    """Of a tensor without elements torch picks nothing, whatever the indices are; numpy would look at them."""
    stretched: list[Any] = np.broadcast_arrays(*indices)
    return stretched if x.size else [np.zeros_like(i) for i in stretched]


def _optional(indices: tuple[Any, ...], dims: Dims) -> list[Any]:
    at = dict(zip(dims, indices, strict=True))
    return [at.get(d) for d in range(dims[-1] + 1)]


def _index_torch(torch: Any, x: Any, *indices: Any, dims: Dims) -> Any:
    if all(i.ndim for i in indices):
        return x[_expression(indices, dims)]
    # in brackets torch takes a 0-d index for a number: it would wait for the GPU, and give a view
    return torch.ops.aten.index.Tensor(x, _optional(indices, dims))


def _index_back(needs: Any, g: Any, _y: Any, _x: Any, *indices: Any, dims: Dims) -> list[Any]:
    return [g._op("index_backward", *indices, dims=dims, shape=tuple(_x.shape)), *(None,) * len(indices)]


op(
    "index",
    infer=_picked,
    positions=lambda x, *indices, dims: in_dims(x.shape, dims, 1),
    split=indexing,
    vjp=_index_back,
    torch=_index_torch,
    kernel=lambda np, x, *indices, dims: np.array(x[_expression(_within(np, x, indices), dims)]),
)


def castable(x: TensorType, value: OperandType) -> None:
    """torch casts a number or a 0-d tensor in an assignment by position, and nothing else."""
    if isinstance(value, TensorType) and value.ndim and value.dtype is not x.dtype:
        raise DTypeError(f"dtypes differ: {x.dtype.name} and {value.dtype.name}")


def _placed(x: TensorType, value: OperandType, *indices: OperandType, dims: Dims, accumulate: bool) -> TensorType:
    require_bools(accumulate=accumulate)
    assignable(value, _picked(x, *indices, dims=dims).shape)
    castable(x, value)
    return x


def _place_torch(torch: Any, x: Any, value: Any, *indices: Any, dims: Dims, accumulate: bool) -> Any:
    ndim = x.ndim - len(dims) + max(i.ndim for i in indices)
    value = fitting(value, ndim).to(x.dtype) if isinstance(value, torch.Tensor) else x.new_full((), value)
    return torch.ops.aten.index_put_(x, _optional(indices, dims), value, accumulate)


def _place_numpy(np: Any, x: Any, value: Any, *indices: Any, dims: Dims, accumulate: bool) -> Any:
    made, at = x.copy(), _expression(_within(np, x, indices), dims)
    value = _filling(np, value, made[at].ndim, x.dtype, single_element)
    if accumulate:
        np.add.at(made, at, value)
    else:
        made[at] = value
    return made


def _place_back(
    needs: Any, g: Any, _y: Any, _x: Any, _value: Any, *indices: Any, dims: Dims, accumulate: bool
) -> list[Any]:
    kept = g if accumulate or not needs[0] else g._op("index_put", 0, *indices, dims=dims, accumulate=False)
    put = assigned(g._op("index", *indices, dims=dims), _value) if needs[1] else None
    return [kept, put, *(None,) * len(indices)]


op(
    "index_put",
    operands=f"t{EITHER}t+",
    infer=_placed,
    positions=lambda x, value, *indices, dims, accumulate: in_dims(x.shape, dims, 2),
    split=placing,
    vjp=_place_back,
    torch=lambda torch, x, *rest, **attrs: _place_torch(torch, x.clone(), *rest, **attrs),
    kernel=_place_numpy,
    inplace=_place_torch,
)


def _gathered_back(g: TensorType, *indices: OperandType, dims: Dims, shape: Shape) -> TensorType:
    """Zeros of this shape, with g added at the indices."""
    return _placed(TensorType(sizes(shape), g.dtype), g, *indices, dims=dims, accumulate=True)


op(
    "index_backward",
    infer=_gathered_back,
    positions=lambda g, *indices, dims, shape: in_dims(shape, dims, 1),
    split=indexing_back,
    local=shaped,
    vjp=lambda needs, g, _y, _x, *indices, dims, shape: [
        g._op("index", *indices, dims=dims),
        *(None,) * len(indices),
    ],
    torch=lambda torch, g, *indices, dims, shape: _place_torch(
        torch, g.new_zeros(shape), g, *indices, dims=dims, accumulate=True
    ),
    kernel=lambda np, g, *indices, dims, shape: _place_numpy(
        np, np.zeros(shape, dtype=g.dtype), g, *indices, dims=dims, accumulate=True
    ),
)
