"""``gt.compile``: a compiled function, or a compiled module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from gt.client.compile.function import CompiledFunction

__all__ = ["compile"]


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, a step of training, or a module: repeated calls run as one fragment, without its Python.

    A function that cannot be compiled runs as usual, and a warning says why. A call whose result needs gradients runs
    as usual. A compiled module has everything that the module has. See docs/hot_paths.md.

    The options of torch are accepted. Two have an effect: with ``fullgraph``, a value that is read inside is an error,
    and ``disable`` returns the function unchanged.

    Example::

        @gt.compile
        def step(x, y):
            loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()
    """
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, disable=disable)
    if disable:
        return model
    if not callable(model):
        raise TypeError(f"gt.compile: a function or a module is needed here, not {type(model).__name__}")
    modules = sys.modules.get("gt.nn.module")  # if it is not imported, there are no modules
    if modules is not None and isinstance(model, modules.Module):
        from gt.client.compile.module import compile_module

        return compile_module(model, fullgraph)
    return functools.wraps(model)(CompiledFunction(model, fullgraph))
