"""Instructions that failed on the workers, and the reads that wait to learn why."""

from __future__ import annotations

from gt.client.stream import sites
from gt.client.stream.pending import PendingValue
from gt.errors import BY_NAME, GtError, RemoteError, WorkerLost
from gt.wire.messages import FailureReport, NoValue
from gt.wire.structures import WorkerInfo

#: The most failures kept for later reads, and the most kept for the summary at the end of a session.
MAX_FAILURES, MAX_UNREAD = 1000, 100


class Failures:
    def __init__(self) -> None:
        #: failures that no read has raised yet: cause -> text
        self.unread: dict[int, str] = {}
        self._reported: dict[int, tuple[type[GtError], str]] = {}
        #: cause -> reads that know only that something failed on another worker; its report may arrive later
        self._waiting: dict[int, list[PendingValue]] = {}

    def report(self, m: FailureReport) -> None:
        """Keep a failure, and raise it in the reads that wait for it."""
        text = with_site(m.text, m.site)
        if len(self.unread) < MAX_UNREAD:
            self.unread[m.cause] = text
        if len(self._reported) >= MAX_FAILURES:
            del self._reported[next(iter(self._reported))]
        kind, _ = self._reported[m.cause] = BY_NAME.get(m.kind, RemoteError), text
        for pending in self._waiting.pop(m.cause, ()):
            self.unread.pop(m.cause, None)
            pending.fail(kind(text))

    def no_value(self, m: NoValue, pending: PendingValue | None) -> None:
        """A read gets no value. If the failure was on another worker, the read waits for that worker's report."""
        self.unread.pop(m.cause, None)
        if pending is None:
            return
        kind = BY_NAME.get(m.kind, RemoteError)
        if not m.elsewhere:
            pending.fail(kind(with_site(m.text, m.site)))
        elif m.cause in self._reported:
            kind, text = self._reported[m.cause]
            pending.fail(kind(text))
        else:
            pending.likely_error = kind(with_site(m.text, m.site))
            self._waiting.setdefault(m.cause, []).append(pending)

    def restart(self) -> None:
        """The program runs again: its failures since the last snapshot will be reported again, with other causes."""
        self.unread.clear()
        self._waiting.clear()

    def workers_lost(self, lost: list[WorkerInfo]) -> None:
        """The report that a read waits for will not come, if one of these workers was to send it."""
        who = ", ".join(f"worker {w.id} ({w.device}, pid {w.pid})" for w in lost)
        for pending in [x for waiting in self._waiting.values() for x in waiting]:
            pending.fail(WorkerLost(f"{who} is gone: {pending.likely_error}"))
        self._waiting.clear()


def with_site(text: str, site: int) -> str:
    """The text, and the user's line that emitted the instruction."""
    place = sites.describe(site)
    return f"{text}\n  called at {place}" if place else text
