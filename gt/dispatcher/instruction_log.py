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

from gt.dispatcher.actions import SendMessage
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.ledger import CodeInfo
from gt.dispatcher.state import Client, Peer, ViewerState, WorkerState
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS
from gt.wire.event_messages import ClockReading, DescribeSites, EventBatch, Record, Recorded
from gt.wire.messages import Done, Execute, FailureReport, Heartbeat, NoValue, Reply, Submit
from gt.wire.words import DISCARD, FETCH, FORGET, LEAVE, READ, RESET, RUN, TRACE

#: Messages that are sent at intervals and say nothing about a program.
UNLOGGED = (Heartbeat, Record, EventBatch, DescribeSites)
#: Control words that are followed by one word.
ONE_ARGUMENT = {DISCARD: "discard", RESET: "reset", LEAVE: "leave"}


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

    def sent(self, action: SendMessage) -> None:
        """Log a message to a client or a worker, except heartbeats."""
        receiver = self._core.by_peer.get(action.peer)
        message = action.message
        if receiver is None or isinstance(receiver, ViewerState) or isinstance(message, UNLOGGED):
            return
        if isinstance(receiver, Client):
            nbytes = sum(map(len, action.rest))
            text = "value" if message is None else type(message).__name__
            self._line(0, "SEND", f"client:{receiver.id}", text, nbytes, _details(message))
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
        self._line(0, event, peer, type(message).__name__, 0, _details(message))

    def _stream(self, event: str, peer: str, client: Client, stream: list[Any]) -> None:
        i = 0
        try:
            while i < len(stream):
                i += self._instruction(event, peer, client, stream, i)
        except MALFORMED_STREAM_ERRORS as error:  # the core refuses the stream when it reads it
            self._line(self._count, event, peer, "malformed", 0, f"client:{client.id} ERROR {error}")

    def _instruction(self, event: str, peer: str, client: Client, stream: list[Any], i: int) -> int:
        """Log the instruction at ``i``; return how many words it has."""
        code = stream[i]
        self._count += 1
        if code < 0:
            self._line(self._count, event, peer, "free", 0, f"client:{client.id} id={-code}")
            return 1
        if code in (RUN, FORGET):
            return self._fragment(event, peer, client, stream, i)
        if code in ONE_ARGUMENT:
            self._line(self._count, event, peer, ONE_ARGUMENT[code], 0, f"client:{client.id}")
            return 2
        if code == FETCH:
            self._line(self._count, event, peer, "fetch", 0, f"client:{client.id} id={stream[i + 2]}")
            return 3
        if code == TRACE:
            self._line(self._count, event, peer, "trace", 0, f"client:{client.id} begin={stream[i + 2]}")
            return 3
        if code == READ:
            self._line(self._count, event, peer, "read", 0, f"client:{client.id} id={stream[i + 2]}")
            return 4
        if (info := client.ledger.codes.get(code)) is not None:
            return self._sharded(event, peer, client, info, stream, i)
        coded = client.codes.get(code)
        if coded is None:  # the signature is unknown, and so is the position of the next instruction
            self._line(self._count, event, peer, f"code {code}", 0, f"client:{client.id}")
            return len(stream)
        signature = coded.signature
        outs = ",".join(map(str, stream[i + 2 : i + coded.start]))
        ins = ",".join(str(stream[i + o]) for o in coded.offsets)
        nbytes = sum(t.nbytes for t in signature.outs)
        details = f"client:{client.id} out={outs} in={ins}{_signal_text(coded.definition.signal)}"
        self._line(self._count, event, peer, str(signature), nbytes, details)
        return coded.width

    def _fragment(self, event: str, peer: str, client: Client, stream: list[Any], i: int) -> int:
        """Log a fragment instruction by instruction."""
        fragment = client.fragments.get(stream[i + 1])
        parsed = client.ledger.fragments.get(stream[i + 1]) if fragment is None else fragment.parsed
        if stream[i] == FORGET or parsed is None:
            what = "forget a fragment" if stream[i] == FORGET else "run an unknown fragment"
            self._line(self._count, event, peer, what, 0, f"client:{client.id}")
            return 2 if stream[i] == FORGET else len(stream)
        base, dispatcher_base, inputs, numbers = parsed.read_run(stream, i)
        self._stream(event, peer, client, parsed.expand(parsed.slot_ids(base, dispatcher_base, inputs), numbers))
        return int(parsed.width)

    def _sharded(self, event: str, peer: str, client: Client, info: CodeInfo, stream: list[Any], i: int) -> int:
        """Log an instruction under a code of the dispatcher: a move, or an instruction for several workers."""
        outs = ",".join(map(str, stream[i + 2 : i + info.start]))
        ins = ",".join(str(stream[i + o]) for o in info.offsets)
        details = f"client:{client.id} out={outs} in={ins} shard={info.layout}{_signal_text(info.signal)}"
        self._line(self._count, event, peer, info.text, info.nbytes, details)
        return info.width

    def _line(self, number: int, event: str, peer: str, text: str, nbytes: int, details: str) -> None:
        self._write(f"#{number} | {event} | {peer} | {text} | {nbytes}B | {details}")


def _signal_text(signal: str) -> str:
    return f" signal={signal}" if signal else ""


def _details(message: Any) -> str:
    """The last column of the line for a message that is not a stream."""
    if isinstance(message, FailureReport | NoValue):
        return f"ERROR {message.kind}: {message.text}"
    if isinstance(message, Reply):
        return f"client:{message.client} request={message.request}"
    return ""
