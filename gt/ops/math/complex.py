"""Complex numbers: their parts, their angle, and tensors built from parts.

A gradient follows torch's convention: it is the conjugate of the derivative, so that a step against it makes a real
loss smaller. `gt.client.tensor.tape` conjugates for the ops that are marked ``holomorphic``; the rules here are written
for complex numbers.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import pointwise
from gt.ops.math.pointwise import PROMOTING
from gt.ops.op import op
from gt.ops.split import Split, letters, linear
from gt.types import TensorType, complex_of, float32, float64, real_of


def _require_complex(x: TensorType) -> None:
    if x.dtype.kind != "c":
        raise DTypeError(f"not defined for {x.dtype.name}; it takes complex numbers")


def _part(x: TensorType) -> TensorType:
    _require_complex(x)
    return TensorType(x.shape, real_of(x.dtype))


def _complex_from(real: Any, imag: Any) -> Any:
    return real._op("complex", imag)


op(
    "conj",
    complex="rule",
    operands="t",
    infer=lambda x: x,
    **linear((0,)),
    vjp=(lambda g, _y, _x: g.conj(),),
    torch=lambda torch, x: torch.conj_physical(x) if x.is_complex() else x.clone(),  # of real numbers: x itself
    kernel=lambda np, x: np.conjugate(x),
)

# -- parts ---------------------------------------------------------------------------------

op(
    "real",
    complex="rule",
    operands="t",
    infer=_part,
    **linear((0,)),
    view=True,
    vjp=(lambda g, _y, _x: g,),  # the tape casts it to the operand's dtype
    kernel=lambda xp, x: x.real,
)

op(
    "imag",
    complex="rule",
    operands="t",
    infer=_part,
    **linear((0,)),
    view=True,
    vjp=(lambda g, _y, _x: _complex_from(g.new_zeros(g.shape), g),),
    kernel=lambda xp, x: x.imag,
)


def _built(real: TensorType, imag: TensorType) -> TensorType:
    if real.dtype is not imag.dtype or real.dtype not in (float32, float64):
        raise DTypeError(f"takes two tensors of float32 or of float64, not {real.dtype.name} and {imag.dtype.name}")
    result = pointwise(real, imag)
    return TensorType(result.shape, complex_of(result.dtype))


def _build_numpy(np: Any, real: Any, imag: Any) -> Any:
    shape = np.broadcast_shapes(real.shape, imag.shape)
    result = np.empty(shape, dtype=np.result_type(real.dtype, np.complex64))
    result.real, result.imag = real, imag
    return result


op(
    "complex",
    complex="rule",
    operands="tt",
    infer=_built,
    **linear((0, 1)),
    vjp=(lambda g, _y, _real, _imag: g.real, lambda g, _y, _real, _imag: g.imag),
    torch=lambda torch, real, imag: torch.complex(real, imag),
    kernel=_build_numpy,
)


def _as_pairs(x: TensorType) -> TensorType:
    _require_complex(x)
    return TensorType((*x.shape, 2), real_of(x.dtype))


def _from_pairs(x: TensorType) -> TensorType:
    if x.dtype not in (float32, float64):
        raise DTypeError(f"not defined for {x.dtype.name}; use float32 or float64")
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError("the last dim holds the real and the imaginary part: its size must be 2")
    return TensorType(x.shape[:-1], complex_of(x.dtype))


def _pairs_torch(torch: Any, x: Any) -> Any:
    fits = x.stride(-1) == 1 and all(n % 2 == 0 for n in x.stride()[:-1]) and x.storage_offset() % 2 == 0
    return torch.view_as_complex(x if fits else x.clone(memory_format=torch.contiguous_format))


def _pairs_numpy(np: Any, x: Any) -> Any:
    whole = np.ascontiguousarray(x)
    return whole.view(np.result_type(x.dtype, np.complex64)).reshape(x.shape[:-1])


op(
    "view_as_real",
    complex="rule",
    operands="t",
    infer=_as_pairs,
    split=lambda x: Split(f"{letters(x.ndim)}->{letters(x.ndim)}.", linear=((0,),)),
    view=True,
    vjp=(lambda g, _y, _x: g._op("view_as_complex"),),
    torch=lambda torch, x: torch.view_as_real(x),
    kernel=lambda np, x: np.ascontiguousarray(x).reshape((*x.shape, 1)).view(x.real.dtype),
)

op(
    "view_as_complex",
    complex="rule",
    operands="t",
    infer=_from_pairs,
    split=lambda x: Split(f"{letters(x.ndim - 1)}.->{letters(x.ndim - 1)}", linear=((0,),)),
    view=True,
    vjp=(lambda g, _y, _x: g._op("view_as_real"),),
    torch=_pairs_torch,
    kernel=_pairs_numpy,
)

# -- direction -----------------------------------------------------------------------------


def _angle_back(g: Any, _y: Any, x: Any) -> Any:
    """i x / |x|²; 0 where x is 0."""
    real, imag = x.real, x.imag
    scale = (g / (real * real + imag * imag)).masked_fill(x == 0, 0)
    return _complex_from(-imag * scale, real * scale)


op(
    "angle",
    complex="rule",
    operands="t",
    infer=_part,
    split=linear()["split"],
    vjp=(_angle_back,),
    torch=lambda torch, x: torch.angle(x),
    kernel=lambda np, x: np.angle(x),
)


def _sgn_back(g: Any, y: Any, x: Any) -> Any:
    """Of a complex number, the part of g that is not along x, divided by |x|. Of a real number, zeros."""
    if x.dtype.kind != "c":
        return g.new_zeros(g.shape)
    size = x.abs()
    return ((g - (g * y.conj()).real * y) / size).masked_fill(size == 0, 0)


def _sgn_numpy(np: Any, x: Any) -> Any:
    if x.dtype.kind != "c":  # by comparison: in torch, the sign of NaN is 0
        return (x > 0).astype(np.int8) - (x < 0).astype(np.int8)
    size = np.abs(x)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size))


op(
    "sgn",
    complex="rule",
    function="t",
    doc="The sign of each element; of a complex number, the number divided by its absolute value.",
    **PROMOTING,
    vjp=(_sgn_back,),
    torch=lambda torch, x: torch.sgn(x),
    kernel=_sgn_numpy,
)
