"""A batch that was computed outside of the pipeline: its graph runs backward once, after all microbatches."""

from __future__ import annotations

from typing import Any

from gt.client.grad.backward import backward
from gt.client.tensor.tensor import Tensor
from gt.pipeline.microbatches import map_tensors


class OuterGraphs:
    """The graphs of the tensors of one step's batch and targets. The microbatches of a tensor share its graph."""

    def __init__(self) -> None:
        #: (a tensor with a graph, the leaf that takes its place)
        self._replaced: list[tuple[Tensor, Tensor]] = []

    def cut_off(self, tree: Any) -> Any:
        """The tree, with a leaf in the place of each tensor that has a graph."""
        return map_tensors(self._leaf, tree)

    def backward(self) -> None:
        """Hand the gradients of the leaves on to the graphs."""
        pairs = [(x, leaf.grad) for x, leaf in self._replaced if leaf.grad is not None]
        if pairs:
            backward([x for x, _ in pairs], [g for _, g in pairs])

    def _leaf(self, x: Tensor) -> Tensor:
        if not x.requires_grad or x.is_leaf:
            return x
        leaf = next((leaf for seen, leaf in self._replaced if seen is x), None)
        if leaf is None:
            leaf = x.detach().requires_grad_()
            self._replaced.append((x, leaf))
        return leaf
