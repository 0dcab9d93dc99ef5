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
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from gt.client.stream import scope
from gt.client.tensor.tensor import Tensor, on_cell
from gt.errors import GradError
from gt.ops import Attrs, Op
from gt.types import TensorType

if TYPE_CHECKING:
    import inspect

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

    __slots__ = ("attrs", "edges", "hooks", "number", "op", "out_types", "saved", "signal")

    def __init__(
        self, op: Op, attrs: Attrs, edges: tuple[Edge | None, ...], out_types: tuple[TensorType, ...] = ()
    ) -> None:
        self.op, self.attrs, self.edges, self.out_types = op, attrs, edges, out_types
        #: greater than the numbers of the nodes its edges lead to
        self.number = _next_number()
        #: the signal that its gradients are emitted under; "": the one in force during the backward pass
        self.signal = scope.thread.backward if scope.active else ""
        #: (results, operands): for each a `SavedTensor`, a number, or the type of a tensor that is not saved; and
        #: whether a gradient uses any value. None after a backward pass has freed the values
        self.saved: tuple[list[Any], list[Any], bool] | None = None
        self.hooks: dict[int, list[Any]] = {}

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
        if not retain_graph and self.saved is not None and self.saved[2]:
            self.saved = None
        edges = self.edges if edges is None else edges
        single = len(self.out_types) == 1
        g, y = (grads[0], results[0]) if single else (tuple(grads), tuple(results))
        vjp, attrs = self.op.vjp, dict(self.attrs)
        conjugates = self.op.complex == "holomorphic" and self.out_types[0].dtype.kind == "c"
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
        """The saved results and operands as tensors; types and numbers as they are."""
        if self.saved is None:
            raise GradError(GRAPH_FREED)
        results, operands = [], []
        for x in self.saved[0]:
            results.append(x.unpack(self) if isinstance(x, SavedTensor) else x)
        for x in self.saved[1]:
            operands.append(x.unpack(self) if isinstance(x, SavedTensor) else x)
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


def record(op: Op, attrs: Attrs, operands: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Put a call on the tape. Called only if an operand has a node."""
    vjp = op.vjp
    if vjp is None or not mode.enabled:
        return
    edges: list[Edge | None] = []
    needs = []
    rules = vjp if isinstance(vjp, tuple) else None
    for k, x in enumerate(operands):  # loops instead of comprehensions: each of those would be a call
        source = x._node if isinstance(x, Tensor) and (rules is None or rules[k] is not None) else None
        edges.append(None if source is None else (source, x._index))
        needs.append(source is not None)
    if True not in needs:
        return
    save = mode.save or SavedTensor
    needed_results, needed_operands = needed_values(op, tuple(needs), len(results))
    out_types, saved_results, node = [], [], Node(op, attrs, tuple(edges))
    for i, y in enumerate(results):
        out_types.append(y._type)
        # None stands for this node: a node that refers to itself is freed only when Python looks for cycles
        saved_results.append(save(y, (None, i)) if i in needed_results else y._type)
        if y._type.dtype.kind in "fc":
            y._node = node
            if i:
                y._index = i
    node.out_types = tuple(out_types)
    saved_operands: list[Any] = []
    for k, x in enumerate(operands):
        if isinstance(x, Tensor):
            saved_operands.append(save(x, edges[k]) if k in needed_operands else x._type)
        else:
            saved_operands.append(x)
    node.saved = saved_results, saved_operands, bool(needed_results or needed_operands)


def edge_of(x: Any) -> Edge | None:
    """The edge to x; None if x is not a tensor, or requires no gradient."""
    node = getattr(x, "_node", None)
    return None if node is None else (node, x._index)


@cache
def needed_values(op: Op, needs: tuple[bool, ...], count: int = 1) -> tuple[frozenset[int], frozenset[int]]:
    """Which of ``count`` results, and which operands, the gradients of these operands are computed from."""
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
    import inspect  # would be a quarter of the time of `import gt`, where there is no torch

    return list(inspect.signature(rule).parameters.values())


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
        node.saved = (*node.saved[:2], True)


def record_into(op: Op, attrs: Attrs, operands: tuple[Any, ...], target: Tensor) -> None:
    """Make an in-place op the history of its target. The first operand is the target, or a copy."""
    result = on_cell(target._cell, target._type)
    record(op, attrs, operands, (result,))
    if result._node is not None and result._node.saved is not None:
        for saved in result._node.saved[0]:
            if isinstance(saved, SavedTensor):
                # The result is saved as it is after the write. An operand on the same cell is out of date then.
                saved.version += 1
    set_node(target, result._node, 0)
