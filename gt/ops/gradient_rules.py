"""What the gradient rules of network ops are written with: they emit ops of their own, by methods of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops.op import op as declare


def op(name: str, *, kernel: Callable[..., Any], **fields: Any) -> None:
    """Declare a network op: torch has a kernel of its own, and the other is written for numpy as it is."""
    declare(name, kernel=kernel, numpy=kernel, **fields)


def one(name: str, first: Any, *rest: Any, **attrs: Any) -> Any:
    """The result of an op that has one."""
    return first._op(name, *rest, **attrs)


def many(name: str, first: Any, *rest: Any, **attrs: Any) -> tuple[Any, ...]:
    """The results of an op that has several, or may have."""
    made: tuple[Any, ...] = first._ops(name, *rest, **attrs)
    return made


def chosen(name: str, mask: tuple[bool, ...], *operands: Any, **attrs: Any) -> list[Any]:
    """The results of an op that gives those its mask asks for; None in the place of the others."""
    if not any(mask):
        return [None] * len(mask)
    made = iter(many(name, *operands, **attrs, mask=mask))
    return [next(made) if wanted else None for wanted in mask]


def differentiated(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient rule of an op, by way of a formula in other ops that computes the same.

    For ops that are gradients themselves: their own gradient is rarely asked for, and then speed is not the point.
    """

    def vjp(needs: tuple[bool, ...], g: Any, _y: Any, *operands: Any, **attrs: Any) -> Any:
        return operands[0]._pulled(formula, needs, g, operands, attrs)

    return vjp
