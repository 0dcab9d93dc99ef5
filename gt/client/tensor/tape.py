"""The tape: the autograd graph, which says what was computed from what.

A tensor that requires a gradient has a *node*: a `LeafNode`, or the `Node` of the op that computed it. A node has an
edge to the node of each operand. An op's ``vjp`` (vector-Jacobian product) computes the gradients of its operands from
the gradient ``g`` of its result. A node saves only the values that the ``vjp`` uses, and the names of the rule's
parameters say which: if a name starts with an underscore, the rule gets only the type, and the value is not saved.

    vjp=(lambda g, _y, _a, b: g * b, lambda g, _y, a, _b: g * a)      mul: for each operand, the other one
    vjp=(lambda g, y, _x: g * y,)                                     exp: the result, not the operand
    vjp=(lambda g, y1, _x, *, dim: …y1[1]…,)                          sort: of the results, only number 1

If the last operands are optional, there is a rule for each of them, and a call uses as many rules as it has operands.
A gradient of a complex tensor is the conjugate of the derivative, as in torch. So where an op is holomorphic, the rule
for real numbers gets the conjugate of ``g``, and its result is conjugated.

If a saved value was changed in place, the backward pass that needs it raises an error, as in torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from gt.client.stream import scope
from gt.client.stream.signatures import Coded
from gt.client.tensor.grad_plan import NO_PLAN, GradPlan, needed_values, plan_of
from gt.client.tensor.tensor import Tensor, on_cell
from gt.errors import GradError
from gt.ops import Attrs, Op
from gt.types import TensorType

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Cell

#: a node, and the index of one of its results
Edge = tuple["Node | LeafNode", int]

_next_number = count(1).__next__

GRAPH_FREED = (
    "Trying to backward through the graph a second time: the values it needs were freed; "
    "pass retain_graph=True the first time"
)


class _TapeMode(threading.local):
    #: are ops recorded?
    enabled = True
    #: saves a value: `SavedTensor` if None; `gt.client.grad.checkpoint` sets another function
    save: Any = None


mode = _TapeMode()


@contextlib.contextmanager
def saving_by(save: Any) -> Iterator[None]:
    """Inside the block, save values by this function."""
    before, mode.save = mode.save, save
    try:
        yield
    finally:
        mode.save = before


class SavedTensor:
    """A value that a gradient needs."""

    __slots__ = ("cell", "edge", "type", "version", "versioned")

    def __init__(self, x: Tensor, edge: tuple[Node | LeafNode | None, int] | None) -> None:
        self.cell, self.type, self.edge = x._cell, x._type, edge
        #: the cell whose version changes when the value is written: for a view, the cell of its base
        self.versioned: Cell = x._cell if x._view is None else x._view.base._cell
        self.version = self.versioned.version

    def unpack(self, node: Node) -> Tensor:
        """The value as a tensor, with its history. ``node`` is the node that saved it."""
        if self.versioned.version != self.version:
            raise GradError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self.type}, needed by {node.name}, is at version {self.versioned.version}; "
                f"expected version {self.version} instead"
            )
        tensor = on_cell(self.cell, self.type)
        if self.edge is not None:
            source, index = self.edge
            tensor._node = node if source is None else source  # type: ignore[assignment]
            if index:
                tensor._index = index
        return tensor


class LeafNode:
    """The node of a leaf: the backward pass adds the gradient to the ``grad`` of its tensor."""

    __slots__ = ("hooks", "number", "tensor")
    #: as for the node of an op with one result
    out_types = (None,)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = ref(tensor)
        self.number = _next_number()
        self.hooks: dict[int, list[Any]] = {}

    def before_write(self, x: Tensor) -> None:
        """Called before its tensor is written in place, which `check_writable` refuses."""


class Node:
    """One call of an op on the tape."""

    __slots__ = ("edges", "hooks", "number", "plan", "saved", "signal")

    def __init__(self, plan: GradPlan, edges: tuple[Edge | None, ...]) -> None:
        self.plan, self.edges = plan, edges
        #: greater than the numbers of the nodes its edges lead to
        self.number = _next_number()
        #: the signal that its gradients are emitted under; "": the one in force during the backward pass
        self.signal = scope.thread.backward if scope.active else ""
        #: a `SavedTensor` or a number for each place in the plan; None after a backward pass has freed the values
        self.saved: tuple[Any, ...] | None = None
        self.hooks: dict[int, list[Any]] = {}

    @property
    def op(self) -> Op:
        return self.plan.op

    @property
    def attrs(self) -> Attrs:
        return self.plan.attrs

    @property
    def out_types(self) -> tuple[TensorType, ...]:
        return self.plan.out_types

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def freed(self) -> bool:
        """Has a backward pass freed the saved values? Then no other pass can go through the node."""
        return self.saved is None

    def __repr__(self) -> str:
        """``<MulBackward0>``, as torch shows it."""
        return f"<{''.join(map(str.title, self.name.split('_')))}Backward0>"

    def backward(
        self,
        grads: list[Tensor | None],
        retain_graph: bool,
        edges: Sequence[Edge | None] | None = None,
        values: tuple[list[Any], list[Any]] | None = None,
    ) -> list[Tensor | None]:
        """The gradients of the operands, computed from those of the results.

        ``edges``: those of its edges that need a gradient; None: all. ``values``: what `saved_values` returned.
        """
        results, operands = values or self.saved_values()
        op, out_types = self.plan.op, self.plan.out_types
        if not retain_graph and self.plan.frees:
            self.saved = None
        edges = self.edges if edges is None else edges
        single = len(out_types) == 1
        g, y = (grads[0], results[0]) if single else (tuple(grads), tuple(results))
        vjp, attrs = op.vjp, dict(self.plan.attrs)
        conjugates = op.complex == "holomorphic" and out_types[0].dtype.kind == "c"
        if conjugates:
            g = g.conj()  # type: ignore[union-attr]
        if isinstance(vjp, tuple):
            rules_or_grads: Any = vjp[: len(operands)]
        else:
            assert vjp is not None
            rules_or_grads = vjp(tuple([edge is not None for edge in edges]), g, y, *operands, **attrs)
        operand_grads: list[Tensor | None] = []
        for edge, d, x in zip(edges, rules_or_grads, operands, strict=True):
            if edge is not None and d is not None:
                if isinstance(vjp, tuple):  # an operand with an edge has a rule: see `record`
                    d = d(g, y, *operands, **attrs)
                if d is not None:
                    d = d.conj() if conjugates else d
                    d = reduce_to_type(d, x._type if isinstance(x, Tensor) else x)
            operand_grads.append(None if edge is None else d)
        return operand_grads

    def saved_values(self) -> tuple[list[Any], list[Any]]:
        """The saved results and operands as tensors; numbers as they are, and types for what is not saved."""
        if self.saved is None:
            raise GradError(GRAPH_FREED)
        values = [x.unpack(self) if isinstance(x, SavedTensor) else x for x in self.saved]
        results, operands = (
            [values[place] if type(place) is int else place for place in places]
            for places in (self.plan.results, self.plan.operands)
        )
        return results, operands


def reduce_to_type(g: Tensor, type: TensorType) -> Tensor:
    """A gradient in the shape and dtype of its operand: sums over the dims that were broadcast. So no rule has to."""
    if g._type is type:
        return g
    shape = type.shape
    if g._type.shape != shape:
        extra = g._type.ndim - len(shape)
        expanded = [d + extra for d, n in enumerate(shape) if n == 1 and g._type.shape[d + extra] != 1]
        dims = [*range(extra), *expanded]
        g = g.sum(dims, keepdim=True).reshape(shape) if expanded else g.sum(dims)
    if g._type.dtype is type.dtype:
        return g
    # the imaginary part of the gradient of a real number has no effect
    return (g.real if g._type.dtype.kind == "c" != type.dtype.kind else g).to(type.dtype)


class RetainGradHook:
    """The hook of `Tensor.retain_grad`. It runs after all other hooks, and moves with its tensor to a new node."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = ref(tensor)

    def __call__(self, g: Tensor) -> None:
        if (tensor := self.tensor()) is not None:  # never in place: others may hold the gradient
            tensor.grad = g.clone() if tensor._grad is None else tensor._grad + g


