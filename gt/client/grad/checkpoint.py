"""Activation checkpointing: what a stretch of the tape would keep is made anew when its gradients are wanted.

The stretch is recorded as always, but where a value would be kept stands only its number. The first value asked for
runs the function again, with the same random numbers, and this time the values are collected; the tape made on the
way is thrown away. Gradients of gradients, `retain_graph` and parameters the function holds by itself all work, as
with torch's ``use_reentrant=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.grad.backward import as_leaf, enable_grad
from gt.client.stream import scope
from gt.client.tensor import random_state, tape
from gt.client.tensor.emit import detached
from gt.client.tensor.tape import Edge, Saved
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError

__all__ = ["checkpoint"]


class Stretch:
    """One checkpointed call."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rng: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.state = random_state.state() if rng else None
        #: the signals it ran under
        self.signals = scope.thread.stack
        self.count = 0
        self.values: dict[int, Saved] = {}

    def keep(self, x: Tensor, edge: Edge | None) -> Saved:
        self.count += 1
        return Later(self, self.count - 1, x, edge)

    def value(self, number: int) -> Saved:
        if number not in self.values:
            self._run()
        return self.values.pop(number)

    def _run(self) -> None:
        collector = _Collector(self.values)
        with (
            random_state.replayed(self.state),
            enable_grad(),
            tape.keeping(collector.keep),
            scope.restored(self.signals),
        ):
            self.function(*map(_fresh, self.args), **{k: _fresh(v) for k, v in self.kwargs.items()})
        if collector.count != self.count:
            raise GradError(
                f"checkpoint: the function kept {self.count} values the first time and {collector.count} when it was "
                "run again; it must do the same each time"
            )


def _fresh(x: Any) -> Any:
    """The same value, at a new leaf: the way back ends there."""
    if not isinstance(x, Tensor) or x._node is None:
        return x
    return as_leaf(detached(x))


class _Collector:
    def __init__(self, values: dict[int, Saved]) -> None:
        self.values, self.count = values, 0

    def keep(self, x: Tensor, edge: Edge | None) -> Saved:
        self.values[self.count] = made = Saved(x, edge)
        self.count += 1
        return made


class Later(Saved):
    """A value that was not kept but can be had again."""

    __slots__ = ("number", "stretch")

    def __init__(self, stretch: Stretch, number: int, x: Tensor, edge: Edge | None) -> None:
        self.stretch, self.number = stretch, number
        self.type, self.edge, self.version = x._type, edge, 0

    def value(self, own: Any) -> Tensor:
        found = self.stretch.value(self.number)
        made = Tensor(found.cell, self.type)
        if self.edge is not None:
            node, index = self.edge
            made._node = own if node is None else node  # type: ignore[assignment]
            if index:
                made._index = index
        return made


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """See `torch.utils.checkpoint.checkpoint`: call the function now, and again for its gradients."""
    if not tape.mode.enabled:
        return function(*args, **kwargs)
    stretch = Stretch(function, args, kwargs, preserve_rng_state)
    with tape.keeping(stretch.keep):
        return function(*args, **kwargs)
