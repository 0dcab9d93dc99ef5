"""What torch lets a caller write in several ways, brought to the one way ops are given it.

A dim counted from the end becomes one counted from the start; one that is out of range is passed on as it is, because
the op's own inference refuses it with a text that names the whole call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from operator import index
from typing import Any, TypeVar

from gt.client.stream import connect
from gt.client.tensor import foreign
from gt.client.tensor.emit import call, upload
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GtError, ShapeError
from gt.ops import OPS
from gt.types import DTYPES, DType, Shape, TensorType, bool_, float64, int64

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN = frozenset((int, float, bool, Tensor))
_PYTHON_DTYPES: dict[Any, DType] = {float: float64, int: int64, bool: bool_}


def named(name: str, *operands: Any, **attrs: Any) -> str:
    """``stack(float32[2], float32[3], dim=0)``: a call in an error's text, as `Op.call` writes it."""
    given = [str(x._type) if isinstance(x, Tensor) else repr(x) for x in operands]
    return f"{name}({', '.join([*given, *(f'{k}={v!r}' for k, v in attrs.items())])})"


def refuse(kind: type[GtError], text: str, name: str, *operands: Any, **attrs: Any) -> GtError:
    return kind(f"{named(name, *operands, **attrs)}: {text}")


# -- operands ------------------------------------------------------------------------------


def operand(x: Any) -> Any:
    """A tensor, or a Python number; NotImplemented for what is neither and cannot become one."""
    if type(x) in _PLAIN or isinstance(x, Tensor):
        return x
    if isinstance(x, bool | int | float):  # a subclass: an IntEnum, numpy's float64
        return float(x) if isinstance(x, float) else int(x)
    if isinstance(x, complex):
        raise DTypeError(f"GT has no complex numbers: {x!r}")
    numpy = sys.modules.get("numpy")  # what is not imported cannot have made x
    if numpy is not None and isinstance(x, numpy.generic):
        return operand(x.item())
    if numpy is not None and isinstance(x, numpy.ndarray):
        return uploaded(x)
    if foreign.of_torch(x):
        raise DTypeError(foreign.no_tensor(x, ""))
    return NotImplemented


def operands(name: str, *given: Any) -> tuple[Any, ...]:
    """The same for all of a call's, which must contain a tensor."""
    made = tuple(map(operand, given))
    for x, was in zip(made, given, strict=True):
        if x is NotImplemented:
            raise DTypeError(f"{named(name, *given)}: neither a tensor nor a number: {type(was).__name__}")
    if not any(isinstance(x, Tensor) for x in made):
        raise DTypeError(f"{named(name, *given)}: needs a tensor; make one with gt.tensor")
    return made


def a_tensor(name: str, x: Any) -> Tensor:
    """An argument that must be a tensor; an array becomes one."""
    made = x if isinstance(x, Tensor) or foreign.of_torch(x) else operand(x)
    if not isinstance(made, Tensor):
        otherwise = f"a tensor is needed here, not {type(x).__name__}"
        raise DTypeError(f"{name}: {foreign.no_tensor(x, otherwise)}")
    return made


def tensor_list(name: str, xs: Any) -> tuple[Tensor, ...]:
    """The sequence of tensors that `cat` and its kin take."""
    if isinstance(xs, Tensor):
        raise DTypeError(f"{name}: takes a list of tensors, not one tensor")
    made = tuple(a_tensor(name, x) for x in xs)
    if not made:
        raise ShapeError(f"{name}: needs at least one tensor")
    return made


def uploaded(array: Any, dtype: DType | None = None) -> Tensor:
    """The values of a numpy array as they are now."""
    import numpy as np

    name = array.dtype.name
    if name not in DTYPES:
        raise DTypeError(f"GT has no dtype for a numpy array of {name}; cast it first")
    if dtype is not None and dtype.name != "bfloat16":
        name = dtype.name
    with np.errstate(all="ignore"):  # what is too large for the dtype is inf, as in torch, and no news
        plain = np.ascontiguousarray(array, dtype=np.dtype(name)).reshape(-1)
    data = plain.view(np.uint8).data if plain.size else memoryview(b"")
    made = upload(data, TensorType(array.shape, DTYPES[name]), connect.session())
    return made if dtype is None else cast(made, dtype)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x in this dtype; x itself if that is what it is."""
    return x if x._type.dtype is dtype else call(OPS["to"], (x,), (("dtype", dtype.name),))


def also_called(function: F, **names: str) -> F:
    """The function, with other names for some of its arguments."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            # numpy's own functions say out=None
            kwargs = {names.get(k, k): value for k, value in kwargs.items() if k != "out" or value is not None}
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def by_numpy_names(function: F) -> F:
    """The function, with numpy's names for its dims, which torch takes too."""
    return also_called(function, axis="dim", keepdims="keepdim")


# -- attributes ----------------------------------------------------------------------------


def dtype_of(dtype: Any) -> DType:
    """A dtype, or Python's, torch's or numpy's name for one."""
    if isinstance(dtype, DType):
        return dtype
    found = _PYTHON_DTYPES.get(dtype) if isinstance(dtype, type) else None
    found = found or foreign.dtype_called(dtype)
    if found is not None:
        return found
    raise DTypeError(f"{dtype!r} is no dtype of GT; there are {', '.join(f'gt.{name}' for name in DTYPES)}")


class Device(str):
    """What a program may say of devices. GT hears it, and leaves it to the system where a tensor lives."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The kind of device, without its number."""
        return str(self).partition(":")[0]  # of a subclass alone, what has no colon would be the device again

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The device's number, or None."""
        number = self.partition(":")[2]
        return int(number) if number else None

    def __repr__(self) -> str:
        return f"device(type={self.type!r}{'' if self.index is None else f', index={self.index}'})"


_DEVICES = ("gt", "cpu", "cuda", "mps", "xpu", "meta")


def device_of(device: Any) -> None:
    """Refuses what cannot be a device: a mistake should not pass because devices are overlooked."""
    if device is None or isinstance(device, int) or hasattr(device, "type"):
        return
    if not isinstance(device, str) or Device(device).type not in _DEVICES:
        raise DTypeError(f"{device!r} is no device; leave it out, or say 'cpu' or 'cuda'")


def dtype_name(dtype: Any) -> str | None:
    return None if dtype is None else dtype_of(dtype).name


def sizes(given: tuple[Any, ...], name: str) -> Shape:
    """``zeros(2, 3)`` and ``zeros((2, 3))`` alike."""
    if len(given) == 1 and type(given[0]) is not int and _is_sequence(given[0]):
        given = tuple(given[0])
    return tuple(n if type(n) is int else whole(n, f"{name}(): sizes are ints") for n in given)


def _is_sequence(x: Any) -> bool:
    return isinstance(x, tuple | list) or (hasattr(x, "__iter__") and getattr(x, "ndim", 1) > 0)


def whole(n: Any, rule: str) -> int:
    """An int, of Python's own kind: what goes on the wire must be."""
    try:
        return index(n)
    except TypeError:
        raise DTypeError(f"{rule}, and {n!r} is not") from None


def one_dim(dim: Any, ndim: int) -> int:
    """A dim counted from the start, or as it is if there is no such dim."""
    d: int = dim if type(dim) is int else whole(dim, "a dim is an int")
    n = ndim or 1
    return d % n if -n <= d < n else d


def many_dims(dim: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """The dims a reduction folds: all if none is named."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int) or not hasattr(dim, "__iter__"):
        return (one_dim(dim, ndim),)
    return tuple([one_dim(d, ndim) for d in dim]) or tuple(range(ndim))
