"""Products of matrices."""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.elements import element
from gt.ops.infer import broadcast_shapes, expandable
from gt.ops.math import padded
from gt.ops.op import NUMBER, op
from gt.ops.splits_nn import adding_product, multiplying
from gt.types import OperandType, TensorType


def _product(a: TensorType, b: TensorType) -> TensorType:
    """A 1-d operand is a row on the left and a column on the right; its dim of size 1 is removed afterwards."""
    if not a.ndim or not b.ndim:
        raise ShapeError("needs tensors of at least one dim; use mul for numbers")
    if a.dtype is not b.dtype:
        raise DTypeError(f"dtypes differ: {a.dtype.name} and {b.dtype.name}")
    if a.dtype.kind == "b":
        raise DTypeError("not defined for bool; use x.to(gt.float32)")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ShapeError(f"inner sizes differ: {a.shape[-1]} and {inner}")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType((*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())), a.dtype)


def _matmul_numpy(np: Any, a: Any, b: Any) -> Any:
    if a.dtype == np.float16:  # numpy would sum in float16
        a, b = a.astype(np.float32), b.astype(np.float32)
    return np.matmul(a, b)


def _matmul_torch(torch: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2 and a.ndim > 1 and padded.is_slow(a, *b.shape, a.numel() // max(1, a.shape[-1])):
        return padded.times(torch, a.reshape(-1, a.shape[-1]), b).unflatten(0, a.shape[:-1])
    return torch.matmul(a, b)


def _left(g: Any, a: Any, b: Any) -> Any:
    """The gradient of the left operand, as matrices: a 1-d operand is a row, or a column."""
    g = g.unsqueeze(-1) if b.ndim == 1 else g
    g = g.unsqueeze(-2) if a.ndim == 1 else g
    result = g @ (b.unsqueeze(-1) if b.ndim == 1 else b).mT
    return result.squeeze(-2) if a.ndim == 1 else result


def _right(g: Any, a: Any, b: Any) -> Any:
    if a.ndim > 2 and b.ndim == 2:  # one product over all rows, instead of one per batch and a sum
        rows = prod(a.shape[:-1])
        return a.reshape(rows, a.shape[-1]).mT @ g.reshape(rows, g.shape[-1])
    g = g.unsqueeze(-1) if b.ndim == 1 else g
    g = g.unsqueeze(-2) if a.ndim == 1 else g
    result = (a.unsqueeze(-2) if a.ndim == 1 else a).mT @ g
    return result.squeeze(-1) if b.ndim == 1 else result


op(
    "matmul",
    aten=("matmul", "mm", "bmm"),
    complex="holomorphic",
    autocast="lower",
    operands="tt",
    infer=_product,
    split=multiplying,
    vjp=(lambda g, _y, _a, b: _left(g, _a, b), lambda g, _y, a, _b: _right(g, a, _b)),
    flops=lambda a, b: 2 * _product(a, b).numel * a.shape[-1],
    torch=_matmul_torch,
    kernel=_matmul_numpy,
)


# -- with an addend ------------------------------------------------------------------------


def _summed(ndim: int) -> Any:
    def infer(x: TensorType, a: TensorType, b: TensorType, beta: OperandType, alpha: OperandType) -> TensorType:
        if a.ndim != ndim or b.ndim != ndim:
            raise ShapeError(f"multiplies tensors of {ndim} dims, not {a.ndim} and {b.ndim}")
        if ndim == 3 and a.shape[0] != b.shape[0]:
            raise ShapeError(f"batches differ: {a.shape[0]} and {b.shape[0]}")
        result = _product(a, b)
        if x.dtype is not result.dtype:
            raise DTypeError(f"dtypes differ: {x.dtype.name} and {result.dtype.name}")
        for factor in (beta, alpha):
            if factor.dtype.kind == "f" and result.dtype.kind not in "fc":
                raise DTypeError(f"beta and alpha are numbers that {result.dtype.name} can hold, not {factor}")
        expandable(x.shape, result.shape)
        return result

    return infer


def _times(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _sum_numpy(np: Any, x: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Any:
    product = _matmul_numpy(np, a, b)
    beta = element(np, beta, product.dtype)
    # torch does not look at a factor of nothing
    result = product if alpha == 1 or not a.shape[-1] else product * element(np, alpha, product.dtype)
    # torch does not read a tensor that is multiplied by zero, so its NaN has no effect
    return result if beta == 0 else result + (x if beta == 1 else x * beta)


_SUM_BACK = (
    lambda g, _y, _x, _a, _b, beta, alpha: _times(g, beta),
    lambda g, _y, _x, _a, b, beta, alpha: _times(g @ b.mT, alpha),
    lambda g, _y, _x, a, _b, beta, alpha: _times(a.mT @ g, alpha),
    None,
    None,
)

op(
    "addmm",
    complex="holomorphic",
    autocast="lower",
    operands=f"ttt{NUMBER}{{2}}",
    infer=_summed(2),
    split=adding_product,
    vjp=_SUM_BACK,
    flops=lambda x, a, b, beta, alpha: 2 * _product(a, b).numel * a.shape[-1],
    torch=lambda torch, x, a, b, beta, alpha: torch.addmm(x, a, b, beta=beta, alpha=alpha),
    kernel=_sum_numpy,
)

op(
    "baddbmm",
    complex="holomorphic",
    autocast="lower",
    operands=f"ttt{NUMBER}{{2}}",
    infer=_summed(3),
    split=adding_product,
    vjp=_SUM_BACK,
    flops=lambda x, a, b, beta, alpha: 2 * _product(a, b).numel * a.shape[-1],
    torch=lambda torch, x, a, b, beta, alpha: torch.baddbmm(x, a, b, beta=beta, alpha=alpha),
    kernel=_sum_numpy,
)
