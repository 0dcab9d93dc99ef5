"""What happened to a dispatcher, and what it answered: recorded in one process, repeated in another one.

``python -m tests.support.event_record FILE`` repeats a record, and prints the number of equal answers.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import msgspec

from gt.dispatcher.actions import Action, Close, SendAll
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.listeners import Clocks
from gt.wire.codec import Decode, encode

#: the name of the event, its arguments, the answer
Event = tuple[str, list[Any], list[Any]]


def plain(actions: list[Action]) -> list[Any]:
    """Actions as data that can be compared."""
    rows: list[Any] = []
    for action in actions:
        if isinstance(action, Close):
            rows.append([[action.peer], action.reason, []])
        elif isinstance(action, SendAll):
            rows.append([list(action.peers), encode(action.message), []])
        else:
            rows.append([[action.peer], action.message and encode(action.message), [bytes(f) for f in action.rest]])
    return rows


class RecordedDispatcher(Dispatcher):
    """A dispatcher that writes down its events and its answers."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.events: list[Event] = []

    def _record(self, name: str, arguments: list[Any], actions: list[Action]) -> list[Action]:
        self.events.append((name, arguments, plain(actions)))
        return actions

    def handle(self, peer: bytes, message: Any, rest: tuple[Any, ...] = (), nbytes: int = 0) -> list[Action]:
        arguments = [peer, encode(message), [bytes(frame) for frame in rest], nbytes]
        return self._record("handle", arguments, super().handle(peer, message, rest, nbytes))

    def gone(self, peer: bytes) -> list[Action]:
        return self._record("gone", [peer], super().gone(peer))

    def bad_frame(self, peer: bytes, reason: str) -> list[Action]:
        return self._record("bad_frame", [peer, reason], super().bad_frame(peer, reason))

    def tick(self, now: float) -> list[Action]:
        return self._record("tick", [now], super().tick(now))


def repeat(events: list[Event]) -> int:
    """Let a new dispatcher handle the events; returns how many actions were equal. Raises if one is not."""
    dispatcher, decode, count = Dispatcher(clocks=Clocks(lambda: 0, lambda: 0)), Decode("dispatcher"), 0
    for name, arguments, expected in events:
        if name == "handle":
            peer, message, rest, nbytes = arguments
            actions = dispatcher.handle(peer, decode(message), tuple(rest), nbytes)
        else:
            actions = getattr(dispatcher, name)(*arguments)
        answer = plain(actions)
        assert answer == expected, f"event {name}{arguments!r:.400}:\n{answer!r:.2000}\n{expected!r:.2000}"
        count += len(answer)
    return count


if __name__ == "__main__":
    record = msgspec.msgpack.decode(pathlib.Path(sys.argv[1]).read_bytes())
    print("equal actions:", sum(map(repeat, record)))
