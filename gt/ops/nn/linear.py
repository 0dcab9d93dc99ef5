"""Products with weights: `linear`, and `embedding`, which is one with rows of the identity."""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.attributes import MAX_INT64, check_flags, check_int
from gt.ops.elements import wide
from gt.ops.gradient_rules import one
from gt.ops.math import padded
from gt.ops.op import op
from gt.ops.positions import Positions
from gt.ops.splits_nn import looking_up, mapping, spreading, weighing
from gt.types import OperandType, TensorType, int32, int64

# -- linear --------------------------------------------------------------------------------


def _mapped(x: TensorType, weight: TensorType, *bias: TensorType) -> TensorType:
    if not x.ndim or not 1 <= weight.ndim <= 2:
        raise ShapeError("needs an input of at least one dim and a weight of one or two")
    if any(t.dtype is not x.dtype for t in (weight, *bias)):
        raise DTypeError(f"dtypes differ: {', '.join(t.dtype.name for t in (x, weight, *bias))}")
    if x.dtype.kind == "b":
        raise DTypeError("not defined for bool; use x.to(gt.float32)")
    if x.shape[-1] != weight.shape[-1]:
        raise ShapeError(f"inner sizes differ: {x.shape[-1]} and {weight.shape[-1]}")
    result = TensorType((*x.shape[:-1], *weight.shape[:-1]), x.dtype)
    for b in bias:
        if b.shape not in ((), weight.shape[:-1], (1,)):
            raise ShapeError(f"a bias of {b} does not fit a weight of {weight}")
    return result


def _linear_numpy(np: Any, x: Any, weight: Any, *bias: Any) -> Any:
    x, weight, *biases = wide(np, x, weight, *bias)
    result = np.matmul(x, weight.T)
    return result + biases[0] if biases else result


