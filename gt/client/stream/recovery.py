"""``gt.recovery``: the program survives the loss of workers; and what ``gt.snapshot`` returns."""

from __future__ import annotations

from typing import Any

from gt.client.stream import connect
from gt.client.stream.session import Session
from gt.errors import ClusterError, ConfigError
from gt.wire.recovery_messages import TakeSnapshot

__all__ = ["Snapshot", "recovery"]

#: The longest wait for a new worker, and the longest time between two snapshots, in seconds.
MAX_WAIT_S, MAX_EVERY_S = 600.0, 86400.0


def recovery(mode: str, *, wait: float = 0.0, every: float = 0.0) -> None:
    """Choose what happens to tensors on a worker that is lost, in this session and later ones.

    ``"replay"``: the server keeps the program, runs it again on the other workers, and reads go on as if nothing had
    happened. ``"off"``: reads of lost tensors raise `WorkerLost`. Call it before the first tensor.

    ``wait``: how many seconds to wait for a new worker in the place of the lost one, before the program goes on with
    fewer workers. ``every``: take a snapshot every so many seconds, as `gt.snapshot` does; 0: take none.

    Example::

        gt.recovery("replay", wait=60, every=30)
    """
    if mode not in ("replay", "off"):
        raise ConfigError(f'recovery({mode!r}): the mode is "replay" or "off"')
    for name, value, most in (("wait", wait, MAX_WAIT_S), ("every", every, MAX_EVERY_S)):
        if not isinstance(value, int | float) or not 0 <= value <= most:
            raise ConfigError(f"recovery({name}={value!r}): a number of seconds from 0 to {most:g}")
    wanted = (float(wait), float(every)) if mode == "replay" else None
    session = connect.connected()
    if session is not None and session.connection.ended is None and session.connection.recovery != wanted:
        if session.outbox.sent or session.outbox.words or session.connection.recovery is not None:
            raise ConfigError("recovery: call it before the first tensor, or before gt.connect and gt.gpu_workers")
        if wanted is not None:
            session.keep_program(wanted)
    connect.recover_later_sessions(wanted)


class Snapshot:
    """A snapshot that is being taken; `wait` returns when it is complete."""

    def __init__(self, session: Session, kind: Any = TakeSnapshot, *fields: Any) -> None:
        self._session = session
        if session.outbox.recorder is not None:
            session.outbox.recorder.refuse("a snapshot is taken inside")
        session.outbox.cut()
        session.outbox.flush()
        self._answers: list[Any] = session.replies.begin_to_ask(kind, *fields)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is complete; False after so many seconds. Raises ClusterError if there will be none."""
        if not self._session.connection.wait(lambda: bool(self._answers), seconds):
            return False
        if problem := self._answers[0].problem:
            raise ClusterError(f"no snapshot: {problem}")
        return True
