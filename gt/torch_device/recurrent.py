"""Recurrent layers as one instruction each, forward and backward. torch would run them step by step.

torch's own way stays for what the instructions do not have: autocast, `torch.func`, forward-mode gradients, tracing,
and gradients of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from gt.client.tensor.emit import call_many
from gt.client.tensor.tensor import Tensor
from gt.ops import OPS
from gt.ops.nn.recurrent_kernels import MODES
from gt.torch_device import backend
from gt.torch_device.gradients import present, spread
from gt.torch_device.kernels import functional


class LayerKind(NamedTuple):
    """A kind of layer."""

    name: str
    #: how many states it has
    states: int
    forward: backend.Kernel
    backward: backend.Kernel

    def run_by_steps(self, overload: str, *args: Any) -> Any:
        """torch's own way."""
        return backend.overload_packet(f"{self.name}.{overload}").decompose(*args)


def _emit(op: Any) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *operands, **attrs: call_many(op, operands, tuple(sorted(attrs.items())))


def register() -> None:
    for name, mode in MODES.items():
        forward, backward = (functional(_emit(OPS[op])) for op in (name, f"{name}_backward"))
        kind = LayerKind(name, mode.states, forward, backward)
        for key in (backend.KEY, backend.AUTOGRAD_KEY):  # with and without gradients
            backend.add_kernel(f"{name}.input", partial(_padded, kind), key)
            backend.add_kernel(f"{name}.data", partial(_packed, kind), key)


def _padded(kind: LayerKind, x: Any, states: Any, weights: Any, *options: Any) -> Any:
    """``options``: biases, layers, dropout, train, bidirectional, batch first."""
    own, (*others, batch_first) = _listed(states), options
    if not _has_instruction(x, *own, *weights) or x.ndim != 3:
        return kind.run_by_steps("input", x, states, weights, *options)
    y, *ends = _layers(kind, None, x.transpose(0, 1) if batch_first else x, own, weights, *others)
    return (y.transpose(0, 1) if batch_first else y, *ends)


def _packed(kind: LayerKind, x: Any, sizes: torch.Tensor, states: Any, weights: Any, *options: Any) -> Any:
    own = _listed(states)
    if not _has_instruction(x, *own, *weights) or x.ndim != 2:
        return kind.run_by_steps("data", x, sizes, states, weights, *options)
    return tuple(_layers(kind, sizes, x, own, weights, *options))


def _listed(states: Any) -> list[Any]:
    return [states] if isinstance(states, torch.Tensor) else list(states)


def _has_instruction(x: torch.Tensor, *others: torch.Tensor) -> bool:
    return (
        x.is_floating_point()
        and all(t.dtype is x.dtype and backend.is_on_device(t) for t in others)
        and backend.is_on_device(x)
        and not torch.is_autocast_enabled(backend.NAME)
        and not backend.is_transformed()
    )


def _layers(
    kind: LayerKind,
    sizes: torch.Tensor | None,
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> list[torch.Tensor]:
    """The output of the last layer, and the last states of all."""
    directions, count = 1 + bidirectional, len(weights) // layers
    options = _LayerOptions(kind, has_biases, bidirectional, sizes, () if sizes is None else (sizes.to(x.device),))
    ends = []
    for layer in range(layers):
        if layer and dropout and train:
            x = torch.dropout(x, dropout, True)
        own = states if layers == 1 else [s[layer * directions : (layer + 1) * directions] for s in states]
        operands = (x, *own, *weights[layer * count : (layer + 1) * count])
        if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
            x, *end = _LayerFunction.apply(options, *operands)  # type: ignore[no-untyped-call]
        else:
            x, *end = kind.forward(*operands, *options.sizes, train=False)
        ends.append(end)
    return [x, *ends[0]] if layers == 1 else [x, *(torch.cat(parts) for parts in zip(*ends, strict=True))]


class _LayerOptions(NamedTuple):
    kind: LayerKind
    has_biases: bool
    bidirectional: bool
    #: of a packed batch, in the client
    client_sizes: torch.Tensor | None
    #: on the device
    sizes: tuple[torch.Tensor, ...]

    def run_by_steps(self, x: Any, *operands: Any) -> Any:
        states, weights = operands[: self.kind.states], operands[self.kind.states :]
        own = list(states) if self.kind.states > 1 else states[0]
        options = (list(weights), self.has_biases, 1, 0.0, True, self.bidirectional)
        if self.client_sizes is not None:
            return self.kind.run_by_steps("data", x, self.client_sizes, own, *options)
        return self.kind.run_by_steps("input", x, own, *options, False)


class _LayerFunction(torch.autograd.Function):
    """One layer, whose gradients are one instruction too."""

    @staticmethod
    def forward(ctx: Any, options: _LayerOptions, *operands: torch.Tensor) -> Any:
        results = options.kind.forward(*operands, *options.sizes, train=True)
        ctx.options = options
        ctx.save_for_backward(*operands, results[0])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        options, (x, *rest, y), needs = ctx.options, ctx.saved_tensors, ctx.needs_input_grad[1:]
        given = tuple(grad is not None for grad in grads)
        if not any(given):
            return (None,) * (1 + len(needs))
        if torch.is_grad_enabled():  # these gradients are differentiated in turn
            wanted = [t for t, needed in zip((x, *rest), needs, strict=True) if needed]
            results = [r for r, there in zip(options.run_by_steps(x, *rest), given, strict=True) if there]
            again = torch.autograd.grad(results, wanted, present(*grads), create_graph=True, allow_unused=True)
            return None, *spread(again, needs)
        operands = (*present(*grads), x, y, *rest, *options.sizes)
        return None, *spread(options.kind.backward(*operands, given=given, mask=needs), needs)
