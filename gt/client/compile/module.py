"""A compiled module: the module itself in every respect, except that calls of it are recorded and replayed.

It shares the ``__dict__`` of the module it is made from, and its class is derived from that module's class. So its
parameters, buffers, hooks, attributes and methods are those of the module, and a change of one is a change of both.

torch wraps the module in another one instead, so that the keys of its ``state_dict`` begin with ``_orig_mod.``, and
scripts remove this prefix when they load a checkpoint. Here the keys are those of the module, so that checkpoints of
compiled and plain modules are the same. Keys with the prefix, from a checkpoint that torch wrote, are accepted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gt.client.compile.function import CompiledFunction
from gt.nn.module import Module

PREFIX = "_orig_mod."


def compile_module(module: Module, fullgraph: bool = False) -> Module:
    """A module that shares everything with this one, and whose calls are compiled."""
    if isinstance(module, CompiledCall):
        return module
    kind: Any = type(module)
    compiled: Any = object.__new__(_compiled_class(kind))
    compiled.__dict__ = module.__dict__
    object.__setattr__(compiled, "_orig_mod", module)
    object.__setattr__(compiled, "_compiled_call", CompiledFunction(module, fullgraph))
    return compiled  # type: ignore[no-any-return]


class CompiledCall(Module):
    """What a compiled module has in place of its class's own methods."""

    __slots__ = ()
    _orig_mod: Module
    _compiled_call: CompiledFunction

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        return self._compiled_call(*inputs, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_module, (self._orig_mod, self._compiled_call.fullgraph)

    def _replace_original(self) -> None:
        """Let the module that this one was made from be compiled itself: `Module.compile`.

        It gets a class of its own, and a new object of its old class shares its attributes in its place.
        """
        module, compiled = self._orig_mod, self._compiled_call
        kind: Any = type(module)
        original = object.__new__(kind)
        original.__dict__ = module.__dict__
        call = staticmethod(CompiledFunction(original, compiled.fullgraph))  # it is not a method
        names = {"_compiled_call": call, "_orig_mod": original}
        names |= {
            "__slots__": (),
            "__module__": kind.__module__,
            "__doc__": kind.__doc__,
            "__qualname__": kind.__qualname__,
        }
        module.__class__ = type(kind)(kind.__name__, (CompiledCall, kind), names)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Copy values into the module, as `Module.load_state_dict` does. A prefix ``_orig_mod.`` is removed."""
        if isinstance(state_dict, dict):
            state_dict = {key.replace(PREFIX, ""): value for key, value in state_dict.items()}
        return self._orig_mod.load_state_dict(state_dict, strict, assign)


@cache
def _compiled_class(kind: Any) -> Any:
    """A class derived from a module's class. It has two attributes of its own, outside of the shared ``__dict__``."""
    names = {"__slots__": ("_compiled_call", "_orig_mod"), "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(f"Compiled{kind.__name__}", (CompiledCall, kind), names)
