"""torch's smaller functions that combine others, and its constants and facts about dtypes."""

from __future__ import annotations

import math
from typing import Any

from gt.client.tensor.arguments import (
    any_dtype_of,
    cast,
    check_device,
    convert,
    dtype_of,
    normalize_dim,
    refuse,
    require_real,
    require_tensor,
)
from gt.client.tensor.emit import detached
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, linalg, norm, pointwise, reduce, scan, scatter, views
from gt.types import DType, Shape, Size, float32, int64, real_of

__all__ = [
    "can_cast", "channels_last", "channels_last_3d", "contiguous_format",
    "cumulative_trapezoid", "detach", "e", "finfo", "from_dlpack", "frombuffer", "get_default_dtype", "iinfo", "inf",
    "is_nonzero", "is_same_size", "is_signed", "mvlgamma", "nan", "pdist", "pi", "preserve_format", "set_default_dtype",
    "strided", "trapezoid", "trapz", "unravel_index", "vander",
]  # fmt: skip
#: functions that torch has as methods only
METHODS = ("sum_to_size", "to_dense", "to_sparse", "to_sparse_coo", "to_sparse_csr")


# -- integrals ------------------------------------------------------------------------------


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral along a dim by the trapezoidal rule."""
    y = require_tensor("trapezoid", y)
    if x is None and y._type.dtype.kind not in "fcb":
        y = cast(y, int64)  # the sum of two neighbours may be more than a small integer holds
    return reduce.sum(_strips("trapezoid", y, x, dx, dim), dim) / 2


trapz = trapezoid


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The running integral along a dim by the trapezoidal rule."""
    return scan.cumsum(_strips("cumulative_trapezoid", y, x, dx, dim), dim) / 2


def _strips(name: str, y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    """Twice the area between each two neighbouring points."""
    y = require_tensor(name, y)
    dim = normalize_dim(dim, y._type.ndim)
    sums = views.narrow(y, dim, 1, max(y.size(dim) - 1, 0)) if y.size(dim) else y
    sums = sums + views.narrow(y, dim, 0, y.size(dim) - 1) if y.size(dim) else sums
    if x is None:
        return sums * (1 if dx is None else dx)
    x = require_tensor(name, x)
    if x._type.ndim == 1:
        if x.size(0) != y.size(dim):
            raise refuse(ShapeError, "needs as many positions as values", name, y, x, dim=dim)
        x = views.reshape(x, (x.size(0), *(1,) * (y._type.ndim - dim - 1)))
        return sums * scan.diff(x, dim=0)
    at = dim - y._type.ndim
    return sums * scan.diff(x, dim=at)


# -- special functions ---------------------------------------------------------------------


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    x = require_tensor("mvlgamma", input)
    x = x if x._type.dtype.kind == "f" else cast(x, float32)
    steps = creation.arange(p, dtype=x._type.dtype) / -2
    result: Tensor = pointwise.lgamma(views.unsqueeze(x, -1) + steps).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)
    return result


# -- of shapes and dtypes ---------------------------------------------------------------------


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape."""
    return require_tensor("is_same_size", input).shape == require_tensor("is_same_size", other).shape


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return require_tensor("is_signed", input)._type.dtype.kind in "ifc"


def detach(input: Tensor) -> Tensor:
    """The same value without gradients; writes to one are seen in the other."""
    return detached(require_tensor("detach", input))


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum over the dims that broadcasting from this size would repeat."""
    target = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    shape, lead = input._type.shape, input._type.ndim - len(target)
    fits = lead >= 0 and all(n in (1, have) for n, have in zip(target, shape[lead:], strict=True))
    if not fits:
        raise refuse(ShapeError, f"does not come from {Size(target)} by broadcasting", "sum_to_size", input)
    if not shape:
        return reduce.sum(input)
    dims = [*range(lead), *(lead + i for i, n in enumerate(target) if n == 1 and shape[lead + i] != 1)]
    return views.reshape(reduce.sum(input, dims, keepdim=True), target) if dims else input


