"""Rules of inference that many ops share. Each raises without naming the call; `Op.result_types` adds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.types import DType, OperandType, Scalar, Shape, TensorType, bool_, float32, result_dtype


def broadcast_shapes(*shapes: Shape) -> Shape:
    """torch's rule: sizes are aligned at the end; 1 stretches, everything else must agree."""
    ndim = max(map(len, shapes), default=0)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    return tuple(map(_agreed, zip(*padded, strict=True)))


def _agreed(sizes: tuple[int, ...]) -> int:
    wide = {n for n in sizes if n != 1}
    if len(wide) > 1:
        raise ShapeError(f"sizes {' and '.join(map(str, sorted(wide)))} do not broadcast")
    return wide.pop() if wide else 1


def shapes_of(types: Iterable[OperandType]) -> list[Shape]:
    return [() if isinstance(t, Scalar) else t.shape for t in types]


def floating(dtype: DType) -> DType:
    """What an op that always gives a floating result makes of a dtype: integers become float32."""
    return dtype if dtype.kind == "f" else float32


def common_floating(*types: OperandType, **attrs: Any) -> DType:
    return floating(result_dtype(*types))


def common(*types: OperandType, **attrs: Any) -> DType:
    return result_dtype(*types)


def pointwise(*types: OperandType, **attrs: Any) -> TensorType:
    return TensorType(broadcast_shapes(*shapes_of(types)), result_dtype(*types))


def pointwise_floating(*types: OperandType, **attrs: Any) -> TensorType:
    return TensorType(broadcast_shapes(*shapes_of(types)), common_floating(*types))


def pointwise_bool(*types: OperandType, **attrs: Any) -> TensorType:
    return TensorType(broadcast_shapes(*shapes_of(types)), bool_)


def refusing_bool(rule: Callable[..., TensorType], way_out: str) -> Callable[..., TensorType]:
    """The same rule, but not for bool operands, as torch has it for ``-`` and ``neg``."""

    def refuse(*types: OperandType, **attrs: Any) -> TensorType:
        if any(t.dtype is bool_ for t in types):
            raise DTypeError(f"not defined for bool; use {way_out}")
        return rule(*types, **attrs)

    return refuse


def same(x: TensorType, *rest: OperandType, **attrs: Any) -> TensorType:
    return x


def wrap_dim(dim: int, ndim: int) -> int:
    """A dim counted from the end, as one counted from the start. A 0-d tensor takes 0 and -1."""
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise DimError(f"dim {dim} is out of range [{-n}, {n - 1}]")
    return dim % n


def wrap_dims(dims: Iterable[int], ndim: int) -> tuple[int, ...]:
    wrapped = tuple(wrap_dim(d, ndim) for d in dims)
    if len(set(wrapped)) < len(wrapped):
        raise ShapeError(f"dim {max(wrapped, key=wrapped.count)} appears more than once")
    return wrapped


def without(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    """The shape after a reduction over ``dims`` (already wrapped)."""
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)
