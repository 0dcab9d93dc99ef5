"""How sparse matrices are created: from positions and values, and from a dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import check_device, dtype_of, sizes
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import creation
from gt.functions.sort import searchsorted
from gt.sparse.matrix import SparseTensor
from gt.types import DType, float16, float32, float64, int64


def _vectors(*parts: Any) -> list[Tensor]:
    """The positions, as int64, and the values."""
    *places, values = (x if isinstance(x, Tensor) else creation.tensor(x) for x in parts)
    return [*(x.to(int64) for x in places), values]


def _finished(x: SparseTensor, dtype: Any, device: Any, requires_grad: bool) -> SparseTensor:
    check_device(device)
    x = x if dtype is None else x.to(dtype_of(dtype))
    return x.detach().clone().requires_grad_() if requires_grad else x


def _size(name: str, size: Any) -> tuple[int, ...]:
    shape = sizes((size,), name)
    if len(shape) != 2 or min(shape) < 0:
        raise ShapeError(f"{name}(size={tuple(shape)}): GT has sparse matrices, with two sizes, docs/sparse.md")
    return shape


def sparse_coo_tensor(
    indices: Any,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """A sparse matrix from rows and columns (``indices``) and values; values of one position are added.

    Without ``size`` it waits for the largest indices. ``sparse_coo_tensor(size)`` is a matrix of zeros.
    """
    name = "sparse_coo_tensor"
    if values is None:
        shape = _size(name, indices if size is None else size)
        empty = creation.zeros(0, dtype=int64)
        zeros = SparseTensor(empty, empty, creation.zeros(0), shape, True)
        return _finished(zeros, dtype, device, requires_grad)
    at, entries = _vectors(indices, values)
    if at.ndim != 2 or at.shape[0] != 2 or entries.shape != at.shape[1:]:
        text = "needs indices of two rows and a value for each column, docs/sparse.md"
        raise ShapeError(f"{name}({at._type}, {entries._type}): {text}")
    shape = tuple(n + 1 for n in at.amax(1).tolist()) if size is None and at.shape[1] else _size(name, size or (0, 0))
    rows, columns = at.unbind()
    return _finished(SparseTensor(rows, columns, entries, shape, bool(is_coalesced)), dtype, device, requires_grad)


def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """A sparse matrix from where each row begins, the columns and the values. Without ``size`` it waits."""
    name = "sparse_csr_tensor"
    crow, columns, entries = _vectors(crow_indices, col_indices, values)
    if not crow.ndim == columns.ndim == entries.ndim == 1 or not len(crow) or columns.shape != entries.shape:
        text = "needs vectors: rows + 1 positions, and a column and a value for each element, docs/sparse.md"
        raise ShapeError(f"{name}({crow._type}, {columns._type}, {entries._type}): {text}")
    width = int(columns.amax()) + 1 if size is None and len(columns) else 0
    shape = (len(crow) - 1, width) if size is None else _size(name, size)
    if shape[0] != len(crow) - 1:
        raise ShapeError(
            f"{name}({crow._type}, size={shape}): crow_indices has {len(crow)} elements for {shape[0]} rows"
        )
    rows = searchsorted(crow, creation.arange(len(columns)), right=True) - 1
    return _finished(SparseTensor(rows, columns, entries, shape, True, crow), dtype, device, requires_grad)


def from_dense(x: Tensor, sparse_dim: int = 2) -> SparseTensor:
    """``x.to_sparse()``: the elements that are not zero. Waits for their number."""
    if x.ndim != 2 or sparse_dim != 2:
        raise ShapeError(f"to_sparse({x._type}, {sparse_dim}): GT has sparse matrices, of two dims, docs/sparse.md")
    rows, columns = x.detach().nonzero(as_tuple=True)
    return SparseTensor(rows, columns, x[rows, columns], x.shape, True)


def _legacy(name: str, dtype: DType) -> Callable[..., SparseTensor]:
    """Torch's older constructor of matrices of one dtype."""

    def make(*arguments: Any, device: Any = None) -> SparseTensor:
        if not arguments or isinstance(arguments[0], int):
            return sparse_coo_tensor(arguments, dtype=dtype, device=device)
        return sparse_coo_tensor(*arguments, dtype=dtype, device=device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A sparse matrix of {dtype.name} from indices, values and sizes; `gt.sparse_coo_tensor` is newer."
    return make


FloatTensor, DoubleTensor, HalfTensor = (
    _legacy(name, dtype)
    for name, dtype in (("FloatTensor", float32), ("DoubleTensor", float64), ("HalfTensor", float16))
)
