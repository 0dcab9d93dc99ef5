"""What the words of an optimizer's step depend on, compared before a recording is replayed."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any

from gt.client.tensor.tensor import Tensor

CELL_ID = attrgetter("_cell.id")


class OptimizerState:
    """An optimizer's parameters, their states, its options and its hooks.

    The numbers among the options are new for each step. Only whether one is zero matters: without momentum an optimizer
    has no state for it.
    """

    def __init__(self, optimizer: Any, stepped: list[list[Any]]) -> None:
        self._optimizer = optimizer
        self._stepped = [p for params in stepped for p in params]
        self._groups = _groups(optimizer)
        self._cell_ids = [*map(CELL_ID, self._stepped)]
        #: one for each parameter: gets the tensors of its state
        self._getters = [_getter(optimizer.state.get(p, {})) for p in self._stepped]
        self._tensors = self._state_tensors()

    def holds(self) -> bool:
        """Is the optimizer as it was?"""
        if any(self._optimizer._step_hooks) or _groups(self._optimizer) != self._groups:
            return False
        if [*map(CELL_ID, self._stepped)] != self._cell_ids:
            return False
        try:
            tensors = self._state_tensors()
        except (KeyError, TypeError):  # a parameter has no state, or another one
            return False
        return len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))

    def _state_tensors(self) -> list[Any]:
        states = map(self._optimizer.state.get, self._stepped)
        return [*chain.from_iterable(map(call, self._getters, states))]


def _getter(state: dict[str, Any]) -> Any:
    names = [name for name, value in state.items() if isinstance(value, Tensor)]
    return itemgetter(*names, names[0]) if names else _nothing  # with one name alone, it would not return a tuple


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


def _groups(optimizer: Any) -> list[Any]:
    """Of each group its parameters, and its options without their numbers."""
    return [
        ([*map(id, group["params"])], [(name, _option(x)) for name, x in group.items() if name != "params"])
        for group in optimizer.param_groups
    ]


def _option(x: Any) -> Any:
    if type(x) in (int, float):
        return bool(x)
    return x if x is None or type(x) in (bool, str) else type(x)
