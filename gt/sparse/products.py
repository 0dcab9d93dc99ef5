"""torch's functions of sparse matrices."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.functions import matmul
from gt.sparse.matrix import SparseTensor


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices, of which one may be sparse. The result is dense."""
    return matmul.mm(input, mat2)


spmm = mm


def addmm(mat: Tensor, mat1: Any, mat2: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta * mat + alpha * mat1 @ mat2."""
    result: Tensor = beta * mat + alpha * mm(mat1, mat2)
    return result


def sum(input: Any, dim: Any = None, dtype: Any = None) -> Tensor:
    """The sum of a sparse matrix over all dims or one. The result is dense."""
    if not isinstance(input, SparseTensor):
        raise DTypeError(f"sparse.sum: takes a sparse matrix, not a {type(input).__name__}; use gt.sum")
    return input.sum(dim, dtype)
