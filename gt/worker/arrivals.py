"""The messages that have arrived at a worker and were not handled yet.

They are handled in order of arrival, with one exception: an urgent `Execute` runs before messages of other clients. It
never runs before an earlier message of its own client, nor before a message that is no client's. The messages that are
not urgent keep their order among themselves. These include all moves, so moves start in the same order on all workers.
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: A message, and its frames.
Arrival = tuple[Any, list[bytes]]


class Arrivals:
    def __init__(self) -> None:
        self._messages: deque[Arrival] = deque()
        #: how many of them are urgent
        self._urgent = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Any, frames: list[bytes]) -> None:
        self._messages.append((message, frames))
        self._urgent += getattr(message, "urgent", False)

    def next(self) -> Arrival:
        """Take the message that is handled next. There must be one."""
        if (urgent := self.next_urgent()) is not None:
            return urgent
        arrival = self._messages.popleft()
        self._urgent -= getattr(arrival[0], "urgent", False)
        return arrival

    def next_urgent(self, running: int = 0) -> Arrival | None:
        """Take the first urgent message that may run now, in the middle of a message of the client ``running``."""
        if not self._urgent:
            return None
        blocked = {running}
        for index, arrival in enumerate(self._messages):
            client = getattr(arrival[0], "client", None)
            if client is None:
                return None
            if client not in blocked and getattr(arrival[0], "urgent", False):
                del self._messages[index]
                self._urgent -= 1
                return arrival
            blocked.add(client)
        return None
