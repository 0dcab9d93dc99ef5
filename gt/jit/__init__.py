"""``gt.jit``: names of TorchScript, so that models that use it run. Nothing is scripted: the Python itself runs."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Final, TypeVar

from gt.missing import absent as _absent
from gt.say import warn

__all__ = [
    "Final", "annotate", "export", "freeze", "ignore", "interface", "is_scripting", "is_tracing", "isinstance",
    "optimize_for_inference", "script", "script_if_tracing", "trace", "unused",
]  # fmt: skip
_absent("jit")

F = TypeVar("F")
_warned = False


def script(obj: F, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None, example_inputs: Any = None) -> F:
    """The function, class or module itself: its Python runs. One line says so; `gt.compile` is what GT has."""
    _explain("script")
    return obj


def trace(
    func: F, example_inputs: Any = None, optimize: Any = None, check_trace: bool = True, strict: bool = True
) -> F:
    """The function or module itself: its Python runs. One line says so; `gt.compile` is what GT has."""
    _explain("trace")
    return func


def _explain(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(f"gt.jit.{name} returns its argument unchanged; gt.compile makes repeated calls fast")


def freeze(mod: F, preserved_attrs: Any = None, optimize_numerics: bool = True) -> F:
    """The module itself."""
    return mod


def optimize_for_inference(mod: F, other_methods: Any = None) -> F:
    """The module itself."""
    return mod


def is_scripting() -> bool:
    """Always False."""
    return False


def is_tracing() -> bool:
    """Always False."""
    return False


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator without an effect, with or without arguments."""
    return drop if callable(drop) else _unchanged


def unused(fn: F) -> F:
    """The function itself."""
    return fn


def _unchanged(x: F) -> F:
    return x


export: Callable[[F], F] = unused
interface: Callable[[F], F] = unused
script_if_tracing: Callable[[F], F] = unused
#: private names of torch that torchvision uses
_script_if_tracing: Callable[[F], F] = unused
_overload: Callable[[F], F] = unused
_overload_method: Callable[[F], F] = unused


def annotate(the_type: Any, the_value: F) -> F:
    """The value itself."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Python's isinstance, also for types such as ``list[int]``, of which only the ``list`` is compared."""
    types = target_type if builtins.isinstance(target_type, tuple) else (target_type,)
    plain: tuple[Any, ...] = tuple(getattr(t, "__origin__", t) for t in types)
    return builtins.isinstance(obj, plain)
