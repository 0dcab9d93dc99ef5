"""``gt.signal``: names for stretches of a program, to which a configuration gives a meaning; see docs/signals.md.

    with gt.signal.context("pp_stage0"):
        x = layer(x)

Without a configuration they mean nothing, and a program runs as if they were not there.
"""

from __future__ import annotations

import contextlib
from typing import Any

from gt.client.signals import config
from gt.client.stream import scope
from gt.client.stream.connect import connected
from gt.client.stream.scope import Entered
from gt.client.tensor import placing
from gt.client.tensor.emit import PLACED, view_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError, SignalError
from gt.say import warn

__all__ = ["context", "current", "enter", "exit", "place", "tensor"]

#: names there was a warning for
_warned: set[str] = set()


class context(contextlib.ContextDecorator):  # noqa: N801, a context, or a decorator, as torch.no_grad
    """What is done inside runs under this signal, and its gradients under ``backward``, or what the signal says."""

    def __init__(self, name: str, backward: str | None = None) -> None:
        self.name, self.backward = _checked("context", name), backward
        if backward is not None:
            _checked("context", backward)

    def __enter__(self) -> context:
        _enter(self.name, self.backward, self)
        return self

    def __exit__(self, *_: object) -> None:
        stack = scope.here.stack
        last = max(i for i, entered in enumerate(stack) if entered.by is self)
        _leave(stack[:last])  # with all that was entered inside, and not left

    def _recreate_cm(self) -> context:
        return context(self.name, self.backward)  # a decorated function may run in many threads at once


def enter(name: str, backward: str | None = None) -> None:
    """Begin a stretch that `exit` ends."""
    _enter(_checked("enter", name), None if backward is None else _checked("enter", backward), None)


def _enter(name: str, backward: str | None, by: context | None) -> None:
    config.from_environment()
    around = scope.innermost()
    signal = _known(name)
    pulling = "" if backward is None else _places(backward)
    if signal is not None and not pulling and signal.backward:
        pulling = _places(signal.backward)
    placing = name if signal is not None and signal.places else ""
    compile = around.compile or (signal is not None and signal.compile)
    if compile and not around.compile:
        _cut()
    made = Entered(name, placing or around.placing, pulling or placing or around.pulling, by, compile)
    scope.replace((*scope.here.stack, made))


def _leave(outer: tuple[Entered, ...]) -> None:
    """What is to be compiled is one piece of its own."""
    if scope.innermost().compile and not (outer and outer[-1].compile):
        _cut()
    scope.replace(outer)


def _cut() -> None:
    session = connected()
    if session is not None and session.ended is None:
        session.cut()


def exit(name: str | None = None) -> None:
    """End the innermost stretch, which must be of this name if one is given."""
    stack = scope.here.stack
    if not stack:
        raise SignalError(f"gt.signal.exit({_shown(name)}): no signal was entered in this thread")
    if name is not None and stack[-1].name != name:
        raise SignalError(f"gt.signal.exit({name!r}): the innermost signal is {stack[-1].name!r}; leave that first")
    if stack[-1].by is not None:
        raise SignalError(f"gt.signal.exit({_shown(name)}): {stack[-1].name!r} is a context, which ends by itself")
    _leave(stack[:-1])


def current() -> str | None:
    """The innermost name entered in this thread, configured or not."""
    return scope.innermost().name or None


def tensor(x: Tensor, name: str) -> Tensor:
    """x, laid out by this signal: a view of it."""
    signal = _places(_checked("tensor", name))
    if not signal:
        return x
    with pulling(signal):
        return view_of(x, PLACED, (("signal", signal),))


def place(module: Any) -> None:
    """Lay out a module's parameters by the rules that match their names; a model's first call does it by itself."""
    config.from_environment()
    placing.place(module)


def pulling(signal: str) -> contextlib.AbstractContextManager[None]:
    """Gradients run under a signal, and their own under what that one says."""
    known = config.current.signals.get(signal)
    return scope.under(signal, _places(known.backward) if known is not None and known.backward else "")


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name or name.startswith("@"):
        raise ConfigError(f"gt.signal.{what}({name!r}): a signal's name is a text that does not begin with @")
    return name


def _shown(name: str | None) -> str:
    return "" if name is None else repr(name)


def _known(name: str) -> config.Signal | None:
    found = config.current.signals.get(name)
    if found is None:
        _warn_once(name)
    return found


def _places(name: str) -> str:
    """The name, if it is configured and says something about places."""
    found = _known(name)
    return name if found is not None and found.places else ""


def _warn_once(name: str) -> None:
    none_at_all = not config.current.signals
    if (what := "" if none_at_all else name) in _warned:
        return
    _warned.add(what)
    if none_at_all:
        warn(f"signal {name!r} and all others are ignored: there is no configuration; GT_CONFIG=file.yaml names one")
    else:
        known = ", ".join(sorted(n for n in config.current.signals if not n.startswith("@"))) or "none"
        warn(f"signal {name!r} is not configured, and is ignored; there are: {known}")
