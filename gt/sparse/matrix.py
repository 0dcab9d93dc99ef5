"""Sparse matrices in torch's two forms, COO and CSR.

A sparse matrix is an object of the client: three vectors of rows, columns and values, which are ordinary tensors. A
product with a dense matrix is one op. Nothing here waits for the workers, except what says so: how many values there
are, after `coalesce` or ``x.to_sparse()``, depends on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import Device, normalize_dims, require_tensor, shown
from gt.client.tensor.emit import call
from gt.client.tensor.foreign import Sparse
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation
from gt.functions.joining import cat, stack
from gt.functions.sort import searchsorted, unique
from gt.ops import OPS
from gt.types import DType, Size, int64, promote

SPARSE_MM = OPS["sparse_mm"]


class SparseTensor(Sparse):
    """A matrix of which only some elements are stored; the others are zero. See `torch.sparse`."""

    __slots__ = ("_coalesced", "_columns", "_crow", "_entries", "_rows", "shape")
    #: makes numpy leave ``array @ matrix`` to the matrix
    __array_ufunc__ = None

    def __init__(
        self, rows: Tensor, columns: Tensor, entries: Tensor, shape: Any, coalesced: bool, crow: Tensor | None = None
    ) -> None:
        self._rows, self._columns, self._entries = rows, columns, entries
        self.shape = Size(shape)
        #: the positions are sorted, and each occurs once
        self._coalesced = coalesced
        #: in the CSR form, where the values of each row begin
        self._crow = crow

    def _with(self, entries: Tensor) -> SparseTensor:
        """The same positions with other values."""
        return SparseTensor(self._rows, self._columns, entries, self.shape, self._coalesced, self._crow)

    # -- what it is ----------------------------------------------------------------------

    #: always False: the matrix is on a worker
    is_cuda = False

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The type of the elements."""
        return self._entries.dtype

    @property
    def device(self) -> Device:
        """Always ``gt``: the dispatcher decides the placement."""
        return Device("gt")

    @property
    def is_sparse(self) -> bool:
        """Whether it has the COO form."""
        return self._crow is None

    @property
    def is_sparse_csr(self) -> bool:
        """Whether it has the CSR form."""
        return self._crow is not None

    @property
    def requires_grad(self) -> bool:
        """Whether its values require a gradient."""
        return self._entries.requires_grad

    @property
    def grad(self) -> SparseTensor | None:
        """The gradient of its values, at the same positions; None before the first `backward`."""
        return None if self._entries.grad is None else self._with(self._entries.grad)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Let its values require a gradient."""
        self._entries.requires_grad_(requires_grad)
        return self

    def dim(self) -> int:
        """Always 2."""
        return 2

    sparse_dim = dim

    def dense_dim(self) -> int:
        """Always 0."""
        return 0

    def size(self, dim: int | None = None) -> Any:
        """The sizes of both dims, or of one."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements, zeros included."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        coo = {"indices": self._indices()} if self._crow is None else {}
        csr = {} if self._crow is None else {"crow_indices": self._crow, "col_indices": self._columns}
        parts = {**coo, **csr, "values": self._entries}
        texts = [f"{name}={x!r}".replace("\n", "\n" + " " * (len(name) + 8)) for name, x in parts.items()]
        texts.append(f"size={tuple(self.shape)}, nnz={self._nnz()}, layout={'sparse_coo' if coo else 'sparse_csr'}")
        return "tensor(" + ",\n       ".join(texts) + ")"

    def __getitem__(self, index: Any) -> Any:
        raise DTypeError(f"{shown(self)}[…]: a sparse matrix has no indexing; use x.to_dense()[…]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a sparse matrix has no {name}", name=name, obj=self)
        raise AttributeError(f"a sparse matrix has no {name}; x.to_dense() is a tensor, docs/sparse.md", name=name)

    # -- its parts -----------------------------------------------------------------------

    def _nnz(self) -> int:
        return self._entries.shape[0]

    def _indices(self) -> Tensor:
        return stack([self._rows, self._columns])

    def _values(self) -> Tensor:
        return self._entries

    def is_coalesced(self) -> bool:
        """Whether the positions are known to be sorted, each once."""
        self._require_form("is_coalesced", csr=False)
        return self._coalesced

    def indices(self) -> Tensor:
        """The rows and columns of the values, as a matrix of two rows."""
        self._require_form("indices", csr=False)
        self._require_coalesced("indices")
        return self._indices()

    def values(self) -> Tensor:
        """The values that are stored."""
        if self._crow is None:
            self._require_coalesced("values")
        return self._entries

    def crow_indices(self) -> Tensor:
        """Where the values of each row begin, and where the last row ends."""
        self._require_form("crow_indices", csr=True)
        assert self._crow is not None
        return self._crow

    def col_indices(self) -> Tensor:
        """The columns of the values."""
        self._require_form("col_indices", csr=True)
        return self._columns

    def _require_form(self, name: str, *, csr: bool) -> None:
        if csr is not self.is_sparse_csr:
            way = "to_sparse_csr()" if csr else "to_sparse()"
            raise ShapeError(f"{name}({shown(self)}): needs the {'CSR' if csr else 'COO'} form; use x.{way}")

    def _require_coalesced(self, name: str) -> None:
        if not self._coalesced:
            raise ShapeError(f"{name}({shown(self)}): a position may occur twice; call x.coalesce() first")

    # -- other forms ---------------------------------------------------------------------

    def coalesce(self) -> SparseTensor:
        """The positions sorted, each once, with the sum of its values. Waits for their number, once."""
        if self._coalesced:
            return self
        width = max(1, self.shape[1])
        places, ranks = unique(self._rows * width + self._columns, return_inverse=True)
        entries = creation.zeros(len(places), dtype=self.dtype).index_add(0, ranks, self._entries)
        return SparseTensor(places // width, places % width, entries, self.shape, True)

    def to_dense(self) -> Tensor:
        """The matrix as a tensor."""
        return creation.zeros(self.shape, dtype=self.dtype) + self

    def to_sparse(self) -> SparseTensor:
        """The matrix in the COO form."""
        if self._crow is None:
            return self
        return SparseTensor(self._rows, self._columns, self._entries, self.shape, True)

    to_sparse_coo = to_sparse

    def to_sparse_csr(self) -> SparseTensor:
        """The matrix in the CSR form. Waits for the number of its values if it is not coalesced."""
        if self._crow is not None:
            return self
        x = self.coalesce()
        crow = searchsorted(x._rows, creation.arange(self.shape[0] + 1))
        return SparseTensor(x._rows, x._columns, x._entries, self.shape, True, crow)

    def t(self) -> SparseTensor:
        """The transpose, in the COO form."""
        return SparseTensor(self._columns, self._rows, self._entries, self.shape[::-1], False)

    T = property(t)

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """The matrix with two dims exchanged, in the COO form."""
        first, second = normalize_dims((dim0, dim1), 2)
        return self if first == second else self.t()

    # -- products and sums ---------------------------------------------------------------

    def matmul(self, other: Any) -> Tensor:
        """The product with a dense matrix or vector."""
        if isinstance(other, SparseTensor):
            raise DTypeError(f"{shown(self)} @ {shown(other)}: one of them must be dense; use x @ y.to_dense()")
        dense = require_tensor("matmul", other)
        if dense.ndim not in (1, 2) or dense.shape[0] != self.shape[1]:
            raise ShapeError(f"{shown(self)} @ {dense._type}: needs {self.shape[1]} rows")
        matrix = dense if dense.ndim == 2 else dense.unsqueeze(1)
        product = call(SPARSE_MM, (self._rows, self._columns, self._entries, matrix), (("n", self.shape[0]),))
        return product if dense.ndim == 2 else product.squeeze(1)

    mm = mv = __matmul__ = matmul

    def __rmatmul__(self, other: Any) -> Tensor:
        dense = require_tensor("@", other)
        if dense.ndim not in (1, 2) or dense.shape[-1] != self.shape[0]:
            raise ShapeError(f"{dense._type} @ {shown(self)}: needs {self.shape[0]} columns")
        return self.t().matmul(dense.T if dense.ndim == 2 else dense).T

    def __neg__(self) -> SparseTensor:
        return self._with(-self._entries)

    def __mul__(self, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor):
            raise DTypeError(f"{shown(self)} * {shown(other)}: one of them must be dense; use x * y.to_dense()")
        if isinstance(other, Tensor) and other.ndim:
            self._require_shape("*", other)
            other = other[self._rows, self._columns]
        return self._with(self._entries * other)

    __rmul__ = mul = __mul__

    def __truediv__(self, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor | Tensor):
            raise DTypeError(f"{shown(self)} / {shown(other)}: a sparse matrix is divided by a number")
        return self._with(self._entries / other)

    div = __truediv__

    def __add__(self, other: Any) -> SparseTensor:
        self._require_sparse("+", other)
        pairs = ((self._rows, other._rows), (self._columns, other._columns), (self._entries, other._entries))
        rows, columns, entries = map(cat, pairs)
        return SparseTensor(rows, columns, entries, self.shape, False)

    add = __add__

    def __sub__(self, other: Any) -> SparseTensor:
        self._require_sparse("-", other)
        return self.add(-other)

    sub = __sub__

    def _require_sparse(self, sign: str, other: Any) -> None:
        if not isinstance(other, SparseTensor):
            raise DTypeError(
                f"{shown(self)} {sign} {shown(other)}: needs two sparse matrices; or write dense {sign} sparse"
            )
        self._require_shape(sign, other)

    def __radd__(self, other: Any) -> Tensor:
        dense = require_tensor("+", other)
        self._require_shape("+", dense)
        dtype = promote(dense.dtype, self.dtype)
        return dense.to(dtype).index_put((self._rows, self._columns), self._entries.to(dtype), accumulate=True)

    def __rsub__(self, other: Any) -> Tensor:
        return require_tensor("-", other) + (-self)

    def _require_shape(self, sign: str, other: SparseTensor | Tensor) -> None:
        if other.shape != self.shape:
            raise ShapeError(f"{shown(self)} {sign} {shown(other)}: sizes differ")

    def sum(self, dim: Any = None, dtype: Any = None) -> Tensor:
        """The sum over both dims or one. The result is dense."""
        entries = self._entries if dtype is None else self._entries.to(dtype)
        dims = {*normalize_dims(dim, 2)}
        if dims == {0, 1}:
            return entries.sum()
        if len(dims) > 1 or not dims <= {0, 1}:
            raise ShapeError(f"sum({shown(self)}, dim={dim!r}): there are 2 dims")
        entries = entries.to(int64) if dtype is None and entries.dtype.kind in "iub" else entries
        kept, places = (1, self._columns) if dims == {0} else (0, self._rows)
        return creation.zeros(self.shape[kept], dtype=entries.dtype).index_add(0, places, entries)


def _on_values(name: str) -> Callable[..., SparseTensor]:
    """A method of a sparse matrix that casts or copies its values."""

    def method(x: SparseTensor, *args: Any, **options: Any) -> SparseTensor:
        return x._with(getattr(x._entries, name)(*args, **options))

    method.__name__, method.__doc__ = name, f"The matrix with `Tensor.{name}` of its values."
    return method


#: methods of a tensor that a sparse matrix applies to its values
METHODS = ("to", "double", "float", "half", "bfloat16", "long", "int", "cpu", "cuda", "clone", "detach")
for _name in METHODS:
    setattr(SparseTensor, _name, _on_values(_name))
