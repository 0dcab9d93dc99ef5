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
    now = config.current
    if not now.rules or _placed.get(module) is now:
        return
    for name, parameter in module.named_parameters():
        # once: a part of a model that is called by itself, as for a checkpoint, has other names for its parameters
        if parameter.__dict__.get("_named_under") is now:
            continue
        if (signal := _matching(name, now.rules)) is not None:
            lay_out(parameter, signal)
        parameter._named_under = now
    _placed[module] = now


def _matching(name: str, rules: tuple[config.Signal, ...]) -> str | None:
    from fnmatch import fnmatchcase

    return next((rule.name for rule in rules if any(fnmatchcase(name, pattern) for pattern in rule.match)), None)
