"""Dropout. The kept elements depend on (seed, stream) only, so they are the same on all workers."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_numbers
from gt.ops.gradient_rules import one
from gt.ops.op import Types, op
from gt.ops.random import tensors
from gt.ops.random.draw import DRAWN
from gt.ops.split import Split, letters, linear, placed
from gt.types import INT, OperandType, TensorType, bool_


def _thinned(x: TensorType, seed: OperandType, stream: OperandType, *, p: float, block: tensors.Block = None) -> Types:
    if x.dtype.kind != "f":
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")
    if seed is not INT or stream is not INT:
        raise DTypeError("the seed and the stream are ints")
    _check_probability(x, p)
    if block is not None:
        tensors.within(block, x.shape)
    return x, TensorType(x.shape, bool_)


def _check_probability(x: TensorType, p: float) -> None:
    check_numbers(x.dtype, p=p)
    if not 0 <= p <= 1:
        raise ShapeError(f"p is a probability, and {p} is not")


def _scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)


def _drop_torch(torch: Any, x: Any, seed: int, stream: int, *, p: float, block: tensors.Block = None) -> Any:
    # the mask is drawn in float32 for all dtypes: it does not depend on them
    mask = tensors.mask_on_torch(seed, stream, p, tuple(x.shape), x.device, block)
    return torch.ops.aten.native_dropout_backward(x, mask, _scale(p)), mask


def _drop_numpy(np: Any, x: Any, seed: int, stream: int, *, p: float, block: tensors.Block = None) -> Any:
    mask = tensors.mask_on_numpy(seed, stream, p, x.shape, block)
    return x * mask * x.dtype.type(_scale(p)), mask


def _thinning(x: TensorType, seed: OperandType, stream: OperandType, *, p: float) -> Split:
    names = letters(x.ndim)
    return Split(f"{names}->{names},{names}", linear=((0,),), still=(1,))


op(
    "dropout",
    draws=True,
    varying=DRAWN,
    operands="tii",
    infer=_thinned,
    split=_thinning,
    local=placed,
    vjp=(lambda g, y1, _x, _seed, _stream, *, p: one("dropout_backward", g[0], y1[1], p=p), None, None),
    torch=_drop_torch,
    kernel=_drop_numpy,
)


def _masked(g: TensorType, mask: TensorType, *, p: float) -> TensorType:
    if g.shape != mask.shape or mask.dtype is not bool_ or g.dtype.kind != "f":
        raise ShapeError("the mask says for each element whether it stays")
    _check_probability(g, p)
    return g


op(
    "dropout_backward",
    operands="tt",
    infer=_masked,
    **linear((0,)),
    vjp=(lambda d, _y, _g, mask, *, p: one("dropout_backward", d, mask, p=p), None),
    torch=lambda torch, g, mask, *, p: torch.ops.aten.native_dropout_backward(g, mask, _scale(p)),
    kernel=lambda np, g, mask, *, p: g * mask * g.dtype.type(_scale(p)),
)
