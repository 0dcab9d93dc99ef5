"""GT_INSTRUCTION_LOG: one line an instruction, as it passes the dispatcher.

    12:31:07.482913 | #17 | RECV | client:1 | matmul(float32[8,4], float32[4,4]) | 128B | client:1 out=9 in=7,8
    12:31:07.483020 | #18 | WORKER_SEND | worker:0 | matmul(…) | 128B | client:1 out=9 in=7,8 shard=S(0) on workers 0,1

RECV and SEND are the client's side, WORKER_SEND and WORKER_RECV the workers'. The size is the result's. Failures say
ERROR. What was emitted under a signal names it, and what goes to several workers says how it is cut. A message that is
no instruction has the number 0.
"""

from __future__ import annotations

import time
from typing import Any

from gt.dispatcher.actions import Send
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.forward import NONSENSE
from gt.dispatcher.ledger import Told
from gt.dispatcher.state import Client, Peer
from gt.wire.messages import (
    DISCARD,
    FETCH,
    FORGET,
    LEAVE,
    READ,
    RESET,
    RUN,
    TRACE,
    Done,
    Execute,
    FailureReport,
    Heartbeat,
    NoValue,
    Reply,
    Submit,
)

#: control words with one word behind them
SHORT = {DISCARD: "discard", RESET: "reset", LEAVE: "leave"}


class Trail:
    def __init__(self, path: str, core: Dispatcher) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 (open as long as the server runs)
        self._core = core
        self._count = 0

    def received(self, peer: Peer, message: Any) -> None:
        """Called when the core knows of it already: then it knows the signatures."""
        known = self._core.by_peer.get(peer)
        if known is None:
            self._line(0, "RECV", "stranger", type(message).__name__, 0, "")
        elif isinstance(known, Client):
            self._from_client(known, message)
        elif not isinstance(message, Done):
            self._message("WORKER_RECV", f"worker:{known.id}", message)

    def sent(self, action: Send) -> None:
        known = self._core.by_peer.get(action.peer)
        message = action.message
        if known is None or isinstance(message, Heartbeat):
            return
        if isinstance(known, Client):
            size = sum(map(len, action.rest))
            what = "value" if message is None else type(message).__name__
            self._line(0, "SEND", f"client:{known.id}", what, size, _details(message))
        elif isinstance(message, Execute):
            client = self._core.clients.get(message.client)
            if client is not None:
                self._stream("WORKER_SEND", f"worker:{known.id}", client, message.stream)
        else:
            self._message("WORKER_SEND", f"worker:{known.id}", message)

    def _from_client(self, client: Client, message: Any) -> None:
        if not isinstance(message, Submit):
            self._message("RECV", f"client:{client.id}", message)
            return
        self._stream("RECV", f"client:{client.id}", client, message.stream)

    def _message(self, event: str, who: str, message: Any) -> None:
        self._line(0, event, who, type(message).__name__, 0, _details(message))

    def _stream(self, event: str, who: str, client: Client, stream: list[Any]) -> None:
        i = 0
        try:
            while i < len(stream):
                i += self._instruction(event, who, client, stream, i)
        except NONSENSE as error:  # the core will refuse it when its turn comes
            self._line(self._count, event, who, "nonsense", 0, f"client:{client.id} ERROR {error}")

    def _instruction(self, event: str, who: str, client: Client, stream: list[Any], i: int) -> int:
        code = stream[i]
        self._count += 1
        if code < 0:
            self._line(self._count, event, who, "free", 0, f"client:{client.id} id={-code}")
            return 1
        if code in (RUN, FORGET):
            return self._fragment(event, who, client, stream, i)
        if code in SHORT:
            self._line(self._count, event, who, SHORT[code], 0, f"client:{client.id}")
            return 2
        if code == FETCH:
            self._line(self._count, event, who, "fetch", 0, f"client:{client.id} id={stream[i + 2]}")
            return 3
        if code == TRACE:
            self._line(self._count, event, who, "trace", 0, f"client:{client.id} begin={stream[i + 2]}")
            return 3
        if code == READ:
            self._line(self._count, event, who, "read", 0, f"client:{client.id} id={stream[i + 2]}")
            return 4
        if (told := client.book.told.get(code)) is not None:
            return self._told(event, who, client, told, stream, i)
        coded = client.codes.get(code)
        if coded is None:  # forgotten by now, or never known: where the next one begins nobody can tell
            self._line(self._count, event, who, f"code {code}", 0, f"client:{client.id}")
            return len(stream)
        signature = coded.signature
        outs = ",".join(map(str, stream[i + 2 : i + coded.start]))
        ins = ",".join(str(stream[i + o]) for o in coded.offsets)
        size = sum(t.nbytes for t in signature.outs)
        details = f"client:{client.id} out={outs} in={ins}{_under(coded.definition.signal)}"
        self._line(self._count, event, who, str(signature), size, details)
        return coded.width

    def _fragment(self, event: str, who: str, client: Client, stream: list[Any], i: int) -> int:
        """A fragment is told instruction by instruction."""
        known = client.fragments.get(stream[i + 1])
        form = client.book.fragments.get(stream[i + 1]) if known is None else known.form
        if stream[i] == FORGET or form is None:
            self._line(self._count, event, who, "forget a fragment", 0, f"client:{client.id}")
            return 2 if stream[i] == FORGET else len(stream)
        base, own, inputs, numbers = form.read_run(stream, i)
        self._stream(event, who, client, form.expand(form.slot_ids(base, own, inputs), numbers))
        return int(form.width)

    def _told(self, event: str, who: str, client: Client, told: Told, stream: list[Any], i: int) -> int:
        """What the dispatcher made of an instruction for several workers, or a move it put before."""
        outs = ",".join(map(str, stream[i + 2 : i + told.start]))
        ins = ",".join(str(stream[i + o]) for o in told.offsets)
        details = f"client:{client.id} out={outs} in={ins} shard={told.layout}{_under(told.signal)}"
        self._line(self._count, event, who, told.text, told.nbytes, details)
        return told.width

    def _line(self, number: int, event: str, who: str, what: str, size: int, details: str) -> None:
        now = time.time()
        stamp = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
        self._file.write(f"{stamp} | #{number} | {event} | {who} | {what} | {size}B | {details}\n")


def _under(signal: str) -> str:
    return f" signal={signal}" if signal else ""


def _details(message: Any) -> str:
    if isinstance(message, FailureReport | NoValue):
        return f"ERROR {message.kind}: {message.text}"
    if isinstance(message, Reply):
        return f"client:{message.client} request={message.request}"
    return ""
