"""Ops that read and write elements at positions that tensors give.

The result of a write is the whole tensor, with the elements that it leaves untouched.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, DTypeError
from gt.ops.elements import single_element
from gt.ops.infer import assignable, broadcast_shapes, check_dims, check_imaginary, require_bools, sizes
from gt.ops.op import EITHER, op
from gt.ops.positions import in_dims
from gt.ops.shape.slicing import assigned, filling, fitting
from gt.ops.split import shaped
from gt.ops.splits_index import indexing, indexing_back, placing
from gt.ops.varying import by_kernel
from gt.types import OperandType, Scalar, Shape, TensorType, int32, int64

Dims = tuple[int, ...]


def positions(indices: tuple[OperandType, ...]) -> Shape:
    for i in indices:
        if isinstance(i, Scalar) or i.dtype not in (int64, int32):
            raise DTypeError(f"an index is an int64 or int32 tensor, not {i}; use x.to(gt.int64)")
    return broadcast_shapes(*(i.shape for i in indices if isinstance(i, TensorType)))


def _picked(x: TensorType, *indices: OperandType, dims: Dims) -> TensorType:
    if not dims or len(dims) != len(indices):
        raise DimError(f"{len(indices)} indices for the dims {dims}")
    check_dims(dims, x.ndim)
    if not x.ndim or list(dims) != sorted(dims):
        raise DimError(f"dims {dims} must be dims of the tensor, in order")
    picked = positions(indices)
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    # neighbouring indexed dims stay where they are; others go to the front
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    empty = [d for d in dims if not x.shape[d]]
    if empty and 0 not in picked:
        raise DimError(f"dim {empty[0]} has size 0: there is nothing to index")
    return TensorType((*rest[:front], *picked, *rest[front:]), x.dtype)


def _expression(indices: Any, dims: Dims) -> tuple[Any, ...]:
    at = dict(zip(dims, indices, strict=True))
    return tuple(at.get(d, slice(None)) for d in range(dims[-1] + 1))


def _within(np: Any, x: Any, indices: tuple[Any, ...]) -> list[Any]:
    """From an empty tensor torch selects nothing, whatever the indices are; numpy would check them."""
    stretched: list[Any] = np.broadcast_arrays(*indices)
    return stretched if x.size else [np.zeros_like(i) for i in stretched]


def _optional(indices: tuple[Any, ...], dims: Dims) -> list[Any]:
    at = dict(zip(dims, indices, strict=True))
    return [at.get(d) for d in range(dims[-1] + 1)]


def _index_torch(torch: Any, x: Any, *indices: Any, dims: Dims) -> Any:
    if all(i.ndim for i in indices):
        return x[_expression(indices, dims)]
    # in brackets torch treats a 0-d index as a number: it would wait for the GPU and give a view
    return torch.ops.aten.index.Tensor(x, _optional(indices, dims))


def _index_back(needs: Any, g: Any, _y: Any, _x: Any, *indices: Any, dims: Dims) -> list[Any]:
    return [g._op("index_backward", *indices, dims=dims, shape=tuple(_x.shape)), *(None,) * len(indices)]


op(
    "index",
    complex="rule",
    infer=_picked,
    positions=lambda x, *indices, dims: in_dims(x.shape, dims, 1),
    split=indexing,
    vjp=_index_back,
    torch=_index_torch,
    kernel=lambda np, x, *indices, dims: np.array(x[_expression(_within(np, x, indices), dims)]),
)


def castable(x: TensorType, value: OperandType) -> None:
    """torch casts a number or a 0-d tensor in an assignment by position, and nothing else."""
    check_imaginary(value, x)
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
    result, at = x.copy(), _expression(_within(np, x, indices), dims)
    value = filling(np, value, result[at].ndim, x.dtype, single_element)
    if accumulate:
        np.add.at(result, at, value)
    else:
        result[at] = value
    return result


def _place_back(
    needs: Any, g: Any, _y: Any, _x: Any, _value: Any, *indices: Any, dims: Dims, accumulate: bool
) -> list[Any]:
    kept = g if accumulate or not needs[0] else g._op("index_put", 0, *indices, dims=dims, accumulate=False)
    put = assigned(g._op("index", *indices, dims=dims), _value) if needs[1] else None
    return [kept, put, *(None,) * len(indices)]


op(
    "index_put",
    complex="rule",
    autocast="widest",
    operands=f"t{EITHER}t+",
    infer=_placed,
    positions=lambda x, value, *indices, dims, accumulate: in_dims(x.shape, dims, 2),
    split=placing,
    vjp=_place_back,
    torch=lambda torch, x, *rest, **attrs: _place_torch(torch, x.clone(), *rest, **attrs),
    kernel=_place_numpy,
    inplace=_place_torch,
    varying=by_kernel(),
)


def _gathered_back(g: TensorType, *indices: OperandType, dims: Dims, shape: Shape) -> TensorType:
    """Zeros of this shape, with g added at the indices."""
    return _placed(TensorType(sizes(shape), g.dtype), g, *indices, dims=dims, accumulate=True)


op(
    "index_backward",
    complex="rule",
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
