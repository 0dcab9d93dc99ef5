"""What the gradient rules of network ops are written with: they emit ops of their own.

A rule runs in the client, inside a backward pass; the client's modules are imported there and then, because a
worker, which reads the same table, has no use for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops.core import OPS
from gt.ops.core import op as declare


def op(name: str, *, kernel: Callable[..., Any], **fields: Any) -> None:
    """Declare a network op: torch has a kernel of its own, and the other is written for numpy as it is."""
    declare(name, kernel=kernel, numpy=kernel, **fields)


def one(name: str, *operands: Any, **attrs: Any) -> Any:
    """The result of an op that has one."""
    from gt.client.emit import call

    return call(OPS[name], operands, tuple(attrs.items()))


def many(name: str, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
    """The results of an op that has several."""
    from gt.client.emit import call_many

    return call_many(OPS[name], operands, tuple(attrs.items()))


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

    def vjp(needs: tuple[bool, ...], g: Any, y: Any, *operands: Any, **attrs: Any) -> list[Any]:
        from gt.client.autograd import enable_grad, grad, is_grad_enabled

        further = is_grad_enabled()
        with enable_grad():
            # stand-ins: an operand may have come from another, and that way must not be gone twice
            own = [
                x if not n else x.clone() if further else x.detach().requires_grad_()
                for x, n in zip(operands, needs, strict=True)
            ]
            made = formula(*own, **attrs)
            pairs = zip(*_both(made, g), strict=True)
            kept = [(m, d) for m, d in pairs if d is not None and m is not None and m.requires_grad]
            if not kept:
                return [None] * len(needs)
            asked = [x for x, n in zip(own, needs, strict=True) if n]
            found = iter(
                grad([m for m, _ in kept], asked, [d for _, d in kept], create_graph=further, allow_unused=True)
            )
        return [next(found) if n else None for n in needs]

    return vjp


def _both(made: Any, g: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(g, tuple):
        return [made[0] if isinstance(made, tuple | list) else made], [g]
    return list(made), list(g)
