"""Parameters by name: when a model is first called, each that a rule matches is laid out by it.

A name is that of `named_parameters` of the outermost module that is called. The first rule that matches holds.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from gt.client import config
from gt.client.emit import lay_out

#: module -> the configuration it was laid out by
_placed: WeakKeyDictionary[Any, config.Configuration] = WeakKeyDictionary()


class _Here(threading.local):
    #: is a module being called?
    inside = False


here = _Here()


def call(module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the outermost of modules, with its parameters laid out."""
    place(module)
    here.inside = True
    try:
        return module(*inputs, **kwargs)
    finally:
        here.inside = False


def place(module: Any) -> None:
    rules = config.current.rules
    if not rules or _placed.get(module) is config.current:
        return
    _placed[module] = config.current
    for name, parameter in module.named_parameters():
        if (signal := _matching(name, rules)) is not None:
            lay_out(parameter, signal)


def _matching(name: str, rules: tuple[config.Signal, ...]) -> str | None:
    from fnmatch import fnmatchcase

    return next((rule.name for rule in rules if any(fnmatchcase(name, pattern) for pattern in rule.match)), None)
