"""In a notebook: tensors and layouts as HTML, the dashboard in a cell, progress of long reads."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pathlib
import pty
import re
import sys
import textwrap
import types
from typing import Any

import pytest

import gt
from gt.client.stream import progress
from gt.client.stream.long_wait import LongWait, Questions
from gt.client.stream.pending import PendingValue
from gt.errors import ConfigError
from gt.testing import Cluster
from tests.support.dashboards import get
from tests.support.processes import script, wait_until

ROOT = pathlib.Path(__file__).parent.parent
SHOW_CURSOR = "\x1b[?25h"


def test_a_tensor() -> None:
    with Cluster(workers=1, backend="numpy").client():
        x = gt.arange(6).float().reshape(2, 3).requires_grad_()
        html = x._repr_html_()
        assert "<b>float32[2,3]</b> · 24 B · worker 0 · requires grad" in html
        assert repr(x).replace("<", "&lt;").replace(">", "&gt;") in html
        y = (x * 2)._repr_html_()
        assert "grad_fn=&lt;MulBackward" in y  # text is escaped
        assert "<MulBackward" not in y


def test_a_large_tensor_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(workers=1, backend="numpy").client() as session:
        x, sizes = gt.ones(3000, 1000), []
        read = session.read
        monkeypatch.setattr(session, "read", lambda id, type: sizes.append(type.nbytes) or read(id, type))
        assert "12.0 MB" in x._repr_html_()
        assert sizes
        assert sum(sizes) < 1000


def test_a_layout() -> None:
    with Cluster(workers=2, backend="numpy").client():
        gt.auto_shard()
        try:
            x = gt.randn(1000, 64)
            html = x.layout._repr_html_()
        finally:
            gt.auto_shard(False)
    assert "<b>S(0) on workers 0, 1</b>" in html
    assert re.findall(r"<th[^>]*>(\d+:\d+)</th>", html) == ["0:64", "0:500", "500:1000"]
    colours = re.findall(r"background:(#\w+);color:#222'>worker (\d)<", html)
    assert [worker for _, worker in colours] == ["0", "1"]
    assert colours[0][0] != colours[1][0]


def test_a_layout_without_blocks() -> None:
    with Cluster(workers=1, backend="numpy").client():
        html = gt.tensor(1.0).layout._repr_html_()
    assert "worker 0" in html


def test_the_dashboard_of_a_session_without_a_server() -> None:
    with Cluster(workers=1, backend="numpy").client(), pytest.raises(ConfigError, match="has no server to look at"):
        gt.debug.dashboard()


def test_the_dashboard_in_a_cell() -> None:
    program = """
        import os, gt
        x = gt.ones(3).sum().item()
        view = gt.debug.dashboard(height=500)
        html = view._repr_html_()
        print("cell", html, flush=True)
        print("link", view, flush=True)
        assert gt.debug.dashboard()._process is view._process
        input()
        gt.disconnect()
        print("runs", view._process.runs, flush=True)
    """
    with contextlib.ExitStack() as stack:
        process = script(program, stack=stack, GT_BACKEND="numpy")
        cell, link = process.expect("cell"), process.expect("link").split()[-1]
        assert "height:500px" in cell
        links = re.findall(r"http://[^']+", cell)
        assert len({*links, link}) == 3
        for address in (*links, link):
            host, path = address.removeprefix("http://").split("/", 1)
            status, headers, _ = get(host, f"/{path}")
            assert status == 200
            assert "http://localhost:*" in headers["content-security-policy"]
            assert get(host, f"/{path}")[0] == 403
        process.tell()
        assert process.expect("runs") == "runs False"


# -- progress ------------------------------------------------------------------------------


class SlowConnection:
    """`wait` fails a few times; the value arrives meanwhile."""

    def __init__(self, pending: PendingValue, waits: int) -> None:
        self._pending, self._waits = pending, waits

    def wait(self, ready: Any, timeout: float | None, long: LongWait) -> bool:
        self._waits -= 1
        if timeout is None or self._waits <= 0:
            return True
        self._pending.received += 400
        return False


def run_slow_read() -> None:
    pending = PendingValue(2000)
    connection: Any = SlowConnection(pending, 4)
    progress.wait_with_progress(connection, pending, lambda: False, LongWait(Questions(lambda: None)))


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, master)
        terminal = stack.enter_context(os.fdopen(slave, "w"))
        monkeypatch.setattr(sys, "stderr", terminal)
        run_slow_read()
        terminal.flush()
        text = ""
        while SHOW_CURSOR not in text:
            text += os.read(master, 100_000).decode()
    assert "reading a value" in text
    assert "1.2/2.0 kB" in text
    assert text.split("1.2/2.0 kB")[-1].endswith("\x1b[2K")  # the line is gone


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = types.SimpleNamespace(update=shown.append)
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = str, lambda html, display_id: handle  # type: ignore[attr-defined]
    display.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, display)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run_slow_read()
    assert "<progress value=800 max=2000></progress> reading a value" in shown[1]
    assert shown[-1] == ""


def test_nothing_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))  # imported, but this is no kernel
    run_slow_read()
    assert text.getvalue() == ""


def test_a_long_read_of_a_real_system() -> None:
    """A read that waits for another one's worker shows a line on the terminal, and then the value."""
    program = """
        import pty, os, sys, threading, gt
        from gt.client.stream import progress, replies
        replies.SILENT_WAIT_S = 0.0  # at once
        progress.REFRESH_S = 0.001
        master, slave = pty.openpty()
        shown = []
        def read():  # a terminal that nobody reads would stop the program
            while True:
                shown.append(os.read(master, 100_000))
        threading.Thread(target=read, daemon=True).start()
        x = gt.randn(400, 400)
        x.sum().item()
        sys.stderr = os.fdopen(slave, "w")
        for _ in range(60):
            x = (x @ x).tanh()
        print("value", x.isfinite().all().item(), flush=True)
        print("shown", b"waiting for the workers" in b"".join(shown), flush=True)
    """
    with contextlib.ExitStack() as stack:
        process = script(program, stack=stack, GT_BACKEND="numpy")
        assert process.expect("value") == "value True"
        assert process.expect("shown") == "shown True"
        wait_until(lambda: process.popen.poll() is not None, what="its end")


