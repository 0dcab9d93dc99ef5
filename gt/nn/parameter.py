"""`Parameter` and `Buffer`: the tensors of a module that are trained, and those that are not."""

from __future__ import annotations

from typing import Any

from gt.client.grad.leaves import requires_grad_
from gt.client.tensor.emit import current, detached
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor, empty
from gt.functions.pointwise import clone

__all__ = ["Buffer", "Parameter"]


class Parameter(Tensor):
    """A tensor that is trained. It shares the value of the tensor it is created from, unless that is a view.

    See `torch.nn.Parameter`.
    """

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        value = empty(0) if data is None else as_tensor(data)
        current(value)
        # an optimizer writes many parameters with one instruction, which cannot write through views
        value = clone(detached(value)) if value._view is not None else value
        self._cell, self._type, self._view, self._node = value._cell, value._type, None, None
        if requires_grad:
            requires_grad_(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = memo[id(self)] = Parameter(clone(detached(self)), self._node is not None)
        return copy

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that is part of a module's state and is not trained. It shares the value of the tensor given.

    Setting it as an attribute of a module registers it; it is saved with the state if it is persistent.
    See `torch.nn.Buffer`.
    """

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        value = empty(0) if data is None else as_tensor(data)
        current(value)
        self._cell, self._type, self._view, self._node = value._cell, value._type, value._view, None
        self.persistent = persistent
        if value._node is not None:
            requires_grad_(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        value = clone(detached(self))
        if self._node is not None:
            requires_grad_(value)
        copy = memo[id(self)] = Buffer(value, persistent=self.persistent)
        return copy


def assign(p: Tensor, value: Tensor) -> None:
    """Let p refer to the value of another tensor, possibly of another dtype. ``p.data = value`` does this."""
    current(value)
    value = clone(detached(value)) if value._view is not None else value
    p._cell, p._type = value._cell, value._type


def type_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def check_type(value: Any, what: str, name: str, expected: str, allowed: bool) -> None:
    if not allowed:
        raise TypeError(f"cannot assign '{type_name(value)}' as {what} '{name}' ({expected} or None expected)")
