"""Functions that are called around a module's forward, and with the gradients of what went in and came out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from gt.client.grad.backward import register_hook
from gt.client.tensor.tensor import Tensor

if TYPE_CHECKING:
    from gt.nn.module import Module

#: number -> (hook, does it take keyword arguments?)
Hooks = dict[int, tuple[Callable[..., Any], bool]]

_numbers = count()


class Handle:
    """Takes a hook away again."""

    def __init__(self, hooks: Hooks, number: int) -> None:
        self._hooks, self.id = hooks, number

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add(hooks: Hooks, hook: Callable[..., Any], prepend: bool, with_kwargs: bool) -> Handle:
    number = next(_numbers)
    before = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[number] = hook, with_kwargs
    hooks.update(before)
    return Handle(hooks, number)


def each(hooks: Hooks, *given: Any) -> None:
    for hook, _ in list(hooks.values()):
        hook(*given)


def call(module: Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A module's forward with all that is hooked to it."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        inputs, kwargs = _before(hook, with_kwargs, module, inputs, kwargs)
    result = module.forward(*inputs, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        changed = hook(module, inputs, kwargs, result) if with_kwargs else hook(module, inputs, result)
        result = result if changed is None else changed
    if module._backward_hooks:
        _hook_gradients(module, inputs, result)
    if module._backward_pre_hooks:
        _hook_results(module, result)
    return result


def _hook_results(module: Module, result: Any) -> None:
    """Before all else on the way back: what comes in as the gradients of the results may be changed."""
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
    known: list[Any] = [None] * len(outputs)

    def ask(i: int) -> Callable[[Tensor], Any]:
        def changed(g: Tensor) -> Any:
            known[i] = g
            for hook, _ in list(module._backward_pre_hooks.values()):
                given = hook(module, tuple(known))
                if given is not None:
                    known[:] = given if isinstance(given, tuple) else (given,)
            return known[i]

        return changed

    for i, y in enumerate(outputs):
        if y._node is not None:
            register_hook(y, ask(i))


def _before(hook: Any, with_kwargs: bool, module: Module, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
    if with_kwargs:
        changed = hook(module, inputs, kwargs)
        return (inputs, kwargs) if changed is None else changed
    changed = hook(module, inputs)
    if changed is None:
        return inputs, kwargs
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs


def _hook_gradients(module: Module, inputs: tuple[Any, ...], result: Any) -> None:
    """Call the backward hooks once the gradients of all inputs are there, or those of the outputs if none is wanted."""
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
    wanted = [x for x in inputs if isinstance(x, Tensor) and x._node is not None]
    from_outputs: list[Any] = [None] * len(outputs)
    to_inputs: list[Any] = [None] * len(wanted)

    def note(grads: list[Any], i: int, ask: bool) -> Callable[[Tensor], Any]:
        def keep(g: Tensor) -> Any:
            grads[i] = g
            return _ask() if ask else None

        return keep

    def _ask() -> Any:
        changed = None
        for hook, _ in list(module._backward_hooks.values()):
            given = hook(module, tuple(to_inputs) or (None,), tuple(from_outputs))
            changed = changed if given is None else given
        return changed[-1] if changed is not None and wanted else None

    for i, y in enumerate(outputs):
        if y._node is not None:
            register_hook(y, note(from_outputs, i, not wanted))
    for i, x in enumerate(wanted):
        register_hook(x, note(to_inputs, i, i == len(wanted) - 1))
