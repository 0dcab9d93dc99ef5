"""``gt.autograd``: the backward pass over the tape.

A node has a greater number than every node it was computed from. So the pass takes nodes in descending order of their
numbers, which is a topological order: when a node's turn comes, the gradients of its results are complete. Its op's
``vjp`` then gives the gradients of its operands. These rules consist of ops, so gradients of gradients need no more
code.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad import repeated_pass
from gt.client.grad.grad_mode import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.grad.hooks import AFTER, register_hook, register_post_accumulate_grad_hook
from gt.client.grad.leaves import as_leaf, detach_, requires_grad_
from gt.client.signals.signal import backward_scope
from gt.client.stream import configuration, recorder, sites
from gt.client.tensor import placing
from gt.client.tensor.emit import binary, current, detached
from gt.client.tensor.tape import Edge, LeafNode, Node, RetainGradHook, mode, retain_grad_hooks
from gt.client.tensor.tensor import Tensor, on_cell
from gt.errors import GradError
from gt.ops import OPS

__all__ = [
    "backward", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled",
]  # fmt: skip


FULL_LIKE = OPS["full_like"]

#: where a backward pass begins, and the gradient there
Root = tuple[Edge, Tensor]
#: called with an edge and its complete gradient
Receive = Callable[[Edge, Tensor], None]
#: (a node, the gradients of its results) -> the gradients of its operands; None where it computes them later
Defer = Callable[[Node, list[Tensor | None]], list[Tensor | None]]
#: called with a node when its turn comes
Note = Callable[[Any], None]

# -- the backward pass -------------------------------------------------------------------


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Compute gradients and add them to the ``grad`` of all leaves, or of ``inputs``. See `torch.autograd.backward`."""
    roots = roots_of(_as_list(tensors), _as_list(grad_tensors))
    retain = create_graph if retain_graph is None else retain_graph
    input_of = None if inputs is None else {_edge_of(x): x for x in _as_list(inputs)}
    session = next((x._cell.session for x in _as_list(tensors)), None)
    if session is not None:
        session.outbox.before_backward()
    targets = set(input_of) if input_of is not None else None

    def receive(edge: Edge, g: Tensor) -> None:
        tensor = edge[0].tensor() if isinstance(edge[0], LeafNode) else (input_of or {}).get(edge)
        if tensor is not None:
            accumulate(tensor, g, create_graph)

    def run_pass(note: Note | None) -> None:
        if note is None:
            backward_pass(roots, retain, create_graph, targets, receive)
        else:
            _noted_pass(roots, receive, note)

    with sites.held():
        if session is None or len(roots) != 1 or retain or create_graph or targets is not None:
            run_pass(None)
        else:
            repeated_pass.run(session, *roots[0], run_pass)
    if session is not None:
        session.outbox.after_backward()


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs; changes no ``grad``. See `torch.autograd.grad`.

    ``only_inputs`` has no effect, as in torch.
    """
    roots = roots_of(_as_list(outputs), _as_list(grad_outputs))
    retain = create_graph if retain_graph is None else retain_graph
    tensors = _as_list(inputs)
    edges = [_edge_of(x) for x in tensors]
    grad_at: dict[Edge, Tensor] = {}
    backward_pass(roots, retain, create_graph, set(edges), grad_at.__setitem__)
    grads = [grad_at.get(edge) for edge in edges]
    if materialize_grads:
        return tuple(x.new_zeros(x.shape) if g is None else g for g, x in zip(grads, tensors, strict=True))
    if not allow_unused and None in grads:
        raise GradError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return tuple(grads)


def backward_pass(
    roots: list[Root],
    retain: bool,
    create_graph: bool,
    targets: set[Edge] | None,
    receive: Receive,
    defer: Defer | None = None,
) -> None:
    """Call ``receive`` with the complete gradient of every target; without targets, of every leaf.

    ``defer`` runs in place of a node's own backward, and may leave out gradients.
    """
    before = mode.enabled
    # No context manager: Ctrl-C could come after its block and before it restores the mode.
    try:
        mode.enabled = create_graph
        _propagate(roots, retain, targets, receive, defer)
    finally:
        mode.enabled = before


def _noted_pass(roots: list[Root], receive: Receive, note: Note) -> None:
    """A pass without `retain_graph` that calls ``note`` with each node when its turn comes."""

    def compute(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
        note(node)
        return node.backward(grads, False)

    def receive_leaf(edge: Edge, g: Tensor) -> None:
        note(edge[0])
        receive(edge, g)

    backward_pass(roots, False, False, None, receive_leaf, compute)


def _propagate(
    roots: list[Root], retain: bool, targets: set[Edge] | None, receive: Receive, defer: Defer | None
) -> None:
    useful = None if targets is None else _nodes_leading_to(targets, [edge for edge, _ in roots])
    #: node -> the sums of the gradients of its results so far
    sums: dict[Any, list[Tensor | None]] = {}
    #: a heap: the node with the greatest number comes first
    queue: list[tuple[int, Any]] = []

    def add(edges: Sequence[Edge | None], grads: Sequence[Tensor | None]) -> None:
        for edge, g in zip(edges, grads, strict=True):
            if edge is None or g is None or (useful is not None and edge[0] not in useful):
                continue
            node, index = edge
            node_sums = sums.get(node)
            if node_sums is None:
                node_sums = sums[node] = [None] * len(node.out_types)
                heapq.heappush(queue, (-node.number, node))
            before = node_sums[index]
            if configuration.current.rules and isinstance(node, LeafNode):
                placing.place_grad(node.tensor(), g)
            node_sums[index] = g if before is None else before + g

    add([edge for edge, _ in roots], [g for _, g in roots])
    while queue:
        node = heapq.heappop(queue)[1]
        grads = sums.pop(node)
        if node.hooks:
            grads = [_run_hooks(node, i, g) for i, g in enumerate(grads)]
        if targets is not None or isinstance(node, LeafNode):
            for i, complete in enumerate(grads):
                if complete is not None and (targets is None or (node, i) in targets):
                    receive((node, i), complete)
        if isinstance(node, Node) and (useful is None or _leads_into(node, useful)):
            # Gradients are added up under this node's signal, before they go to where the operands were computed.
            if node.signal:
                with backward_scope(node.signal):
                    add(node.edges, node.backward(grads, retain) if defer is None else defer(node, grads))
            else:
                add(node.edges, node.backward(grads, retain) if defer is None else defer(node, grads))


def _leads_into(node: Node, nodes: set[Any]) -> bool:
    return any(edge is not None and edge[0] in nodes for edge in node.edges)


def _nodes_leading_to(targets: set[Edge], roots: list[Edge]) -> set[Any]:
    """The nodes from which a target can be reached. No gradient is computed for any other node."""
    target_nodes = {node for node, _ in targets}
    leads: dict[Any, bool] = {}
    stack: list[Any] = [node for node, _ in roots]
    while stack:
        node = stack[-1]
        sources = [] if isinstance(node, LeafNode) else [edge[0] for edge in node.edges if edge is not None]
        unseen = [source for source in sources if source not in leads]
        if unseen and node not in leads:
            leads[node] = node in target_nodes
            stack.extend(unseen)
            continue
        stack.pop()
        leads[node] = node in target_nodes or any(leads[source] for source in sources)
    return {node for node, reaches_target in leads.items() if reaches_target}


def _run_hooks(node: Any, index: int, g: Tensor | None) -> Tensor | None:
    for hook in node.hooks.get(index, ()):
        if g is not None:
            replacement = hook(g)
            g = g if replacement is None else replacement
    return g


def accumulate(leaf: Tensor, g: Tensor, create_graph: bool) -> None:
    """Add to the ``grad`` of a tensor, if it still requires one. Without ``create_graph`` this is done in place."""
    if leaf._node is None:
        return
    if leaf._grad is None:
        # Another tensor may share this value, and a later addition in place must not change that tensor.
        leaf.grad = g if create_graph else detached(g).clone() if is_shared(g) else detached(g)
    elif create_graph:
        leaf.grad = leaf._grad + g
    else:
        if recorder.active is not None:
            recorder.active.note_grad(leaf)
        leaf._grad.add_(g)
    if leaf._node.hooks:
        for hook in tuple(leaf._node.hooks.get(AFTER, ())):
            hook(leaf)


def is_shared(g: Tensor) -> bool:
    """Whether another tensor may have the same value in the same memory."""
    # Two references are the tensor's, and the argument of `getrefcount`.
    return g._view is not None or g._node is not None or sys.getrefcount(g._cell) > 2


# -- arguments ---------------------------------------------------------------------------


def _as_list(x: Any) -> list[Any]:
    return [] if x is None else [x] if isinstance(x, Tensor) else list(x)


def _edge_of(x: Tensor) -> Edge:
    current(x)
    if x._node is None:
        raise GradError("One of the differentiated Tensors does not require grad")
    return x._node, x._index


def roots_of(outputs: list[Tensor], grads: list[Any]) -> list[Root]:
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
        if y._type.dtype.kind == "c":
            raise GradError(f"grad can be implicitly created only for real scalar outputs but got {y._type.dtype}")
        g = binary(FULL_LIKE, detached(y), 1, (("dtype", y._type.dtype.name),))
    elif g._view is None:  # another tensor on its cell, so that the user's is not added to (`is_shared`)
        g, (node, index) = on_cell(g._cell, g._type), (g._node, g._index)
        g._node, g._index = node, index
    if g._type.shape != y._type.shape:
        raise GradError(f"Mismatch in shape: grad_output has {g._type}, and the output is {y._type}")
    return (y._node, y._index), g


def formula_grads(_: Tensor, formula: Callable[..., Any], needs: Any, g: Any, operands: Any, attrs: Any) -> list[Any]:
    """The gradients of operands whose result is ``formula(*operands, **attrs)``.

    ``g`` is the gradient of the result, or a tuple of the gradients of several results. ``needs`` says for each operand
    whether its gradient is needed.
    """
    create_graph = mode.enabled
    with enable_grad():
        # New tensors in place of the operands: if one operand was computed from another, the pass must end at both.
        inputs = [
            x if not n else x.clone() if create_graph else as_leaf(x.detach())
            for x, n in zip(operands, needs, strict=True)
        ]
        returned = formula(*inputs, **attrs)
        results = returned if isinstance(returned, tuple | list) else [returned]
        grads = g if isinstance(g, tuple) else [g]
        pairs = [(y, d) for y, d in zip(results, grads, strict=True) if d is not None and y.requires_grad]
        if not pairs:
            return [None] * len(needs)
        needed = [x for x, n in zip(inputs, needs, strict=True) if n]
        outputs, grad_outputs = [y for y, _ in pairs], [d for _, d in pairs]
        input_grads = iter(grad(outputs, needed, grad_outputs, create_graph=create_graph, allow_unused=True))
    return [next(input_grads) if n else None for n in needs]


# -- methods and properties of a tensor --------------------------------------------------


def retain_grad(x: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in its ``grad``."""
    current(x)
    if x._node is None:
        raise GradError("can't retain_grad on Tensor that has requires_grad=False")
    if isinstance(x._node, Node) and not retain_grad_hooks(x):
        x._node.hooks.setdefault(x._index, []).append(RetainGradHook(x))


def tensor_backward(
    x: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Compute the gradients of x and add them to the ``grad`` of the leaves. See `torch.Tensor.backward`."""
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
    "register_post_accumulate_grad_hook": register_post_accumulate_grad_hook,
    "backward": tensor_backward,
    "detach": detached,
    "detach_": detach_,
    "_pulled": formula_grads,
}