def _linear_torch(torch: Any, x: Any, weight: Any, *bias: Any) -> Any:
    if weight.ndim == 2 and padded.is_slow(x, *weight.shape, x.numel() // max(1, x.shape[-1])):
        result = padded.times_transposed(torch, _rows(x), weight).unflatten(0, x.shape[:-1])
        return result + bias[0] if bias else result
    if bias and (weight.ndim == 1 or bias[0].shape != weight.shape[:1]):
        return torch.nn.functional.linear(x, weight) + bias[0]
    return torch.nn.functional.linear(x, weight, *bias)


def _for_input(g: Any, _y: Any, _x: Any, weight: Any, *_bias: Any) -> Any:
    return g.unsqueeze(-1) * weight if weight.ndim == 1 else g @ weight


def _for_weight(g: Any, _y: Any, x: Any, _weight: Any, *_bias: Any) -> Any:
    return g.unsqueeze(-1) * x if _weight.ndim == 1 else g._op("linear_weight", x)


def _for_bias(g: Any, _y: Any, _x: Any, _weight: Any, _bias: Any) -> Any:
    if _weight.ndim == 1 or g.ndim == 1 or not _bias.ndim:
        return g
    return g._op("sum", dim=tuple(range(g.ndim - 1)), keepdim=False, dtype=None)


op(
    "linear",
    aten=("linear",),
    complex="holomorphic",
    autocast="lower",
    operands="ttt?",
    infer=_mapped,
    split=mapping,
    vjp=(_for_input, _for_weight, _for_bias),
    flops=lambda x, weight, *bias: 2 * x.numel * prod(weight.shape[:-1]),
    torch=_linear_torch,
    kernel=_linear_numpy,
)


def _weight(g: TensorType, x: TensorType) -> TensorType:
    if not g.ndim or not x.ndim or g.shape[:-1] != x.shape[:-1] or g.dtype is not x.dtype:
        raise ShapeError("rows and dtypes must be the same")
    if x.dtype.kind == "b":
        raise DTypeError("not defined for bool; use x.to(gt.float32)")
    return TensorType((g.shape[-1], x.shape[-1]), x.dtype)


def _rows(x: Any) -> Any:
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def _linear_weight_torch(torch: Any, g: Any, x: Any) -> Any:
    g, x = _rows(g), _rows(x)
    if padded.is_slow(x, *x.shape, g.shape[1]):
        return padded.transposed_times(torch, g, x)
    return torch.mm(g.t(), x)


# the gradient of linear's weight: the sum over all rows of the input
op(
    "linear_weight",
    complex="holomorphic",
    operands="tt",
    infer=_weight,
    split=weighing,
    vjp=(lambda d, _y, _g, x: one("linear", x, d), lambda d, _y, g, _x: g @ d),
    flops=lambda g, x: 2 * x.numel * g.shape[-1],
    torch=_linear_weight_torch,
    kernel=lambda np, g, x: np.matmul(_rows(wide(np, g)[0]).T, _rows(wide(np, x)[0])),
)

# -- embedding -----------------------------------------------------------------------------


def _looked_up(weight: TensorType, index: OperandType, *, padding_idx: int, by_freq: bool) -> TensorType:
    if weight.ndim != 2:
        raise ShapeError("the weight has two dims: a row for each index")
    _index(index)
    check_flags(by_freq=by_freq)
    _check_padding(padding_idx, weight.shape[0])
    assert isinstance(index, TensorType)
    return TensorType((*index.shape, weight.shape[1]), weight.dtype)


def _check_padding(padding_idx: int, rows: int) -> None:
    """A padding_idx of -1 means none."""
    check_int("padding_idx", padding_idx, -1, MAX_INT64)
    if padding_idx >= max(rows, 1):
        raise DimError(f"padding_idx {padding_idx} is not one of {rows} rows")


def _index(index: OperandType) -> None:
    if not isinstance(index, TensorType) or index.dtype not in (int64, int32):
        raise DTypeError(f"the index is an int64 or int32 tensor, not {index}")


def _look_up_numpy(np: Any, weight: Any, index: Any, *, padding_idx: int, by_freq: bool) -> Any:
    if index.size and (index.min() < 0 or index.max() >= weight.shape[0]):
        raise IndexError(f"an index is outside the {weight.shape[0]} rows")
    return weight[index]


op(
    "embedding",
    operands="tt",
    infer=_looked_up,
    positions=lambda weight, index, *, padding_idx, by_freq: (Positions(1, weight.shape[0]),),
    split=looking_up,
    vjp=(
        lambda g, _y, _w, index, *, padding_idx, by_freq: one(
            "embedding_backward", g, index, rows=_w.shape[0], padding_idx=padding_idx, by_freq=by_freq
        ),
        None,
    ),
    torch=lambda torch, weight, index, *, padding_idx, by_freq: torch.embedding(weight, index),
    kernel=_look_up_numpy,
)


def _spread(g: TensorType, index: TensorType, *, rows: int, padding_idx: int, by_freq: bool) -> TensorType:
    _index(index)
    check_int("rows", rows, 0, MAX_INT64)
    check_flags(by_freq=by_freq)
    _check_padding(padding_idx, rows)
    if not g.ndim or g.shape[:-1] != index.shape:
        raise ShapeError("there is a gradient for each index")
    if g.dtype.kind != "f":
        raise DTypeError(f"a gradient is floating, not {g.dtype.name}")
    return TensorType((rows, g.shape[-1]), g.dtype)


def _spread_torch(torch: Any, g: Any, index: Any, *, rows: int, padding_idx: int, by_freq: bool) -> Any:
    # torch's kernels do not check an index: an invalid one writes to an extra row, which is removed
    at = index.where((index >= 0) & (index < rows), rows)
    if by_freq:
        flat = at.reshape(-1).long()
        counts = torch.zeros(rows + 1, dtype=torch.int64, device=g.device).scatter_add_(0, flat, torch.ones_like(flat))
        g = g / counts[flat].reshape(index.shape).unsqueeze(-1)
    return torch.ops.aten.embedding_dense_backward(g, at, rows + 1, padding_idx, False)[:rows]


def _spread_numpy(np: Any, g: Any, index: Any, *, rows: int, padding_idx: int, by_freq: bool) -> Any:
    (g,) = wide(np, g)
    at, each = index.reshape(-1), g.reshape(index.size, g.shape[-1])
    inside = (at >= 0) & (at < rows)
    at, each = at[inside], each[inside]
    if by_freq:
        each = each / np.bincount(at, minlength=rows)[at][:, None].astype(each.dtype)
    result = np.zeros((rows, g.shape[-1]), g.dtype)
    np.add.at(result, at[at != padding_idx], each[at != padding_idx])
    return result


def _look_back(d: Any, _y: Any, _g: Any, index: Any, *, rows: int, padding_idx: int, by_freq: bool) -> Any:
    result = one("embedding", d, index, padding_idx=padding_idx, by_freq=False)
    return result if padding_idx < 0 else result * (index != padding_idx).unsqueeze(-1)


op(
    "embedding_backward",
    operands="tt",
    infer=_spread,
    split=spreading,
    vjp=(_look_back, None),
    torch=_spread_torch,
    kernel=_spread_numpy,
)
