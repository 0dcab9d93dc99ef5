"""What `inspect.signature` shows of a function that GT generates: its real parameters, not ``(*args, **kwargs)``.

`inspect` follows ``__wrapped__`` and reads the parameters from the code of the function that it finds there. So a
generated function gets a function with the right parameters and without a body. A ``__signature__`` would have to be
made by `inspect`, which would slow down `import gt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

#: bits of `CodeType.co_flags`: the function has ``*args``, ``**kwargs``
VARARGS, VARKEYWORDS = 0x04, 0x08


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that a function shows."""
    return _names(_innermost(function).__code__)


def show_parameters(
    function: Callable[..., Any],
    like: Callable[..., Any],
    more: Mapping[str, Any] | None = None,
    first: str = "",
    returns: str = "",
) -> None:
    """Let a function show the parameters of another one.

    ``more``: further keywords and their defaults, except those that are there already; ``first``: another name for the
    first parameter, which is a tensor; ``returns``: another annotation of the result.
    """
    source = _innermost(like)
    names = _names(source.__code__)
    added = {name: value for name, value in (more or {}).items() if name not in names}
    code = _code(source.__code__, (first, *names[1:]) if first else names, tuple(added))
    shown = FunctionType(code, source.__globals__, source.__name__, source.__defaults__)
    shown.__kwdefaults__ = {**(source.__kwdefaults__ or {}), **added}
    shown.__annotations__ = {**source.__annotations__, **({first: "Tensor"} if first else {})}
    if returns:
        shown.__annotations__["return"] = returns
    function.__wrapped__ = shown  # type: ignore[attr-defined]


def _innermost(function: Any) -> FunctionType:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function  # type: ignore[no-any-return]


def _names(code: CodeType) -> tuple[str, ...]:
    """The names of the parameters in the order of `CodeType.co_varnames`: ``*args`` and ``**kwargs`` are the last."""
    stars = bool(code.co_flags & VARARGS) + bool(code.co_flags & VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]


def _empty() -> None: ...


def _code(code: CodeType, names: tuple[str, ...], added: tuple[str, ...]) -> CodeType:
    """The code of a function without a body, at the place of the given code, with these parameters."""
    named = code.co_argcount + code.co_kwonlyargcount
    return _empty.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount + len(added),
        co_nlocals=len(names) + len(added),
        co_varnames=(*names[:named], *added, *names[named:]),
        co_flags=_empty.__code__.co_flags | code.co_flags & (VARARGS | VARKEYWORDS),
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )
