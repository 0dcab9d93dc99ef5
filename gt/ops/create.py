"""Ops that make a tensor out of nothing, or of a few bytes and numbers."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError
from gt.ops import philox
from gt.ops.core import NUMBER, dtype_named, op
from gt.ops.infer import sizes
from gt.ops.split import Cut, Split, letters, shaped, shaped_and_placed
from gt.types import BYTES, FLOAT, OperandType, Scalar, Shape, TensorType


def _numbers(operands: tuple[OperandType, ...], refused: tuple[Scalar, ...] = (BYTES,)) -> None:
    for t in operands:
        if not isinstance(t, Scalar) or t in refused:
            raise DTypeError(f"takes plain numbers here, not {t}")


def _made(*operands: OperandType, shape: Shape, dtype: str) -> TensorType:
    _numbers(operands)
    return TensorType(sizes(shape), dtype_named(dtype))


def _drawn(*operands: OperandType, shape: Shape, dtype: str, block: philox.Block = None) -> TensorType:
    _numbers(operands, refused=(BYTES, FLOAT))
    if block is not None:
        philox.within(block, shape)
    return TensorType(sizes(shape), dtype_named(dtype))


def _drawn_floating(*operands: OperandType, shape: Shape, dtype: str, block: philox.Block = None) -> TensorType:
    if not dtype_named(dtype).is_floating_point:
        raise DTypeError(f"gives floating dtypes, not {dtype}; use randint")
    return _drawn(*operands, shape=shape, dtype=dtype, block=block)


# -- from bytes and numbers ----------------------------------------------------------------


def _uploaded(data: OperandType, *, shape: Shape, dtype: str) -> TensorType:
    if data is not BYTES:
        raise DTypeError(f"takes bytes, not {data}")
    return TensorType(sizes(shape), dtype_named(dtype))


def _upload_torch(torch: Any, data: Any, *, shape: Shape, dtype: str, device: Any) -> Any:
    if not len(data):
        return torch.empty(0, dtype=getattr(torch, dtype), device=device).view(shape)
    # bytes one may write to were received for this tensor alone: it lives on in them
    own = bytearray(data) if memoryview(data).readonly else data
    return from_bytes(torch, own, dtype).view(shape).to(device)


def from_bytes(torch: Any, data: Any, dtype: str) -> Any:
    """Bytes that came from outside as a tensor. Kernels count bools as they are: none may be anything but 0 and 1."""
    if dtype == "bool":
        return torch.frombuffer(data, dtype=torch.uint8) != 0
    return torch.frombuffer(data, dtype=getattr(torch, dtype))


def bytes_as(np: Any, data: Any, dtype: str) -> Any:
    """`from_bytes` of numpy."""
    return np.frombuffer(data, np.uint8) != 0 if dtype == "bool" else np.frombuffer(data, dtype)


op(
    "upload",
    operands="B",
    infer=_uploaded,
    creates=True,
    torch=_upload_torch,
    kernel=lambda np, data, *, shape, dtype, device: bytes_as(
        np, bytearray(data) if memoryview(data).readonly else data, dtype
    ).reshape(shape),
)


def _making(*numbers: OperandType, shape: Shape, dtype: str) -> Split:
    return Split(f"->{letters(len(shape))}")


op(
    "full",
    operands=NUMBER,
    infer=_made,
    split=_making,
    local=shaped,
    creates=True,
    torch=lambda torch, value, *, shape, dtype, device: torch.full(
        shape, value, dtype=getattr(torch, dtype), device=device
    ),
    kernel=lambda np, value, *, shape, dtype, device: np.full(shape, np.asarray(value).astype(dtype)),
)


def _counted(start: OperandType, step: OperandType, *, n: int, dtype: str, first: int = 0) -> TensorType:
    _numbers((start, step))
    made = dtype_named(dtype)
    if made.kind == "b":
        raise DTypeError("not defined for bool; use int64")
    return TensorType(sizes((n,)), made)


def _arange(xp: Any, start: Any, step: Any, *, n: int, dtype: str, device: Any, first: int = 0) -> Any:
    # in double precision or whole numbers, as torch does: float32 would drift, float16 overflow on the way
    if dtype.startswith("float") or dtype == "bfloat16":
        positions = xp.arange(first, first + n, dtype=xp.float64, device=device)
    else:
        positions, start, step = xp.arange(first, first + n, dtype=xp.int64, device=device), int(start), int(step)
    return xp.astype(positions * step + start, getattr(xp, dtype))


def _counted_from(attrs: dict[str, Any], cut: Cut) -> dict[str, Any]:
    return {**attrs, "n": cut.outs[0].shape[0], "first": cut.outs_at[0][0]}


op(
    "arange",
    operands=NUMBER * 2,
    infer=_counted,
    split=lambda *_, **__: Split("->a"),
    local=_counted_from,
    creates=True,
    kernel=_arange,
)

# -- at random -----------------------------------------------------------------------------

op(
    "rand",
    operands="ii",
    infer=_drawn_floating,
    split=_making,
    local=shaped_and_placed,
    creates=True,
    torch=lambda torch, *key, **how: philox.on_torch(philox.uniform, *key, **how),
    kernel=lambda np, *key, device, **how: philox.on_numpy(philox.uniform, *key, **how),
)

op(
    "randn",
    operands="ii",
    infer=_drawn_floating,
    split=_making,
    local=shaped_and_placed,
    creates=True,
    torch=lambda torch, *key, **how: philox.on_torch(philox.normal, *key, **how),
    kernel=lambda np, *key, device, **how: philox.on_numpy(philox.normal, *key, **how),
)

op(
    "randint",
    operands="iiii",
    infer=_drawn,
    split=_making,
    local=shaped_and_placed,
    creates=True,
    torch=lambda torch, *key, **how: philox.on_torch(philox.integers, *key, **how),
    kernel=lambda np, *key, device, **how: philox.on_numpy(philox.integers, *key, **how),
)
