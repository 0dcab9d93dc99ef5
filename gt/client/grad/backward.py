"""``gt.autograd``: the way back along the tape.

The gradients of a node's results are added up until all who use them have had their say, which the numbers of the
nodes tell: a node is always younger than those it comes from. Then its own rule says what goes on to its operands.
Rules are written in ops, so gradients of gradients need nothing more.
"""

from __future__ import annotations

import functools
import heapq
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.grad_mode import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.signals.signal import backward_scope
from gt.client.stream import configuration, recorder, sites
from gt.client.tensor import placing
from gt.client.tensor.emit import binary, current, detached, place_by
from gt.client.tensor.tape import Edge, Leaf, Node, Retain, mode, retained
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.ops import OPS

__all__ = [
    "backward", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled",
]  # fmt: skip


FULL_LIKE = OPS["full_like"]

#: where a way back begins, and the gradient there
Root = tuple[Edge, Tensor]
#: told of an edge and its gradient
Found = Callable[[Edge, Tensor], None]

# -- the way back ------------------------------------------------------------------------


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of tensors to the leaves they depend on. See `torch.autograd.backward`."""
    roots = _roots(_listed(tensors), _listed(grad_tensors))
    keep = create_graph if retain_graph is None else retain_graph
    wanted = None if inputs is None else {_edge_of(x): x for x in _listed(inputs)}
    session = next((x._cell.session for x in _listed(tensors)), None)
    if session is not None:
        session.outbox.cut_if_long()
    edges = set(wanted) if wanted is not None else None

    def found(edge: Edge, g: Tensor) -> None:
        leaf = edge[0].tensor() if isinstance(edge[0], Leaf) else (wanted or {}).get(edge)
        if leaf is not None:
            accumulate(leaf, g, create_graph)

    with sites.held():
        _walk(roots, keep, create_graph, edges, found)
    if session is not None:
        session.outbox.after_backward()


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of outputs with respect to inputs. See `torch.autograd.grad`."""
    roots = _roots(_listed(outputs), _listed(grad_outputs))
    keep = create_graph if retain_graph is None else retain_graph
    asked = _listed(inputs)
    edges = [_edge_of(x) for x in asked]
    found: dict[Edge, Tensor] = {}
    _walk(roots, keep, create_graph, set(edges), found.__setitem__)
    made = [found.get(edge) for edge in edges]
    if materialize_grads:
        return tuple(x.new_zeros(x.shape) if g is None else g for g, x in zip(made, asked, strict=True))
    if not allow_unused and None in made:
        raise GradError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return tuple(made)


def _walk(roots: list[Root], keep: bool, create_graph: bool, targets: set[Edge] | None, found: Found) -> None:
    """Every target's (or leaf's) gradient is ``found``, once it is complete."""
    was = mode.enabled
    try:  # and no context: Ctrl-C must not come between its end and what that puts back
        mode.enabled = create_graph
        _go(roots, keep, targets, found)
    finally:
        mode.enabled = was


def _go(roots: list[Root], keep: bool, targets: set[Edge] | None, found: Found) -> None:
    on_the_way = None if targets is None else _leading_to(targets, [edge for edge, _ in roots])
    sums: dict[Any, list[Tensor | None]] = {}
    young_first: list[tuple[int, Any]] = []

    def add(ways: Sequence[Edge | None], pulled: Sequence[Tensor | None]) -> None:
        for edge, g in zip(ways, pulled, strict=True):
            if edge is None or g is None or (on_the_way is not None and edge[0] not in on_the_way):
                continue
            node, index = edge
            own = sums.get(node)
            if own is None:
                own = sums[node] = [None] * len(node.outs)
                heapq.heappush(young_first, (-node.number, node))
            before = own[index]
            if configuration.current.rules and isinstance(node, Leaf):
                placing.follow(node.tensor(), g)
            own[index] = g if before is None else before + g

    for edge, g in roots:
        add((edge,), (g,))
    while young_first:
        node = heapq.heappop(young_first)[1]
        grads = sums.pop(node)
        if node.hooks:
            grads = [_hooked(node, i, g) for i, g in enumerate(grads)]
        if targets is not None or isinstance(node, Leaf):
            for i, whole in enumerate(grads):
                if whole is not None and (targets is None or (node, i) in targets):
                    found((node, i), whole)
        if isinstance(node, Node) and (on_the_way is None or _goes_on(node, on_the_way)):
            # what meets here is added up here, before it goes to where the operand came from
            if node.signal:
                with backward_scope(node.signal):
                    add(node.edges, node.pull(grads, keep))
            else:
                add(node.edges, node.pull(grads, keep))


