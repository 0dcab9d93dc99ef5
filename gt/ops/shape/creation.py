"""Ops that make a tensor out of nothing, or of a few bytes and numbers."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.elements import buffer, element, from_bytes_numpy, from_bytes_torch
from gt.ops.infer import require_ints, sizes
from gt.ops.op import NUMBER, dtype_named, op
from gt.ops.random import philox
from gt.ops.split import Cut, Split, letters, shaped, shaped_and_placed
from gt.types import OperandType, Shape, TensorType


def _made(*operands: OperandType, shape: Shape, dtype: str) -> TensorType:
    return TensorType(sizes(shape), dtype_named(dtype))


def _drawn(*operands: OperandType, shape: Shape, dtype: str, block: philox.Block = None) -> TensorType:
    made = TensorType(sizes(shape), dtype_named(dtype))
    if block is not None:
        philox.within(block, shape)
    return made


def _drawn_floating(*operands: OperandType, shape: Shape, dtype: str, block: philox.Block = None) -> TensorType:
    if not dtype_named(dtype).is_floating_point:
        raise DTypeError(f"gives floating dtypes, not {dtype}; use randint")
    return _drawn(*operands, shape=shape, dtype=dtype, block=block)


# -- from bytes and numbers ----------------------------------------------------------------


op(
    "upload",
    operands="B",
    infer=_made,
    creates=True,
    torch=lambda torch, data, *, shape, dtype, device: from_bytes_torch(torch, buffer(data), shape, dtype).to(device),
    kernel=lambda np, data, *, shape, dtype, device: from_bytes_numpy(np, buffer(data), shape, dtype),
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
    kernel=lambda np, value, *, shape, dtype, device: np.full(shape, element(np, value, dtype)),
)


#: where an `arange` must end: up to here, float64 holds every position
MAX_POSITION = 1 << 53


def _counted(start: OperandType, step: OperandType, *, n: int, dtype: str, first: int = 0) -> TensorType:
    made = dtype_named(dtype)
    require_ints(n=n, first=first)
    if first < 0 or first + n > MAX_POSITION:
        raise ShapeError(f"{n} positions from {first} on are not within 0 and {MAX_POSITION}")
    if made.kind == "b":
        raise DTypeError("not defined for bool; use int64")
    return TensorType(sizes((n,)), made)


def _arange(xp: Any, start: Any, step: Any, *, n: int, dtype: str, device: Any, first: int = 0) -> Any:
    # in double precision or whole numbers, as torch does: float32 would drift, float16 overflow on the way
    if dtype.startswith("float") or dtype == "bfloat16":
        positions = xp.arange(first, first + n, dtype=xp.float64, device=device)
    else:
        positions, start, step = xp.arange(first, first + n, dtype=xp.int64, device=device), int(start), int(step)
        if not all(-(2**63) <= number < 2**63 for number in (start, step)):
            raise OverflowError(f"the start {start} and the step {step} are ints of 64 bits")
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
