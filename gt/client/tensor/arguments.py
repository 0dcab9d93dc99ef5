"""Arguments of a call in the one form that ops take. torch accepts several forms of many arguments.

A negative dim is counted from the end and becomes a positive one. A dim that is out of range stays as it is: the op's
`infer` refuses it with an error that names the whole call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import lru_cache, wraps
from operator import index
from typing import Any, TypeVar
from warnings import warn

from gt.client.stream import connect
from gt.client.tensor import foreign
from gt.client.tensor.emit import create, unary, upload, view_of
from gt.client.tensor.parameters import parameter_names, show_parameters
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GtError, ShapeError
from gt.ops import OPS, Attrs
from gt.types import DTYPES, DType, NamedDType, Shape, TensorType, bool_, complex64, complex128, float64, int64

F = TypeVar("F", bound=Callable[..., Any])

#: the types of operands that need no conversion
_PLAIN = frozenset((int, float, bool, Tensor))
#: the op that casts, and its attributes for each dtype
TO = OPS["to"]
TO_ATTRS: dict[DType, Attrs] = {dtype: (("dtype", dtype.name),) for dtype in DTYPES.values()}
_PYTHON_DTYPES: dict[Any, DType] = {float: float64, int: int64, bool: bool_, complex: complex128}


def call_text(name: str, *operands: Any, **attrs: Any) -> str:
    """A call as text for an error, as `Op.call` writes it: ``stack(float32[2], float32[3], dim=0)``."""
    texts = [*map(shown, operands)]
    return f"{name}({', '.join([*texts, *(f'{k}={v!r}' for k, v in attrs.items())])})"


def shown(x: Any) -> str:
    """An operand as text for an error: ``float32[2,3]``, ``sparse float32[2,3]``, 1.5. A sparse matrix is not read."""
    if isinstance(x, foreign.Sparse):
        return f"sparse {TensorType(x.shape, x.dtype)}"
    return str(x._type) if isinstance(x, Tensor) else repr(x)


def refuse(kind: type[GtError], text: str, name: str, *operands: Any, **attrs: Any) -> GtError:
    """The error for a refused call, to be raised by the caller. Its text begins with the call."""
    return kind(f"{call_text(name, *operands, **attrs)}: {text}")


# -- operands ------------------------------------------------------------------------------


def operand(x: Any, *beside: Any) -> Any:
    """The argument as a tensor or a Python number; NotImplemented if it cannot become one.

    ``beside``: the other arguments. A complex number becomes a tensor without dims, and they decide its precision.
    """
    if type(x) in _PLAIN or isinstance(x, Tensor):
        return x
    if isinstance(x, bool | int | float):  # a subclass, such as an IntEnum or numpy's float64
        return float(x) if isinstance(x, float) else int(x)
    if isinstance(x, complex):
        return _complex_number(x, beside)
    numpy = sys.modules.get("numpy")  # if numpy is not imported, x is not from numpy
    if numpy is not None and isinstance(x, numpy.generic):
        return operand(x.item(), *beside)
    if numpy is not None and isinstance(x, numpy.ndarray):
        return upload_array(x)
    if foreign.is_torch_tensor(x):
        raise DTypeError(foreign.non_tensor_text(x, ""))
    return NotImplemented


def _complex_number(x: complex, beside: tuple[Any, ...]) -> Tensor:
    """A tensor without dims. Beside a tensor it changes the result's dtype exactly as torch's complex number does."""
    tensors = [t for t in beside if isinstance(t, Tensor)]
    dtype = complex128 if any(t._type.dtype in (float64, complex128) for t in tensors) else complex64
    session = tensors[0]._cell.session if tensors else connect.session()
    return create(OPS["full"], (x.real, x.imag), (("shape", ()), ("dtype", dtype.name)), session)


def operands(name: str, *args: Any) -> tuple[Any, ...]:
    """All arguments of a call as operands. One of them must be a tensor."""
    converted = tuple([x if type(x) in _PLAIN else operand(x, *args) for x in args])
    for x, arg in zip(converted, args, strict=True):
        if x is NotImplemented:
            raise DTypeError(f"{call_text(name, *args)}: neither a tensor nor a number: {type(arg).__name__}")
    if not any(isinstance(x, Tensor) for x in converted):
        raise DTypeError(f"{call_text(name, *args)}: needs a tensor; make one with gt.tensor")
    return converted


def require_tensor(name: str, x: Any) -> Tensor:
    """An argument that must be a tensor. A numpy array becomes one."""
    converted = x if isinstance(x, Tensor) or foreign.is_torch_tensor(x) else operand(x)
    if not isinstance(converted, Tensor):
        otherwise = f"a tensor is needed here, not {type(x).__name__}"
        raise DTypeError(f"{name}: {foreign.non_tensor_text(x, otherwise)}")
    return converted


def require_real(name: str, x: Tensor) -> Tensor:
    """A tensor that must not be complex, for functions that torch refuses for complex numbers."""
    if x._type.dtype.kind == "c":
        raise refuse(DTypeError, f"not defined for {x._type.dtype.name}; use x.real, x.imag or abs(x)", name, x)
    return x


def tensor_list(name: str, xs: Any) -> tuple[Tensor, ...]:
    """The sequence of tensors that `cat`, `stack` and similar take."""
    if isinstance(xs, Tensor):
        raise DTypeError(f"{name}: takes a list of tensors, not one tensor")
    tensors = tuple(require_tensor(name, x) for x in xs)
    if not tensors:
        raise ShapeError(f"{name}: needs at least one tensor")
    return tensors


@lru_cache(64)
def _name_of(dtype: Any) -> str:
    """The name of a numpy dtype, which numpy puts together in Python each time."""
    return str(dtype.name)


def upload_array(array: Any, dtype: DType | None = None) -> Tensor:
    """A tensor with the values of a numpy array. The array may change afterwards."""
    data, type = array_bytes(array, dtype)
    tensor = upload(data, type, connect.session())
    return tensor if dtype is None else cast(tensor, dtype)


def array_bytes(array: Any, dtype: DType | None) -> tuple[memoryview, TensorType]:
    """The bytes of a numpy array, in this dtype if numpy has it, and the type of a tensor of them."""
    import numpy as np

    name = before = _name_of(array.dtype)
    if name not in DTYPES:
        raise DTypeError(f"GT has no dtype for a numpy array of {name}; cast it first")
    if dtype is not None and dtype.name != "bfloat16" and (array.dtype.kind != "c" or dtype.kind == "c"):
        name = dtype.name
    # as in torch, a value too large for the dtype becomes inf without a warning
    with nullcontext() if name == before else np.errstate(all="ignore"):
        plain = np.ascontiguousarray(array, dtype=np.dtype(name)).reshape(-1)
    data = plain.view(np.uint8).data if plain.size else memoryview(b"")
    return data, TensorType(array.shape, DTYPES[name])


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x in this dtype; x itself if it has this dtype already."""
    return x if x._type.dtype is dtype else unary(TO, x, TO_ATTRS[dtype])


