"""The mode of `gt.run` in backward passes: on for the script's own Python, off for kernels.

For kernels ``x.device`` has to be the device, and in a backward pass no function of torch is around them that would
switch the mode off. What a script runs there are hooks and custom autograd functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_enable: Any = torch._C._EnableTorchFunction


def enter(make_mode: Callable[[], TorchFunctionMode]) -> None:
    """Keep the mode out of backward passes, except for what the script runs in them."""
    autograd, tensor, hooks = torch.autograd, torch.Tensor, torch.autograd.graph.saved_tensors_hooks
    _replace(autograd, "_engine_run_backward", _without_mode)

    def in_mode(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _enable(), make_mode():
                return function(*args, **kwargs)

        return run

    def with_hook(register: Any) -> Any:
        return wraps(register)(lambda x, hook: register(x, in_mode(hook)))

    def of_node(apply: Any) -> Any:
        in_its_mode = in_mode(apply)

        @wraps(apply)
        def run(node: Any, *grads: Any) -> Any:
            is_ours = node._forward_cls.__module__.startswith("gt.")
            return (apply if is_ours else in_its_mode)(node, *grads)

        return run

    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        _replace(tensor, name, with_hook)
    _replace(
        hooks,
        "__init__",
        lambda init: wraps(init)(
            lambda self, pack_hook, unpack_hook: init(self, in_mode(pack_hook), in_mode(unpack_hook))
        ),
    )
    _replace(autograd.function.BackwardCFunction, "apply", of_node)


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    setattr(owner, name, change(getattr(owner, name)))


def _without_mode(original: Any) -> Any:
    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return original(*args, **kwargs)

    return function
