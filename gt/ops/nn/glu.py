"""Gated linear units: one half of a dim, times the sigmoid of the other."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import ShapeError
from gt.ops.elements import wide
from gt.ops.gradient_rules import differentiated, one
from gt.ops.infer import wrap_dim
from gt.ops.nn.layer_norm import floating_input
from gt.ops.op import op
from gt.ops.split import along
from gt.types import TensorType


def _halved(x: TensorType, *, dim: int) -> TensorType:
    floating_input(x)
    dim = wrap_dim(dim, x.ndim)
    if not x.ndim or x.shape[dim] % 2:
        raise ShapeError("the dim that is halved must be even")
    return TensorType((*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :]), x.dtype)


def _gate(np: Any, x: Any, *, dim: int) -> Any:
    a, b = np.split(wide(np, x)[0], 2, dim)
    return a / (1 + np.exp(-b))


op(
    "glu",
    aten=("glu",),
    operands="t",
    infer=_halved,
    split=along,
    vjp=(lambda g, _y, x, *, dim: one("glu_backward", g, x, dim=dim),),
    torch=lambda torch, x, *, dim: torch.nn.functional.glu(x, dim),
    kernel=_gate,
)


def _whole(g: TensorType, x: TensorType, *, dim: int) -> TensorType:
    if _halved(x, dim=dim) is not g:
        raise ShapeError("the gradient is not that of this gate")
    return x


def _ungate(np: Any, g: Any, x: Any, *, dim: int) -> Any:
    g, x = wide(np, g, x)
    a, b = np.split(x, 2, dim)
    s = 1 / (1 + np.exp(-b))
    return np.concatenate((g * s, (1 - s) * s * g * a), dim)


def _formula(g: Any, x: Any, *, dim: int) -> Any:
    a, b = x.chunk(2, dim)
    s = b.sigmoid()
    return one("cat", g * s, g * a * s * (1 - s), dim=dim)


op(
    "glu_backward",
    aten=("glu_backward",),
    operands="tt",
    infer=_whole,
    split=partial(along, linear=((0,),)),
    vjp=differentiated(_formula),
    torch=lambda torch, g, x, *, dim: torch.ops.aten.glu_backward(g, x, dim),
    kernel=_ungate,
)
