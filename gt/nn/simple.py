"""Modules that are a function and its options: each one row.

A row names the module, the function of `gt.nn.functional`, the options with their defaults in torch's order, and how
it is shown. The options are attributes of the module, and keywords of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.nn import functional as F
from gt.nn.module import Module

#: an option that must be given
REQUIRED: Any = object()

Show = Callable[[Any], str]


def layer(
    name: str, function: str, defaults: dict[str, Any], show: Show = lambda self: "", given: str | None = None
) -> type[Module]:
    """Make the class; ``given`` names the options that go to the function, if not all do (``training`` may be one)."""
    passed = list(defaults) if given is None else given.split()

    def start(self: Module, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        for key, value in _bound(name, defaults, args, kwargs).items():
            setattr(self, key, value)

    def forward(self: Module, *inputs: Any) -> Any:
        own = self.__dict__
        return getattr(F, function)(*inputs, **{key: own[key] for key in passed})

    doc = f"See `torch.nn.{name}`."
    body = {"__init__": start, "forward": forward, "extra_repr": show, "__doc__": doc, "__module__": "gt.nn"}
    return type(name, (Module,), body)


def _bound(name: str, defaults: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(defaults):
        raise TypeError(f"{name}() takes at most {len(defaults)} arguments, but {len(args)} were given")
    made = defaults | dict(zip(defaults, args, strict=False))
    for key, value in kwargs.items():
        if key not in defaults:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
        made[key] = value
    for key, value in made.items():
        if value is REQUIRED:
            raise TypeError(f"{name}() missing 1 required positional argument: '{key}'")
    return made


def showing(*names: str) -> Show:
    """``a=1, b=2``"""
    return lambda self: ", ".join(f"{name}={getattr(self, name)}" for name in names)