def _goes_on(node: Node, on_the_way: set[Any]) -> bool:
    return any(edge is not None and edge[0] in on_the_way for edge in node.edges)


def _leading_to(targets: set[Edge], roots: list[Edge]) -> set[Any]:
    """The nodes from which a target can be reached, so that nothing is computed in vain."""
    ends = {node for node, _ in targets}
    leads: dict[Any, bool] = {}
    stack: list[Any] = [node for node, _ in roots]
    while stack:
        node = stack[-1]
        ways = [] if isinstance(node, Leaf) else [edge[0] for edge in node.edges if edge is not None]
        unseen = [way for way in ways if way not in leads]
        if unseen and node not in leads:
            leads[node] = node in ends
            stack.extend(unseen)
            continue
        stack.pop()
        leads[node] = node in ends or any(leads[way] for way in ways)
    return {node for node, does in leads.items() if does}


def _hooked(node: Any, index: int, g: Tensor | None) -> Tensor | None:
    for hook in node.hooks.get(index, ()):
        if g is not None:
            changed = hook(g)
            g = g if changed is None else changed
    return g


def accumulate(leaf: Tensor, g: Tensor, create_graph: bool) -> None:
    """Add to a leaf's ``grad``; without a graph to keep, in its own storage."""
    if leaf._grad is None:
        # others may hold the same tensor, and a later addition in place must not reach them
        leaf.grad = g if create_graph else detached(g).clone() if _shared(g) else detached(g)
    elif create_graph:
        leaf.grad = leaf._grad + g
    else:
        if recorder.active is not None:
            recorder.active.note_grad(leaf)
        leaf._grad.add_(g)


def _shared(g: Tensor) -> bool:
    # held by the walk's list, its caller's frames and the tensor alone
    return g._view is not None or g._node is not None or sys.getrefcount(g._cell) > 2


# -- what one may ask for ----------------------------------------------------------------


def _listed(x: Any) -> list[Any]:
    return [] if x is None else [x] if isinstance(x, Tensor) else list(x)


def _edge_of(x: Tensor) -> Edge:
    current(x)
    if x._node is None:
        raise GradError("One of the differentiated Tensors does not require grad")
    return x._node, x._index


def _roots(outputs: list[Tensor], grads: list[Any]) -> list[Root]:
    grads = grads or [None] * len(outputs)
    if len(grads) != len(outputs):
        raise GradError(f"{len(outputs)} outputs, but {len(grads)} gradients for them")
    return [_root(y, g) for y, g in zip(outputs, grads, strict=True)]


def _root(y: Tensor, g: Any) -> Root:
    current(y)
    if y._node is None:
        raise GradError("element 0 of tensors does not require grad and does not have a grad_fn")
    if g is None:
        if y._type.numel != 1:
            raise GradError("grad can be implicitly created only for scalar outputs")
        g = binary(FULL_LIKE, detached(y), 1, (("dtype", y._type.dtype.name),))
    if g._type.shape != y._type.shape:
        raise GradError(f"Mismatch in shape: grad_output has {g._type}, and the output is {y._type}")
    return (y._node, y._index), g


