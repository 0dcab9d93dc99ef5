"""Dtypes and tensor types, and how they combine.

The rules of promotion are torch's: bool < integer < floating < complex; within a kind the wider dtype wins; a tensor
with dimensions outranks a 0-d tensor, and that outranks a Python number.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, ClassVar, Final, SupportsIndex, overload
from weakref import WeakValueDictionary

__all__ = [
    "DType", "Size", "bfloat16", "complex32", "complex64", "complex128", "float4_e2m1fn_x2", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "float32", "float64", "int8",
    "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

Shape = tuple[int, ...]

#: The most dims of a tensor, as in torch and numpy.
MAX_DIMS = 64


class Size(tuple[int, ...]):
    """A shape: a tuple of sizes that prints as torch's does."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements of a tensor of this shape."""
        product = 1
        for n in self:
            product *= n
        return product

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Size: ...
    def __getitem__(self, key: Any) -> int | Size:
        """One size, or a `Size` of several."""
        part: Any = tuple.__getitem__(self, key)
        return Size(part) if type(part) is tuple else part

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other))

    def __repr__(self) -> str:
        return f"gt.Size({list(self)})"


class DType:
    """An element type; printed as ``gt.float32``. Tensors have one of the twelve in `DTYPES`."""

    __slots__ = ("itemsize", "kind", "name")

    def __init__(self, name: str, kind: str, itemsize: int) -> None:
        self.name: Final = name
        #: 'b' bool, 'u' unsigned, 'i' signed, 'f' floating, 'c' complex
        self.kind: Final = kind
        self.itemsize: Final = itemsize

    @property
    def is_floating_point(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        """Whether the elements may be negative."""
        return self.kind in "ifc"

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __eq__(self, other: object) -> bool:
        """True for itself, and for torch's dtype of the same name."""
        return self is other or (type(other).__module__ == "torch" and repr(other) == f"torch.{self.name}")

    __hash__ = object.__hash__

    def __reduce__(self) -> str:
        """The name of this object in `gt.types`, by which pickle finds it."""
        return "bool_" if self is bool_ else self.name

    def __deepcopy__(self, memo: object) -> DType:
        return self


complex128 = DType("complex128", "c", 16)
complex64 = DType("complex64", "c", 8)
float64 = DType("float64", "f", 8)
float32 = DType("float32", "f", 4)
bfloat16 = DType("bfloat16", "f", 2)
float16 = DType("float16", "f", 2)
int64 = DType("int64", "i", 8)
int32 = DType("int32", "i", 4)
int16 = DType("int16", "i", 2)
int8 = DType("int8", "i", 1)
uint8 = DType("uint8", "u", 1)
bool_ = DType("bool", "b", 1)


class NamedDType(DType):
    """A dtype of torch that no tensor of GT has. Its name exists, so that programs can compare dtypes with it."""

    __slots__ = ()


complex32 = NamedDType("complex32", "c", 4)
float4_e2m1fn_x2 = NamedDType("float4_e2m1fn_x2", "f", 1)
float8_e4m3fn = NamedDType("float8_e4m3fn", "f", 1)
float8_e4m3fnuz = NamedDType("float8_e4m3fnuz", "f", 1)
float8_e5m2 = NamedDType("float8_e5m2", "f", 1)
float8_e5m2fnuz = NamedDType("float8_e5m2fnuz", "f", 1)
float8_e8m0fnu = NamedDType("float8_e8m0fnu", "f", 1)
uint16 = NamedDType("uint16", "u", 2)
uint32 = NamedDType("uint32", "u", 4)
uint64 = NamedDType("uint64", "u", 8)

DTYPES: Final = {
    d.name: d
    for d in (
        *(float64, float32, bfloat16, float16, int64, int32, int16, int8, uint8, bool_),
        *(complex128, complex64),
    )
}


class TensorType:
    """Shape and dtype. Interned: equal types are the same object, so they hash and compare by identity."""

    __slots__ = ("__weakref__", "dtype", "nbytes", "ndim", "numel", "shape")
    _interned: ClassVar[WeakValueDictionary[tuple[Shape, DType], TensorType]] = WeakValueDictionary()

    shape: Shape
    dtype: DType
    ndim: int
    numel: int
    nbytes: int

    def __new__(cls, shape: Shape, dtype: DType = float32) -> TensorType:
        type = cls._interned.get((shape, dtype))
        if type is None:
            type = super().__new__(cls)
            type.shape, type.dtype, type.ndim, type.numel = shape, dtype, len(shape), prod(shape)
            type.nbytes = type.numel * dtype.itemsize
            # setdefault: two threads may create the same type at once
            type = cls._interned.setdefault((shape, dtype), type)
        return type

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


class Scalar:
    """The type of an operand that is a Python number or bytes; the instruction contains the value, not a tensor id."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name: Final = name
        #: the dtype of the value in promotion
        self.dtype: Final = dtype

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


INT, FLOAT, BOOL = Scalar("int", int64), Scalar("float", float32), Scalar("bool", bool_)
#: the data of an upload: the bytes of a small tensor, or the number of the transfer that brings a large one
BYTES = Scalar("bytes", uint8)

SCALARS: Final = {"int": INT, "float": FLOAT, "bool": BOOL, "bytes": BYTES}
SCALAR_OF: Final[dict[type, Scalar]] = {int: INT, float: FLOAT, bool: BOOL, bytes: BYTES}
#: The types that a user may pass as operands; bytes are only for uploads.
NUMBER_OF: Final[dict[type, Scalar]] = {int: INT, float: FLOAT, bool: BOOL}

OperandType = TensorType | Scalar


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts have this dtype; complex64 for dtypes without one. A complex dtype is its own."""
    return complex128 if dtype in (float64, complex128) else complex64


def real_of(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; any other dtype itself."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


@cache
def promote(a: DType, b: DType) -> DType:
    """The common dtype of two operands of the same rank, such as two tensors with dimensions."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: ("buifc".index(d.kind), d.itemsize, d is bfloat16))
    if low.kind == "b" or (high.kind == low.kind and high.itemsize > low.itemsize):
        return high
    if high.kind == "c":
        return complex128 if low is float64 else high
    if high.kind == "f":
        return float32 if low.kind == "f" else high  # float16 and bfloat16 give float32
    return high if high.itemsize > low.itemsize else int16  # uint8 and int8 give int16


def result_dtype(*operands: OperandType) -> DType:
    """The dtype in which an op computes, from the types of all its operands."""
    # by rank: tensors with dimensions, 0-d tensors, Python numbers
    ranked: list[DType | None] = [None, None, None]
    for t in operands:
        rank = 2 if isinstance(t, Scalar) else (1 if t.ndim == 0 else 0)
        so_far = ranked[rank]
        ranked[rank] = t.dtype if so_far is None else promote(so_far, t.dtype)
    result = _outrank(ranked[0], _outrank(ranked[1], ranked[2]))
    assert result is not None, "an op without operands has no common dtype"
    return result


def _outrank(high: DType | None, low: DType | None) -> DType | None:
    """The common dtype of operands of a higher and a lower rank. The lower one counts only if its kind is wider."""
    if high is None or low is None:
        return high or low
    if high.kind == "f" and low.kind == "c":
        return complex_of(high)
    if high.kind in "fc":
        return high
    if high.kind == "b" or low.kind in "fc":
        return promote(high, low)
    return high
