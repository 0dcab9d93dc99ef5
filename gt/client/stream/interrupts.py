"""Ctrl-C while a tensor is freed.

Python handles a signal between two steps of the main thread, and sometimes that is inside a tensor's destructor. Python
prints an exception that leaves a destructor, and then drops it: the program would continue as if Ctrl-C had not been
pressed, and the tensor would stay on its worker. `sys.unraisablehook` sees such an exception. The hook here runs the
destructor again, and interrupts the main thread once more; by then it is back in the program.
"""

from __future__ import annotations

import _thread
import signal
import sys
from collections.abc import Callable
from typing import Any

#: destructors that can be run again after an interrupt
_destructors: list[Callable[[Any], None]] = []


def rerun_after_interrupt(destructor: Callable[[Any], None]) -> None:
    """Protect a class's ``__del__``: an interrupt in it is not lost, and it runs to its end."""
    _destructors.append(destructor)


def install() -> None:
    """Set the hook. Exceptions that do not concern it go to the hook that was there before."""
    if getattr(sys.unraisablehook, "of_gt", False):
        return
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt or dropped.object not in _destructors:
            before(dropped)
            return
        dropped.exc_traceback.tb_frame.f_locals["self"].__del__()
        # As the last step, and called from C: after any other call in here Python would handle the signal in here.
        (_,) = map(_thread.interrupt_main, (signal.SIGINT,))

    hook.of_gt = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook
