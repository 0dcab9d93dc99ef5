"""Ctrl-C never leaves a session half changed: while GT changes its state, the interrupt waits.

Python runs the handler of a signal between two steps of the main thread, wherever it is, and passes it the frame that
was interrupted. The handler here looks at that frame and its callers. The innermost marked function decides: inside a
`deferred` one the interrupt comes again a moment later, until it finds the program elsewhere; inside an `interruptible`
one, which waits, or in the user's own code it has its usual effect.

So a protected function needs no code that sets or checks anything, and costs nothing. Destructors are protected too:
Python prints an exception that leaves a destructor, and drops it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts results to enums, which takes ten times as long
import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

#: Seconds after which a deferred interrupt comes again.
RETRY_S = 0.001
_SIGINT = int(signal.SIGINT)

#: marked function -> whether interrupts are deferred in it
_marks: dict[CodeType, bool] = {}

Marked = TypeVar("Marked", bound=Callable[..., Any])


def deferred(target: Marked) -> Marked:
    """Mark a function, or all methods of a class that have no mark: no interrupt in it, nor in what it calls."""
    for function in _functions(target):
        _marks.setdefault(function.__code__, True)
    return target


def interruptible(target: Marked) -> Marked:
    """Mark a function that waits: an interrupt ends the wait, also if a deferred function calls it."""
    for function in _functions(target):
        _marks.setdefault(function.__code__, False)
    return target


def _functions(target: Any) -> Iterator[FunctionType]:
    for member in vars(target).values() if isinstance(target, type) else (target,):
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            yield function


class InterruptHandler:
    """The handler of SIGINT. Outside of deferred functions the signal goes on to the handler that was there before."""

    __slots__ = ("_before",)

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_deferred(frame):
            _thread.start_new_thread(_interrupt_again, (number,))
        else:
            self._before(number, frame)


def _is_deferred(frame: FrameType | None) -> bool:
    while frame is not None:
        mark = _marks.get(frame.f_code)
        if mark is not None:
            return mark
        frame = frame.f_back
    return False


def _interrupt_again(number: int) -> None:
    time.sleep(RETRY_S)
    # not `_thread.interrupt_main`, which does not end a system call that the main thread waits in
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def install() -> None:
    """Put the handler in front of the current one. Called before each step: a notebook replaces it in every cell."""
    before = _signal.getsignal(_SIGINT)
    if (
        type(before) is not InterruptHandler
        and callable(before)
        and threading.get_ident() == threading.main_thread().ident
    ):
        _signal.signal(_SIGINT, InterruptHandler(before))
