"""ATen's gradients (``foo_backward``), by the gradient rules of GT's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.backward import formula_grads, no_grad
from gt.client.tensor.grad_plan import GradPlan
from gt.client.tensor.tape import Node
from gt.client.tensor.tensor import Tensor
from gt.ops import Attrs, Op
from gt.types import TensorType


def gradients(
    op: Op,
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    operands: Sequence[Any],
    attrs: Attrs = (),
    results: Sequence[Any] = (None,),
) -> list[Tensor | None]:
    """The gradients of an op's operands from those of its results, as `backward` computes them; None if not needed.

    A type may stand for an operand whose value the rule does not use; ``results`` are those that it uses.
    """
    types = tuple(g._type if g is not None else None for g in grads)
    node = Node(GradPlan(op, attrs, types), ())  # type: ignore[arg-type]
    edges: Any = [True if needed else None for needed in needs]
    return node.backward([*grads], True, edges, ([*results], [*operands]))


def pulled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``(grad, x, *arguments) -> the gradient of x``, for a function without a rule of its own. It runs once more."""

    def gradient(grad: Tensor, x: Tensor, *arguments: Any) -> Tensor:
        with no_grad():  # the gradient itself needs none
            result: Tensor = formula_grads(x, lambda y: function(y, *arguments), (True,), grad, (x,), {})[0]
        return result

    return gradient


def present(*xs: Any) -> list[Any]:
    """The arguments that are not None."""
    return [x for x in xs if x is not None]


def spread(values: Sequence[Any], where: Sequence[bool]) -> tuple[Any, ...]:
    """The values at the places that are true, and None elsewhere."""
    following = iter(values)
    return tuple([next(following) if place else None for place in where])


def vector(n: int, like: Tensor) -> TensorType:
    return TensorType((n,), like._type.dtype)
