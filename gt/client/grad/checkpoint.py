"""Activation checkpointing: values that gradients need are computed again instead of being saved.

A checkpointed call is recorded as usual, but each value to save is replaced by a number. When the backward pass first
needs one of the values, the function runs again with the same random numbers, signals and autocast, and this time the
values are collected.
The nodes of the second run are dropped. Gradients of gradients, `retain_graph` and parameters that the function uses
without taking them as arguments all work, as with torch's ``use_reentrant=False``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from gt.client.grad.grad_mode import enable_grad
from gt.client.grad.leaves import as_leaf
from gt.client.stream import scope
from gt.client.tensor import random_state, tape
from gt.client.tensor.emit import detached
from gt.client.tensor.tape import Edge, SavedTensor
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError

__all__ = ["checkpoint", "checkpoint_sequential"]

#: remembers the autocast that is in force, as a function that enters it again; set by `gt.amp`
remember_autocast: Callable[[], Callable[[], contextlib.AbstractContextManager[Any]]] = lambda: contextlib.nullcontext


class CheckpointedCall:
    """One call of a checkpointed function: what is needed to run it again."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rng: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.random_state = random_state.state() if rng else None
        #: the signals it ran under
        self.signals = scope.thread.stack
        #: enters the autocast it ran under
        self.autocast = remember_autocast()
        #: how many values the first run would have saved
        self.count = 0
        #: number -> the value, as collected by the last run and not used yet
        self.values: dict[int, SavedTensor] = {}

    def save(self, x: Tensor, edge: Edge | None) -> SavedTensor:
        self.count += 1
        return RecomputedTensor(self, self.count - 1, x, edge)

    def take_value(self, number: int) -> SavedTensor:
        if number not in self.values:
            self._run_again()
        return self.values.pop(number)

    def _run_again(self) -> None:
        collector = _Collector(self.values, self.count)
        with (
            contextlib.suppress(_AllCollected),
            random_state.restored(self.random_state),
            enable_grad(),
            tape.saving_by(collector.save),
            scope.restored(self.signals),
            self.autocast(),
        ):
            self.function(*map(_as_new_leaf, self.args), **{k: _as_new_leaf(v) for k, v in self.kwargs.items()})
        if collector.count < self.count:
            raise GradError(
                f"checkpoint: the function saved {self.count} values the first time and {collector.count} when it was "
                "run again; it must do the same each time"
            )


def _as_new_leaf(x: Any) -> Any:
    """The same value in a new leaf, so that the second run is not connected to the first one's graph."""
    if not isinstance(x, Tensor) or x._node is None:
        return x
    return as_leaf(detached(x))


class _AllCollected(BaseException):
    """Ends the second run: the rest of the function is not needed. No ``except Exception`` of the user catches it."""


class _Collector:
    """Saves the values of the second run, and ends it after the last one.

    What follows may write the collected values in place, as the first run did after it had used them.
    """

    def __init__(self, values: dict[int, SavedTensor], expected: int) -> None:
        self.values, self.count, self.expected = values, 0, expected

    def save(self, x: Tensor, edge: Edge | None) -> SavedTensor:
        self.values[self.count] = saved = SavedTensor(x, edge)
        self.count += 1
        if self.count == self.expected:
            raise _AllCollected
        return saved


class RecomputedTensor(SavedTensor):
    """A value that is computed again when it is needed."""

    __slots__ = ("call", "number")

    def __init__(self, call: CheckpointedCall, number: int, x: Tensor, edge: Edge | None) -> None:
        self.call, self.number = call, number
        self.type, self.edge, self.version = x._type, edge, 0

    def unpack(self, node: Any) -> Tensor:
        saved = self.call.take_value(self.number)
        saved.edge = self.edge  # the history is that of the first run
        return saved.unpack(node)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call the function now, and again in the backward pass, so that its intermediate values need no memory.

    See `torch.utils.checkpoint.checkpoint`.

    Example::

        y = gt.checkpoint(block, x, use_reentrant=False)
    """
    if not tape.mode.enabled:
        return function(*args, **kwargs)
    call = CheckpointedCall(function, args, kwargs, preserve_rng_state)
    with tape.saving_by(call.save):
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Any:
    """Call modules one after the other, with a checkpoint for each segment but the last.

    See `torch.utils.checkpoint.checkpoint_sequential`.
    """
    calls = list(functions)
    size = len(calls) // segments
    starts = range(0, size * (segments - 1), size) if size else ()
    for start in starts:
        part = _chain(calls[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return _chain(calls[len(starts) * size :])(input)


def _chain(calls: list[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for call in calls:
            x = call(x)
        return x

    return run
