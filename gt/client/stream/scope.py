"""Which signal instructions are emitted under: a stack of names for each thread.

A program without signals pays for one check of ``active``, the number of names entered in all threads together. A name
that is not configured, or says nothing about placement, is on the stack as well; the signal around it stays in force.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: Stands for a signal that is known only when an instruction is emitted; `signal` looks it up.
LOOKED_UP = "@looked_up"


class Entered(NamedTuple):
    """One name on the stack, and the signals in force inside it."""

    name: str
    #: the signal that instructions are emitted under
    signal: str
    #: the signal that the gradients of these instructions are emitted under
    backward: str
    #: the context manager that entered it, if one did
    context: object = None
    #: are the instructions inside to be compiled?
    compile: bool = False


NOTHING = Entered("", "", "")

#: names entered and not left, in all threads together
active = 0
_count_lock = threading.Lock()


class _ThreadScope(threading.local):
    #: innermost last
    stack: tuple[Entered, ...] = ()
    signal = ""
    backward = ""


thread = _ThreadScope()
#: called after a thread's stack has changed
on_change: list[Callable[[], None]] = []
#: returns the signal in force in place of `LOOKED_UP`; the device of torch sets it
look_up: Callable[[], str] = str


def signal() -> str:
    """The signal that this thread's next instruction is emitted under."""
    return look_up() if thread.signal == LOOKED_UP else thread.signal


def innermost() -> Entered:
    return thread.stack[-1] if thread.stack else NOTHING


def replace(stack: tuple[Entered, ...]) -> None:
    """Set this thread's stack."""
    global active
    with _count_lock:
        active += len(stack) - len(thread.stack)
    thread.stack = stack
    thread.signal, thread.backward = innermost()[1:3]
    for callback in on_change:
        callback()


@contextlib.contextmanager
def restored(stack: tuple[Entered, ...]) -> Iterator[None]:
    """Use a stack that was saved earlier, inside the block."""
    before = thread.stack
    replace(stack)
    try:
        yield
    finally:
        replace(before)


def under(signal: str, backward: str = "") -> contextlib.AbstractContextManager[None]:
    """Emit under this signal inside the block, whatever signal is around it."""
    return restored((*thread.stack, Entered(signal, signal, backward or signal, compile=innermost().compile)))
