"""Rules of inference that many ops share. Each raises without naming the call; `Op.result_types` adds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.types import MAX_DIMS, DType, OperandType, Scalar, Shape, TensorType, bool_, float32, result_dtype


def broadcast_shapes(*shapes: Shape) -> Shape:
    """torch's rule: sizes are aligned at the end; a size of 1 is stretched, other sizes must agree."""
    ndim = max(map(len, shapes), default=0)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    return tuple(map(_common_size, zip(*padded, strict=True)))


def _common_size(sizes: tuple[int, ...]) -> int:
    distinct = {n for n in sizes if n != 1}
    if len(distinct) > 1:
        raise ShapeError(f"sizes {' and '.join(map(str, sorted(distinct)))} do not broadcast")
    return distinct.pop() if distinct else 1


def shapes_of(types: Iterable[OperandType]) -> list[Shape]:
    return [() if isinstance(t, Scalar) else t.shape for t in types]


def floating(dtype: DType) -> DType:
    """The dtype itself if it is floating or complex, else float32: for ops whose result is never an integer."""
    return dtype if dtype.kind in "fc" else float32


def common_floating(*types: OperandType, **attrs: Any) -> DType:
    """torch's common dtype of the operands; float32 if it is an integer or bool."""
    return floating(result_dtype(*types))


def common(*types: OperandType, **attrs: Any) -> DType:
    """torch's common dtype of the operands."""
    return result_dtype(*types)


def pointwise(*types: OperandType, **attrs: Any) -> TensorType:
    """Operands broadcast; the result has their common dtype."""
    return TensorType(broadcast_shapes(*shapes_of(types)), result_dtype(*types))


def pointwise_floating(*types: OperandType, **attrs: Any) -> TensorType:
    return TensorType(broadcast_shapes(*shapes_of(types)), common_floating(*types))


def pointwise_bool(*types: OperandType, **attrs: Any) -> TensorType:
    return TensorType(broadcast_shapes(*shapes_of(types)), bool_)


def refusing_bool(rule: Callable[..., TensorType], way_out: str) -> Callable[..., TensorType]:
    """The same rule, which refuses bool operands, as torch does for ``-``."""

    def refuse(*types: OperandType, **attrs: Any) -> TensorType:
        if any(t.dtype is bool_ for t in types):
            raise DTypeError(f"not defined for bool; use {way_out}")
        return rule(*types, **attrs)

    return refuse


def refusing(kinds: str, rule: Callable[..., TensorType], way_out: str) -> Callable[..., TensorType]:
    """The same rule, which refuses a common dtype of these kinds (letters as in `DType.kind`)."""

    def refuse(*types: OperandType, **attrs: Any) -> TensorType:
        dtype = result_dtype(*types)
        if dtype.kind in kinds:
            raise DTypeError(f"not defined for {dtype.name}; use {way_out}")
        return rule(*types, **attrs)

    return refuse


def same(x: TensorType, *rest: OperandType, **attrs: Any) -> TensorType:
    """The result has the type of the first operand."""
    return x


def shown(shape: Shape) -> str:
    """``[5,3]``: a shape in an error's text."""
    return f"[{','.join(map(str, shape))}]"


def sizes(shape: Shape) -> Shape:
    """The same shape, checked: at most `MAX_DIMS` sizes, each an int of 0 or more."""
    if len(shape) > MAX_DIMS:
        raise ShapeError(f"{len(shape)} dims are more than {MAX_DIMS}")
    for n in shape:
        if type(n) is not int:
            raise DTypeError(f"sizes are ints, and {n!r} is not")
        if n < 0:
            raise ShapeError(f"size {n} is negative")
    return shape


def expandable(shape: Shape, target: Shape) -> None:
    """Refuses a shape that does not stretch to exactly the target."""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(n not in (1, m) for n, m in aligned):
        raise ShapeError(f"{shown(shape)} does not broadcast to {shown(target)}")


def check_imaginary(value: OperandType, target: TensorType) -> None:
    """Refuses to write complex values into a tensor that cannot hold their imaginary parts."""
    if value.dtype.kind == "c" != target.dtype.kind:
        raise DTypeError(f"{target.dtype.name} has no imaginary part; use x.real")


def assignable(value: OperandType, target: Shape) -> None:
    """The same for ``x[…] = value``, where torch ignores leading sizes of 1."""
    shape = () if isinstance(value, Scalar) else value.shape
    while len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    expandable(shape, target)


def wrap_dim(dim: int, ndim: int) -> int:
    """A dim counted from the end, as one counted from the start. A 0-d tensor takes 0 and -1."""
    if not isinstance(dim, int):
        raise DTypeError(f"a dim is an int, and {dim!r} is not")
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise DimError(f"dim {dim} is out of range [{-n}, {n - 1}]")
    return dim % n


def wrap_dims(dims: Iterable[int], ndim: int) -> tuple[int, ...]:
    wrapped = tuple(wrap_dim(d, ndim) for d in dims)
    if len(set(wrapped)) < len(wrapped):
        raise ShapeError(f"dim {max(wrapped, key=wrapped.count)} appears more than once")
    return wrapped


def check_dim(dim: int, ndim: int) -> int:
    """The same dim, checked: a dim among an op's attributes is counted from the start.

    The function that emits the op wraps a dim that the user counts from the end.
    """
    if type(dim) is not int:
        raise DTypeError(f"a dim is an int, and {dim!r} is not")
    if wrap_dim(dim, ndim) != dim:
        raise DimError(f"dim {dim} is counted from the end; an op's dims are counted from the start")
    return dim


def check_dims(dims: Iterable[int], ndim: int) -> tuple[int, ...]:
    return wrap_dims([check_dim(d, ndim) for d in dims], ndim)


def require_bools(**attrs: bool) -> None:
    for name, value in attrs.items():
        if type(value) is not bool:
            raise DTypeError(f"{name} is True or False, not {value!r}")


def require_ints(**attrs: int) -> None:
    for name, value in attrs.items():
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise DTypeError(f"{name} is an int of 64 bits, not {value!r}")


def without(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    """The shape after a reduction over ``dims`` (already wrapped)."""
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)
