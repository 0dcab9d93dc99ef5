"""torch's oldest constructors: ``Tensor``, ``FloatTensor``, ``LongTensor``, …, of sizes or of data."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import check_device, sizes
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.functions import creation
from gt.types import (
    DType,
    Size,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
    "IntTensor", "LongTensor", "ShortTensor",
]  # fmt: skip


def make(name: str, dtype: DType, data: tuple[Any, ...], device: Any = None) -> Tensor:
    """``Tensor(2, 3)`` and ``Tensor(size)`` have these sizes; ``Tensor([2, 3])`` and other data have these values."""
    check_device(device)
    if len(data) != 1 or isinstance(data[0], int | Size):
        return creation.empty(sizes(data, name) if data else 0, dtype=dtype)
    (values,) = data
    if isinstance(values, Tensor):
        if name != "Tensor" and values._type.dtype is not dtype:
            raise DTypeError(f"{name}({values._type}): the tensor must have dtype {dtype}; x.to(dtype) casts")
        return values.view_as(values)
    if isinstance(values, float):
        raise DTypeError(f"{name}({values!r}): takes sizes or a sequence; use gt.tensor({values!r})")
    return creation.tensor(values, dtype)


class TensorClass(type):
    """The type of ``FloatTensor`` and the others: calling one creates a `Tensor`; isinstance compares the dtype."""

    _dtype: DType

    @property
    def dtype(cls) -> DType:
        """The dtype of its tensors."""
        return cls._dtype

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        return make(cls.__name__, cls._dtype, data, device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance._type.dtype is cls._dtype


class FloatTensor(Tensor, metaclass=TensorClass):
    """A tensor of float32."""

    _dtype = float32


class DoubleTensor(Tensor, metaclass=TensorClass):
    """A tensor of float64."""

    _dtype = float64


class HalfTensor(Tensor, metaclass=TensorClass):
    """A tensor of float16."""

    _dtype = float16


class BFloat16Tensor(Tensor, metaclass=TensorClass):
    """A tensor of bfloat16."""

    _dtype = bfloat16


class LongTensor(Tensor, metaclass=TensorClass):
    """A tensor of int64."""

    _dtype = int64


class IntTensor(Tensor, metaclass=TensorClass):
    """A tensor of int32."""

    _dtype = int32


class ShortTensor(Tensor, metaclass=TensorClass):
    """A tensor of int16."""

    _dtype = int16


class CharTensor(Tensor, metaclass=TensorClass):
    """A tensor of int8."""

    _dtype = int8


class ByteTensor(Tensor, metaclass=TensorClass):
    """A tensor of uint8."""

    _dtype = uint8


class BoolTensor(Tensor, metaclass=TensorClass):
    """A tensor of bool."""

    _dtype = bool_


class ComplexFloatTensor(Tensor, metaclass=TensorClass):
    """A tensor of complex64."""

    _dtype = complex64


class ComplexDoubleTensor(Tensor, metaclass=TensorClass):
    """A tensor of complex128."""

    _dtype = complex128


#: dtype -> the class that torch names it by
BY_DTYPE: dict[DType, TensorClass] = {
    kind._dtype: kind
    for kind in (
        FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, LongTensor, IntTensor, ShortTensor, CharTensor,
        ByteTensor, BoolTensor, ComplexFloatTensor, ComplexDoubleTensor,
    )
}  # fmt: skip
BY_NAME = {kind.__name__: kind for kind in BY_DTYPE.values()}
