"""What torch tells of dtypes, and of itself: limits, constants, defaults."""

from __future__ import annotations

import math
from typing import Any

from gt.client.tensor.arguments import a_tensor, cast, dtype_of, sizes
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions.creation import empty, tensor
from gt.types import DTYPES, DType, float32

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
    "IntTensor", "LongTensor", "ShortTensor", "can_cast", "channels_last", "channels_last_3d", "contiguous_format", "e",
    "finfo", "get_default_dtype", "iinfo", "inf", "is_complex", "is_nonzero", "nan", "pi",
    "preserve_format", "set_default_dtype", "strided",
]  # fmt: skip

e, inf, nan, pi = math.e, math.inf, math.nan, math.pi

#: of a floating dtype: the bits of its fraction, and of its exponent
_BITS = {"float64": (52, 11), "float32": (23, 8), "float16": (10, 5), "bfloat16": (7, 8)}


class _Named:
    """What is heard and overlooked: how torch lays memory out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"gt.{self._name}"


strided, contiguous_format, preserve_format = map(_Named, ("strided", "contiguous_format", "preserve_format"))
channels_last, channels_last_3d = map(_Named, ("channels_last", "channels_last_3d"))


class finfo:  # noqa: N801, torch's name
    """The limits of a floating dtype."""

    def __init__(self, type: Any = float32) -> None:
        found = dtype_of(type)
        if found.kind != "f":
            raise DTypeError(f"finfo({found}): for floating dtypes; gt.iinfo is for integers")
        fraction, exponent = _BITS[found.name]
        top = 2 ** (exponent - 1) - 1
        self.dtype, self.bits = found.name, 8 * found.itemsize
        self.eps = 2.0**-fraction
        self.max = (2.0 - self.eps) * 2.0**top
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0 ** (1 - top)
        self.resolution = 10.0 ** -int(fraction * math.log10(2))

    def __repr__(self) -> str:
        shown = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in shown)}, dtype={self.dtype})"


class iinfo:  # noqa: N801, torch's name
    """The limits of an integer dtype."""

    def __init__(self, type: Any) -> None:
        found = dtype_of(type)
        if found.kind not in "iu":
            raise DTypeError(f"iinfo({found}): for integers; gt.finfo is for floating dtypes")
        self.dtype, self.bits = found.name, 8 * found.itemsize
        self.min = -(2 ** (self.bits - 1)) if found.kind == "i" else 0
        self.max = self.min + 2**self.bits - 1

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def can_cast(from_: Any, to: Any) -> bool:
    """Whether the kind of the one goes into the kind of the other."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2}
    return order[dtype_of(from_).kind] <= order[dtype_of(to).kind]


def get_default_dtype() -> DType:
    return float32


def set_default_dtype(d: Any) -> None:
    """There is one default, which every worker knows."""
    if dtype_of(d) is not float32:
        raise DTypeError(f"set_default_dtype({dtype_of(d)}): the default is float32; say dtype= where tensors are made")


def is_complex(input: Tensor) -> bool:
    return not isinstance(a_tensor("is_complex", input), Tensor)


def is_nonzero(input: Tensor) -> bool:
    """Reads the one element."""
    if a_tensor("is_nonzero", input)._type.numel != 1:
        raise ShapeError(f"is_nonzero({input._type}): takes a tensor of one element")
    return bool(input)


# -- the oldest way to make tensors ----------------------------------------------------------


def _legacy(name: str, dtype: str) -> Any:
    def make(*given: Any) -> Tensor:
        plain = len(given) == 1 and not isinstance(given[0], int)
        made = tensor(given[0]) if plain else empty(sizes(given, name) if given else 0)
        return cast(made, wanted)

    wanted = DTYPES[dtype]
    make.__name__ = make.__qualname__ = name
    return make


FloatTensor, DoubleTensor = _legacy("FloatTensor", "float32"), _legacy("DoubleTensor", "float64")
HalfTensor, BFloat16Tensor = _legacy("HalfTensor", "float16"), _legacy("BFloat16Tensor", "bfloat16")
LongTensor, IntTensor = _legacy("LongTensor", "int64"), _legacy("IntTensor", "int32")
ShortTensor, CharTensor = _legacy("ShortTensor", "int16"), _legacy("CharTensor", "int8")
ByteTensor, BoolTensor = _legacy("ByteTensor", "uint8"), _legacy("BoolTensor", "bool")
