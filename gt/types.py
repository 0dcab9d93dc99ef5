"""What a tensor is before any data exists: dtypes, tensor types, and how they combine.

The rules of promotion are torch's: bool < integer < floating; within a kind the wider wins; a tensor with dimensions
outranks a 0-d tensor of the same kind, and that outranks a Python number.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import ClassVar, Final
from weakref import WeakValueDictionary

__all__ = ["DType", "Size", "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]

Shape = tuple[int, ...]

#: The dims a tensor may have: as many as torch and numpy take.
MAX_DIMS = 64


class Size(tuple[int, ...]):
    """A shape: a tuple that prints and counts as torch's."""

    __slots__ = ()

    def numel(self) -> int:
        product = 1
        for n in self:
            product *= n
        return product

    def __repr__(self) -> str:
        return f"gt.Size({list(self)})"


class DType:
    """One of GT's ten element types; compared by identity, printed as ``gt.float32``."""

    __slots__ = ("itemsize", "kind", "name")

    def __init__(self, name: str, kind: str, itemsize: int) -> None:
        self.name: Final = name
        #: 'b' bool, 'u' unsigned, 'i' signed, 'f' floating
        self.kind: Final = kind
        self.itemsize: Final = itemsize

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __reduce__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: object) -> DType:
        return self


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

DTYPES: Final = {d.name: d for d in (float64, float32, bfloat16, float16, int64, int32, int16, int8, uint8, bool_)}


class TensorType:
    """Shape and dtype. Interned: equal types are the same object, so they hash and compare by identity."""

    __slots__ = ("__weakref__", "dtype", "nbytes", "ndim", "numel", "shape")
    _known: ClassVar[WeakValueDictionary[tuple[Shape, DType], TensorType]] = WeakValueDictionary()

    shape: Shape
    dtype: DType
    ndim: int
    numel: int
    nbytes: int

    def __new__(cls, shape: Shape, dtype: DType = float32) -> TensorType:
        found = cls._known.get((shape, dtype))
        if found is None:
            found = super().__new__(cls)
            found.shape, found.dtype, found.ndim, found.numel = shape, dtype, len(shape), prod(shape)
            found.nbytes = found.numel * dtype.itemsize
            # setdefault: two threads may make the same type at once
            found = cls._known.setdefault((shape, dtype), found)
        return found

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


class Scalar:
    """The type of an operand that is a plain Python value; the value itself travels in the instruction."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name: Final = name
        #: what the value counts as in promotion
        self.dtype: Final = dtype

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


INT, FLOAT, BOOL = Scalar("int", int64), Scalar("float", float32), Scalar("bool", bool_)
#: the bytes of a small tensor on its way to a worker
BYTES = Scalar("bytes", uint8)

SCALARS: Final = {"int": INT, "float": FLOAT, "bool": BOOL, "bytes": BYTES}
SCALAR_OF: Final[dict[type, Scalar]] = {int: INT, float: FLOAT, bool: BOOL, bytes: BYTES}
#: what a user may give as an operand: bytes are for uploads alone
NUMBER_OF: Final[dict[type, Scalar]] = {int: INT, float: FLOAT, bool: BOOL}

OperandType = TensorType | Scalar


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype two dimensioned tensors meet in."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: ("buif".index(d.kind), d.itemsize, d is bfloat16))
    if low.kind == "b" or (high.kind == low.kind and high.itemsize > low.itemsize):
        return high
    if high.kind == "f":
        return float32 if low.kind == "f" else high  # float16 with bfloat16 meet in float32
    return high if high.itemsize > low.itemsize else int16  # uint8 with int8 meet in int16


def result_dtype(*operands: OperandType) -> DType:
    """The dtype an op computes in, from all its operands."""
    ranked: list[DType | None] = [None, None, None]
    for t in operands:
        rank = 2 if isinstance(t, Scalar) else (1 if t.ndim == 0 else 0)
        now = ranked[rank]
        ranked[rank] = t.dtype if now is None else promote(now, t.dtype)
    result = _outrank(ranked[0], _outrank(ranked[1], ranked[2]))
    assert result is not None, "an op without operands has no common dtype"
    return result


def _outrank(high: DType | None, low: DType | None) -> DType | None:
    if high is None or low is None:
        return high or low
    if high.kind == "f":
        return high
    if high.kind == "b" or low.kind == "f":
        return promote(high, low)
    return high
