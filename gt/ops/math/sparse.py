"""The product of a sparse matrix and a dense one. A sparse matrix is three vectors: rows, columns and values."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import require_ints
from gt.ops.op import op
from gt.ops.positions import Positions
from gt.ops.split import Split
from gt.types import TensorType, int64


def _multiplied(rows: TensorType, columns: TensorType, values: TensorType, dense: TensorType, *, n: int) -> TensorType:
    require_ints(n=n)
    if rows.dtype is not int64 or columns.dtype is not int64:
        raise DTypeError("rows and columns are int64")
    if values.dtype is not dense.dtype or values.dtype.kind == "b":
        raise DTypeError("values and the dense matrix have one dtype, and it is not bool")
    if not rows.ndim == columns.ndim == values.ndim == 1 or not rows.shape == columns.shape == values.shape:
        raise ShapeError("rows, columns and values are vectors of one size")
    if dense.ndim != 2:
        raise ShapeError("the right operand is a matrix")
    return TensorType((n, dense.shape[1]), dense.dtype)


def _check(bounds: Any, size: int) -> None:
    least, most = bounds
    if least < 0 or most >= size:
        raise IndexError(f"a position is out of range: {int(least)} to {int(most)}, in a dim of size {size}")


def _multiply_torch(torch: Any, rows: Any, columns: Any, values: Any, dense: Any, *, n: int) -> Any:
    if dense.is_cuda:  # torch's own sparse product waits for the device
        terms = dense.index_select(0, columns) * values.unsqueeze(1)
        return dense.new_zeros((n, dense.shape[1])).index_add_(0, rows, terms)
    if len(rows):
        _check(rows.aminmax(), n)
        _check(columns.aminmax(), len(dense))
    at = torch.stack((rows, columns))
    return torch.mm(torch.sparse_coo_tensor(at, values, (n, len(dense)), check_invariants=False), dense)


def _multiply_numpy(np: Any, rows: Any, columns: Any, values: Any, dense: Any, *, n: int) -> Any:
    result = np.zeros((n, dense.shape[1]), dtype=dense.dtype)
    if len(rows):
        _check((rows.min(), rows.max()), n)
        _check((columns.min(), columns.max()), len(dense))
        np.add.at(result, rows, dense[columns] * values[:, None])
    return result


op(
    "sparse_mm",
    complex="holomorphic",
    autocast="lower",
    operands="tttt",
    infer=_multiplied,
    positions=lambda rows, columns, values, dense, *, n: (Positions(0, n), Positions(1, dense.shape[0])),
    flops=lambda rows, columns, values, dense, *, n: 2 * values.numel * dense.shape[1],
    split=lambda rows, columns, values, dense, *, n: Split("Z,Z,Z,.n->.n", linear=((2,), (3,))),
    vjp=(
        None,
        None,
        lambda g, _y, rows, columns, _values, dense, *, n: (
            g._op("index", rows, dims=(0,)) * dense._op("index", columns, dims=(0,))
        ).sum(1),
        lambda g, _y, rows, columns, values, _dense, *, n: columns._op("sparse_mm", rows, values, g, n=_dense.shape[0]),
    ),
    torch=_multiply_torch,
    kernel=_multiply_numpy,
    reads_values="cpu",
)
