"""GT_INSTRUCTION_LOG: one line for each instruction that passes the dispatcher.

    12:31:07.482913 | #17 | RECV | client:1 | matmul(float32[8,4], float32[4,4]) | 128B | client:1 out=9 in=7,8
    12:31:07.483020 | #18 | WORKER_SEND | worker:0 | matmul(…) | 128B | client:1 out=9 in=7,8 shard=S(0) on workers 0,1

RECV and SEND are the client's side, WORKER_SEND and WORKER_RECV the workers' side. The size is that of the result.
Failures say ERROR. An instruction emitted under a signal names the signal. An instruction for several workers shows its
layout. A message that is not an instruction has the number 0. The server adds the time and writes the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.dispatcher.core import Dispatcher
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.dispatcher.stream_entries import StreamEntry, read_entries
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS
from gt.wire.event_messages import ClockReading, DescribeSites, EventBatch, Record, Recorded
from gt.wire.messages import Done, Execute, FailureReport, Heartbeat, NoValue, Reply, Submit

#: Messages that are sent at intervals and say nothing about a program.
UNLOGGED = (Heartbeat, Record, EventBatch, DescribeSites)


class InstructionLog:
    def __init__(self, core: Dispatcher, write: Callable[[str], object]) -> None:
        self._core, self._write = core, write
        self._count = 0

    def received(self, peer: Peer, message: Any) -> None:
        """Call this after the core has handled the message: the core then knows the signatures in it."""
        sender = self._core.by_peer.get(peer)
        if sender is None:
            self._line(0, "RECV", "stranger", type(message).__name__, 0, "")
        elif isinstance(sender, Client):
            self._from_client(sender, message)
        elif isinstance(sender, WorkerState) and not isinstance(message, Done | Recorded | ClockReading):
            self._message("WORKER_RECV", f"worker:{sender.id}", message)

    def sent(self, peers: tuple[Peer, ...], message: Any, rest: tuple[Any, ...]) -> None:
        """Log a message to clients or workers, except heartbeats."""
        for peer in peers:
            self._sent_to(peer, message, rest)

    def _sent_to(self, peer: Peer, message: Any, rest: tuple[Any, ...]) -> None:
        receiver = self._core.by_peer.get(peer)
        if receiver is None or isinstance(receiver, ViewerState) or isinstance(message, UNLOGGED):
            return
        if isinstance(receiver, Client):
            nbytes = sum(map(len, rest))
            text = "value" if message is None else type(message).__name__
            self._line(0, "SEND", f"client:{receiver.id}", text, nbytes, message_details(message))
        elif isinstance(message, Execute):
            client = self._core.clients.get(message.client)
            if client is not None:
                self._stream("WORKER_SEND", f"worker:{receiver.id}", client, message.stream)
        else:
            self._message("WORKER_SEND", f"worker:{receiver.id}", message)

    def _from_client(self, client: Client, message: Any) -> None:
        if not isinstance(message, Submit):
            self._message("RECV", f"client:{client.id}", message)
            return
        self._stream("RECV", f"client:{client.id}", client, message.stream)

    def _message(self, event: str, peer: str, message: Any) -> None:
        self._line(0, event, peer, type(message).__name__, 0, message_details(message))

    def _stream(self, event: str, peer: str, client: Client, stream: list[Any]) -> None:
        try:
            for entry in read_entries(client, stream, expand=True):
                self._count += 1
                self._line(self._count, event, peer, entry.text, entry.nbytes, _entry_details(client, entry))
        except MALFORMED_STREAM_ERRORS as error:  # the core refuses the stream when it reads it
            self._line(self._count, event, peer, "malformed", 0, f"client:{client.id} ERROR {error}")

    def _line(self, number: int, event: str, peer: str, text: str, nbytes: int, details: str) -> None:
        self._write(f"#{number} | {event} | {peer} | {text} | {nbytes}B | {details}")


def _entry_details(client: Client, entry: StreamEntry) -> str:
    """The last column of the line for an instruction or a control word."""
    if entry.outs is None:
        return f"client:{client.id} {entry.note}".strip()
    outs, ins = (",".join(map(str, ids)) for ids in (entry.outs, entry.ins))
    shard = "" if entry.plan is None else f" shard={entry.plan.layout}"
    signal = f" signal={entry.signal}" if entry.signal else ""
    return f"client:{client.id} out={outs} in={ins}{shard}{signal}"


def message_details(message: Any) -> str:
    """The last column of the line for a message that is not a stream."""
    if isinstance(message, FailureReport | NoValue):
        return f"ERROR {message.kind}: {message.text}"
    if isinstance(message, Reply):
        return f"client:{message.client} request={message.request}"
    return ""
