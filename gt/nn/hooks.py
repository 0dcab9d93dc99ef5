"""Hooks: functions that are called around a module's forward and with the gradients of its inputs and outputs.

Modules are typed as Any, because `gt.nn.module` imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from gt.client.grad.function import Function
from gt.client.grad.grad_mode import is_grad_enabled
from gt.client.grad.handles import RemovableHandle, in_dict
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError
from gt.functions.creation import zeros
from gt.types import TensorType

#: number -> (hook, whether it takes keyword arguments)
Hooks = dict[int, tuple[Callable[..., Any], bool]]

_numbers = count()


def add(hooks: Hooks, hook: Callable[..., Any], prepend: bool, with_kwargs: bool) -> RemovableHandle:
    """Register a hook: as the last one, or with ``prepend`` as the first one."""
    number = next(_numbers)
    before = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[number] = hook, with_kwargs
    hooks.update(before)
    return in_dict(hooks, number)


def call_all(hooks: Hooks, *args: Any) -> None:
    """Call every hook with these arguments, and ignore the results."""
    for hook, _ in list(hooks.values()):
        hook(*args)


def call(module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of a module's forward, with its hooks called before, after, and in the backward pass."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        inputs, kwargs = _call_pre_hook(hook, with_kwargs, module, inputs, kwargs)
    gradients = GradientHooks(module) if module._backward_hooks or module._backward_pre_hooks else None
    if gradients is not None:
        inputs = gradients.watch_inputs(inputs)
    result = module.forward(*inputs, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        changed = hook(module, inputs, kwargs, result) if with_kwargs else hook(module, inputs, result)
        result = result if changed is None else changed
    return result if gradients is None else gradients.watch_outputs(result)


def _call_pre_hook(hook: Any, with_kwargs: bool, module: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
    if with_kwargs:
        changed = hook(module, inputs, kwargs)
        return (inputs, kwargs) if changed is None else changed
    changed = hook(module, inputs)
    if changed is None:
        return inputs, kwargs
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs


class _Watched(Function):
    """The same tensors as results of one node of the tape, which passes all of their gradients to a function."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.receive(grads))


def _watch(values: tuple[Any, ...], receive: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The values with new tensors in place of those that need gradients; None if none does.

    ``receive`` gets a gradient for each value, None where it has none, and returns those to use instead.
    """
    tracked = [i for i, x in enumerate(values) if isinstance(x, Tensor) and x.requires_grad]
    if not tracked or not is_grad_enabled():
        return None

    def receive_all(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        by_position = dict(zip(tracked, grads, strict=True))
        changed = receive(tuple(by_position.get(i) for i in range(len(values))))
        return tuple(changed[i] for i in tracked)

    watched = dict(zip(tracked, _Watched.apply(receive_all, *(values[i] for i in tracked)), strict=True))
    return tuple(watched.get(i, x) for i, x in enumerate(values))


class GradientHooks:
    """The backward hooks of one call of a module. They get the gradients of all inputs and all outputs at once."""

    def __init__(self, module: Any) -> None:
        self.module = module
        #: of each input, None if it is not a tensor
        self.input_types: list[TensorType | None] = []
        self.inputs_watched = False
        #: None before the gradients of the outputs have arrived
        self.from_outputs: tuple[Any, ...] | None = None

    def watch_inputs(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        watched = _watch(inputs, self._receive_inputs) if self.module._backward_hooks else None
        self.input_types = [x._type if isinstance(x, Tensor) else None for x in inputs]
        self.inputs_watched = watched is not None
        return inputs if watched is None else watched

    def watch_outputs(self, result: Any) -> Any:
        outputs = result if isinstance(result, tuple) else (result,)
        watched = _watch(outputs, self._receive_outputs)
        if watched is None:
            return result
        return watched if isinstance(result, tuple) else watched[0]

    def _receive_outputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook, _ in list(self.module._backward_pre_hooks.values()):
            grads = _changed(grads, hook(self.module, grads), "Backward pre hook", "grad_output")
        self.from_outputs = grads
        if not self.inputs_watched:  # the hooks are called now, without gradients of inputs
            self._call_hooks((None,) * len(self.input_types))
        return grads

    def _receive_inputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.from_outputs is None:  # the gradient did not come through the outputs
            return grads
        types = zip(grads, self.input_types, strict=True)
        return self._call_hooks(tuple(zeros(t.shape, dtype=t.dtype) if g is None and t else g for g, t in types))

    def _call_hooks(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self.from_outputs is not None
        result = grads
        for hook, _ in list(self.module._backward_hooks.values()):
            result = _changed(result, hook(self.module, grads, self.from_outputs), "Backward hook", "grad_input")
        self.from_outputs = None
        return result


def _changed(grads: tuple[Any, ...], returned: Any, hook: str, name: str) -> tuple[Any, ...]:
    """The gradients that a hook returned; those before if it returned None."""
    if returned is None:
        return grads
    changed = returned if isinstance(returned, tuple) else (returned,)
    if len(changed) != len(grads):
        raise GradError(f"{hook} returned an invalid number of {name}, got {len(changed)}, but expected {len(grads)}")
    return changed
