"""Hooks of tensors: functions that a backward pass calls with a gradient, or after it was added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.grad.handles import RemovableHandle, in_list
from gt.client.tensor.emit import current
from gt.client.tensor.tape import Node, RetainGradHook
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError

Hook = Callable[[Tensor], Any]


def register_hook(x: Tensor, hook: Hook) -> RemovableHandle:
    """Call ``hook`` with the gradient of x. If it returns a tensor, that replaces the gradient."""
    current(x)
    if x._node is None:
        raise GradError("cannot register a hook on a tensor that doesn't require gradient")
    hooks = x._node.hooks.setdefault(x._index, [])
    hooks.insert(len(hooks) - sum(isinstance(h, RetainGradHook) for h in hooks), hook)
    return in_list(hooks, hook)


#: the place of the hooks that run after a gradient was added, among those of a leaf
AFTER = -1


def register_post_accumulate_grad_hook(x: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``hook`` with the tensor, a leaf, each time a backward pass has added to its ``grad``."""
    current(x)
    if isinstance(x._node, Node):
        raise GradError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if x._node is None:
        raise GradError("cannot register a hook on a tensor that doesn't require gradient")
    hooks = x._node.hooks.setdefault(AFTER, [])
    hooks.append(hook)
    return in_list(hooks, hook)
