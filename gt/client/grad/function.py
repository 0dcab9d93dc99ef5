"""One's own ops: `gt.autograd.Function`, a pair of static methods with torch's rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.grad_mode import no_grad
from gt.client.stream import connect
from gt.client.tensor.emit import create, detached
from gt.client.tensor.tape import Edge, Node, Saved, edge_of, fitted, mode
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.ops import OPS

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

FULL = OPS["full"]


class FunctionCtx:
    """What a function's forward leaves for its backward; anything may be put on it."""

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self._to_save: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._flat: tuple[Tensor, ...] = ()
        self._materialize = True
        self._saved: list[Saved | None] | None = []
        self._node: Node | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `backward`, which reads them from `saved_tensors`."""
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """torch's forward mode; there is none here."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These operands were written in place, and are returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare results that have no gradient."""
        self._flat = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether a gradient nobody asked for is zeros (the default) or None."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors kept by `save_for_backward`."""
        if self._saved is None:
            raise GradError(
                "Trying to backward through the graph a second time: the values it needs were freed; "
                "say retain_graph=True the first time"
            )
        assert self._node is not None
        return tuple(None if s is None else s.value(self._node) for s in self._saved)


class FunctionNode(Node):
    """A call of a `Function` on the tape."""

    __slots__ = ("ctx", "function", "inputs")

    def __init__(self, function: type[Function], ctx: Any, inputs: Sequence[Any], outs: Sequence[Tensor]) -> None:
        edges = tuple(edge_of(x) if isinstance(x, Tensor) else None for x in inputs)
        super().__init__(None, (), edges, tuple(y._type for y in outs))  # type: ignore[arg-type]
        self.function, self.ctx = function, ctx
        self.inputs = [x._type if isinstance(x, Tensor) else None for x in inputs]

    @property
    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    @property
    def alive(self) -> bool:
        return self.ctx._saved is not None

    def pull(self, grads: list[Tensor | None], keep: bool) -> list[Tensor | None]:
        if self.ctx._materialize:
            grads = [_zeros(t) if g is None else g for g, t in zip(grads, self.outs, strict=True)]
        made = self.function.backward(self.ctx, *grads)
        if not keep:
            self.ctx._saved = None
        pulled = made if isinstance(made, tuple | list) else (made,)
        extra = pulled[len(self.edges) :]
        if len(pulled) < len(self.edges) or any(g is not None for g in extra):
            raise GradError(
                f"function {self.name} returned an incorrect number of gradients "
                f"(expected {len(self.edges)}, got {len(pulled)})"
            )
        return [
            None if edge is None or g is None or t is None else fitted(g, t)
            for g, edge, t in zip(pulled, self.edges, self.inputs, strict=False)
        ]


def _zeros(type: Any) -> Tensor:
    return create(FULL, (0.0,), (("shape", type.shape), ("dtype", type.dtype.name)), connect.session())


class Function:
    """The base of user-defined functions with gradients of their own. See `torch.autograd.Function`."""

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
                made = cls.forward(ctx, *args)
            else:
                made = cls.forward(*args)
                cls.setup_context(ctx, args, made)
        outputs = made if isinstance(made, tuple | list) else (made,)
        recorded = _recorded(cls, ctx, args, outputs, edges)
        return tuple(recorded) if isinstance(made, tuple | list) else recorded[0]


def _recorded(
    function: type[Function], ctx: FunctionCtx, args: Sequence[Any], outputs: Sequence[Any], edges: list[Edge | None]
) -> list[Any]:
    """The outputs, as they come from the function: what is returned untouched is a new tensor on the same cell."""
    dirty = {id(x) for x in ctx._dirty}
    known = {id(x) for x in args}
    made = [detached(y) if isinstance(y, Tensor) and id(y) in known - dirty else y for y in outputs]
    results = [y for y in made if isinstance(y, Tensor)]
    if not any(edges):
        ctx._saved = []
        return made
    node = FunctionNode(function, ctx, args, results)
    flat = {id(y) for y in ctx._flat}
    for i, y in enumerate(results):
        if y._type.dtype.kind == "f" and id(y) not in flat:
            y._node, y._index = node, i
    ctx._node = node
    renamed = {id(old): new for old, new in zip(outputs, made, strict=True)}
    ctx._saved = [None if x is None else Saved(new := renamed.get(id(x), x), edge_of(new)) for x in ctx._to_save]
    ctx._to_save = ()
    return made


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a backward that is not made of differentiable parts: its results have no history."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            return backward(ctx, *grads)

    return wrapped
