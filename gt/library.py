"""``gt.library``: functions of a library under a name, with a gradient of their own: ``gt.ops.<library>.<name>``.

A custom op here is the Python function itself. Torch's registrations for tracing are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from gt import ops
from gt.client.grad.function import Function
from gt.errors import ConfigError
from gt.missing import absent as _absent

__all__ = ["CustomOpDef", "custom_op", "register_autograd", "register_fake", "register_kernel", "register_vmap"]
_absent("library")

#: full name -> op
_custom_ops: dict[str, CustomOpDef] = {}


class CustomOpDef:
    """A function with a name such as ``mylib::scale``, from `custom_op`."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._name, self._function, self.__doc__ = name, fn, fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def register_autograd(self, backward: Callable[..., Any], /, *, setup_context: Any = None) -> None:
        """Give the op a gradient; without one, the gradients of what it calls apply."""
        forward = self._function

        def without_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        members = {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(setup_context or without_context),
            "backward": staticmethod(backward),
        }
        self._function = type(self._name, (Function,), members).apply  # type: ignore[attr-defined]

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Accepted and ignored: nothing is traced."""
        return fn

    def register_kernel(self, device_types: Any, fn: Callable[..., Any] | None = None, /) -> Any:
        """Accepted and ignored: the op's own function runs on every device."""
        return fn or _unchanged


def _unchanged(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: Any = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """Make a function available as ``gt.ops.<library>.<name>``: a function or a decorator. See `torch.library`."""
    library, _, short = name.partition("::")
    if not library.isidentifier() or not short.isidentifier():
        raise ConfigError(f"custom_op({name!r}): a name such as 'mylib::scale' is needed")
    namespace = vars(ops).setdefault(library, SimpleNamespace())
    if not isinstance(namespace, SimpleNamespace):
        raise ConfigError(f"custom_op({name!r}): gt.ops.{library} is a part of GT; choose another name")

    def define(fn: Callable[..., Any]) -> CustomOpDef:
        op = _custom_ops[name] = CustomOpDef(name, fn)
        setattr(namespace, short, op)
        return op

    return define if fn is None else define(fn)


def _find(op: Any) -> CustomOpDef:
    if isinstance(op, CustomOpDef):
        return op
    if op not in _custom_ops:
        raise ConfigError(f"{op!r} is not a custom op; there are {', '.join(_custom_ops) or 'none'}")
    return _custom_ops[op]


def register_autograd(op: Any, backward: Callable[..., Any], /, *, setup_context: Any = None, lib: Any = None) -> None:
    """Give a custom op a gradient."""
    _find(op).register_autograd(backward, setup_context=setup_context)


def register_fake(op: Any, func: Callable[..., Any] | None = None, /, *, lib: Any = None) -> Any:
    """Accepted and ignored: nothing is traced."""
    return func or _unchanged


def register_kernel(op: Any, device_types: Any, func: Callable[..., Any] | None = None, /, *, lib: Any = None) -> Any:
    """Accepted and ignored: the op's own function runs on every device."""
    return func or _unchanged


def register_vmap(op: Any, func: Callable[..., Any] | None = None, /, *, lib: Any = None) -> Any:
    """Accepted and ignored: GT has no vmap."""
    return func or _unchanged
