"""One step of a pipeline: the state of each microbatch between the actions of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.backward import accumulate, as_leaf, backward_pass, is_shared, roots_of
from gt.client.grad.split_backward import SplitBackward
from gt.client.signals.signal import context
from gt.client.stream import sites
from gt.client.tensor.emit import detached, placed
from gt.client.tensor.tape import Edge, LeafNode
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.pipeline.microbatches import map_tensors, rows_of

#: (part, microbatch)
Key = tuple[int, int]


class PartPass:
    """The inputs, outputs and gradients that parts hand to each other in one step."""

    def __init__(
        self,
        parts: Sequence[Any],
        signals: Sequence[str],
        microbatches: list[Any],
        targets: list[Any],
        loss_fn: Callable[..., Tensor] | None,
        mean_loss: bool,
    ) -> None:
        self.parts, self.signals, self.loss_fn = parts, signals, loss_fn
        self.count = len(microbatches)
        self._shares = _shares(microbatches, mean_loss)
        #: what each part is called with; all microbatches start to move to the first part now
        self._inputs: dict[Key, Any] = {
            (0, m): map_tensors(lambda x: self._moved(x, 0), batch) for m, batch in enumerate(microbatches)
        }
        last = len(parts) - 1
        self._targets = [map_tensors(lambda x: self._moved(x, last), target) for target in targets]
        #: the leaves that stand for the inputs of a part, one for each output of the part before; None: no gradient
        self._leaves: dict[Key, list[Tensor | None]] = {}
        self._outputs: dict[Key, list[Any]] = {}
        #: the gradients of those outputs
        self._grads: dict[Key, list[Tensor | None]] = {}
        self._split: dict[Key, SplitBackward] = {}
        #: for each part, the gradients of its leaves so far, and how many backward passes are left
        self._sums: list[dict[Tensor, Tensor]] = [{} for _ in parts]
        self._left = [self.count] * len(parts)
        self._loss: Tensor | None = None

    def _moved(self, x: Tensor, part: int) -> Tensor:
        return placed(x, self.signals[part]) if self.signals[part] else x

    # -- forward -------------------------------------------------------------------------

    def forward(self, part: int, m: int) -> None:
        """F: run a microbatch through a part, and hand its outputs on."""
        arguments = self._inputs.pop((part, m))
        signal = self.signals[part]
        if signal:
            with context(signal):
                result = self._call(part, m, arguments)
        else:
            result = self._call(part, m, arguments)
        outputs = list(result) if isinstance(result, tuple) else [result]
        self._outputs[part, m] = outputs
        if part + 1 < len(self.parts):
            leaves = [self._leaf(y, part + 1) for y in outputs]
            self._leaves[part + 1, m] = [x if isinstance(x, Tensor) and x._node is not None else None for x in leaves]
            self._inputs[part + 1, m] = tuple(leaves)

    def _call(self, part: int, m: int, arguments: Any) -> Any:
        function = self.parts[part]
        try:
            if isinstance(arguments, dict):
                result = function(**arguments)
            else:
                result = function(*arguments) if isinstance(arguments, tuple) else function(arguments)
        except Exception as error:
            name = getattr(function, "__name__", type(function).__name__)
            error.add_note(f"in part {part} of the pipeline, {name}, with microbatch {m}")
            raise
        if part + 1 < len(self.parts) or self.loss_fn is None:
            return result
        loss = self.loss_fn(result, self._targets[m])
        share = self._shares[m]
        loss = loss if share == 1 else loss * share
        value = detached(loss)
        self._loss = value if self._loss is None else self._loss + value
        return loss

    def _leaf(self, y: Any, part: int) -> Any:
        """An output as the input of the next part."""
        if not isinstance(y, Tensor):
            return y
        x = self._moved(detached(y), part)
        return as_leaf(detached(x)) if y._node is not None else x

    # -- backward ------------------------------------------------------------------------

    def backward(self, part: int, m: int) -> None:
        """B: the gradients of the inputs and of the weights."""
        roots, inputs = self._roots(part, m)
        grads: dict[Any, Tensor] = {}
        with sites.held():
            backward_pass(roots, False, False, None, self._receiver(part, inputs, grads))
        self._hand_back(part, m, grads)
        self._end_backward(part)

    def backward_inputs(self, part: int, m: int) -> None:
        """I: the gradients of the inputs."""
        roots, inputs = self._roots(part, m)
        grads: dict[Any, Tensor] = {}
        split = self._split[part, m] = SplitBackward(roots, inputs)
        split.run_inputs(self._receiver(part, inputs, grads))
        self._hand_back(part, m, grads)

    def backward_weights(self, part: int, m: int) -> None:
        """W: the gradients of the weights."""
        self._split.pop((part, m)).run_weights(self._receiver(part, set(), {}))
        self._end_backward(part)

    def _roots(self, part: int, m: int) -> tuple[list[Any], set[LeafNode]]:
        """Where the backward pass begins, and the nodes of the part's inputs."""
        outputs = self._outputs.pop((part, m))
        inputs: Any = {x._node for x in self._leaves.get((part, m), ()) if x is not None}
        if part + 1 == len(self.parts):
            if outputs[0]._node is None:
                raise GradError("pipeline: the loss does not require grad: no part has a parameter that leads to it")
            return roots_of(outputs, [None]), inputs
        grads = self._grads.pop((part, m))
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None]
        return roots_of([y for y, _ in pairs], [g for _, g in pairs]), inputs

    def _receiver(self, part: int, inputs: set[LeafNode], grads: dict[Any, Tensor]) -> Callable[[Edge, Tensor], None]:
        """Takes the gradients of leaves: those of inputs into ``grads``, those of weights into the part's sums."""
        sums = self._sums[part]

        def receive(edge: Edge, g: Tensor) -> None:
            node: Any = edge[0]
            if node in inputs:
                grads[node] = g
            elif (leaf := node.tensor()) is not None:
                if leaf in sums:
                    sums[leaf].add_(g)
                else:
                    sums[leaf] = detached(g).clone() if is_shared(g) else detached(g)

        return receive

    def _hand_back(self, part: int, m: int, grads: dict[Any, Tensor]) -> None:
        """Move the gradients of the inputs to the part before."""
        if part == 0:
            return
        found = [None if x is None else grads.get(x._node) for x in self._leaves.pop((part, m))]
        self._grads[part - 1, m] = [None if g is None else self._moved(detached(g), part - 1) for g in found]

    def _end_backward(self, part: int) -> None:
        """After the last microbatch, add the part's sums to the gradients of its leaves."""
        self._left[part] -= 1
        if self._left[part] == 0:
            for leaf, g in self._sums[part].items():
                accumulate(leaf, g, create_graph=False)
            self._sums[part] = {}

    # -- results -------------------------------------------------------------------------

    def loss(self) -> Tensor:
        assert self._loss is not None
        return self._loss

    def outputs(self) -> list[Any]:
        """What the last part returned for each microbatch."""
        last = len(self.parts) - 1
        results = [self._outputs[last, m] for m in range(self.count)]
        return [row[0] if len(row) == 1 else tuple(row) for row in results]


#: what a part does in each kind of action: (pass, part, microbatch)
ACTIONS: dict[str, Callable[[PartPass, int, int], None]] = {
    "F": PartPass.forward,
    "B": PartPass.backward,
    "I": PartPass.backward_inputs,
    "W": PartPass.backward_weights,
}


def _shares(microbatches: list[Any], mean_loss: bool) -> list[float]:
    """The factor of each microbatch's loss: its share of the rows, if losses are means."""
    if not mean_loss or len(microbatches) == 1:
        return [1] * len(microbatches)
    rows = [rows_of(batch) for batch in microbatches]
    counts = [n for n in rows if n is not None]
    if len(counts) < len(rows):
        return [1 / len(rows)] * len(rows)
    return [n / sum(counts) for n in counts]
