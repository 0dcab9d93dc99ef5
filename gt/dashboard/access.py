"""Who may see the page: one-time links give a cookie, and only known hosts may be named.

A page of another site cannot get in: its requests carry no cookie (SameSite=Strict), its scripts may not read the
answers (no CORS header), its WebSockets are refused (their Origin is not our Host). A site that lets its own name point
to this machine (DNS rebinding) is refused, because its requests name that site as their Host.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from hmac import compare_digest
from urllib.parse import urlsplit

#: The most links that are open, and the most browsers that are signed in; the oldest are forgotten.
MAX_LINKS, MAX_SESSIONS = 100, 1000


class LinkAccess:
    """The open links and the sessions of one dashboard. ``host``: the address it listens on."""

    def __init__(self, host: str) -> None:
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._links: list[str] = []
        self._sessions: list[str] = []

    def new_link(self) -> str:
        """The key of a new one-time link."""
        self._links = [*self._links[1 - MAX_LINKS :], secrets.token_urlsafe(24)]
        return self._links[-1]

    def redeem(self, key: str) -> str | None:
        """The session that a link gives; None if there is no such link, or it was used."""
        link = next((link for link in self._links if compare_digest(link.encode(), key.encode())), None)
        if link is None:
            return None
        self._links.remove(link)
        self._sessions = [*self._sessions[1 - MAX_SESSIONS :], secrets.token_urlsafe(24)]
        return self._sessions[-1]

    def is_session(self, cookie: str | None) -> bool:
        return cookie is not None and any(compare_digest(s.encode(), cookie.encode()) for s in self._sessions)

    def is_known_host(self, host: str) -> bool:
        """Whether a request may name this host. The names of this machine are known. A number is safe: another site's
        page has that site's name."""
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def is_same_origin(self, origin: str | None, host: str) -> bool:
        """Whether a WebSocket comes from our own page. Programs that are no browser send no Origin."""
        return origin is None or urlsplit(origin).netloc.lower() == host.lower()
