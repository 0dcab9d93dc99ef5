"""The tape: what was computed from what, so that gradients find their way back.

A tensor that gradients are to reach has a *node*: a `Leaf`, or the `Node` of the op that made it. A node keeps the
ways to the nodes of its operands, and of the values only what its gradient will need: an op's ``vjp`` names them. A
parameter that starts with an underscore is asked for its shape and dtype alone, and then the value is not kept:

    vjp=(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a)      mul: for each operand, the other one
    vjp=(lambda g, y, _x: g * y,)                                     exp: the result, not the operand
    vjp=(lambda g, y1, _x, *, dim: …y1[1]…,)                          sort: of the results, number 1 alone

Where the last operands are optional there is a rule for each, and as many count as there are operands. A value that was
kept and then changed in place is an error when it is needed, as in torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from gt.client.stream import scope
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.ops import Attrs, Op
from gt.types import TensorType

if TYPE_CHECKING:
    import inspect

    from gt.client.tensor.tensor import Cell

#: a node, and which of its results
Edge = tuple["Node | Leaf", int]

_next_number = count(1).__next__


class _Mode(threading.local):
    enabled = True
    #: how a value is kept: `Saved`, or what `gt.client.grad.checkpoint` does instead
    keep: Any = None


mode = _Mode()


@contextlib.contextmanager
def keeping(keep: Any) -> Iterator[None]:
    before, mode.keep = mode.keep, keep
    try:
        yield
    finally:
        mode.keep = before


class Saved:
    """A value that was kept."""

    __slots__ = ("cell", "edge", "type", "version", "versioned")

    def __init__(self, x: Tensor, edge: tuple[Node | Leaf | None, int] | None) -> None:
        self.cell, self.type, self.edge = x._cell, x._type, edge
        #: the cell whose writing changes the value: that of the base, for a view
        self.versioned: Cell = x._cell if x._view is None else x._view.base._cell
        self.version = self.versioned.version

    def value(self, own: Node) -> Tensor:
        if self.versioned.version != self.version:
            raise GradError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self.type}, needed by {own.name}, is at version {self.versioned.version}; "
                f"expected version {self.version} instead"
            )
        made = Tensor(self.cell, self.type)
        if self.edge is not None:
            node, index = self.edge
            made._node = own if node is None else node  # type: ignore[assignment]
            if index:
                made._index = index
        return made


class Leaf:
    """The end of a way: the tensor whose ``grad`` the gradient is added to."""

    __slots__ = ("hooks", "number", "tensor")
    #: it stands for one tensor, as the node of an op with one result does
    outs = (None,)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = ref(tensor)
        self.number = _next_number()
        self.hooks: dict[int, list[Any]] = {}


class Node:
    """One op on the tape."""

    __slots__ = ("attrs", "edges", "hooks", "number", "op", "outs", "saved", "signal")

    def __init__(self, op: Op, attrs: Attrs, edges: tuple[Edge | None, ...], outs: tuple[TensorType, ...] = ()) -> None:
        self.op, self.attrs, self.edges, self.outs = op, attrs, edges, outs
        self.number = _next_number()
        #: what its gradients are emitted under, if not under whatever is in force then
        self.signal = scope.thread.backward if scope.active else ""
        #: (results, operands), each `Saved`, a number, or a type: all there is of what was not kept; None once used up
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
        results, operands = self._values(self.saved[0]), self._values(self.saved[1])
        if not keep:
            self.saved = None
        single = len(self.outs) == 1
        g, y = (grads[0], results[0]) if single else (tuple(grads), tuple(results))
        vjp, attrs = self.op.vjp, dict(self.attrs)
        if isinstance(vjp, tuple):
            pulled: Any = vjp[: len(operands)]
        else:
            assert vjp is not None
            pulled = vjp(tuple([edge is not None for edge in self.edges]), g, y, *operands, **attrs)
        made: list[Tensor | None] = []
        for edge, d, x in zip(self.edges, pulled, operands, strict=True):
            if edge is not None and d is not None:
                if isinstance(vjp, tuple):  # an operand with an edge has a rule: see `record`
                    d = d(g, y, *operands, **attrs)
                if d is not None:
                    d = fitted(d, x._type if isinstance(x, Tensor) else x)
            made.append(None if edge is None else d)
        return made

    def _values(self, kept: list[Any]) -> list[Any]:
        values = []
        for x in kept:
            values.append(x.value(self) if isinstance(x, Saved) else x)
        return values


def fitted(g: Tensor, type: TensorType) -> Tensor:
    """A gradient in the shape and dtype of what it belongs to: the one place where broadcasting is undone."""
    if g._type is type:
        return g
    shape = type.shape
    if g._type.shape != shape:
        extra = g._type.ndim - len(shape)
        stretched = [d + extra for d, n in enumerate(shape) if n == 1 and g._type.shape[d + extra] != 1]
        added = [*range(extra), *stretched]
        g = g.sum(added, keepdim=True).reshape(shape) if stretched else g.sum(added)
    return g if g._type.dtype is type.dtype else g.to(type.dtype)


class Retain:
    """The hook of `Tensor.retain_grad`. It is called after all others, and goes with its tensor from node to node."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = ref(tensor)

    def __call__(self, g: Tensor) -> None:
        if (tensor := self.tensor()) is not None:  # never in place: the gradient is others' too
            tensor.grad = g.clone() if tensor._grad is None else tensor._grad + g