def convert(x: Tensor, dtype: DType) -> Tensor:
    """`cast` where a user asks for it: complex numbers lose their imaginary parts, with a warning, as in torch."""
    if x._type.dtype.kind == "c" and dtype.kind not in "cb":
        warn("Casting complex values to real discards the imaginary part", stacklevel=3)
        return unary(TO, view_of(x, OPS["real"], ()), TO_ATTRS[dtype])  # never the view itself
    return cast(x, dtype)


def with_aliases(function: F, **names: str) -> F:
    """The function, with aliases for some of its arguments: alias=name."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            # numpy's functions pass out=None
            kwargs = {names.get(k, k): value for k, value in kwargs.items() if k != "out" or value is not None}
        return function(*args, **kwargs)

    known = parameter_names(function)
    show_parameters(call, function, {alias: None for alias, name in names.items() if name in known})
    return call  # type: ignore[return-value]


def accept_numpy_names(function: F) -> F:
    """The function, with numpy's names ``axis`` and ``keepdims``, which torch accepts too."""
    return with_aliases(function, axis="dim", keepdims="keepdim")


# -- attributes ----------------------------------------------------------------------------


def dtype_of(dtype: Any) -> DType:
    """The dtype of a tensor, for a dtype of GT, Python, torch or numpy."""
    if type(dtype) is DType:
        return dtype
    match = _PYTHON_DTYPES.get(dtype) if isinstance(dtype, type) else None
    match = match or foreign.find_dtype(dtype)
    if match is not None:
        return match
    there = ", ".join(f"gt.{name}" for name in DTYPES)
    if isinstance(dtype, NamedDType):
        raise DTypeError(f"{dtype!r} is only a name: GT has no tensors of this dtype; there are {there}")
    raise DTypeError(f"{dtype!r} is not a dtype of GT; there are {there}")


