"""Tracebacks that end at the user's line: Python prints an uncaught error of GT without the frames inside GT.

Nothing is done until an error is printed: the hooks of Python and IPython that print uncaught errors are replaced. An
error that GT did not raise on purpose is a bug in GT, and keeps all its frames. So do all errors with
``GT_FULL_TRACEBACK=1``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from gt.client.stream.sites import PACKAGE
from gt.errors import GtError

_Error = BaseException


def install() -> None:
    """Trim uncaught errors in this process, also in its threads and in IPython. Called once."""
    print_error, print_thread_error = sys.excepthook, threading.excepthook

    def excepthook(kind: type[_Error], error: _Error, traceback: TracebackType | None) -> None:
        print_error(kind, error, trimmed(error, traceback))

    def thread_excepthook(args: Any) -> None:
        if args.exc_value is not None:
            trimmed(args.exc_value, args.exc_traceback)
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread))
        print_thread_error(args)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    if (ipython := sys.modules.get("IPython")) is not None and (shell := ipython.get_ipython()) is not None:
        _install_in(shell)


def _install_in(shell: Any) -> None:
    """Trim errors in a notebook, unless the user has a handler of their own."""
    if shell.custom_exceptions:
        return

    def show(shell: Any, kind: type[_Error], error: _Error, traceback: Any, tb_offset: Any = None) -> None:
        shell.showtraceback((kind, error, trimmed(error, traceback)), tb_offset=tb_offset)

    shell.set_custom_exc((Exception,), show)


def trimmed(error: _Error, traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without frames inside GT, if GT raised the error on purpose. Errors that led to it are trimmed."""
    if os.environ.get("GT_FULL_TRACEBACK", "0") not in ("", "0"):
        return traceback
    for cause in (error.__cause__, error.__context__):
        if cause is not None and cause.__traceback__ is not None:
            trimmed(cause, cause.__traceback__)
    frames = [*_frames(traceback)]
    if not frames or not _on_purpose(error, frames[-1]):
        return traceback
    users = [frame for frame in frames if not _inside(frame)]
    if not users:
        return traceback
    for frame, following in zip(users, [*users[1:], None], strict=True):
        frame.tb_next = following
    error.__traceback__ = users[0]
    return users[0]


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _inside(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(PACKAGE)


def _on_purpose(error: _Error, last: TracebackType) -> bool:
    """Whether a statement ``raise`` in GT raised the error, or a call from the user has wrong arguments."""
    if isinstance(error, GtError | KeyboardInterrupt):
        return True
    if isinstance(error, AssertionError) or not _inside(last):
        return False
    from opcode import opmap

    is_raise = last.tb_frame.f_code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]
    return is_raise or (isinstance(error, TypeError) and " argument" in str(error))
