"""Which signal instructions are emitted under: a stack of names in each thread.

Who uses no signals pays for one look at ``active``, the number of names entered in all threads together. A name that
means nothing, or nothing about places, is on the stack like any other, and what is around it stays in force.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple


class Entered(NamedTuple):
    """One name on the stack, and what is in force under it."""

    name: str
    #: the signal instructions are emitted under, and the one for the gradients that come back through them
    placing: str
    pulling: str
    #: the context that entered it, if one did
    by: object = None
    #: is what is emitted under it to be compiled?
    compile: bool = False


NOTHING = Entered("", "", "")

#: names entered and not left, in all threads together
active = 0
_counting = threading.Lock()


class _Here(threading.local):
    #: innermost last
    stack: tuple[Entered, ...] = ()
    placing = ""
    pulling = ""


here = _Here()


def innermost() -> Entered:
    return here.stack[-1] if here.stack else NOTHING


def replace(stack: tuple[Entered, ...]) -> None:
    """Let this be the thread's stack from now on."""
    global active
    with _counting:
        active += len(stack) - len(here.stack)
    here.stack = stack
    here.placing, here.pulling = innermost()[1:3]


@contextlib.contextmanager
def restored(stack: tuple[Entered, ...]) -> Iterator[None]:
    """The thread's stack as it was at some other time, for a while."""
    before = here.stack
    replace(stack)
    try:
        yield
    finally:
        replace(before)


def under(signal: str, pulling: str = "") -> contextlib.AbstractContextManager[None]:
    """Emit under this signal, whatever is around it, for a while."""
    return restored((*here.stack, Entered(signal, signal, pulling or signal, compile=innermost().compile)))
