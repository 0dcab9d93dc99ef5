"""A headless Chromium for tests, driven by its DevTools protocol over a WebSocket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

from tests.support.processes import LONG, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    *("--headless=new", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--mute-audio", "--remote-debugging-port=0"),
)


def find_browser() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Use it in a ``with`` block."""

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> Browser:
        self._stack = contextlib.ExitStack()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        # the browser writes into its folder until the very end
        folder = tempfile.TemporaryDirectory(prefix="gt-browser-", ignore_cleanup_errors=True)
        profile = pathlib.Path(self._stack.enter_context(folder))
        # a sandbox needs rights that root in a container does not have
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        command = [
            find_browser() or "chromium",
            *OPTIONS,
            *self._options,
            *sandbox,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait, LONG)
        self._stack.callback(process.kill)
        port_file = profile / "DevToolsActivePort"
        text = wait_until(lambda: port_file.exists() and port_file.read_text(), what="the browser")
        self._loop = asyncio.new_event_loop()
        self._stack.callback(self._loop.close)
        self._number = 0
        self._loop.run_until_complete(self._connect(int(text.split()[0])))
        self._stack.callback(lambda: self._loop.run_until_complete(self._disconnect()))
        self.command("Page.enable")
        self.command("Runtime.enable")

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def _connect(self, port: int) -> None:
        from tornado.httpclient import AsyncHTTPClient
        from tornado.websocket import websocket_connect

        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
        target = next(entry for entry in json.loads(answer.body) if entry["type"] == "page")
        self._socket = await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28)

    async def _disconnect(self) -> None:
        """In the loop: outside of it, tornado would make another one, which nobody closes."""
        self._socket.close()

    def command(self, method: str, **parameters: Any) -> Any:
        """Run one command of the protocol, and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._command(method, parameters), LONG))

    async def _command(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await self._socket.read_message() or "{}")
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def go(self, address: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.js("window.before = true")
        self.command("Page.navigate", url=address)
        self.until("!window.before && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        result = self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true in the page."""
        return wait_until(lambda: self.js(expression), seconds, expression)

    def size(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        scale = 2 if phone else 1
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: pathlib.Path, whole: bool = False) -> None:
        data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))
