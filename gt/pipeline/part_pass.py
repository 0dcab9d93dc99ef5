"""One step of a pipeline: the state of each microbatch between the actions of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.backward import accumulate, backward_pass, is_shared, roots_of
from gt.client.grad.split_backward import SplitBackward
from gt.client.signals.signal import context
from gt.client.stream import sites
from gt.client.tensor.emit import detached, placed
from gt.client.tensor.tape import Edge, LeafNode, mode
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GradError, ShapeError
from gt.pipeline.microbatches import map_tensors, rows_of, tensors_in

#: (part, microbatch)
Key = tuple[int, int]


class InputNode(LeafNode):
    """The node of a part's input.

    The part may write its input in place. Then it writes a copy, because the part before may hold the same memory.
    """

    __slots__ = ()

    def before_write(self, x: Tensor) -> None:
        copy = x.clone()
        x._cell, x._node, x._index = copy._cell, copy._node, copy._index


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
        #: what each part is called with: a tree. All microbatches start to move to the first part now
        self._inputs: dict[Key, Any] = {
            (0, m): map_tensors(lambda x: self._moved(x, 0), batch) for m, batch in enumerate(microbatches)
        }
        last = len(parts) - 1
        self._targets = [map_tensors(lambda x: self._moved(x, last), target) for target in targets]
        #: the nodes of the inputs of a part, one for each output of the part before; None: no gradient
        self._leaves: dict[Key, list[LeafNode | None]] = {}
        #: the tensors that a part has returned, or the loss; kept for the backward pass
        self._outputs: dict[Key, list[Tensor]] = {}
        #: the gradients of those outputs
        self._grads: dict[Key, list[Tensor | None]] = {}
        #: microbatch -> what the last part has returned, if there is no loss
        self._results: dict[int, Any] = {}
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
        if mode.enabled:
            self._outputs[part, m] = list(tensors_in(result))
        if part + 1 < len(self.parts):
            self._hand_on(part, m, result)
        elif self.loss_fn is None:
            self._results[m] = result

    def _hand_on(self, part: int, m: int, result: Any) -> None:
        """Move the outputs of a part to the next one."""
        inputs = map_tensors(lambda y: self._leaf(y, part + 1), result)
        self._inputs[part + 1, m] = inputs if isinstance(inputs, tuple) else (inputs,)
        self._leaves[part + 1, m] = [x._node for x in tensors_in(inputs)]  # type: ignore[misc]

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
        return result if part + 1 < len(self.parts) or self.loss_fn is None else self._loss_of(result, m)

    def _loss_of(self, result: Any, m: int) -> Tensor:
        """The loss of a microbatch, by its share of the batch."""
        assert self.loss_fn is not None
        try:
            loss = self.loss_fn(result, self._targets[m])
        except Exception as error:
            error.add_note(f"in the loss function of the pipeline, with microbatch {m}")
            raise
        source = (
            "the loss function" if self.loss_fn is not output_as_loss else "the last part, without a loss function,"
        )
        if not isinstance(loss, Tensor):
            raise DTypeError(f"pipeline: {source} returned {type(loss).__name__}; expected a tensor")
        if loss._type.numel != 1:
            raise ShapeError(f"pipeline: {source} returned {loss._type}; expected one number, such as a mean")
        loss = loss if self._shares[m] == 1 else loss * self._shares[m]
        value = detached(loss)
        self._loss = value if self._loss is None else self._loss + value
        return loss

    def _leaf(self, y: Tensor, part: int) -> Tensor:
        """An output as the input of the next part."""
        x = self._moved(detached(y), part)
        if y._node is None:
            return x
        x = detached(x)
        x._node = InputNode(x)  # type: ignore[assignment]
        return x

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
        inputs = {node for node in self._leaves.get((part, m), ()) if node is not None}
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
        found = [None if node is None else grads.get(node) for node in self._leaves.pop((part, m))]
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
        return [self._results[m] for m in range(self.count)]


#: what a part does in each kind of action: (pass, part, microbatch)
ACTIONS: dict[str, Callable[[PartPass, int, int], None]] = {
    "F": PartPass.forward,
    "B": PartPass.backward,
    "I": PartPass.backward_inputs,
    "W": PartPass.backward_weights,
}


def output_as_loss(output: Any, target: Any) -> Any:
    """The loss function of a pipeline whose last part returns the loss."""
    return output


def _shares(microbatches: list[Any], mean_loss: bool) -> list[float]:
    """The factor of each microbatch's loss: its share of the rows, if losses are means."""
    if not mean_loss or len(microbatches) == 1:
        return [1] * len(microbatches)
    rows = [rows_of(batch) for batch in microbatches]
    counts = [n for n in rows if n is not None]
    if len(counts) < len(rows):
        return [1 / len(rows)] * len(rows)
    if 0 in counts:  # its mean is NaN
        raise ShapeError(f"pipeline: microbatch {counts.index(0)} has no rows, so it has no mean; leave it out")
    return [n / sum(counts) for n in counts]
