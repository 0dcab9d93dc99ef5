"""The tape: what was computed from what, so that gradients find their way back.

A tensor that gradients are to reach has a *node*: a `Leaf`, or the `Node` of the op that made it. A node keeps the
ways to the nodes of its operands, and of the values only what its gradient will need: an op's ``vjp`` names them. A
parameter that starts with an underscore is asked for its shape and dtype alone, and then the value is not kept:

    vjp=(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a)      mul: for each operand, the other one
    vjp=(lambda g, y, _x: g * y,)                                     exp: the result, not the operand
    vjp=(lambda g, y1, _x, *, dim: …y1[1]…,)                          sort: of the results, number 1 alone

A value that was kept and then changed in place is an error when it is needed, as in torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from gt.client import scope
from gt.errors import GradError
from gt.ops import Attrs, Op
from gt.types import TensorType

if TYPE_CHECKING:
    import inspect

    from gt.client.tensor import Cell, Tensor

#: a node, and which of its results
Edge = tuple["Node | Leaf", int]

_next_number = count(1).__next__


class _Mode(threading.local):
    enabled = True
    #: how a value is kept: `Saved`, or what `gt.client.checkpoint` does instead
    keep: Any = None


mode = _Mode()


@contextlib.contextmanager
def keeping(keep: Any) -> Iterator[None]:
    before, mode.keep = mode.keep, keep
    try:
        yield
    finally:
        mode.keep = before


class Ghost:
    """A value that was not kept: its type is all there is."""

    __slots__ = ("_type",)

    def __init__(self, type: TensorType) -> None:
        self._type = type

    shape = property(lambda self: self._type.shape)
    dtype = property(lambda self: self._type.dtype)
    ndim = property(lambda self: self._type.ndim)


class Saved:
    """A value that was kept."""

    __slots__ = ("cell", "edge", "type", "version", "versioned")

    def __init__(self, x: Tensor, edge: tuple[Node | Leaf | None, int] | None) -> None:
        self.cell, self.type, self.edge = x._cell, x._type, edge
        #: the cell whose writing changes the value: that of the base, for a view
        self.versioned: Cell = x._cell if x._view is None else x._view.base._cell
        self.version = self.versioned.version

    def value(self, own: Node) -> Tensor:
        from gt.client.tensor import Tensor

        if self.versioned.version != self.version:
            raise GradError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self.type}, needed by {own.name}, is at version {self.versioned.version}; "
                f"expected version {self.version} instead"
            )
        made = Tensor(self.cell, self.type)
        if self.edge is not None:
            node, made._index = self.edge
            made._node = own if node is None else node  # type: ignore[assignment]
        return made


class Leaf:
    """The end of a way: the tensor whose ``grad`` the gradient is added to."""

    __slots__ = ("hooks", "number", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = ref(tensor)
        self.number = _next_number()
        self.hooks: dict[int, list[Any]] = {}


class Node:
    """One op on the tape."""

    __slots__ = ("attrs", "edges", "hooks", "number", "op", "outs", "saved", "signal")

    def __init__(self, op: Op, attrs: Attrs, edges: tuple[Edge | None, ...], outs: tuple[TensorType, ...]) -> None:
        self.op, self.attrs, self.edges, self.outs = op, attrs, edges, outs
        self.number = _next_number()
        #: what its gradients are emitted under, if not under whatever is in force then
        self.signal = scope.here.pulling if scope.active else ""
        #: (results, operands), each `Saved`, `Ghost` or a number; None once it is used up
        self.saved: tuple[list[Any], list[Any]] | None = None
        self.hooks: dict[int, list[Any]] = {}

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def alive(self) -> bool:
        """Can gradients still go through it?"""
        return self.saved is not None

    def __repr__(self) -> str:
        """``<MulBackward0>``, as torch shows it."""
        return f"<{''.join(map(str.title, self.name.split('_')))}Backward0>"

    def pull(self, grads: list[Tensor | None], keep: bool) -> list[Tensor | None]:
        """The gradients of the operands, from those of the results."""
        if self.saved is None:
            raise GradError(
                "Trying to backward through the graph a second time: the values it needs were freed; "
                "say retain_graph=True the first time"
            )
        results, operands = ([self._value(x) for x in part] for part in self.saved)
        if not keep:
            self.saved = None
        single = len(self.outs) == 1
        g, y = (grads[0], results[0]) if single else (tuple(grads), tuple(results))
        needs = tuple(edge is not None for edge in self.edges)
        vjp, attrs = self.op.vjp, dict(self.attrs)
        if isinstance(vjp, tuple):  # an operand with an edge has a rule: see `record`
            pulled = [rule(g, y, *operands, **attrs) if n else None for rule, n in zip(vjp, needs, strict=True)]  # type: ignore[misc]
        else:
            assert vjp is not None
            pulled = vjp(needs, g, y, *operands, **attrs)
        return [None if d is None or not n else fitted(d, x) for d, x, n in zip(pulled, operands, needs, strict=True)]

    def _value(self, x: Any) -> Any:
        return x.value(self) if isinstance(x, Saved) else x


def fitted(g: Tensor, x: Any) -> Tensor:
    """A gradient in the shape and dtype of what it belongs to: the one place where broadcasting is undone."""
    shape = x._type.shape
    if g._type.shape != shape:
        extra = g._type.ndim - len(shape)
        stretched = [d + extra for d, n in enumerate(shape) if n == 1 and g._type.shape[d + extra] != 1]
        added = [*range(extra), *stretched]
        g = g.sum(added, keepdim=True).reshape(shape) if stretched else g.sum(added)
    return g if g._type.dtype is x._type.dtype else g.to(x._type.dtype)


# -- recording ---------------------------------------------------------------------------


def tracked(operands: tuple[Any, ...]) -> bool:
    """Does a gradient go to any of them?"""
    return any(getattr(x, "_node", None) is not None for x in operands) and mode.enabled


def record(op: Op, attrs: Attrs, operands: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Put a call on the tape: called only if an operand has a node."""
    if not mode.enabled or op.vjp is None:
        return
    rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,) * len(operands)
    edges = tuple(None if rule is None else edge_of(x) for x, rule in zip(operands, rules, strict=True))
    if not any(edges):
        return
    keep = mode.keep or Saved
    node = Node(op, attrs, edges, tuple(y._type for y in results))
    kept_results, kept = _kept(op, tuple(e is not None for e in edges), len(results))
    node.saved = (
        # no node: it is this one, and a node that held itself would not go before Python looks for cycles
        [keep(y, (None, i)) if i in kept_results else Ghost(y._type) for i, y in enumerate(results)],
        [_saved(x, edge, keep if k in kept else None) for k, (x, edge) in enumerate(zip(operands, edges, strict=True))],
    )
    for i, y in enumerate(results):
        if y._type.dtype.kind == "f":
            y._node = node
            if i:
                y._index = i


