"""Checks of attributes. A definition arrives on the wire, so an attribute may be any plain value."""

from __future__ import annotations

from math import isfinite
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.types import DType

#: The largest value of a C int and of a C int64, which torch's kernels use.
MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
#: The largest finite value of each floating dtype.
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.38e38, "float16": 65504.0}


def check_flags(**values: Any) -> None:
    """Refuses what is not a bool."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise DTypeError(f"{name} is True or False, not {value!r}")


def check_mask(mask: Any, count: int) -> None:
    """Refuses a mask that is not ``count`` bools. A mask says which results are requested, at least one."""
    if len(mask) != count or not all(isinstance(wanted, bool) for wanted in mask) or not any(mask):
        raise ShapeError(f"mask is {count} bools with at least one True, not {mask!r}")


def check_int(name: str, value: Any, least: int, most: int) -> None:
    """Refuses what is not an int from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise DTypeError(f"{name} is an int, not {value!r}")
    if not least <= value <= most:
        raise ShapeError(f"{name} is an int from {least} to {most}, not {value}")


def check_numbers(dtype: DType, **values: Any) -> None:
    """Refuses numbers outside the range of the dtype; for half precision, of float32, in which most kernels compute."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise DTypeError(f"{name} is a number, not {value!r}")
        if dtype.kind in "iu":
            bits = 8 * dtype.itemsize - (dtype.kind == "i")
            fits = -(1 << bits) * (dtype.kind == "i") <= value <= (1 << bits) - 1
        else:
            fits = not isfinite(value) or abs(value) <= LARGEST["float64" if dtype.itemsize == 8 else "float32"]
        if not fits:
            raise ShapeError(f"{name}={value} is beyond the range of {dtype.name}")


def check_values(dtype: DType, **values: Any) -> None:
    """The same for kernels that compute in half precision: numbers must be in the range of that dtype."""
    check_numbers(dtype, **values)
    for name, value in values.items():
        if dtype.kind == "f" and isfinite(value) and abs(value) > LARGEST[dtype.name]:
            raise ShapeError(f"{name}={value} is beyond the range of {dtype.name}")
