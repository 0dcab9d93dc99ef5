"""Ops that create a tensor from numbers and attributes alone."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.elements import element
from gt.ops.infer import require_ints, sizes
from gt.ops.op import NUMBER, NumberRule, dtype_named, op
from gt.ops.signature import Signature
from gt.ops.split import Share, Split, letters, shaped
from gt.ops.varying import torch_dtype
from gt.types import OperandType, Shape, TensorType


def created(*operands: OperandType, shape: Shape, dtype: str) -> TensorType:
    return TensorType(sizes(shape), dtype_named(dtype))


def creating(*numbers: OperandType, shape: Shape, dtype: str) -> Split:
    return Split(f"->{letters(len(shape))}")


def number(parts: tuple[Any, ...]) -> Any:
    """A number that was sent as one operand, or as its real and imaginary parts."""
    return parts[0] if len(parts) == 1 else complex(*parts)


def _full(*value: OperandType, shape: Shape, dtype: str) -> TensorType:
    result = created(shape=shape, dtype=dtype)
    if len(value) > 1 and result.dtype.kind != "c":
        raise DTypeError(f"a complex number does not fit into {dtype}")
    return result


def _full_in_memory(signature: Signature, device: Any) -> Any:
    """The value is the last operand. The result is a copy, because it must be fresh memory."""
    out = signature.outs[0]
    return lambda *operands: operands[-1].to(torch_dtype(out.dtype.name)).expand(out.shape).clone()


#: the rule of ops that fill a tensor with one number
FILLED = NumberRule(run=_full_in_memory)

op(
    "full",
    complex="rule",
    varying=FILLED,
    no_gradient="it reads no tensor",
    operands=f"{NUMBER}|ff",
    infer=_full,
    split=creating,
    local=shaped,
    creates=True,
    torch=lambda torch, *value, shape, dtype, device: torch.full(
        shape, number(value), dtype=getattr(torch, dtype), device=device
    ),
    kernel=lambda np, *value, shape, dtype, device: np.full(shape, element(np, number(value), dtype)),
)


#: the largest end of an `arange`: up to here, float64 holds every position
MAX_POSITION = 1 << 53


def _counted(start: OperandType, step: OperandType, *, n: int, dtype: str, first: int = 0) -> TensorType:
    result = dtype_named(dtype)
    require_ints(n=n, first=first)
    if first < 0 or first + n > MAX_POSITION:
        raise ShapeError(f"{n} positions from {first} on are not within 0 and {MAX_POSITION}")
    if result.kind == "b":
        raise DTypeError("not defined for bool; use int64")
    return TensorType(sizes((n,)), result)


def _arange(xp: Any, start: Any, step: Any, *, n: int, dtype: str, device: Any, first: int = 0) -> Any:
    # in float64 or int64, as in torch: float32 would round each step, and float16 would overflow
    if dtype.startswith("float") or dtype == "bfloat16":
        positions = xp.arange(first, first + n, dtype=xp.float64, device=device)
    else:
        positions, start, step = xp.arange(first, first + n, dtype=xp.int64, device=device), int(start), int(step)
        if not all(-(2**63) <= number < 2**63 for number in (start, step)):
            raise OverflowError(f"the start {start} and the step {step} are ints of 64 bits")
    return xp.astype(positions * step + start, getattr(xp, dtype))


def _counted_from(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    return {**attrs, "n": share.outs[0].shape[0], "first": share.outs_at[0][0]}


def _arange_in_memory(signature: Signature, device: Any) -> Any:
    import torch

    attrs = dict(signature.attrs)
    first, n, out = attrs.get("first", 0), attrs["n"], torch_dtype(attrs["dtype"])
    kind = torch.float64 if out.is_floating_point else torch.int64

    def run(start: Any, step: Any) -> Any:
        start, step = (x.to(kind) if isinstance(x, torch.Tensor) else x for x in (start, step))
        return (torch.arange(first, first + n, dtype=kind, device=device) * step + start).to(out)

    return run


op(
    "arange",
    varying=NumberRule(run=_arange_in_memory),
    no_gradient="it reads no tensor",
    operands=NUMBER * 2,
    infer=_counted,
    split=lambda *_, **__: Split("->a"),
    local=_counted_from,
    creates=True,
    kernel=_arange,
)
