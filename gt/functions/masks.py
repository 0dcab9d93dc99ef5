"""torch's functions of masks: elements that a mask chooses, and positions that are not zero."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import a_tensor, operands, refuse
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import reduce, views
from gt.ops import OPS, Attrs, Op
from gt.ops.infer import broadcast_shapes

__all__ = [
    "argwhere", "masked_scatter", "masked_select", "nonzero",
]  # fmt: skip

MASKED_SELECT, MASKED_SCATTER, NONZERO = OPS["masked_select"], OPS["masked_scatter"], OPS["nonzero"]


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Reads how many elements the mask chooses."""
    x, mask = a_tensor("masked_select", input), a_tensor("masked_select", mask)
    try:
        shape = broadcast_shapes(x._type.shape, mask._type.shape)
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), "masked_select", x, mask) from None
    x, mask = _stretched(x, shape), _stretched(mask, shape)
    return call(MASKED_SELECT, (x, mask), (("n", count(mask)),))


def _stretched(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x._type.shape == shape else views.expand(x, shape)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Reads how many there are."""
    x = a_tensor("nonzero", input)
    if as_tuple and not x._type.ndim:
        x = views.reshape(x, 1)
    found = call(NONZERO, (x,), (("n", count(x)),))
    return views.unbind(found, 1) if as_tuple else found


def argwhere(input: Tensor) -> Any:
    return nonzero(input)


def count(x: Tensor) -> int:
    """How many elements are not zero, which is waited for: a shape depends on it."""
    return int(reduce.count_nonzero(x).item())


def _masked(x: Tensor, mask: Tensor, source: Tensor) -> tuple[Op, tuple[Any, ...], Attrs]:
    mask, source = operands("masked_scatter", x, mask, source)[1:]
    return MASKED_SCATTER, (views.expand(mask, x._type.shape), source), ()


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = a_tensor("masked_scatter", input), a_tensor("masked_scatter", mask)
    shape = broadcast_shapes(x._type.shape, mask._type.shape)
    op, rest, attrs = _masked(views.expand(x, shape), mask, source)
    return call(op, (views.expand(x, shape), *rest), attrs)


def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    op, rest, attrs = _masked(input, mask, source)
    return call_into(op, input, rest, attrs)
