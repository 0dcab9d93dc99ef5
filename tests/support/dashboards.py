"""A server with a dashboard, two workers and a client that trains; and requests to the dashboard without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.processes import LONG, System

TRAINING = """
    gt.auto_shard()
    model = gt.nn.Sequential(gt.nn.Linear(64, 128), gt.nn.ReLU(), gt.nn.Linear(128, 4))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = gt.randn(256, 64), gt.randn(256, 4)
    step = 0
    while True:
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        loss.item()
        step += 1
        if step == 5:
            say("training")
        time.sleep(0.05)
"""


class TrainingSystem(System):
    """``link`` is not used yet."""

    def __init__(self, stack: contextlib.ExitStack, **extra: str) -> None:
        super().__init__(stack, "--dashboard", "0", "--metrics", "0", **extra)
        self.link = self.server.expect("dashboard:").split()[-1]
        self.metrics = self.server.expect("metrics:").split()[-1]
        for _ in range(2):
            self.worker("--backend", "numpy")

    @property
    def address(self) -> str:
        """The host and port of the page."""
        return urlsplit(self.link).netloc

    def train(self) -> None:
        self.training = self.client(TRAINING)
        self.training.expect("training")


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """(status, headers, text) of a request; ``cookie`` and ``host`` among the headers."""
    connection = http.client.HTTPConnection(address, timeout=LONG)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={name.capitalize(): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


def sign_in(link: str) -> str:
    """The cookie that a link gives."""
    parts = urlsplit(link)
    status, headers, _ = get(parts.netloc, f"{parts.path}?{parts.query}")
    assert status == 200
    return headers["set-cookie"].split(";")[0]


class Messages:
    """What a page gets. Use it in a ``with`` block, and iterate over it."""

    def __init__(self, address: str, **headers: str) -> None:
        self._address, self._headers = address, {name.capitalize(): value for name, value in headers.items()}

    def __enter__(self) -> Messages:
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        self._loop = asyncio.new_event_loop()

        async def connect() -> Any:
            return await websocket_connect(HTTPRequest(f"ws://{self._address}/live", headers=self._headers))

        try:
            self._socket = self._loop.run_until_complete(connect())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            self._socket.close()
            while self._socket.protocol is not None and await self._socket.read_message() is not None:
                pass

        self._loop.run_until_complete(close())
        self._loop.close()

    def send(self, text: str) -> None:
        async def write() -> None:
            await self._socket.write_message(text)

        self._loop.run_until_complete(write())

    def raw(self) -> Any:
        """The text of the next message; None if the connection has ended."""

        async def read() -> Any:
            return await asyncio.wait_for(self._socket.read_message(), LONG)

        return self._loop.run_until_complete(read())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (text := self.raw()) is not None:
            self.send('{"read": 1}')
            yield json.loads(text)

    def first(self, kind: str, condition: Any = lambda message: True) -> dict[str, Any]:
        """The next message of this kind that fulfils a condition."""
        return next(message for message in self if message["kind"] == kind and condition(message))