def pulled(_: Tensor, formula: Callable[..., Any], needs: Any, g: Any, operands: Any, attrs: Any) -> list[Any]:
    """The gradients of operands by way of a formula of them; ``g`` is that of its result, or a tuple of several's."""
    further = mode.enabled
    with enable_grad():
        # stand-ins: an operand may have come from another, and that way must not be gone twice
        own = [
            x if not n else x.clone() if further else as_leaf(x.detach()) for x, n in zip(operands, needs, strict=True)
        ]
        made = formula(*own, **attrs)
        results = made if isinstance(made, tuple | list) else [made]
        grads = g if isinstance(g, tuple) else [g]
        kept = [(m, d) for m, d in zip(results, grads, strict=True) if d is not None and m.requires_grad]
        if not kept:
            return [None] * len(needs)
        asked = [x for x, n in zip(own, needs, strict=True) if n]
        given = [d for _, d in kept]
        found = iter(grad([m for m, _ in kept], asked, given, create_graph=further, allow_unused=True))
    return [next(found) if n else None for n in needs]


Hook = Callable[[Tensor], Any]


class RemovableHandle:
    def __init__(self, hooks: list[Hook], hook: Hook) -> None:
        self._remove = functools.partial(_discard, hooks, hook)

    def remove(self) -> None:
        self._remove()


def _discard(hooks: list[Hook], hook: Hook) -> None:
    if hook in hooks:
        hooks.remove(hook)


def register_hook(x: Tensor, hook: Hook) -> RemovableHandle:
    """Called with the gradient of x; what it returns, if anything, takes the gradient's place."""
    current(x)
    if x._node is None:
        raise GradError("cannot register a hook on a tensor that doesn't require gradient")
    hooks = x._node.hooks.setdefault(x._index, [])
    hooks.insert(len(hooks) - sum(isinstance(h, Retain) for h in hooks), hook)
    return RemovableHandle(hooks, hook)


# -- what a tensor says of itself --------------------------------------------------------


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Let gradients go to this tensor, or no longer."""
    current(x)
    if isinstance(x._node, Node):
        if not requires_grad:
            raise GradError("you can only change requires_grad flags of leaf variables; use x.detach()")
    elif not requires_grad:
        x._node = None
    elif x._node is None:
        if x._type.dtype.kind != "f":
            raise GradError("only Tensors of floating point dtype can require gradients")
        if configuration.current.auto:
            place_by(x, configuration.PARAMETER)
        as_leaf(x)
    return x


def as_leaf(x: Tensor) -> Tensor:
    """Let gradients end at this tensor, which need not be a parameter for that."""
    x._node = Leaf(x)  # type: ignore[assignment]
    return x


def retain_grad(x: Tensor) -> None:
    """Keep the gradient of a tensor that is no leaf in its ``grad``."""
    current(x)
    if x._node is None:
        raise GradError("can't retain_grad on Tensor that has requires_grad=False")
    if isinstance(x._node, Node) and not retained(x):
        x._node.hooks.setdefault(x._index, []).append(Retain(x))


def tensor_backward(
    x: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Compute the gradients of all leaves this tensor depends on. See `torch.Tensor.backward`."""
    backward([x], [gradient], retain_graph, create_graph, inputs)


def is_leaf(x: Tensor) -> bool:
    """Whether the tensor was created by the user rather than computed with gradients."""
    current(x)
    return not isinstance(x._node, Node)


def _grad_fn(x: Tensor) -> Node | None:
    """The node of the tape that computed this tensor, or None."""
    current(x)
    return x._node if isinstance(x._node, Node) else None


def _requires_grad(x: Tensor) -> bool:
    """Whether gradients are computed for this tensor."""
    current(x)
    return x._node is not None


def _set_requires_grad(x: Tensor, value: bool) -> None:
    requires_grad_(x, value)


#: attached to `Tensor` by `gt.functions.methods`
METHODS: dict[str, Any] = {
    "requires_grad": property(_requires_grad, _set_requires_grad),
    "is_leaf": property(is_leaf),
    "grad_fn": property(_grad_fn),
    "requires_grad_": requires_grad_,
    "retain_grad": retain_grad,
    "register_hook": register_hook,
    "backward": tensor_backward,
    "detach": detached,
    "_pulled": pulled,
}