def unravel_index(indices: Tensor, shape: int | Shape) -> tuple[Tensor, ...]:
    """The position in each dim of positions in the flattened tensor."""
    x = require_tensor("unravel_index", indices)
    if x._type.dtype.kind not in "iu":
        raise refuse(DTypeError, "positions are integers", "unravel_index", x)
    x, result, step = cast(x, int64), [], 1
    for size in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        result.append(x // step % size)
        step *= size
    return tuple(reversed(result))


# -- the rest ----------------------------------------------------------------------------------


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803, torch's name
    """The powers of each element of a vector, the highest first unless ``increasing``."""
    x = require_tensor("vander", x)
    if x._type.ndim != 1:
        raise refuse(ShapeError, "needs a vector", "vander", x)
    powers = linalg.vander(x, N=N)
    return powers if increasing else views.flip(powers, (1,))


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distance of each pair of rows."""
    x = require_tensor("pdist", input)
    if x._type.ndim != 2:
        raise refuse(ShapeError, "a matrix is needed", "pdist", x)
    i, j = creation.triu_indices(x.size(0), x.size(0), 1)
    require_real("pdist", x)
    return norm.norm(scatter.index_select(x, 0, i) - scatter.index_select(x, 0, j), p, 1)


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A copy of a tensor of another library, through DLPack."""
    import numpy as np

    check_device(device)
    if copy is False:
        raise ValueError("from_dlpack(copy=False): a tensor shares no memory with this process")
    return creation.tensor(np.from_dlpack(ext_tensor))


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor from bytes, read as numbers of a dtype."""
    import numpy as np

    from gt.client.tensor.arguments import dtype_of

    array = np.frombuffer(buffer, np.dtype(dtype_of(dtype).name), count, offset)
    return creation.tensor(array, requires_grad=requires_grad)


# -- dtypes, constants and defaults --------------------------------------------------------

e, inf, nan, pi = math.e, math.inf, math.nan, math.pi

#: floating dtype -> the bits of its fraction and of its exponent
_BITS = {"float64": (52, 11), "float32": (23, 8), "float16": (10, 5), "bfloat16": (7, 8)}
#: floating dtype whose limits do not follow from its bits -> eps, min, max, smallest normal number, as in torch
_LIMITS = {
    "float8_e4m3fn": (0.125, -448.0, 448.0, 2.0**-6),
    "float8_e4m3fnuz": (0.125, -240.0, 240.0, 2.0**-7),
    "float8_e5m2": (0.25, -57344.0, 57344.0, 2.0**-14),
    "float8_e5m2fnuz": (0.125, -57344.0, 57344.0, 2.0**-15),
    "float8_e8m0fnu": (1.0, 2.0**-127, 2.0**127, 2.0**-127),
}


class _MemoryFormat:
    """A memory format or layout. It is accepted and ignored."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"gt.{self._name}"


strided, contiguous_format, preserve_format = map(_MemoryFormat, ("strided", "contiguous_format", "preserve_format"))
channels_last, channels_last_3d = map(_MemoryFormat, ("channels_last", "channels_last_3d"))


class finfo:  # noqa: N801, torch's name
    """The limits of a floating dtype."""

    def __init__(self, type: Any = float32) -> None:
        dtype = any_dtype_of(getattr(type, "dtype", type))  # the array API accepts arrays
        dtype = real_of(dtype)
        if dtype.name not in _BITS and dtype.name not in _LIMITS:
            raise DTypeError(f"finfo({dtype}): for floating dtypes; gt.iinfo is for integers")
        self.dtype, self.bits = dtype.name, 8 * dtype.itemsize
        self.eps, self.min, self.max, self.tiny = _LIMITS.get(dtype.name) or self._from_bits(*_BITS[dtype.name])
        self.smallest_normal = self.tiny
        self.resolution = 10.0 ** -int(-math.log10(self.eps))

    @staticmethod
    def _from_bits(fraction: int, exponent: int) -> tuple[float, float, float, float]:
        eps, top = 2.0**-fraction, 2 ** (exponent - 1) - 1
        largest = (2.0 - eps) * 2.0**top
        return eps, -largest, largest, 2.0 ** (1 - top)

    def __repr__(self) -> str:
        shown = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in shown)}, dtype={self.dtype})"


class iinfo:  # noqa: N801, torch's name
    """The limits of an integer dtype."""

    def __init__(self, type: Any) -> None:
        dtype = any_dtype_of(getattr(type, "dtype", type))
        if dtype.kind not in "iu":
            raise DTypeError(f"iinfo({dtype}): for integers; gt.finfo is for floating dtypes")
        self.dtype, self.bits = dtype.name, 8 * dtype.itemsize
        self.min = -(2 ** (self.bits - 1)) if dtype.kind == "i" else 0
        self.max = self.min + 2**self.bits - 1

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a dtype can be cast to another one without a loss of kind."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    return order[any_dtype_of(from_).kind] <= order[any_dtype_of(to).kind]


def get_default_dtype() -> DType:
    """The dtype of new floating tensors: float32."""
    return float32


def set_default_dtype(d: Any) -> None:
    """Accept float32, the only default dtype, and refuse others."""
    if dtype_of(d) is not float32:
        raise DTypeError(
            f"set_default_dtype({dtype_of(d)}): the default is float32; pass dtype= where tensors are created"
        )


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not zero. Waits for the workers."""
    if require_tensor("is_nonzero", input)._type.numel != 1:
        raise ShapeError(f"is_nonzero({input._type}): takes a tensor of one element")
    return bool(input)


# -- dense and sparse ----------------------------------------------------------------------


def to_sparse(input: Tensor, sparse_dim: int = 2) -> Any:
    """A sparse matrix in the COO form, of the elements that are not zero. Waits for their number."""
    from gt.sparse.create import from_dense

    return from_dense(input, sparse_dim)


to_sparse_coo = to_sparse


def to_sparse_csr(input: Tensor) -> Any:
    """A sparse matrix in the CSR form, of the elements that are not zero. Waits for their number."""
    return to_sparse(input).to_sparse_csr()


def to_dense(input: Tensor, dtype: Any = None) -> Tensor:
    """The tensor itself, or cast: it is dense."""
    return input if dtype is None else convert(input, dtype_of(dtype))
