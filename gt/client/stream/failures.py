"""What failed on the workers, and who waits to hear why."""

from __future__ import annotations

from gt.client.stream import sites
from gt.client.stream.reads import Pending
from gt.errors import BY_NAME, GtError, RemoteError, WorkerLost
from gt.wire.messages import FailureReport, NoValue, WorkerInfo

#: The failures kept for those who ask later.
KEPT = 1000


class Troubles:
    def __init__(self) -> None:
        #: failures nobody has read yet: cause -> text
        self.unread: dict[int, str] = {}
        self._known: dict[int, tuple[type[GtError], str]] = {}
        #: a worker that only knows that something failed elsewhere may be quicker than the worker where it did
        self._waiting: dict[int, list[Pending]] = {}

    def happened(self, m: FailureReport) -> None:
        text = told(m.text, m.site)
        if len(self.unread) < 100:
            self.unread[m.cause] = text
        if len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        kind, _ = self._known[m.cause] = BY_NAME.get(m.kind, RemoteError), text
        for pending in self._waiting.pop(m.cause, ()):
            self.unread.pop(m.cause, None)
            pending.fail(kind(text))

    def no_value(self, m: NoValue, pending: Pending | None) -> None:
        self.unread.pop(m.cause, None)
        if pending is None:
            return
        kind = BY_NAME.get(m.kind, RemoteError)
        if not m.elsewhere:
            pending.fail(kind(told(m.text, m.site)))
        elif m.cause in self._known:
            kind, text = self._known[m.cause]
            pending.fail(kind(text))
        else:
            pending.guess = kind(told(m.text, m.site))
            self._waiting.setdefault(m.cause, []).append(pending)

    def workers_gone(self, gone: list[WorkerInfo]) -> None:
        """One of them would have said more, or is what more there is to say."""
        who = ", ".join(f"worker {w.id} ({w.device}, pid {w.pid})" for w in gone)
        for pending in [x for waiting in self._waiting.values() for x in waiting]:
            pending.fail(WorkerLost(f"{who} is gone: {pending.guess}"))
        self._waiting.clear()


def told(text: str, site: int) -> str:
    place = sites.describe(site)
    return f"{text}\n  asked for at {place}" if place else text