# -- a real kernel -------------------------------------------------------------------------

CELLS = (
    "import gt\nx = gt.ones(4, 3)\nx",
    "x.layout",
    """
    from gt.client.stream import progress, replies
    replies.SILENT_WAIT_S = 0.0  # at once
    progress.REFRESH_S = 0.001
    y = gt.randn(1500, 1500)
    for _ in range(20):
        y = (y @ y).tanh()
    y.isfinite().all().item()
    """,
    "gt.debug.dashboard(height=500)",
    "gt.disconnect()",
)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nbclient", "ipykernel")),
    reason="a kernel needs `pip install nbclient ipykernel`",
)
def test_a_kernel(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in Jupyter's own kernel; what it sends is what a notebook shows."""
    import nbformat
    from jupyter_core.utils import ensure_event_loop
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GT_BACKEND", "numpy")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in CELLS])
    updates: list[str] = []

    class Client(NotebookClient):
        def process_message(self, message: dict[str, Any], cell: Any, index: int) -> Any:
            if message["msg_type"] == "update_display_data":
                updates.append(message["content"]["data"]["text/html"])
            return super().process_message(message, cell, index)

    try:
        Client(
            notebook,
            timeout=120,
            startup_timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(ROOT)}},
        ).execute()
    finally:
        ensure_event_loop().close()  # Jupyter leaves it open
    tensor, layout, read, dashboard, _ = (cell.outputs for cell in notebook.cells)
    assert "<b>float32[4,3]</b> · 48 B · worker 0" in tensor[0].data["text/html"]
    assert tensor[0].data["text/plain"].startswith("tensor([[1., 1., 1.]")
    assert "<b>worker 0</b>" in layout[0].data["text/html"]
    assert "<progress ></progress> waiting for the workers" in updates[0]
    assert updates[-1] == read[0].data["text/html"] == ""  # the bar is gone at the end
    assert read[1].data["text/plain"] == "True"
    assert "height:500px" in dashboard[0].data["text/html"]
    assert re.fullmatch(r"http://127.0.0.1:\d+/\?key=\S+", dashboard[0].data["text/plain"])