def retained(x: Tensor) -> list[Retain]:
    if x._node is None or not x._node.hooks:
        return []
    return [h for h in x._node.hooks.get(x._index, ()) if isinstance(h, Retain) and h.tensor() is x]


def move_to(x: Tensor, node: Node | None, index: int) -> None:
    """The tensor comes from this node from now on."""
    for hook in retained(x):
        x._node.hooks[x._index].remove(hook)  # type: ignore[union-attr]
        if node is not None:
            node.hooks.setdefault(index, []).append(hook)
    x._node, x._index = node, index


# -- recording ---------------------------------------------------------------------------


def tracked(operands: tuple[Any, ...]) -> bool:
    """Does a gradient go to any of them?"""
    return any(getattr(x, "_node", None) is not None for x in operands) and mode.enabled


def record(op: Op, attrs: Attrs, operands: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Put a call on the tape: called only if an operand has a node."""
    vjp = op.vjp
    if vjp is None or not mode.enabled:
        return
    edges: list[Edge | None] = []
    needs = []
    rules = vjp if isinstance(vjp, tuple) else None
    for k, x in enumerate(operands):  # loops, and no comprehensions: each would be a call
        node = x._node if isinstance(x, Tensor) and (rules is None or rules[k] is not None) else None
        edges.append(None if node is None else (node, x._index))
        needs.append(node is not None)
    if True not in needs:
        return
    keep = mode.keep or Saved
    kept_results, kept_operands = _kept(op, tuple(needs), len(results))
    outs, kept, own = [], [], Node(op, attrs, tuple(edges))
    for i, y in enumerate(results):
        outs.append(y._type)
        # no node: it is this one, and a node that held itself would not go before Python looks for cycles
        kept.append(keep(y, (None, i)) if i in kept_results else y._type)
        if y._type.dtype.kind == "f":
            y._node = own
            if i:
                y._index = i
    own.outs = tuple(outs)
    given: list[Any] = []
    for k, x in enumerate(operands):
        if isinstance(x, Tensor):
            given.append(keep(x, edges[k]) if k in kept_operands else x._type)
        else:
            given.append(x)
    own.saved = kept, given


def edge_of(x: Any) -> Edge | None:
    node = getattr(x, "_node", None)
    return None if node is None else (node, x._index)


@cache
def _kept(op: Op, needs: tuple[bool, ...], count: int = 1) -> tuple[frozenset[int], frozenset[int]]:
    """Which of ``count`` results are needed, and which operands, if gradients go to these operands."""
    if isinstance(op.vjp, tuple):
        rules = [_parameters(rule) for rule, needed in zip(op.vjp, needs, strict=False) if needed]
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
    needs = tuple(r is not None and edge_of(x) is not None for x, r in zip(operands, rules, strict=False))
    return any(needs) and 0 in _kept(op, needs)[1]


def record_into(op: Op, attrs: Attrs, operands: tuple[Any, ...], target: Tensor) -> None:
    """The target of an in-place op comes from that op from now on. The first operand is the target, or a copy."""
    after = Tensor(target._cell, target._type)
    record(op, attrs, operands, (after,))
    if after._node is not None and after._node.saved is not None:
        for kept in after._node.saved[0]:
            if isinstance(kept, Saved):
                kept.version += 1  # kept as it is after the writing; an operand on the same cell is lost
    move_to(target, after._node, 0)
