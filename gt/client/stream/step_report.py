"""``gt.debug.explain_last_step``: where the time of the last step went. It listens to the events of its own session."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from gt.client.stream.connect import session
from gt.client.stream.session import Session
from gt.errors import CompileError

if TYPE_CHECKING:
    from gt.events.breakdown import Breakdown

#: The most waits of the client that are kept.
MAX_WAITS = 100_000
BEGUN = (
    "gt.debug.explain_last_step: recording has begun; run at least one more step, then call it again\n"
    "(gt.debug.explain_last_step(stop=True) ends the recording)"
)


class StepRecording:
    """The events of a session since the last report."""

    def __init__(self, client: Session) -> None:
        from gt.events.table import EventTable

        self.client = client
        self.waits: deque[tuple[int, int]] = deque(maxlen=MAX_WAITS)
        client.connection.waits = self.waits
        self.table = EventTable()
        asked = time.perf_counter_ns()
        listening = client.listen(lambda batch: self.table.add(batch))
        now = time.perf_counter_ns()
        #: nanoseconds to add to this program's clock, to get the server's
        self.offset = listening.now - (asked + now) // 2
        self.begun = now

    def breakdown(self) -> Breakdown:
        """End the recording. Where the time between the last two steps went; without two, since it began."""
        import numpy as np

        from gt.events.breakdown import break_down

        self.client.outbox.cut()
        self.client.finish(None)
        ended = time.perf_counter_ns()
        self.client.stop_listening()
        self.client.connection.waits = None
        steps = [moment for moment in self.client.outbox.training.ended if moment >= self.begun]
        begun, ended = (steps[0], steps[1]) if len(steps) == 2 else (self.begun, ended)
        waits = np.array(self.waits, dtype=np.int64).reshape(-1, 2) + self.offset
        span = begun + self.offset, ended + self.offset
        return break_down(self.table, *span, [self.client.id], waits)


def last_step_report(stop: bool) -> str:
    """The report of the current session, and a new recording unless ``stop``; the first time only a recording."""
    client = session()
    if client.outbox.recorder is not None:
        raise CompileError("gt.debug.explain_last_step: inside a compiled function; call it outside")
    recording: StepRecording | None = client.step_recording
    text = BEGUN if recording is None else "\n".join(recording.breakdown().lines_of_text())
    client.step_recording = None if stop else StepRecording(client)
    return text