def edge_of(x: Any) -> Edge | None:
    node = getattr(x, "_node", None)
    return None if node is None else (node, x._index)


def _saved(x: Any, edge: Edge | None, keep: Any) -> Any:
    if not hasattr(x, "_type"):
        return x
    return keep(x, edge) if keep else Ghost(x._type)


@cache
def _kept(op: Op, needs: tuple[bool, ...], count: int = 1) -> tuple[frozenset[int], frozenset[int]]:
    """Which of ``count`` results are needed, and which operands, if gradients go to these operands."""
    if isinstance(op.vjp, tuple):
        rules = [_parameters(rule) for rule, needed in zip(op.vjp, needs, strict=True) if needed]
    else:
        rules = [_parameters(op.vjp)[1:]]
    results: set[int] = set()
    operands: set[int] = set()
    for _, y, *rest in rules:
        if not y.name.startswith("_"):
            results.update(map(int, y.name.lstrip("y")) if y.name.strip("y").isdigit() else range(count))
        for k, p in enumerate(rest):
            if p.kind is p.VAR_POSITIONAL and not p.name.startswith("_"):
                operands.update(range(k, len(needs)))
            elif p.kind is p.POSITIONAL_OR_KEYWORD and not p.name.startswith("_"):
                operands.add(k)
    return frozenset(results), frozenset(operands)


def _parameters(rule: Any) -> list[inspect.Parameter]:
    import inspect  # a quarter of what `import gt` takes, where there is no torch

    return list(inspect.signature(rule).parameters.values())


# -- writing in place --------------------------------------------------------------------


def check_writable(target: Tensor) -> None:
    if isinstance(target._node, Leaf):
        raise GradError("a leaf Variable that requires grad is being used in an in-place operation")


def keeps_target(op: Op, operands: tuple[Any, ...]) -> bool:
    """Will the gradient ask for the first operand, as it was before the writing?"""
    if op.vjp is None:
        return False
    rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,) * len(operands)
    needs = tuple(r is not None and edge_of(x) is not None for x, r in zip(operands, rules, strict=True))
    return any(needs) and 0 in _kept(op, needs)[1]


def record_into(op: Op, attrs: Attrs, operands: tuple[Any, ...], target: Tensor) -> None:
    """The target of an in-place op comes from that op from now on. The first operand is the target, or a copy."""
    from gt.client.tensor import Tensor

    after = Tensor(target._cell, target._type)
    record(op, attrs, operands, (after,))
    if after._node is not None and after._node.saved is not None:
        for kept in after._node.saved[0]:
            if isinstance(kept, Saved):
                kept.version += 1  # kept as it is after the writing; an operand on the same cell is lost
    target._node, target._index = after._node, 0
