"""The backward pass of a part of a model in two goes: first the gradients of its inputs, then those of its weights.

The part before waits for the first, only the optimizer for the second. No rule runs twice: at a node that leads to
inputs and to weights, the first go computes the gradients towards the inputs, and keeps what the others need.

A node is on the *weight side* if nothing but a leaf is behind it, through nodes with one operand each: a parameter, its
cast to another dtype, its transpose. Edges to such nodes wait for the second go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.grad.backward import Receive, Root, backward_pass
from gt.client.signals.signal import backward_scope
from gt.client.stream import sites
from gt.client.tensor.tape import Edge, LeafNode, Node, mode
from gt.client.tensor.tensor import Tensor


class _DeferredNode:
    """A node some of whose gradients are computed in the second go."""

    __slots__ = ("edges", "grads", "node", "values")

    def __init__(
        self, node: Node, grads: list[Tensor | None], edges: Sequence[Edge | None], values: tuple[list[Any], list[Any]]
    ) -> None:
        self.node, self.grads, self.edges, self.values = node, grads, edges, values

    def roots(self) -> list[Root]:
        """The gradients of its edges to the weight side."""
        node = self.node
        if not node.signal:
            return _pairs(self.edges, node.backward(self.grads, False, self.edges, self.values))
        with backward_scope(node.signal):
            return _pairs(self.edges, node.backward(self.grads, False, self.edges, self.values))


class SplitBackward:
    """The backward pass from these roots to ``inputs``, the nodes of a part's inputs, and to its weights."""

    def __init__(self, roots: list[Root], inputs: set[LeafNode]) -> None:
        self._roots, self._inputs = roots, inputs
        self._on_weight_side: dict[Any, bool] = {}
        self._deferred: list[_DeferredNode] = []
        #: gradients that were computed together with those of the inputs
        self._ready: list[Root] = []

    def run_inputs(self, receive: Receive) -> None:
        """The first go: call ``receive`` with the gradient of each input."""
        roots: list[Root] = []
        for edge, g in self._roots:
            (self._ready if self._is_weight_side(edge[0]) else roots).append((edge, g))
        self._roots = []
        with sites.held():
            backward_pass(roots, False, False, None, receive, self._defer)

    def run_weights(self, receive: Receive) -> None:
        """The second go: call ``receive`` with the gradient of each leaf."""
        before = mode.enabled
        with sites.held():
            try:
                mode.enabled = False
                roots = [*self._ready, *[root for deferred in self._deferred for root in deferred.roots()]]
            finally:
                mode.enabled = before
            self._ready, self._deferred = [], []
            backward_pass(roots, False, False, None, receive)

    def _defer(self, node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
        """The gradients of a node's operands; None for those on the weight side."""
        later = [edge if edge is not None and self._is_weight_side(edge[0]) else None for edge in node.edges]
        if not any(later):
            return node.backward(grads, False)
        now = [None if b is not None else a for a, b in zip(node.edges, later, strict=True)]
        if type(node) is Node and isinstance(node.op.vjp, tuple):
            values = node.saved_values()
            self._deferred.append(_DeferredNode(node, grads, later, values))
            return node.backward(grads, False, now, values)
        # one rule for all operands: its gradients are computed together
        computed = node.backward(grads, False)
        self._ready += _pairs(later, computed)
        return [None if edge is None else g for edge, g in zip(now, computed, strict=True)]

    def _is_weight_side(self, node: Any) -> bool:
        known, chain = self._on_weight_side, []
        while node not in known:
            chain.append(node)
            sources = [] if isinstance(node, LeafNode) else [edge[0] for edge in node.edges if edge is not None]
            if len(sources) != 1:
                known[node] = isinstance(node, LeafNode) and node not in self._inputs
                break
            node = sources[0]
        known.update(dict.fromkeys(chain, known[node]))
        return known[node]


def _pairs(edges: Sequence[Edge | None], grads: Sequence[Tensor | None]) -> list[Root]:
    return [(edge, g) for edge, g in zip(edges, grads, strict=True) if edge is not None and g is not None]
