"""`RemovableHandle`: what registering a hook returns, for tensors, modules and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class RemovableHandle:
    """Removes a hook: by `remove`, or at the end of a ``with`` block."""

    def __init__(self, remove: Callable[[], Any], id: int = 0) -> None:
        self._remove, self.id = remove, id

    def remove(self) -> None:
        """Remove the hook, if it is still there."""
        self._remove()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def in_list(hooks: list[Any], hook: Callable[..., Any]) -> RemovableHandle:
    """The handle of a hook in a list."""
    return RemovableHandle(partial(_discard, hooks, hook))


def in_dict(hooks: dict[int, Any], number: int) -> RemovableHandle:
    """The handle of a hook in a dict, by its number."""
    return RemovableHandle(partial(hooks.pop, number, None), number)


def _discard(hooks: list[Any], hook: Callable[..., Any]) -> None:
    if hook in hooks:
        hooks.remove(hook)
