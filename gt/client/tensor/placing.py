"""Placing tensors by signals: one tensor, or the parameters of a model by their names.

When a model is first called, each parameter whose name matches a rule is placed by that rule. The name is the one in
`named_parameters` of the outermost module that is called. The first rule that matches counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from gt.client.signals.config import from_environment
from gt.client.signals.signal import backward_scope, check_name, context, placing_signal
from gt.client.stream import configuration
from gt.client.stream.configuration import Configuration, Signal
from gt.client.tensor.emit import PLACED, view_of
from gt.client.tensor.relocation import place_by
from gt.client.tensor.tensor import Tensor
from gt.say import warn

#: module -> the configuration that its parameters were placed by, and the signal that its calls run under; "": none
_placed: WeakKeyDictionary[Any, tuple[Configuration, str]] = WeakKeyDictionary()
#: stands for every module
ANY = object()
#: GT's tensor of a parameter; None for one that is not GT's. the device of torch adds those of its modules
tensor_of: Callable[[Any], Tensor | None] = lambda parameter: parameter
#: called with a parameter of another kind that is sharded: `place_grad` is to be called with its gradients
watch_grads: Callable[[Any], None] = lambda parameter: None
#: the patterns of rules that match no parameter, and for which a warning was printed
_unmatched: set[tuple[str, ...]] = set()


class _ModuleCall(threading.local):
    #: the module whose call is prepared already, or ANY if no module inside it needs that
    prepared: Any = None


module_call = _ModuleCall()


def tensor(x: Tensor, name: str) -> Tensor:
    """x, placed by this signal: a view of x.

    Example::

        y = gt.signal.tensor(x, "stage1")
    """
    signal = placing_signal(check_name("tensor", name))
    if not signal:
        return x
    with backward_scope(signal):
        return view_of(x, PLACED, (("signal", signal),))


def place(module: Any) -> None:
    """Place a module's parameters by the rules that match their names. The first call of a model does the same.

    Example::

        gt.signal.place(model)
    """
    from_environment()
    place_parameters(module)


def call(module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module under its signal; before, if it is an outermost one, its parameters are placed."""
    signal = place_parameters(module)
    before, module_call.prepared = module_call.prepared, module if configuration.current.module_rules else ANY
    try:
        with context(signal) if signal else nullcontext():
            return module(*inputs, **kwargs)
    finally:
        module_call.prepared = before


def place_parameters(module: Any) -> str:
    """The signal that calls of a module run under, or "". Its parameters are placed by the current rules, once."""
    now = configuration.current
    known = _placed.get(module)
    if known is not None and known[0] is now:
        return known[1]
    if not (now.rules or now.auto):
        return ""
    # Only once: if a part of the model is called directly, as for a checkpoint, its parameters have other names.
    unplaced = [(n, p) for n, p in module.named_parameters() if p.__dict__.get("_placed_under") is not now]
    if unplaced:
        _warn_of_unmatched_rules(module, now.rules)
    placed = [_place(parameter, _matching(name, now.rules, "match"), now) for name, parameter in unplaced]
    if not all(placed):
        return ""
    for name, part in module.named_modules():
        if part not in _placed or _placed[part][0] is not now:
            rule = _matching(name, now.module_rules, "modules")
            _placed[part] = now, rule.name if rule is not None else ""
    return _placed[module][1]


def _place(parameter: Any, rule: Signal | None, now: Configuration) -> bool:
    """Place a parameter by a rule, or as auto-sharding places parameters; False if it is not GT's."""
    value = tensor_of(parameter)
    if value is None:
        return False
    if rule is not None:
        place_by(value, rule.name)
    elif now.auto and parameter is not value and parameter.requires_grad:  # GT's own was placed when it was created
        place_by(value, configuration.PARAMETER)
    parameter._placed_under = now
    parameter._sharded_by = rule.name if rule is not None and _shards_fully(rule) else None
    parameter._workers = (rule.workers, rule.mesh) if rule is not None else None
    if parameter is not value and parameter._sharded_by is not None:
        watch_grads(parameter)
    return True


def keep_placed(parameters: list[Any], before: Configuration) -> None:
    """The configuration was replaced by one with the same rules: what was placed before need not be placed again."""
    for parameter in parameters:
        if parameter.__dict__.get("_placed_under") is before:
            parameter._placed_under = configuration.current


def _warn_of_unmatched_rules(module: Any, rules: tuple[Signal, ...]) -> None:
    """Without the warning, a typing mistake in a pattern would go unnoticed."""
    names = [name for name, _ in module.named_parameters()]
    for rule in rules:
        if not rule.match or rule.match in _unmatched or any(_matches(name, p) for name in names for p in rule.match):
            continue
        _unmatched.add(rule.match)
        patterns, some = ", ".join(rule.match), ", ".join(names[:3])
        warn(f"signal {rule.name!r}: {patterns} matches no parameter of {type(module).__name__} ({some}, …)")


def _matching(name: str, rules: tuple[Signal, ...], key: str) -> Signal | None:
    """The first rule whose patterns, under this key, match a name."""
    return next((rule for rule in rules if any(_matches(name, pattern) for pattern in getattr(rule, key))), None)


def _matches(name: str, pattern: str) -> bool:
    """``*.up.weight`` matches any ``up.weight``, also one without a prefix."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)


def _shards_fully(rule: Signal) -> bool:
    """Does it shard along every axis of its mesh? Then no two workers hold the same values."""
    axes = {name for name, size in rule.mesh if size > 1}
    return bool(rule.shard) and not rule.replicate and axes <= {name for _, name in rule.shard}


def workers_of(parameter: Any) -> Any:
    """A value that is equal for parameters placed on the same workers."""
    return getattr(parameter, "_workers", None)


def place_grad(leaf: Any, grad: Any) -> None:
    """Place a new gradient like its parameter, if that is sharded. Then no worker holds a whole gradient."""
    signal = getattr(leaf, "_sharded_by", None)
    if signal is not None and leaf._placed_under is configuration.current:
        place_by(grad, signal)
