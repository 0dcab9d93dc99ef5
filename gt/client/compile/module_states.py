"""What the words of modules depend on, compared before a recording is replayed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any

from gt.client.tensor.tensor import Tensor

#: attributes of a module, or of an object, are compared if they are of these types
PLAIN = frozenset((bool, int, float, str, type(None)))
#: A longer container is compared as an object: which one it is, not what is in it; unless it holds tensors.
MAX_ITEMS = 64
#: how deep containers are compared
MAX_DEPTH = 3
NODE, CELL_ID = attrgetter("_node"), attrgetter("_cell.id")
TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: attributes of every module that no call of it depends on, or that are compared in another way
NOT_COMPARED = frozenset(
    (*HOOKS, "_transient", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_hooks", "_load_pre_hooks")
)


class ModuleStates:
    """What the words of modules depend on: training mode, parameters, buffers, child modules, attributes, hooks.

    All modules share a few long lists, so that a comparison is a few calls, however many modules there are. A value is
    the same object as before in nearly all calls, so objects are compared before values.
    """

    def __init__(self, modules: list[Any], used: Iterable[int] | None = None) -> None:
        """``used``: the ids of the tensors that the function uses; other tensors in attributes do not matter. None: all
        are used."""
        ids = None if used is None else frozenset(used)
        self._each = each = [module.__dict__ for module in modules]
        self._tables = [attributes[name] for attributes in each for name in TABLES]
        self._members = [member for table in self._tables for member in table.values()]
        self._sizes = [*map(len, each), *map(len, self._tables)]
        #: one for each module: gets the tables and the attributes
        self._getters = [
            itemgetter(
                *TABLES, *(name for name, x in attributes.items() if name not in TABLES and _counts(name, x, ids))
            )
            for attributes in each
        ]
        self._remember([*chain.from_iterable(map(call, self._getters, each))])
        self._leaves = [p for attributes in each for p in attributes["_parameters"].values() if p is not None]
        self._nodes = [p._node for p in self._leaves]
        #: parameters and buffers, and the ids of their values: ``p.data = x`` gives a parameter another one
        self._tensors = [x for x in self._members if isinstance(x, Tensor)]
        self._cell_ids = [*map(CELL_ID, self._tensors)]
        self._module_hooks = [attributes[name] for attributes in each for name in HOOKS]
        self._leaf_hooks = [node.hooks for node in self._nodes if node is not None]
        self._hook_counts = self._count_hooks()
        self._had_hooks = self._have_hooks()

    def hold(self) -> bool:
        """Are the modules as they were?"""
        if [*map(len, self._each), *map(len, self._tables)] != self._sizes:
            return False
        try:
            values = chain.from_iterable(map(call, self._getters, self._each))
            same = all(map(is_, values, self._values)) or self._have_equal_values()
        except KeyError:
            return False
        return (
            same
            and all(map(is_, chain.from_iterable(map(dict.values, self._tables)), self._members))
            and [*map(CELL_ID, self._tensors)] == self._cell_ids
            and all(map(is_, map(NODE, self._leaves), self._nodes))
            and (not self._containers or [*map(_contents, self._containers)] == self._contained)
            and (not (self._had_hooks or self._have_hooks()) or self._count_hooks() == self._hook_counts)
        )

    def _remember(self, values: list[Any]) -> None:
        self._values = values
        tables = {*map(id, self._tables)}
        #: the values that may change without being replaced: lists, dicts, tensors
        self._containers = [x for x in values if _is_compared_inside(x) and id(x) not in tables]
        self._contained = [*map(_contents, self._containers)]

    def _have_hooks(self) -> bool:
        return any(self._module_hooks) or any(self._leaf_hooks)

    def _count_hooks(self) -> list[int]:
        return [*map(len, self._module_hooks), *map(hooks_on, self._leaves)]

    def _have_equal_values(self) -> bool:
        """Are values that are other objects than before equal to those? The tables must be the same objects."""
        values = [*chain.from_iterable(map(call, self._getters, self._each))]
        tables = {*map(id, self._tables)}
        for x, before in zip(values, self._values, strict=True):
            if x is not before and (id(before) in tables or _contents(x) != _contents(before)):
                return False
        contained = self._contained
        self._remember(values)
        return self._contained == contained


def hooks_on(p: Any) -> int:
    """0 if no gradient flows to it; else 1 plus the number of hooks that see the gradient."""
    return 0 if p is None or p._node is None else 1 + sum(map(len, p._node.hooks.values()))


def _counts(name: str, x: Any, used: frozenset[int] | None) -> bool:
    """May a call depend on this attribute?"""
    if isinstance(x, Tensor):
        return used is None or x._cell.id in used
    return name not in NOT_COMPARED


def _is_compared_inside(x: Any) -> bool:
    if type(x) is tuple and PLAIN.issuperset(map(type, x)):
        return False  # it cannot change, as the stride of a convolution
    return isinstance(x, Tensor) or (type(x) in (list, tuple, dict) and len(x) > 0 and are_compared(x))


def are_compared(items: Any) -> bool:
    """Are the items of a list, tuple or dict compared?"""
    if len(items) <= MAX_ITEMS:
        return True
    return isinstance(next(iter(items.values() if type(items) is dict else items)), Tensor)


def _contents(x: Any, depth: int = MAX_DEPTH) -> Any:
    """A value in a form that can be compared: plain values themselves, also in lists, tuples and dicts; which value a
    tensor has; of anything else, which object it is."""
    kind = type(x)
    if kind in PLAIN:
        return kind, repr(x)  # tells 0.0 from -0.0
    if isinstance(x, Tensor):
        return x._cell.id, x._node is not None
    if depth and kind in (list, tuple) and are_compared(x):
        return kind, *[_contents(item, depth - 1) for item in x]
    if depth and kind is dict and are_compared(x):
        return kind, *[(_contents(key, 0), _contents(item, depth - 1)) for key, item in x.items()]
    return "object", id(x)
