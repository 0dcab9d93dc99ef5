"""`gt.autograd.Function`: an op that a program defines by its forward and backward, as in torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.grad_mode import no_grad
from gt.client.stream import connect
from gt.client.tensor.emit import create, detached
from gt.client.tensor.grad_plan import GradPlan
from gt.client.tensor.tape import GRAPH_FREED, Edge, Node, SavedTensor, edge_of, mode, reduce_to_type
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.ops import OPS

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

FULL = OPS["full"]


class FunctionCtx:
    """The context in which `forward` stores what `backward` needs; it takes any attribute."""

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self._to_save: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self._saved: list[SavedTensor | None] | None = []
        self._node: Node | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `backward`, which reads them from `saved_tensors`."""
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Accepted and ignored: GT has no forward mode."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare operands that were written in place and are returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare results that have no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether the missing gradient of a result is zeros (the default) or None."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors kept by `save_for_backward`."""
        if self._saved is None:
            raise GradError(GRAPH_FREED)
        assert self._node is not None
        return tuple(None if saved is None else saved.unpack(self._node) for saved in self._saved)


class FunctionNode(Node):
    """A call of a `Function` on the tape."""

    __slots__ = ("ctx", "function", "input_types")

    def __init__(self, function: type[Function], ctx: Any, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        edges = tuple(edge_of(x) if isinstance(x, Tensor) else None for x in inputs)
        types = tuple(y._type for y in outputs)
        super().__init__(GradPlan(None, (), types), edges)  # type: ignore[arg-type]
        self.function, self.ctx = function, ctx
        self.input_types = [x._type if isinstance(x, Tensor) else None for x in inputs]

    @property
    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    @property
    def freed(self) -> bool:
        return self.ctx._saved is None

    def backward(
        self, grads: list[Tensor | None], retain_graph: bool, edges: Any = None, values: Any = None
    ) -> list[Tensor | None]:
        if self.ctx._materialize:
            grads = [_zeros(t) if g is None else g for g, t in zip(grads, self.out_types, strict=True)]
        returned = self.function.backward(self.ctx, *grads)
        if not retain_graph:
            self.ctx._saved = None
        operand_grads = returned if isinstance(returned, tuple | list) else (returned,)
        extra = operand_grads[len(self.edges) :]
        if len(operand_grads) < len(self.edges) or any(g is not None for g in extra):
            raise GradError(
                f"function {self.name} returned an incorrect number of gradients "
                f"(expected {len(self.edges)}, got {len(operand_grads)})"
            )
        return [
            None if edge is None or g is None or t is None else reduce_to_type(g, t)
            for g, edge, t in zip(operand_grads, self.edges, self.input_types, strict=False)
        ]


def _zeros(type: Any) -> Tensor:
    return create(FULL, (0.0,), (("shape", type.shape), ("dtype", type.dtype.name)), connect.session())


class Function:
    """An op that a program defines: write ``forward(ctx, …)`` and ``backward(ctx, *grads)``, and call it by ``apply``.

    See `torch.autograd.Function`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the results. A subclass defines it."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Store in ``ctx`` what `backward` needs, if `forward` does not take ``ctx``."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of the inputs, from those of the results. A subclass defines it."""
        raise NotImplementedError("You must implement either the backward or vjp method for your custom Function.")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function; gradients will go through `backward`."""
        ctx = FunctionCtx()
        edges = [edge_of(x) if isinstance(x, Tensor) and mode.enabled else None for x in args]
        ctx.needs_input_grad = tuple(edge is not None for edge in edges)
        with no_grad():
            if cls.setup_context is Function.setup_context:
                returned = cls.forward(ctx, *args)
            else:
                returned = cls.forward(*args)
                cls.setup_context(ctx, args, returned)
        outputs = returned if isinstance(returned, tuple | list) else (returned,)
        recorded = _record(cls, ctx, args, outputs, edges)
        return tuple(recorded) if isinstance(returned, tuple | list) else recorded[0]


def _record(
    function: type[Function], ctx: FunctionCtx, args: Sequence[Any], outputs: Sequence[Any], edges: list[Edge | None]
) -> list[Any]:
    """Put the call on the tape and return its outputs. A returned argument becomes a new tensor on the same cell."""
    dirty = {id(x) for x in ctx._dirty}
    unchanged = {id(x) for x in args} - dirty
    recorded = [detached(y) if isinstance(y, Tensor) and id(y) in unchanged else y for y in outputs]
    results = [y for y in recorded if isinstance(y, Tensor)]
    if not any(edges):
        ctx._saved = []
        return recorded
    node = FunctionNode(function, ctx, args, results)
    non_differentiable = {id(y) for y in ctx._non_differentiable}
    for i, y in enumerate(results):
        if y._type.dtype.kind in "fc" and id(y) not in non_differentiable:
            y._node, y._index = node, i
    ctx._node = node
    replaced = {id(old): new for old, new in zip(outputs, recorded, strict=True)}
    to_save = [replaced.get(id(x), x) for x in ctx._to_save]
    ctx._saved = [None if x is None else SavedTensor(x, edge_of(x)) for x in to_save]
    ctx._to_save = ()
    return recorded


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for a `backward` that cannot be differentiated: its results have no gradients."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            return backward(ctx, *grads)

    return wrapped
