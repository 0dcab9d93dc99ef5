"""Ctrl-C while a tensor is freed.

Python handles a signal between two steps of the main thread, wherever that is: now and then in a tensor's destructor.
Python prints an exception that leaves a destructor, and drops it. So the program would go on as if nobody had pressed
Ctrl-C, and the tensor would stay on its worker. `sys.unraisablehook` sees such an exception: it frees the tensor, and
interrupts the main thread once more, which is back in the program by then.
"""

from __future__ import annotations

import _thread
import signal
import sys
from typing import Any

from gt.client.tensor.tensor import Cell


def install() -> None:
    """Look at dropped exceptions from now on; others go to whoever looked at them before."""
    if getattr(sys.unraisablehook, "of_gt", False):
        return
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt or dropped.object is not Cell.__del__:
            before(dropped)
            return
        dropped.exc_traceback.tb_frame.f_locals["self"].__del__()
        # As the last step, and from C: after any call in here Python would handle the signal in here.
        (_,) = map(_thread.interrupt_main, (signal.SIGINT,))

    hook.of_gt = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook
