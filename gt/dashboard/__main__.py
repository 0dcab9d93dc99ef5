"""``python -m gt.dashboard``: the web page of a running server. Prints a link that opens it once.

Finds the server by itself; ``--host`` and ``--port``, or ``--unix``, name another one. ``--listen`` says where the page
is, ``--metrics`` where Prometheus finds /metrics and /healthz. Enter prints another link.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from gt.errors import GtError
from gt.launch.command_name import command_name, make_parser
from gt.launch.dashboard import INSTALL_DASHBOARD, LINK, METRICS, READY, parse_address
from gt.launch.parent import end_with_parent


def main(argv: list[str] | None = None) -> int:
    from gt.scripts.command import add_server_options, run

    parser = make_parser("gt.dashboard", __doc__)
    parser.add_argument("--listen", metavar="[ADDRESS:]PORT", help="where the page is (default 127.0.0.1:8787)")
    parser.add_argument("--metrics", metavar="[ADDRESS:]PORT", help="only metrics, or metrics at a port of their own")
    parser.add_argument("--server", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--with-parent", type=int, default=0, help=argparse.SUPPRESS)
    add_server_options(parser)
    options = parser.parse_args(argv)
    if options.with_parent:
        end_with_parent(parent=options.with_parent)
    return run(command_name("gt.dashboard"), lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from gt.scripts.command import chosen_server

    try:
        import prometheus_client  # noqa: F401
        import tornado  # noqa: F401
    except ImportError as error:
        raise GtError(f"{error.name} is not installed; {INSTALL_DASHBOARD}") from None
    address = options.server or chosen_server(options)
    page = parse_address(options.listen, "--listen") if options.listen or not options.metrics else None
    metrics = parse_address(options.metrics, "--metrics") if options.metrics else None
    asyncio.run(_serve(address, page, metrics, bool(options.with_parent)))
    return 0


async def _serve(
    address: str, page: tuple[str, int] | None, metrics: tuple[str, int] | None, with_parent: bool
) -> None:
    from gt.dashboard.access import LinkAccess
    from gt.dashboard.feed import Feed
    from gt.dashboard.metrics import Metrics
    from gt.dashboard.web import LiveHandler, dashboard_application, metrics_application

    loop = asyncio.get_running_loop()
    pages: set[LiveHandler] = set()

    def send_all(message: bytes) -> None:
        for live in list(pages):
            live.send(message)

    def publish(message: bytes) -> None:
        loop.call_soon_threadsafe(send_all, message)

    feed = Feed(address, publish, Metrics())
    if metrics is not None:
        host, port = _listen(*metrics, lambda port: metrics_application(feed))
        print(f"{METRICS} http://{host}:{port}/metrics", flush=True)
    if page is not None:
        access = LinkAccess(page[0])
        host, port = _listen(*page, lambda port: dashboard_application(feed, access, pages, port))

        def print_link() -> None:
            print(f"{LINK} http://{host}:{port}/?key={access.new_link()}", flush=True)

        print_link()
        threading.Thread(target=_watch_input, args=(loop, print_link), name="gt-links", daemon=True).start()
    feed.start()
    if with_parent:  # it waits for this line
        print(READY, flush=True)
    await asyncio.Event().wait()


def _listen(host: str, port: int, application: Callable[[int], Any]) -> tuple[str, int]:
    """Serve an application, which is made for its port. Returns how a browser names the host, and the port."""
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_sockets

    try:
        sockets = bind_sockets(port, host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise GtError(f"port {port} is taken by another program; choose another one") from None
        raise GtError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    port = sockets[0].getsockname()[1]
    HTTPServer(application(port)).add_sockets(sockets)
    host = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"[{host}]" if ":" in host else host, port


def _watch_input(loop: asyncio.AbstractEventLoop, print_link: Callable[[], None]) -> None:
    """Print another link for each line of input."""
    for _ in sys.stdin:
        loop.call_soon_threadsafe(print_link)


if __name__ == "__main__":
    sys.exit(main())
