"""Long reads show their progress, to people: on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from gt.client.stream.long_wait import LongWait
from gt.client.stream.pending import PendingValue
from gt.client.stream.server_connection import ServerConnection

#: Seconds that a read takes before anything is shown.
SILENT_WAIT_S = 1.0
REFRESH_S = 0.2

#: show(bytes that have arrived, bytes of the whole value)
Show = Callable[[int, int], None]


def wait_with_progress(
    connection: ServerConnection, pending: PendingValue, ready: Callable[[], bool], long: LongWait
) -> None:
    """Wait until ``ready()``, and show how much of the value has arrived."""
    display = _display()
    if display is None:
        connection.wait(ready, None, long)
        return
    with display as show:
        while not connection.wait(ready, REFRESH_S, long):
            show(pending.received, pending.nbytes)


def _display() -> contextlib.AbstractContextManager[Show] | None:
    """What shows the progress; None if nobody looks, or another thread than the main one reads."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if sys.stderr is not None and sys.stderr.isatty():
        return _on_terminal()
    if _is_kernel():
        return _in_notebook()
    return None


def _is_kernel() -> bool:
    """Whether this process is the kernel of a notebook. Other programs may import ipykernel too."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def _on_terminal() -> Iterator[Show]:
    """A line on stderr, which is gone at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    console = Console(file=sys.stderr, force_jupyter=False)
    progress = Progress(
        *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    task = progress.add_task(_text(0), total=None)
    with progress:

        def show(received: int, nbytes: int) -> None:
            total = nbytes if received else None
            progress.update(task, description=_text(received), completed=received, total=total, refresh=True)

        yield show


@contextlib.contextmanager
def _in_notebook() -> Iterator[Show]:
    """A bar in the cell, which is gone at the end."""
    from IPython.display import HTML, display

    begun = time.monotonic() - SILENT_WAIT_S
    handle: Any = display(HTML(""), display_id=True)

    def show(received: int, nbytes: int) -> None:
        value = f"value={received} max={nbytes}" if received else ""
        handle.update(HTML(f"<progress {value}></progress> {_text(received)} {time.monotonic() - begun:.0f} s"))

    try:
        yield show
    finally:
        handle.update(HTML(""))


def _text(received: int) -> str:
    return "reading a value" if received else "waiting for the workers"