def any_dtype_of(dtype: Any) -> DType:
    """`dtype_of`, also for a dtype that no tensor of GT has."""
    return dtype if isinstance(dtype, NamedDType) else dtype_of(dtype)


class Device(str):
    """A device as torch writes it: ``gt.device("cuda:0")``. Device arguments are accepted and ignored."""

    __slots__ = ()

    def __new__(cls, type: str, index: int | None = None) -> Device:
        return super().__new__(cls, type if index is None else f"{type}:{index}")

    @property
    def type(self) -> str:
        """The kind of device, without its number."""
        return str(self).partition(":")[0]  # on self, partition would return a Device

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The device's number, or None."""
        number = self.partition(":")[2]
        return int(number) if number else None

    def __enter__(self) -> Device:
        """In torch, tensors are created on this device inside the block. Here it has no effect."""
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"device(type={self.type!r}{'' if self.index is None else f', index={self.index}'})"


_DEVICES = ("gt", "cpu", "cuda", "mps", "xpu", "meta")


def check_device(device: Any) -> None:
    """Raise DTypeError for anything that cannot be a device. Devices are ignored, but a mistake must be reported."""
    if device is None or isinstance(device, int) or hasattr(device, "type"):
        return
    if not isinstance(device, str) or Device(device).type not in _DEVICES:
        raise DTypeError(f"{device!r} is not a device; leave it out, or use 'cpu' or 'cuda'")


def dtype_name(dtype: Any) -> str | None:
    """The name that ops take as an attribute; None stays None."""
    return None if dtype is None else dtype_of(dtype).name


def sizes(args: tuple[Any, ...], name: str) -> Shape:
    """The sizes in ``zeros(2, 3)`` or ``zeros((2, 3))``."""
    if len(args) == 1 and type(args[0]) is not int and _is_sequence(args[0]):
        args = tuple(args[0])
    return tuple([n if type(n) is int else to_int(n, f"{name}(): sizes are ints") for n in args])


def _is_sequence(x: Any) -> bool:
    return isinstance(x, tuple | list) or (hasattr(x, "__iter__") and getattr(x, "ndim", 1) > 0)


def to_int(n: Any, rule: str) -> int:
    """The argument as a Python int, which the wire needs. ``rule`` begins the error's text."""
    try:
        return index(n)
    except TypeError:
        raise DTypeError(f"{rule}, and {n!r} is not") from None


def normalize_dim(dim: Any, ndim: int) -> int:
    """The dim counted from the start; unchanged if it is out of range."""
    d: int = dim if type(dim) is int else to_int(dim, "a dim is an int")
    n = ndim or 1
    return d % n if -n <= d < n else d


def normalize_dims(dim: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """The dims of a reduction: all of them for None or an empty list."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int) or not hasattr(dim, "__iter__"):
        return (normalize_dim(dim, ndim),)
    return tuple([normalize_dim(d, ndim) for d in dim]) or tuple(range(ndim))
