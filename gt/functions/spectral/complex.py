"""torch's functions of complex numbers. Real tensors are accepted where torch accepts them, and stay as they are."""

from __future__ import annotations

import math
from typing import Any

from gt.client.tensor.arguments import cast, refuse, require_tensor
from gt.client.tensor.emit import call, unary, view_of
from gt.client.tensor.strides import strides_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise
from gt.ops import OPS
from gt.types import bool_, float32

__all__ = [
    "angle", "complex", "conj", "conj_physical", "imag", "is_complex", "is_conj", "is_neg", "isreal", "polar",
    "real", "resolve_conj", "resolve_neg", "view_as_complex", "view_as_real",
]  # fmt: skip

CONJ, COMPLEX = OPS["conj"], OPS["complex"]
REAL, IMAG, AS_REAL, AS_COMPLEX = OPS["real"], OPS["imag"], OPS["view_as_real"], OPS["view_as_complex"]


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return require_tensor("is_complex", input)._type.dtype.kind == "c"


# -- parts -----------------------------------------------------------------------------------


def real(input: Tensor) -> Tensor:
    """The real part, a view of a complex tensor; a real tensor itself."""
    x = require_tensor("real", input)
    return view_of(x, REAL, ()) if x._type.dtype.kind == "c" else x


def imag(input: Tensor) -> Tensor:
    """The imaginary part, a view of a complex tensor."""
    return view_of(require_tensor("imag", input), IMAG, ())


def view_as_real(input: Tensor) -> Tensor:
    """A view of a complex tensor with one more dim, of size 2: the real and the imaginary part."""
    return view_of(require_tensor("view_as_real", input), AS_REAL, ())


def view_as_complex(input: Tensor) -> Tensor:
    """A view of a real tensor whose last dim, of size 2, holds the real and the imaginary part."""
    x = require_tensor("view_as_complex", input)
    result = view_of(x, AS_COMPLEX, ())
    strides = strides_of(x)
    if strides[-1] != 1 or any(n % 2 for n in strides[:-1]):
        raise refuse(ShapeError, "the parts of a number must be neighbours in memory", "view_as_complex", x)
    return result


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers from their real and imaginary parts."""
    return call(COMPLEX, (require_tensor("complex", real), require_tensor("complex", imag)))


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers from their absolute values and angles."""
    size, turn = require_tensor("polar", abs), require_tensor("polar", angle)
    if size._type.dtype is not turn._type.dtype:
        raise refuse(DTypeError, "both must have the same dtype", "polar", size, turn)
    return complex(size * pointwise.cos(turn), size * pointwise.sin(turn))


# -- conjugates ------------------------------------------------------------------------------


def conj(input: Tensor) -> Tensor:
    """The complex conjugate of each element; a real tensor itself. Unlike torch's, it is no view."""
    x = require_tensor("conj", input)
    return unary(CONJ, x) if x._type.dtype.kind == "c" else x


conj_physical = conj


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: its values are never conjugated later."""
    return require_tensor("resolve_conj", input)


resolve_neg = resolve_conj


def is_conj(input: Tensor) -> bool:
    """Always False: `conj` computes its result at once."""
    return not isinstance(require_tensor("is_conj", input), Tensor)


is_neg = is_conj


# -- tests and angles ------------------------------------------------------------------------


def isreal(input: Tensor) -> Tensor:
    """Whether the imaginary part of each element is 0."""
    x = require_tensor("isreal", input)
    return pointwise.eq(imag(x), 0) if x._type.dtype.kind == "c" else creation.ones_like(x, dtype=bool_)


def angle(input: Tensor) -> Tensor:
    """The angle of each number, from -π to π: of a real number 0, or π where it is negative."""
    x = require_tensor("angle", input)
    if x._type.dtype.kind == "c":
        return unary(OPS["angle"], x)
    x = x if x._type.dtype.kind == "f" else cast(x, float32)
    turned: Any = pointwise.where(x < 0, math.pi, 0.0 * pointwise.nan_to_num(x, 0.0, 0.0, 0.0))
    result: Tensor = pointwise.where(pointwise.isnan(x), x, cast(turned, x._type.dtype))
    return result