def retain_grad_hooks(x: Tensor) -> list[RetainGradHook]:
    """The hooks of `Tensor.retain_grad` that belong to x."""
    if x._node is None or not x._node.hooks:
        return []
    return [h for h in x._node.hooks.get(x._index, ()) if isinstance(h, RetainGradHook) and h.tensor() is x]


def set_node(x: Tensor, node: Node | None, index: int) -> None:
    """Give the tensor another history: it is result ``index`` of this node."""
    for hook in retain_grad_hooks(x):
        x._node.hooks[x._index].remove(hook)  # type: ignore[union-attr]
        if node is not None:
            node.hooks.setdefault(index, []).append(hook)
    x._node, x._index = node, index


# -- recording ---------------------------------------------------------------------------


def tracked(operands: tuple[Any, ...]) -> bool:
    """Does any of them require a gradient, and are ops recorded?"""
    return any(getattr(x, "_node", None) is not None for x in operands) and mode.enabled


def record(coded: Coded, operands: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Put a call on the tape. Called only if an operand has a node.

    Loops instead of comprehensions, and no constructors: each of those would be a call.
    """
    if not mode.enabled:
        return
    tracked, bit = 0, 1
    edges: list[Edge | None] = []
    for x in operands:
        if isinstance(x, Tensor) and (source := x._node) is not None:
            tracked += bit
            edges.append((source, x._index))
        else:
            edges.append(None)
        bit += bit
    plan = coded[3].get(tracked)
    if plan is None:
        plan = coded[3][tracked] = plan_of(coded[2], tracked)
    if plan is NO_PLAN:
        return
    for k in plan.without_rule:
        edges[k] = None
    node: Node = _new(Node)
    node.plan, node.edges, node.number, node.hooks = plan, tuple(edges), _next_number(), {}
    node.signal = scope.thread.backward if scope.active else ""
    values: list[Any] = []
    saved_results, saved_operands = plan.saved
    save = mode.save or _saved
    for i, edge in saved_results:
        values.append(save(results[i], edge))
    for k in saved_operands:
        x = operands[k]
        values.append(save(x, edges[k]) if isinstance(x, Tensor) else x)
    node.saved = tuple(values)
    for i in plan.tracked:
        y = results[i]
        y._node = node
        if i:
            y._index = i


def _saved(x: Tensor, edge: Any) -> SavedTensor:
    """`SavedTensor(x, edge)` in less time."""
    saved: SavedTensor = _new(SavedTensor)
    cell, view = x._cell, x._view
    versioned = cell if view is None else view.base._cell
    saved.cell, saved.type, saved.edge = cell, x._type, edge
    saved.versioned, saved.version = versioned, versioned.version
    return saved


_new: Any = object.__new__


def edge_of(x: Any) -> Edge | None:
    """The edge to x; None if x is not a tensor, or requires no gradient."""
    node = getattr(x, "_node", None)
    return None if node is None else (node, x._index)


# -- writing in place --------------------------------------------------------------------


def before_write(x: Tensor) -> None:
    """Called before x is written in place, directly or through a view."""
    if mode.enabled and isinstance(x._node, LeafNode):
        x._node.before_write(x)


def check_writable(target: Tensor) -> None:
    """Raise GradError for a leaf that requires a gradient: after the write it would be the result of an op."""
    if isinstance(target._node, LeafNode):
        raise GradError("a leaf Variable that requires grad is being used in an in-place operation")


def needs_old_target(op: Op, operands: tuple[Any, ...]) -> bool:
    """Does the gradient need the first operand as it was before the op wrote it?"""
    if op.vjp is None:
        return False
    rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,) * len(operands)
    needs = tuple(r is not None and edge_of(x) is not None for x, r in zip(operands, rules, strict=False))
    return any(needs) and 0 in needed_values(op, needs)[1]


def free_after_backward(target: Tensor) -> None:
    """The last op of this tensor is a write into a view: no two backward passes go through it, as in torch."""
    node = target._node
    if isinstance(node, Node) and node.saved is not None:
        node.plan = node.plan.freeing()


def record_into(coded: Coded, operands: tuple[Any, ...], target: Tensor) -> None:
    """Make an in-place op the history of its target. The first operand is the target, or a copy."""
    result = on_cell(target._cell, target._type)
    record(coded, operands, (result,))
    node = result._node
    if node is not None and node.saved is not None:
        for saved in node.saved[: len(node.plan.saved[0])]:
            # The result is saved as it is after the write. An operand on the same cell is out of date then.
            saved.version += 1
    set_node(target, node, 0)
