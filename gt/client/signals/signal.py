"""Entering and leaving signals; see docs/signals.md.

    with gt.signal.context("pp_stage0"):
        x = layer(x)

Without a configuration signals have no effect.
"""

from __future__ import annotations

import contextlib
from typing import Any

from gt.client.signals import config
from gt.client.signals.config import from_environment
from gt.client.stream import configuration, scope
from gt.client.stream.configuration import Signal
from gt.client.stream.scope import Entered
from gt.client.stream.step import cut
from gt.errors import ConfigError, SignalError
from gt.say import warn

#: the names of the signals that pipelines configure for themselves begin so
PIPELINE_SIGNAL = "pipeline on "
#: the names that a warning was printed for; "" for the warning that there is no configuration
_warned: set[str] = set()


class context(contextlib.ContextDecorator):  # noqa: N801, a context manager or a decorator, like torch.no_grad
    """Run a block, or a decorated function, under a signal.

    Gradients run under ``backward``, or under what the signal's configuration names, or under the same signal.

    Example::

        with gt.signal.context("stage0"):
            x = layer(x)
    """

    def __init__(self, name: str, backward: str | None = None) -> None:
        self.name, self.backward = check_name("context", name), backward
        if backward is not None:
            check_name("context", backward)

    def __enter__(self) -> context:
        _enter(self.name, self.backward, self)
        return self

    def __exit__(self, *_: object) -> None:
        stack = scope.thread.stack
        last = max(i for i, entered in enumerate(stack) if entered.context is self)
        _leave(stack[:last])  # together with every signal that was entered inside and not left

    def _recreate_cm(self) -> context:
        return context(self.name, self.backward)  # a decorated function may run in many threads at once


def enter(name: str, backward: str | None = None) -> None:
    """Begin a stretch of code under a signal; `exit` ends it.

    Example::

        gt.signal.enter("stage0")
        x = layer(x)
        gt.signal.exit("stage0")
    """
    _enter(check_name("enter", name), None if backward is None else check_name("enter", backward), None)


def _enter(name: str, backward: str | None, manager: context | None) -> None:
    from_environment()
    outer = scope.innermost()
    signal = _configured(name)
    backward_signal = "" if backward is None else placing_signal(backward)
    if signal is not None and not backward_signal and signal.backward:
        backward_signal = placing_signal(signal.backward)
    placing = name if signal is not None and signal.places else ""
    compile = outer.compile or (signal is not None and signal.compile)
    if compile and not outer.compile:
        cut()
    entered = Entered(name, placing or outer.signal, backward_signal or placing or outer.backward, manager, compile)
    scope.replace((*scope.thread.stack, entered))


def _leave(outer: tuple[Entered, ...]) -> None:
    """Go back to the stack ``outer``. Code to be compiled is a separate fragment, so cut the stream at its end."""
    if scope.innermost().compile and not (outer and outer[-1].compile):
        cut()
    scope.replace(outer)


def exit(name: str | None = None) -> None:
    """End the innermost stretch that `enter` began. If ``name`` is given, it must be the name of that stretch.

    Example::

        gt.signal.exit("stage0")
    """
    stack, shown = scope.thread.stack, "" if name is None else repr(name)
    if not stack:
        raise SignalError(f"gt.signal.exit({shown}): no signal was entered in this thread")
    if name is not None and stack[-1].name != name:
        raise SignalError(f"gt.signal.exit({name!r}): the innermost signal is {stack[-1].name!r}; leave that first")
    if stack[-1].context is not None:
        raise SignalError(
            f"gt.signal.exit({shown}): {stack[-1].name!r} was entered by a context manager; leave its block instead"
        )
    _leave(stack[:-1])


def current() -> str | None:
    """The innermost signal name entered in this thread, configured or not; None if there is none.

    Example::

        print(gt.signal.current())
    """
    return scope.innermost().name or None


def backward_scope(signal: str) -> contextlib.AbstractContextManager[None]:
    """Emit gradients under a signal, and second-order gradients under the ``backward`` of that signal."""
    return scope.under(signal, backward_of(signal))


def backward_of(signal: str) -> str:
    """The signal that the configuration names for the gradients of this one; "" if it names none."""
    configured = configuration.current.signals.get(signal)
    return placing_signal(configured.backward) if configured is not None and configured.backward else ""


def check_name(function: str, name: Any) -> str:
    """The name of a signal; raises ConfigError for anything else."""
    if not isinstance(name, str) or not name or name.startswith("@"):
        raise ConfigError(f"gt.signal.{function}({name!r}): a signal's name is a string that does not begin with @")
    return name


def placing_signal(name: str) -> str:
    """The name, if it is configured and says something about placement; else ""."""
    signal = _configured(name)
    return name if signal is not None and signal.places else ""


def _configured(name: str) -> Signal | None:
    signal = configuration.current.signals.get(name)
    if signal is None:
        _warn_once(name)
    return signal


def _warn_once(name: str) -> None:
    names = sorted(n for n in configuration.current.signals if not n.startswith(("@", PIPELINE_SIGNAL)))
    key = name if names else ""
    if key in _warned:
        return
    _warned.add(key)
    if not names:
        if config.was_removed():
            return
        warn(f"signal {name!r} and all others are ignored: there is no configuration; GT_CONFIG=file.yaml names one")
    else:
        warn(f"signal {name!r} is not configured, and is ignored; there are: {', '.join(names)}")
