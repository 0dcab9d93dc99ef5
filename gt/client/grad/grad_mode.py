"""Whether ops are recorded on the tape: ``gt.no_grad``, ``gt.enable_grad`` and similar."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar, overload

from gt.client.tensor.tape import mode

#: the flag of a generator's code: `inspect.CO_GENERATOR`, whose import takes long
_GENERATOR = 0x20
F = TypeVar("F", bound=Callable[..., Any])


class Switch(contextlib.ContextDecorator):
    """Turns recording on or off: a context manager or a decorator."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(mode.enabled)
        mode.enabled = self._on

    def __exit__(self, *_: object) -> None:
        mode.enabled = self._before.pop()

    def _recreate_cm(self) -> Switch:
        return Switch(self._on)  # a decorated function may run in many threads at once

    def __call__(self, function: F) -> F:
        """Decorate a function. A generator runs under the switch, and the code that consumes it does not."""
        code = getattr(function, "__code__", None)
        if code is None or not code.co_flags & _GENERATOR:
            return super().__call__(function)

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Any:
            return _switched(function(*args, **kwargs), self._on)

        return generate  # type: ignore[return-value]


def _switched(generator: Any, on: bool) -> Any:
    """The items of a generator, each computed under a switch; what is sent or thrown goes on to it."""
    resume, value = generator.send, None
    while True:
        try:
            with Switch(on):
                item = resume(value)
        except StopIteration as end:
            return end.value
        try:
            resume, value = generator.send, (yield item)
        except GeneratorExit:
            with Switch(on):
                generator.close()
            raise
        except BaseException as error:
            resume, value = generator.throw, error


class _Fixed(Switch):
    """Takes no argument, so it can decorate a function with or without parentheses."""

    on: bool

    @overload
    def __new__(cls) -> Self: ...

    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]  # it decorates at once

    def __new__(cls, function: Any = None) -> Any:
        return super().__new__(cls) if function is None else Switch(cls.on)(function)

    def __init__(self) -> None:
        super().__init__(self.on)


class no_grad(_Fixed):  # noqa: N801, torch's name
    """Do not record operations for gradients inside: a context, or a decorator with or without parentheses."""

    on = False


class enable_grad(_Fixed):  # noqa: N801, torch's name
    """Record operations for gradients inside: a context, or a decorator with or without parentheses."""

    on = True


class inference_mode(Switch):  # noqa: N801, torch's name
    """The same as `no_grad`: tensors computed inside may be used outside with gradients, which torch forbids."""

    @overload
    def __new__(cls, mode: bool = True) -> Self: ...

    @overload
    def __new__(cls, mode: F) -> F: ...  # type: ignore[misc]  # it decorates at once

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else Switch(False)(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode and is_grad_enabled())


class set_grad_enabled(Switch):  # noqa: N801, torch's name
    """Set whether operations are recorded for gradients, from now on or inside a context."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self.__enter__()
        self._entered = True

    def __enter__(self) -> None:
        if not getattr(self, "_entered", False):  # the constructor entered it the first time
            super().__enter__()
        self._entered = False

    def __call__(self, function: F) -> F:
        self.__exit__()  # as a decorator it takes effect when the function runs, not now
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Whether operations are recorded for gradients in this thread."""
    return mode.enabled
