"""The dashboard: a web page that shows a running system, and metrics for Prometheus. `python -m gt.dashboard` runs it.

    feed.py       a thread: connects to the server as a viewer, while somebody looks, and makes messages for pages
    recent.py     the events of the last minute: as bars for the page, or as a table for Perfetto
    access.py     one-time links, cookies, and which hosts may be named
    web.py        HTTP and WebSocket, by tornado
    metrics.py    what /metrics tells, by prometheus_client
    page/         the page: one file of HTML, with style and scripts put into it

It is a process of its own, so the server's loop never waits for it. `gt.server --dashboard` and `gt.debug.dashboard`
start it (`gt.launch.dashboard`). This folder imports `gt.events` and what is below it.
"""

from __future__ import annotations
