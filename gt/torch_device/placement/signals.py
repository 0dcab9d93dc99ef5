"""Signals in torch's backward pass: the gradients of an op run under the signal that its forward ran under.

torch numbers the nodes of its autograd graph in each thread, in the order in which they are created. So it is enough to
note the number at which a signal begins to be in force; an op of the forward pass costs nothing. In the backward pass,
the signal of an instruction is looked up by the number of the node that emits it. A backward pass runs in the thread
that calls it; if another thread ran the forward pass, its signals are not known.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from gt.client.signals.signal import backward_of
from gt.client.stream import scope
from gt.client.stream.scope import LOOKED_UP, Entered
from gt.torch_device.backend import current_node, next_node_number, node_number

#: At this many changes of the signal the older half is forgotten: the gradients of older nodes run without a signal.
MAX_CHANGES = 100_000


class _Changes(threading.local):
    """When the signal for gradients changed in this thread: the number of the first node, and the signal from there."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.signals: list[str] = []
        #: the signal around the backward pass
        self.outer = ""

    def add(self, number: int, signal: str) -> None:
        numbers, signals = self.numbers, self.signals
        if numbers and numbers[-1] == number:  # no node was created since
            numbers.pop()
            signals.pop()
        if signal != (signals[-1] if signals else ""):
            numbers.append(number)
            signals.append(signal)
        if len(numbers) > MAX_CHANGES:
            del numbers[: MAX_CHANGES // 2], signals[: MAX_CHANGES // 2]

    def at(self, number: int) -> str:
        """The signal for the gradients of a node; "" if it has none."""
        i = bisect_right(self.numbers, number)
        signal = self.signals[i - 1] if i else ""
        return "" if signal == LOOKED_UP else signal


_changes = _Changes()


def install() -> None:
    scope.on_change.append(_note)
    scope.look_up = _look_up


def _note() -> None:
    _changes.add(next_node_number(), scope.thread.backward)


def _look_up() -> str:
    node = current_node()
    signal = _changes.at(node_number(node)) if node is not None else ""
    if signal and torch.is_grad_enabled():
        # With create_graph=True the node of this op was just created; its gradients are of second order.
        _changes.add(max(next_node_number() - 1, _changes.numbers[-1]), backward_of(signal) or signal)
    return signal or _changes.outer


def in_backward() -> AbstractContextManager[None]:
    """Around a backward pass: its instructions run under the signals of the forward pass."""
    return _looking_up() if _changes.signals else nullcontext()


@contextmanager
def _looking_up() -> Iterator[None]:
    before, _changes.outer = _changes.outer, scope.signal()
    around = scope.innermost()
    looked_up = Entered(around.name, LOOKED_UP, LOOKED_UP, compile=around.compile)
    with scope.restored((*scope.thread.stack, looked_up)):
        try:
            yield
        finally:
            _changes.outer = before
