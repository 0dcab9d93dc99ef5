"""A dashboard with open pages for events.py: ``python benchmarks/events_pages_child.py SERVER PAGES`` until its end.

A page here is a WebSocket that reads every message and confirms ten at once, as the page in a browser does; it draws
nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from gt.launch.dashboard import LINK, DashboardProcess

CONFIRMED_AT_ONCE = 10


def sign_in(link: str) -> str:
    """The cookie that a link gives."""
    parts = urlsplit(link)
    connection = HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"/?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.headers["Set-Cookie"].split(";")[0]


async def follow(host: str, cookie: str, ready: asyncio.Event) -> None:
    """One page; ``ready`` is set when it has got bars."""
    socket = await websocket_connect(HTTPRequest(f"ws://{host}/live", headers={"Cookie": cookie}))
    read = 0
    while (text := await socket.read_message()) is not None:
        read += 1
        if read % CONFIRMED_AT_ONCE == 0:
            await socket.write_message(f'{{"read": {CONFIRMED_AT_ONCE}}}')
        if not ready.is_set() and json.loads(text)["kind"] == "load":
            ready.set()


async def main(server: str, pages: int) -> None:
    dashboard = DashboardProcess(server, "--listen", "0")
    link = dashboard.lines[0].removeprefix(LINK).strip()
    cookie, events = sign_in(link), [asyncio.Event() for _ in range(pages)]
    tasks = [asyncio.create_task(follow(urlsplit(link).netloc, cookie, event)) for event in events]
    await asyncio.gather(*(event.wait() for event in events))
    print("listening", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
