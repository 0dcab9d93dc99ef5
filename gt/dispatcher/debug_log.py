"""GT_DEBUG_DISPATCHER: what the dispatcher receives, decides and sends, for a person to read.

    from client 1: 3 instructions (full 2, matmul)
    to workers 0, 1: %3 = matmul(float32[8,4], float32[4,4]) of %1, %2: S(0), R -> S(0)
    to workers 0, 1: move %3: all_gather(float32[8,4]) of 128 B: S(0) on workers 0,1 -> R on workers 0,1

An instruction for several workers shows the placements of its operands and results. Tensors that the dispatcher makes
are called ``%d1``, ``%d2`` and so on. A repeated fragment is one line; its first run shows its instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gt.dispatcher.core import Dispatcher
from gt.dispatcher.explain import size_text
from gt.dispatcher.instruction_log import message_details
from gt.dispatcher.state import Client, Peer, ViewerState
from gt.dispatcher.stream_entries import StreamEntry, count_ops, read_entries
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS
from gt.wire.event_messages import BatchTaken, ClockReading, DescribeSites, EventBatch, Record, Recorded, Sites
from gt.wire.messages import (
    Admit,
    ChunkTaken,
    Credit,
    Define,
    Done,
    Execute,
    Heartbeat,
    Notice,
    Refusal,
    Submit,
)
from gt.wire.words import FIRST_DISPATCHER_ID

#: Messages that keep the system running and say nothing about a program.
UNSHOWN = (
    *(Admit, BatchTaken, ChunkTaken, ClockReading, Credit, Define, DescribeSites, Done, EventBatch, Heartbeat),
    *(Record, Recorded, Sites),
)
#: Names of peers that are remembered.
MAX_NAMES = 1024


class DebugLog:
    def __init__(self, core: Dispatcher, say: Callable[[str], object]) -> None:
        self._core, self._say = core, say
        #: the names of peers, also of those whose connection has just ended
        self._names: dict[Peer, str] = {}

    def received(self, peer: Peer, message: Any) -> None:
        """Call this after the core has handled the message."""
        if isinstance(message, UNSHOWN):
            return
        name, client = self._name(peer), self._core.by_peer.get(peer)
        if isinstance(message, Submit) and isinstance(client, Client):
            self._say(f"from {name}: {self._summary(client, message.stream)}")
        else:
            self._say(f"from {name}: {_message_text(message)}")

    def sent(self, peers: tuple[Peer, ...], message: Any, rest: tuple[Any, ...]) -> None:
        """A message was sent to these peers; None: the bytes of a value."""
        if isinstance(message, UNSHOWN) or isinstance(self._core.by_peer.get(peers[0]), ViewerState):
            return
        names = [self._name(peer) for peer in peers]
        to = names[0] if len(names) == 1 else "workers " + ", ".join(name.removeprefix("worker ") for name in names)
        if isinstance(message, Execute):
            client = self._core.clients.get(message.client)
            for line in () if client is None else self._lines(client, message.stream):
                self._say(f"to {to}: {line}")
        elif message is None:
            self._say(f"to {to}: a value, {size_text(sum(map(len, rest)))}")
        else:
            self._say(f"to {to}: {_message_text(message)}")

    def _name(self, peer: Peer) -> str:
        if peer not in self._core.by_peer:
            return self._names.get(peer, "a stranger")
        if len(self._names) > MAX_NAMES:
            self._names.clear()
        name = self._names[peer] = self._core.name_of(peer)
        return name

    def _summary(self, client: Client, stream: list[Any]) -> str:
        """What a client submitted, in one line."""
        try:
            entries = list(read_entries(client, stream, expand=False))
        except MALFORMED_STREAM_ERRORS as error:  # the core refuses the stream when it reads it
            return f"a malformed stream: {error}"
        calls = [entry.text for entry in entries if entry.outs is not None]
        others = [entry.text for entry in entries if entry.outs is None]
        number = "1 instruction" if len(calls) == 1 else f"{len(calls)} instructions"
        parts = [f"{number} ({count_ops(calls)})"] * bool(calls) + [count_ops(others)] * bool(others)
        return ", ".join(parts) or "nothing"

    def _lines(self, client: Client, stream: list[Any]) -> Iterator[str]:
        """One line for each instruction that a worker gets; what is freed in a row shares a line."""
        freed: list[str] = []
        for entry in read_entries(client, stream, expand=False):
            if entry.text == "free":
                freed.append(_id(int(entry.note.removeprefix("id="))))
                continue
            if freed:
                yield f"free {', '.join(freed)}"
                freed = []
            yield _line(entry)
        if freed:
            yield f"free {', '.join(freed)}"


def _id(id: int) -> str:
    return f"%d{id - FIRST_DISPATCHER_ID}" if id >= FIRST_DISPATCHER_ID else f"%{id}"


def _line(entry: StreamEntry) -> str:
    if entry.outs is None:
        return f"{entry.text} {entry.note.replace('id=', '%')}".strip()
    outs, ins = ", ".join(map(_id, entry.outs)), ", ".join(map(_id, entry.ins))
    plan = entry.plan
    if plan is not None and plan.is_move:
        what = ins if outs == ins else f"{ins} as {outs}"
        return f"move {what}: {entry.text} of {size_text(entry.nbytes)}: {plan.operands} -> {plan.layout}"
    placed = "" if plan is None else f": {plan.operands} -> {plan.layout}".replace(":  ->", ":")
    under = f" under {entry.signal}" if entry.signal else ""
    return f"{outs + ' = ' if outs else ''}{entry.text}{' of ' + ins if ins else ''}{placed}{under}"


def _message_text(message: Any) -> str:
    details = message_details(message)
    if isinstance(message, Notice | Refusal):
        details = message.text if isinstance(message, Notice) else message.reason
    return f"{type(message).__name__} {details}".strip()
