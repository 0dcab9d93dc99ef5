"""Hooks: functions that are called around a module's forward and with the gradients of its inputs and outputs.

Modules are typed as Any, because `gt.nn.module` imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from gt.client.grad.backward import register_hook
from gt.client.tensor.tensor import Tensor

#: number -> (hook, whether it takes keyword arguments)
Hooks = dict[int, tuple[Callable[..., Any], bool]]

_numbers = count()


class Handle:
    """Returned when a hook is registered; removes the hook."""

    def __init__(self, hooks: Hooks, number: int) -> None:
        self._hooks, self.id = hooks, number

    def remove(self) -> None:
        """Remove the hook."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add(hooks: Hooks, hook: Callable[..., Any], prepend: bool, with_kwargs: bool) -> Handle:
    """Register a hook: as the last one, or with ``prepend`` as the first one."""
    number = next(_numbers)
    before = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[number] = hook, with_kwargs
    hooks.update(before)
    return Handle(hooks, number)


def call_all(hooks: Hooks, *args: Any) -> None:
    """Call every hook with these arguments, and ignore the results."""
    for hook, _ in list(hooks.values()):
        hook(*args)


def call(module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of a module's forward, with its hooks called before, after, and in the backward pass."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        inputs, kwargs = _call_pre_hook(hook, with_kwargs, module, inputs, kwargs)
    result = module.forward(*inputs, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        changed = hook(module, inputs, kwargs, result) if with_kwargs else hook(module, inputs, result)
        result = result if changed is None else changed
    if module._backward_hooks:
        _hook_gradients(module, inputs, result)
    if module._backward_pre_hooks:
        _hook_outputs(module, result)
    return result


def _hook_outputs(module: Any, result: Any) -> None:
    """Call the backward pre-hooks with the gradients of the outputs, which they may change.

    With several outputs they are called for each gradient; those that have not arrived are None.
    """
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
    grads: list[Any] = [None] * len(outputs)

    def on_gradient(i: int) -> Callable[[Tensor], Any]:
        def replaced(g: Tensor) -> Any:
            grads[i] = g
            for hook, _ in list(module._backward_pre_hooks.values()):
                new = hook(module, tuple(grads))
                if new is not None:
                    grads[:] = new if isinstance(new, tuple) else (new,)
            return grads[i]

        return replaced

    for i, y in enumerate(outputs):
        if y._node is not None:
            register_hook(y, on_gradient(i))


def _call_pre_hook(hook: Any, with_kwargs: bool, module: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
    if with_kwargs:
        changed = hook(module, inputs, kwargs)
        return (inputs, kwargs) if changed is None else changed
    changed = hook(module, inputs)
    if changed is None:
        return inputs, kwargs
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs


def _hook_gradients(module: Any, inputs: tuple[Any, ...], result: Any) -> None:
    """Call the backward hooks when the gradient of the last input arrives; those that have not arrived are None.

    A hook can replace only this gradient. If no input needs a gradient, the hooks are called with the gradients of the
    outputs alone.
    """
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
    tracked = [x for x in inputs if isinstance(x, Tensor) and x._node is not None]
    from_outputs: list[Any] = [None] * len(outputs)
    to_inputs: list[Any] = [None] * len(tracked)

    def store(grads: list[Any], i: int, is_last: bool) -> Callable[[Tensor], Any]:
        def on_gradient(g: Tensor) -> Any:
            grads[i] = g
            return call_hooks() if is_last else None

        return on_gradient

    def call_hooks() -> Any:
        changed = None
        for hook, _ in list(module._backward_hooks.values()):
            new = hook(module, tuple(to_inputs) or (None,), tuple(from_outputs))
            changed = changed if new is None else new
        return changed[-1] if changed is not None and tracked else None

    for i, y in enumerate(outputs):
        if y._node is not None:
            register_hook(y, store(from_outputs, i, not tracked))
    for i, x in enumerate(tracked):
        register_hook(x, store(to_inputs, i, i == len(tracked) - 1))
