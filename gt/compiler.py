"""``gt.compiler``: how programs ask whether and what torch compiles. Nothing is traced: the Python itself runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gt.client.compile.decorator import compile
from gt.missing import absent as _absent

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling",
    "is_dynamo_compiling", "is_exporting", "reset",
]  # fmt: skip
_absent("compiler")

F = TypeVar("F")


def is_compiling() -> bool:
    """Always False."""
    return False


def is_dynamo_compiling() -> bool:
    """Always False."""
    return False


def is_exporting() -> bool:
    """Always False."""
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A decorator without an effect, with or without arguments: `gt.compile` runs the function's Python too."""
    return _unchanged if fn is None else fn


def _unchanged(fn: F) -> F:
    return fn


def assume_constant_result(fn: F) -> F:
    """The function itself."""
    return fn


allow_in_graph: Callable[[F], F] = assume_constant_result


def cudagraph_mark_step_begin() -> None:
    """Does nothing: workers find repeated steps themselves."""


def reset() -> None:
    """Does nothing: there are no traces to forget."""
