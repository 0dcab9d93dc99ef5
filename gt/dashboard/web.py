"""HTTP and WebSocket: the page, its messages, Perfetto files, metrics. tornado does the protocol.

/                 the page; with ?key=… from a one-time link it gives a cookie           needs a link or a cookie
/live             the page's messages, by WebSocket                                      needs the cookie
/perfetto.json    the last seconds, for ui.perfetto.dev                                  needs the cookie
/metrics          for Prometheus                                                         open: nothing of users
/healthz          200 while the server answers, otherwise 503                            open
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode
from tornado.ioloop import IOLoop
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gt.dashboard.access import LinkAccess
from gt.dashboard.feed import Feed

PAGE = Path(__file__).parent / "page"
#: The most messages that a page has not confirmed. A page that is further behind misses some.
MAX_UNREAD = 40
#: The longest stretch of a Perfetto file, in seconds.
MAX_SAVED_S = 60.0
#: Who may show the page in a frame: a notebook on this machine, on any port. Its site gets no cookie unless it has the
#: same host name as the page.
FRAMES = "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"


@functools.cache
def build_page() -> tuple[str, str]:
    """The page as one file, and the policy that lets a browser run only what is in it and load nothing from outside."""
    text = (PAGE / "index.html").read_text()
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def put(match: re.Match[str]) -> str:
        body = "\n".join((PAGE / name).read_text() for name in match["files"].split())
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        hashes[match["kind"]].append(f"'sha256-{digest}'")
        return f"<{match['kind']}>{body}</{match['kind']}>"

    text = re.sub(r"<!-- (?P<kind>script|style): (?P<files>[\w. ]+) -->", put, text)
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        f"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; {FRAMES}"
    )
    return text, policy


class Guarded(RequestHandler):
    """A request that must name a known host; `signed_in` says whether it has a cookie."""

    def initialize(self, access: LinkAccess, feed: Feed, cookie: str) -> None:
        self.access, self.feed, self.cookie = access, feed, cookie

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Content-Security-Policy", FRAMES)
        self.set_header("Server", "gt")

    def prepare(self) -> None:
        if not self.access.is_known_host(self.request.host):
            self.set_status(403)
            self.finish("this host name is not known here; use localhost or the machine's address\n")

    @property
    def signed_in(self) -> bool:
        return self.access.is_session(self.get_cookie(self.cookie))

    def refuse(self) -> None:
        self.set_status(403)
        self.finish((PAGE / "sign_in.html").read_text())


class PageHandler(Guarded):
    def get(self) -> None:
        key = self.get_query_argument("key", None)
        session = None if key is None else self.access.redeem(key)
        if session is not None:
            self.set_cookie(self.cookie, session, httponly=True, samesite="Strict", path="/")
        elif not self.signed_in:
            self.refuse()
            return
        text, policy = build_page()
        self.set_header("Content-Security-Policy", policy)
        self.finish(text)


class PerfettoHandler(Guarded):
    async def get(self) -> None:
        if not self.signed_in:
            self.refuse()
            return
        try:
            seconds = min(max(float(self.get_query_argument("seconds", "10")), 0.1), MAX_SAVED_S)
        except ValueError:
            self.set_status(400)
            self.finish("seconds must be a number\n")
            return
        self.set_header("Content-Type", "application/json")
        self.set_header("Content-Disposition", 'attachment; filename="gt_trace.json"')
        self.finish(await IOLoop.current().run_in_executor(None, self.feed.perfetto, seconds))


class LiveHandler(WebSocketHandler):
    """One page. It confirms messages, ten at once, so a slow page misses some instead of filling our memory."""

    def initialize(self, access: LinkAccess, feed: Feed, cookie: str, pages: set[LiveHandler]) -> None:
        self._access, self._feed, self._cookie, self._pages = access, feed, cookie, pages
        self._unread = 0

    def check_origin(self, origin: str) -> bool:
        return self._access.is_same_origin(origin, self.request.host)

    async def get(self, *args: Any, **kwargs: Any) -> None:
        known = self._access.is_known_host(self.request.host)
        if not known or not self._access.is_session(self.get_cookie(self._cookie)):
            self.set_status(403)
            self.finish("no entry\n")
            return
        await super().get(*args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        self._pages.add(self)
        self._feed.pages = len(self._pages)
        self.send(self._feed.hello())

    def on_close(self) -> None:
        self._pages.discard(self)
        self._feed.pages = len(self._pages)

    def send(self, message: bytes) -> None:
        if self._unread < MAX_UNREAD:
            self._unread += 1
            try:
                self.write_message(message)
            except WebSocketClosedError:
                self.on_close()

    async def on_message(self, message: str | bytes) -> None:
        """``{"read": 10}`` confirms so many messages; ``{"close": [begin, end]}`` asks for a stretch in detail."""
        try:
            request = decode(message, type=dict[str, int | tuple[int, int]])
        except DecodeError:
            self.close(1008, "not a request")
            return
        if isinstance(count := request.get("read"), int):
            self._unread = max(0, self._unread - count)
        if isinstance(span := request.get("close"), tuple) and span[0] < span[1]:
            self.send(await IOLoop.current().run_in_executor(None, self._feed.close_view, *span))


class MetricsHandler(RequestHandler):
    def initialize(self, feed: Feed) -> None:
        self._feed = feed

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(await IOLoop.current().run_in_executor(None, self._feed.scrape))


class HealthHandler(MetricsHandler):
    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_status(503 if self._feed.lost else 200)
        self.finish("the server does not answer\n" if self._feed.lost else "ok\n")


def metrics_application(feed: Feed) -> Application:
    return Application(_open_routes(feed), log_function=_log_nothing)


def dashboard_application(feed: Feed, access: LinkAccess, pages: set[LiveHandler], port: int) -> Application:
    # cookies are shared by all ports of a host, so each dashboard has a name of its own
    parts = {"access": access, "feed": feed, "cookie": f"gt_dashboard_{port}"}
    routes: list[Any] = [
        (r"/", PageHandler, parts),
        (r"/live", LiveHandler, {"pages": pages, **parts}),
        (r"/perfetto.json", PerfettoHandler, parts),
        *_open_routes(feed),
    ]
    return Application(routes, log_function=_log_nothing, websocket_max_message_size=1000)


def _open_routes(feed: Feed) -> list[Any]:
    return [(r"/metrics", MetricsHandler, {"feed": feed}), (r"/healthz", HealthHandler, {"feed": feed})]


def _log_nothing(handler: RequestHandler) -> None:
    """Requests are not logged: their addresses hold the keys of links."""
