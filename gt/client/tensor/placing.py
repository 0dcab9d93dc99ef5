"""Parameters by name: when a model is first called, each that a rule matches is laid out by it.

A name is that of `named_parameters` of the outermost module that is called. The first rule that matches holds.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from gt.client.signals import config
from gt.client.tensor.emit import lay_out
from gt.say import warn

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
    _tell_idle_rules(module, now.rules)
    for name, parameter in module.named_parameters():
        # once: a part of a model that is called by itself, as for a checkpoint, has other names for its parameters
        if parameter.__dict__.get("_named_under") is now:
            continue
        rule = _matching(name, now.rules)
        if rule is not None:
            lay_out(parameter, rule.name)
        parameter._named_under = now
        parameter._cut_by = rule.name if rule is not None and _cuts(rule) else None
        parameter._lies_on = (rule.workers, rule.mesh) if rule is not None else None
    _placed[module] = now


#: rules that were told to match nothing
_told: set[tuple[str, ...]] = set()


def _tell_idle_rules(module: Any, rules: tuple[config.Signal, ...]) -> None:
    """A pattern with a slip of the pen in it would be overlooked."""
    names = [name for name, _ in module.named_parameters()]
    for rule in rules:
        if rule.match in _told or any(_fits(name, p) for name in names for p in rule.match):
            continue
        _told.add(rule.match)
        patterns, some = ", ".join(rule.match), ", ".join(names[:3])
        warn(f"signal {rule.name!r}: {patterns} matches no parameter of {type(module).__name__} ({some}, …)")


def _matching(name: str, rules: tuple[config.Signal, ...]) -> config.Signal | None:
    return next((rule for rule in rules if any(_fits(name, pattern) for pattern in rule.match)), None)


def _fits(name: str, pattern: str) -> bool:
    """``*.up.weight`` is any ``up.weight``, also the model's own."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)


def _cuts(rule: config.Signal) -> bool:
    """Along every axis of its mesh? Then no worker has what another has."""
    axes = {name for name, size in rule.mesh if size > 1}
    return bool(rule.shard) and not rule.replicate and axes <= {name for _, name in rule.shard}


def workers_of(parameter: Any) -> Any:
    """The same for parameters that were laid out on the same workers."""
    return getattr(parameter, "_lies_on", None)


def follow(leaf: Any, grad: Any) -> None:
    """A new gradient lies as its parameter does, if that is cut: no worker is to have all of it, or all of them."""
    signal = getattr(leaf, "_cut_by", None)
    if signal is not None and leaf._named_under is config.current:
        lay_out(grad, signal)
