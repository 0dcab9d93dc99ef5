"""Leaves: tensors that the program created, and whose gradients a backward pass computes."""

from __future__ import annotations

from collections.abc import Iterable

from gt.client.stream import configuration, recorder
from gt.client.tensor.emit import current
from gt.client.tensor.relocation import place_by
from gt.client.tensor.tape import LeafNode, Node
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Set whether the backward pass computes a gradient for this tensor."""
    current(x)
    if isinstance(x._node, Node):
        if not requires_grad:
            raise GradError("you can only change requires_grad flags of leaf variables; use x.detach()")
    elif not requires_grad:
        _leave_tape(x)
    elif x._node is None:
        if x._type.dtype.kind not in "fc":
            raise GradError("only Tensors of floating point and complex dtype can require gradients")
        if configuration.current.auto:
            place_by(x, configuration.PARAMETER)
        if x._former_leaf is None:
            as_leaf(x)
        else:
            x._node = x._former_leaf
    return x


def _leave_tape(x: Tensor) -> None:
    if isinstance(x._node, LeafNode):
        x._former_leaf = x._node
    x._node = None


def as_leaf(x: Tensor) -> Tensor:
    """Make the tensor a leaf. Unlike `requires_grad_`, this does not place it as a parameter."""
    x._node = LeafNode(x)  # type: ignore[assignment]
    return x


def detach_(x: Tensor) -> Tensor:
    """Take the tensor off the tape: it becomes a leaf without gradients."""
    current(x)
    if x._view is not None:
        raise GradError("Can't detach views in-place; use x.detach()")
    _leave_tape(x)
    return x


def clear_grads(params: Iterable[Tensor], set_to_none: bool) -> None:
    """Remove the gradients of parameters, or write zeros into them. Right after an optimizer step this belongs to the
    step: its fragment need not keep them then."""
    params = [p for p in params if p._grad is not None or recorder.active is not None]
    outbox = params[0]._cell.session.outbox if params else None
    if outbox is not None:
        outbox.before_clearing()
    for p in params:
        clear_grad(p, set_to_none)
    if outbox is not None:
        outbox.after_clearing()


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """Remove the gradient of a parameter, or write zeros into it."""
    if recorder.active is not None:
        recorder.active.note_grad(p)
    grad = p._grad
    if grad is None or set_to_none:
        p._grad = None
    else:
        if grad.requires_grad:
            detach_(grad)
        grad.zero_()
