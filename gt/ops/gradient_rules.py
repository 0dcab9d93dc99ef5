"""Functions for gradient rules: they emit ops by name, through methods of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def one(name: str, first: Any, *rest: Any, **attrs: Any) -> Any:
    """The result of an op with one result."""
    return first._op(name, *rest, **attrs)


def many(name: str, first: Any, *rest: Any, **attrs: Any) -> tuple[Any, ...]:
    """The results of an op that may have several."""
    result: tuple[Any, ...] = first._ops(name, *rest, **attrs)
    return result


def chosen(name: str, mask: tuple[bool, ...], *operands: Any, **attrs: Any) -> list[Any]:
    """The results that the mask requests; None in the place of the others."""
    if not any(mask):
        return [None] * len(mask)
    result = iter(many(name, *operands, **attrs, mask=mask))
    return [next(result) if wanted else None for wanted in mask]


def differentiated(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient rule of an op, from a formula in other ops that computes the same.

    It is for ops that are gradients themselves: their own gradient is rarely needed, so it may be slow.
    """

    def vjp(needs: tuple[bool, ...], g: Any, _y: Any, *operands: Any, **attrs: Any) -> Any:
        return operands[0]._pulled(formula, needs, g, operands, attrs)

    return vjp
