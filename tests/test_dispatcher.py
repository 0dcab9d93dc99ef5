"""The dispatcher's core alone: events in, actions out. Then its fairness and its credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

import gt
from gt.client.tensor.emit import call, create
from gt.dispatcher.actions import Close, SendAll, SendMessage
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.lost_workers import WORKER_WAIT_S
from gt.dispatcher.scheduling import MAX_AHEAD_US, TURN_US
from gt.dispatcher.server import Server
from gt.dispatcher.tenants.access import Access
from gt.ops import OPS, sign
from gt.ops.cost import MIN_CALL_US, estimate
from gt.testing import Cluster
from gt.types import BYTES, DTYPES, FLOAT, TensorType
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import announced_weight, definition, encode
from gt.wire.identities import OWNER, PeerIdentity
from gt.wire.messages import (
    Admit,
    Answer,
    Ask,
    Blocks,
    Bye,
    Chunk,
    ChunkTaken,
    Credit,
    Done,
    Drop,
    Execute,
    FailureReport,
    Hello,
    Notice,
    NoValue,
    Query,
    Refusal,
    Reply,
    Report,
    Roster,
    Submit,
    Trace,
    Welcome,
)
from gt.wire.structures import SharedRange, WorkerInfo, WorkerStats
from gt.wire.words import (
    CHUNK_BYTES,
    FETCH,
    FIRST_CODE,
    MAX_DEFINITION_BYTES,
    MAX_FRAME_BYTES,
    MAX_SUBMIT_WORDS,
    MAX_UNACKNOWLEDGED_BYTES,
    RESET,
    TRACE,
    WINDOW_WORDS,
)
from tests.support.invariants import always

WORKER, OTHER, CLIENT, SECOND = b"worker", b"other worker", b"client", b"second client"
SMALL, LARGE = TensorType((2,), DTYPES["float32"]), TensorType((1_000_000,), DTYPES["float32"])
#: codes that the tests' programs use
FULL, ADD, ADD_LARGE, FULL_LARGE, ADD_INTO = range(FIRST_CODE, FIRST_CODE + 5)


def _full(kind: TensorType) -> Any:
    return sign(OPS["full"], (("shape", kind.shape), ("dtype", kind.dtype.name)), (FLOAT,))


SIGNATURES = {
    FULL: _full(SMALL),
    ADD: sign(OPS["add"], (), (SMALL, SMALL)),
    ADD_LARGE: sign(OPS["add"], (), (LARGE, LARGE)),
    FULL_LARGE: _full(LARGE),
    ADD_INTO: sign(OPS["add"], (), (SMALL, SMALL), into=True),
}
DEFINITIONS = [definition(code, signature) for code, signature in SIGNATURES.items()]
#: the weight of these definitions
ANNOUNCED = announced_weight(DEFINITIONS, [])


class Desk:
    """A dispatcher core, and short ways to send it messages."""

    def __init__(self, *peers: bytes, users: dict[bytes, PeerIdentity] | None = None) -> None:
        access = Access(identity_of=lambda peer: (users or {}).get(peer, OWNER))
        self.core = Dispatcher("example.org", 9000, access=access)
        self.serials: dict[bytes, int] = {}
        for peer in peers:
            self.hello(peer)

    def hello(self, peer: bytes, **fields: Any) -> list[Any]:
        role = "worker" if b"worker" in peer else "client"
        device = "cpu" if role == "worker" else ""
        defaults = {"role": role, "protocol": PROTOCOL, "version": VERSION, "host": "here", "pid": 7, "device": device}
        return self.say(peer, Hello(**{**defaults, **fields}))

    def say(self, peer: bytes, message: Any, *rest: Any, nbytes: int = 0) -> list[Any]:
        return self.core.handle(peer, message, rest, nbytes)

    def submit(self, peer: bytes, *stream: Any, weight: int | None = None, define: bool = True) -> list[Any]:
        serial = self.serials[peer] = self.serials.get(peer, 0) + 1
        definitions = DEFINITIONS if serial == 1 and define else []
        weight = announced_weight(definitions, []) + (len(stream) if weight is None else weight)
        return self.say(peer, Submit(serial, definitions, list(stream), weight))

    def client(self, peer: bytes) -> Any:
        return self.core.by_peer[peer]

    worker = client


def sent(actions: list[Any], peer: bytes, kind: type | None = None) -> list[Any]:
    messages = [a.message for a in actions if isinstance(a, SendMessage) and a.peer == peer]
    return messages if kind is None else [m for m in messages if isinstance(m, kind)]


def refused(actions: list[Any], peer: bytes) -> str:
    """The reason of the refusal; the connection is closed for the same reason."""
    (refusal,) = sent(actions, peer, Refusal)
    (closed,) = [a for a in actions if isinstance(a, Close)]
    assert closed == Close(peer, refusal.reason)
    return str(refusal.reason)


# -- Hello ---------------------------------------------------------------------------------


def test_a_client_is_welcomed_with_the_list_of_workers() -> None:
    desk = Desk(WORKER)
    assert desk.hello(CLIENT) == [SendMessage(CLIENT, Welcome(1, VERSION, [WorkerInfo(0, "", "cpu", "here", 7)]))]


def test_a_worker_is_welcomed_and_announced_to_clients() -> None:
    desk = Desk(CLIENT)
    actions = desk.hello(WORKER)
    assert sent(actions, WORKER) == [Welcome(0, VERSION)]
    assert sent(actions, CLIENT) == [Roster([WorkerInfo(0, "", "cpu", "here", 7)], [])]


def test_another_protocol_is_refused_with_both_versions_named() -> None:
    desk = Desk()
    reason = refused(desk.hello(CLIENT, protocol=PROTOCOL + 1, version="9.9"), CLIENT)
    assert reason == (
        f"this server is GT {VERSION} (protocol {PROTOCOL}), the client is GT 9.9 (protocol {PROTOCOL + 1}); "
        "install the same version on both sides"
    )
    assert not desk.core.by_peer


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (CLIENT, Hello("cook", PROTOCOL, VERSION, "", 1)),
        (CLIENT, Submit(1, [], [], 0)),
        (CLIENT, Bye()),
        (WORKER, Done(1, 1, 1)),
    ],
)
def test_the_first_message_must_be_a_hello_as_client_or_worker(peer: bytes, message: Any) -> None:
    desk = Desk()
    assert refused(desk.say(peer, message), peer)


@pytest.mark.parametrize(
    "message", [Done(1, 1, 1), FailureReport(1, 1, "", "", 1), Reply(1, 1), Hello("client", 1, "", "", 1)]
)
def test_a_client_may_not_send_a_worker_s_messages_nor_a_second_hello(message: Any) -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    assert "unexpected message" in refused(desk.say(CLIENT, message), CLIENT)
    assert list(desk.core.clients) == [2]


def test_a_message_that_does_not_decode_ends_the_connection() -> None:
    desk = Desk(CLIENT)
    assert refused(desk.core.refuse(CLIENT, "why"), CLIENT) == "why"
    assert not desk.core.clients


# -- Submit, Done --------------------------------------------------------------------------


def test_a_program_is_forwarded_with_the_definitions_it_uses() -> None:
    desk = Desk(WORKER, CLIENT)
    stream = [FULL, 0, 1, 2.5, ADD, 0, 2, 1, 1, -1]
    assert sent(desk.submit(CLIENT, *stream), WORKER) == [
        Admit(1, "here"),
        Execute(1, DEFINITIONS[:2], stream, 1),
    ]
    again = [ADD, 0, 3, 2, 2, FETCH, 1, 3]
    assert sent(desk.submit(CLIENT, *again), WORKER) == [Execute(1, [], again, 1)]
    assert set(desk.client(CLIENT).tensors) == {2, 3}
    assert desk.client(CLIENT).reads == {1: {0}}


def test_credit_is_sent_at_the_next_tick_or_when_much_work_is_done() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, weight=10)
    assert desk.say(WORKER, Done(1, 10, 5)) == []
    assert desk.core.tick(1.0) == [SendMessage(CLIENT, Credit(10 + ANNOUNCED))]
    assert desk.core.tick(2.0) == []
    desk.submit(CLIENT, FULL, 0, 2, 2.5, weight=WINDOW_WORDS // 8)
    assert desk.say(WORKER, Done(1, WINDOW_WORDS // 8, 5)) == [
        SendMessage(CLIENT, Credit(10 + ANNOUNCED + WINDOW_WORDS // 8))
    ]


def test_a_repeated_submission_is_skipped_and_a_gap_refused() -> None:
    desk = Desk(WORKER, CLIENT)
    first = Submit(1, DEFINITIONS, [FULL, 0, 1, 2.5], 4 + ANNOUNCED)
    assert sent(desk.say(CLIENT, first), WORKER, Execute)
    assert desk.say(CLIENT, first) == []
    assert desk.client(CLIENT).received == 4 + ANNOUNCED
    assert refused(desk.say(CLIENT, Submit(3, [], [], 0)), CLIENT) == "submission 3 follows 1"


def test_a_worker_that_confirms_work_it_did_not_get_is_refused() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    desk.say(WORKER, Done(1, 4, 1))
    assert "did not get" in refused(desk.say(WORKER, Done(1, 4, 1)), WORKER)


def test_a_worker_may_confirm_one_client_s_work_before_another_s() -> None:
    """A worker parks the program of a client that is slow to take a large value."""
    desk = Desk(WORKER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    desk.submit(SECOND, FULL, 0, 1, 2.5)
    desk.say(WORKER, Done(2, 4, 1))
    desk.say(WORKER, Done(1, 4, 1))
    assert desk.client(CLIENT).done == desk.client(SECOND).done == 4 + ANNOUNCED
    assert desk.worker(WORKER).ahead == 0


def test_a_reset_forgets_signatures() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, RESET, ADD)
    assert set(desk.client(CLIENT).codes) == set(SIGNATURES) - {FULL}
    assert desk.client(CLIENT).announced == {0: set()}
    assert not desk.client(CLIENT).plans
    assert "the stream is malformed: KeyError" in refused(desk.submit(CLIENT, FULL, 0, 2, 2.5), CLIENT)


def test_a_code_cannot_be_defined_twice() -> None:
    """Otherwise words in a queue would be read with another signature than they were written with."""
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    again = definition(FULL, SIGNATURES[ADD])
    assert refused(desk.say(CLIENT, Submit(2, [again], [], 1000)), CLIENT) == f"code {FULL} is defined twice"


def test_definitions_that_fill_a_frame_are_sent_ahead() -> None:
    desk = Desk(WORKER, CLIENT)
    wide = sign(OPS["cat"], (("dim", 0),), (TensorType((1 << 40, 0), DTYPES["bfloat16"]),) * 12_000)
    assert len(encode(definition(100, wide))) > MAX_DEFINITION_BYTES // 2
    nothing = sign(OPS["full"], (("shape", (1 << 40, 0)), ("dtype", "bfloat16")), (FLOAT,))
    desk.say(CLIENT, Submit(1, [definition(99, nothing)], [99, 0, 1, 0.5], 1000))
    desk.say(WORKER, Done(1, 4, 1))
    for code in range(100, 105):
        desk.say(
            CLIENT, Submit(code - 98, [definition(code, wide)], [], announced_weight([definition(code, wide)], []))
        )
    stream = [word for code in range(100, 105) for word in (code, 0, code, *[1] * 12_000)]
    executes = sent(desk.say(CLIENT, Submit(7, [], stream, len(stream))), WORKER, Execute)
    assert [len(e.definitions) for e in executes] == [4, 1]
    assert [len(e.stream) for e in executes] == [0, len(stream)]
    for execute in executes:
        assert len(encode(execute)) < MAX_FRAME_BYTES
    assert [execute.confirm for execute in executes] == [False, True]
    desk.say(WORKER, Done(1, executes[1].worker_set, 10))
    assert desk.client(CLIENT).done == desk.client(CLIENT).received


# -- values and reports that are passed on -------------------------------------------------


def test_a_value_is_passed_on_unread_and_its_done_is_handled() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, FETCH, 9, 1)
    assert desk.say(WORKER, Reply(1, 9, True, Done(1, 7, 3)), b"any bytes") == [
        SendMessage(CLIENT, None, (b"any bytes",))
    ]
    assert desk.client(CLIENT).reads == {}
    assert desk.client(CLIENT).done == 7 + ANNOUNCED


def test_messages_about_a_client_that_is_gone_are_dropped() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, FETCH, 9, 1)
    assert sent(desk.core.gone(CLIENT), WORKER) == [Drop(1)]
    assert desk.say(WORKER, FailureReport(1, 1, "RemoteError", "text", 0)) == []
    assert desk.say(WORKER, ChunkTaken(1, 5, 1)) == []
    assert desk.say(WORKER, Reply(1, 9, True, Done(1, 7, 3)), b"bytes") == []
    assert not desk.worker(WORKER).unconfirmed


def test_a_failure_goes_to_the_client_it_is_about() -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    failure = FailureReport(2, 1, "RemoteError", "text", 0)
    assert desk.say(WORKER, failure) == [SendMessage(SECOND, failure)]


def test_chunks_go_to_the_client_s_worker_and_are_acknowledged() -> None:
    desk = Desk(WORKER, OTHER, CLIENT)
    actions = desk.say(CLIENT, Chunk(1, 0, 5, 9), b"12345")
    assert actions == [
        SendMessage(WORKER, Admit(1, "here")),
        SendMessage(WORKER, Chunk(1, 0, 5, 9, None, 1), (b"12345",)),
    ]
    assert desk.say(WORKER, ChunkTaken(1, 5, 1)) == [SendMessage(CLIENT, ChunkTaken(1, 5, 1))]
    assert desk.say(CLIENT, ChunkTaken(3, 5, worker=0)) == [SendMessage(WORKER, ChunkTaken(3, 5, 1, 0))]


@pytest.mark.parametrize(
    ("chunk", "rest"),
    [
        (Chunk(1, 0, 5, 5), ()),
        (Chunk(1, 0, 5, 5), (b"1234",)),
        (Chunk(1, 0, 5, 5), (b"12345", b"more")),
        (Chunk(1, 0, -5, 5), (b"",)),
        (Chunk(1, 0, -5, 5, SharedRange(1, 1, "", 1, 1)), ()),
        (Chunk(1, 0, 5, 5, SharedRange(1, 1, "", 1, 1)), (b"12345",)),
    ],
)
def test_a_chunk_must_have_the_bytes_it_says(chunk: Chunk, rest: tuple[bytes, ...]) -> None:
    assert (
        refused(Desk(WORKER, CLIENT).say(CLIENT, chunk, *rest), CLIENT)
        == "the chunk does not have as many bytes as it says"
    )


def test_without_a_worker_chunks_are_dropped_and_their_instruction_fails() -> None:
    desk = Desk(CLIENT)
    assert desk.say(CLIENT, Chunk(1, 0, 2, 4), b"12") == [SendMessage(CLIENT, ChunkTaken(1, 2))]
    desk.hello(WORKER)
    # a transfer that began without a worker is not continued on one
    assert sent(desk.say(CLIENT, Chunk(1, 2, 2, 4), b"34"), CLIENT) == [ChunkTaken(1, 2)]
    upload = sign(OPS["upload"], (("shape", (1,)), ("dtype", "float32")), (BYTES,))
    actions = desk.say(CLIENT, Submit(1, [definition(FULL, upload)], [FULL, 0, 1, 1, FETCH, 5, 1], 1000))
    (failed,) = sent(actions, CLIENT, NoValue)
    assert failed == NoValue(5, "WorkerLost", "no worker was connected when the value was sent; send it again")


# -- peers that end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_the_end_of_a_client_frees_everything_it_had(clean: bool) -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    desk.submit(SECOND, FULL, 0, 1, 2.5)
    desk.say(CLIENT, Ask(1))
    actions = desk.say(CLIENT, Bye()) if clean else desk.core.gone(CLIENT)
    assert sent(actions, WORKER) == [Drop(1)]
    assert [a for a in actions if isinstance(a, Close)] == ([Close(CLIENT, "")] if clean else [])
    assert list(desk.core.clients) == [2]
    assert not desk.core.requests
    assert desk.worker(WORKER).admitted == {2}
    assert desk.core.gone(CLIENT) == []


def test_a_lost_worker_is_reported_by_name_and_the_client_continues_elsewhere() -> None:
    desk = Desk(WORKER, OTHER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, FETCH, 5, 1)
    desk.submit(SECOND, FULL, 0, 1, 2.5, FETCH, 6, 1)  # its home is the other worker
    desk.say(CLIENT, Chunk(1, 0, 3, 9), b"123")
    actions = desk.core.gone(WORKER)
    text = "worker 0 (cpu, pid 7) is gone, and what it held with it"
    assert sent(actions, CLIENT) == [NoValue(5, "WorkerLost", text), ChunkTaken(1, 3), Roster([], [0])]
    assert sent(actions, SECOND) == [Roster([], [0])]
    assert desk.client(CLIENT).done == desk.client(CLIENT).received
    # results of lost tensors are lost, and their reads fail; new tensors are created elsewhere
    actions = desk.submit(CLIENT, ADD, 0, 2, 1, 1, FETCH, 7, 2, FULL, 0, 3, 1.0, FETCH, 8, 3, -1, -2)
    assert sent(actions, CLIENT) == [NoValue(7, "WorkerLost", text)]
    assert sent(actions, OTHER)[0] == Admit(1, "here")
    assert sent(actions, OTHER)[1].stream == [FULL, 0, 3, 1.0, FETCH, 8, 3]
    assert set(desk.client(CLIENT).tensors) == {3}


def test_a_tensor_overwritten_with_a_lost_value_is_freed_on_its_worker() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    desk.core.gone(WORKER)
    desk.hello(OTHER)
    actions = desk.submit(CLIENT, FULL, 0, 2, 2.5, ADD, 0, 3, 2, 2, ADD_INTO, 0, 2, 2, 1, ADD, 0, 4, 3, 3)
    (execute,) = sent(actions, OTHER, Execute)
    assert execute.stream == [FULL, 0, 2, 2.5, ADD, 0, 3, 2, 2, -2, ADD, 0, 4, 3, 3]


def test_without_workers_reads_fail_after_a_while_and_once() -> None:
    desk = Desk(CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, FETCH, 5, 1)
    assert desk.core.tick(10.0) == []
    assert desk.core.tick(10.0 + WORKER_WAIT_S - 0.1) == []
    text = "no worker is connected; start one with: python -m gt.worker --host example.org -p 9000"
    assert desk.core.tick(10.0 + WORKER_WAIT_S) == [SendMessage(CLIENT, NoValue(5, "NoWorkers", text))]
    assert desk.core.tick(20.0) == []
    actions = desk.hello(WORKER)  # the read was answered; the rest runs
    assert sent(actions, WORKER, Execute)[0].stream == [FULL, 0, 1, 2.5]
    assert desk.client(CLIENT).reads == {}
    assert not desk.client(CLIENT).abandoned_reads


@pytest.mark.parametrize("stream", [[99], [b"x"], [FETCH], [FETCH, 2.5, 1], [FULL, 0]])
def test_a_malformed_stream_in_a_queue_does_not_stop_the_ticks(stream: list[Any]) -> None:
    desk = Desk(CLIENT, SECOND)
    desk.submit(CLIENT, FETCH, 4, 1, *stream)
    desk.core.tick(1.0)
    actions = desk.core.tick(9.0)
    if stream != [FULL, 0]:  # this one ends inside an instruction, which is noticed when it is forwarded
        assert refused(actions, CLIENT)
    assert desk.client(SECOND)


# -- requests ------------------------------------------------------------------------------


def stats(worker: int) -> WorkerStats:
    return WorkerStats(worker, "cpu", "numpy", 0, 0, 0, {}, {}, 0, 0, 0, 0)


def test_a_request_goes_to_all_workers_and_is_answered_once() -> None:
    desk = Desk(WORKER, OTHER, CLIENT)
    actions = desk.say(CLIENT, Ask(3))
    assert sent(actions, WORKER) == sent(actions, OTHER) == [Query(1, 3)]
    assert desk.say(OTHER, Report(1, 3, stats(1))) == []
    assert desk.say(OTHER, Report(1, 3, stats(1))) == []
    assert desk.say(WORKER, Report(1, 3, stats(0))) == [SendMessage(CLIENT, Answer(3, [stats(0), stats(1)]))]
    assert desk.say(WORKER, Report(1, 3, stats(0))) == []


def test_a_request_does_not_wait_for_a_lost_worker() -> None:
    desk = Desk(WORKER, OTHER, CLIENT)
    desk.say(CLIENT, Ask(3))
    desk.say(OTHER, Report(1, 3, stats(1)))
    assert sent(desk.core.gone(WORKER), CLIENT, Answer) == [Answer(3, [stats(1)])]
    assert sent(desk.core.gone(OTHER), CLIENT, Answer) == []


def test_a_client_with_too_many_open_requests_is_refused() -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    for request in range(100):
        assert sent(desk.say(CLIENT, Ask(request)), WORKER)
    desk.say(SECOND, Ask(1))
    assert refused(desk.say(CLIENT, Ask(100)), CLIENT) == "more than 100 open requests"
    assert len(desk.core.requests) == 1


def test_a_trace_covers_the_client_s_workers_and_those_without_clients() -> None:
    desk = Desk(WORKER, OTHER, CLIENT, SECOND)
    actions = desk.say(CLIENT, Trace(3, True))
    assert sent(actions, CLIENT) == [Blocks(3, (), 1, [], [0, 1])]
    for worker in (WORKER, OTHER):
        admit, execute = sent(actions, worker)
        assert (admit, execute.stream) == (Admit(1, "here"), [TRACE, 3, 1])
    assert sent(desk.say(SECOND, Trace(3, True)), SECOND) == [
        Blocks(3, (), 1, [], [0])
    ]  # its home, which both clients use now
    desk.say(WORKER, Reply(1, 3), b"")
    assert sent(desk.core.gone(OTHER), CLIENT, NoValue)[0].kind == "WorkerLost"
    assert sent(desk.say(CLIENT, Trace(4, False)), CLIENT) == [Blocks(4, (), 1, [], [0])]
    for request in range(5, 104):
        desk.say(CLIENT, Trace(request, True))
    assert refused(desk.say(CLIENT, Trace(104, True)), CLIENT) == "more than 100 open requests"


def test_each_notice_of_workers_is_passed_on_once_and_only_a_few() -> None:
    desk = Desk(WORKER, OTHER, CLIENT)
    assert desk.say(WORKER, Notice("no compiler", 1)) == [SendMessage(CLIENT, Notice("no compiler", 1))]
    assert desk.say(OTHER, Notice("no compiler", 1)) == desk.say(WORKER, Notice("who is that", 7)) == []
    replies = [desk.say(WORKER, Notice(f"reason {k}", 1)) for k in range(10)]
    assert [bool(actions) for actions in replies] == [True] * 2 + [False] * 8


def test_without_workers_a_request_is_answered_at_once() -> None:
    assert Desk(CLIENT).say(CLIENT, Ask(3)) == [SendMessage(CLIENT, Answer(3, []))]


# -- fairness ------------------------------------------------------------------------------


class SimulatedWorker:
    """A dispatcher with one worker that runs its work on a simulated clock."""

    def __init__(
        self, *clients: bytes, truth: dict[int, float] | None = None, users: dict[bytes, PeerIdentity] | None = None
    ) -> None:
        self.desk = Desk(WORKER, *clients, users=users)
        self.executes: deque[Execute] = deque()
        #: microseconds of worker time: in total, and by client
        self.now = 0.0
        self.used: dict[int, float] = {}
        #: the real microseconds of an instruction, if they differ from the estimate
        self.truth = {code: estimate(s) for code, s in SIGNATURES.items()} | (truth or {})
        for client in clients:
            self.submit(client, FULL, 0, 1, 1.0, FULL_LARGE, 0, 2, 1.0)
        self.run(1e6)
        self.now, self.used = 0.0, {}

    def submit(self, client: bytes, *stream: Any) -> None:
        self._collect(self.desk.submit(client, *stream))

    def flood(self, client: bytes, code: int, count: int) -> None:
        operand = 2 if code == ADD_LARGE else 1
        self.submit(client, *[code, 0, 3, operand, operand] * count)

    def keep_busy(self, loads: dict[bytes, tuple[int, int]], micros: float) -> None:
        """Run this long. Each client always has work: (code, instructions in a submission)."""
        end = self.now + micros
        while self.now < end:
            for client, (code, count) in loads.items():
                while len(self.desk.client(client).queue) < 64:
                    self.flood(client, code, count)
            self.one()

    def _collect(self, actions: Iterable[Any]) -> None:
        self.executes += [m for m in sent(list(actions), WORKER) if isinstance(m, Execute)]

    def one(self) -> int | None:
        """Run one `Execute`; returns its client."""
        if not self.executes:
            return None
        m = self.executes.popleft()
        micros = sum(self.truth[code] for code in _codes(m.stream))
        self.now += micros
        self.used[m.client] = self.used.get(m.client, 0.0) + micros
        self._collect(self.desk.say(WORKER, Done(m.client, m.worker_set, int(micros))))
        return m.client

    def run(self, micros: float) -> None:
        end = self.now + micros
        while self.now < end and self.one() is not None:
            pass


def _codes(stream: list[Any]) -> Iterable[int]:
    i = 0
    while i < len(stream):
        code = stream[i]
        if code >= FIRST_CODE:
            yield code
            i += SIGNATURES[code].width
        else:
            i += 3 if code == FETCH else 1


HEAVY = estimate(SIGNATURES[ADD_LARGE])


def test_estimates_have_the_right_magnitude() -> None:
    assert estimate(SIGNATURES[ADD]) == pytest.approx(MIN_CALL_US, abs=0.1)
    assert pytest.approx(1200, rel=0.01) == HEAVY
    monster = sign(OPS["add"], (), (TensorType((1 << 30, 1 << 30), DTYPES["float32"]),) * 2)
    assert estimate(monster) <= 1e7 + MIN_CALL_US
    shown = sign(OPS["expand"], (("shape", (1 << 20, 1 << 20)),), (TensorType((1, 1)),))
    assert estimate(shown) == MIN_CALL_US  # a view costs the same whatever its size


def test_a_small_program_overtakes_a_flood() -> None:
    simulation = SimulatedWorker(CLIENT, SECOND)
    simulation.flood(CLIENT, ADD_LARGE, 5000)
    for _ in range(50):
        simulation.run(10_000)
        simulation.flood(SECOND, ADD, 20)
        begun = simulation.now
        while simulation.one() != 2:
            assert simulation.executes
        # the work that the worker has ahead, one more turn, and the instruction that ends a turn
        assert simulation.now - begun <= MAX_AHEAD_US + TURN_US + 2 * HEAVY


def test_equal_shares_of_time_whatever_the_instructions() -> None:
    simulation = SimulatedWorker(CLIENT, SECOND)
    simulation.flood(CLIENT, ADD_LARGE, 5000)
    simulation.flood(SECOND, ADD, 13_000)
    simulation.run(40_000)
    assert simulation.used[1] == pytest.approx(simulation.used[2], abs=MAX_AHEAD_US + 2 * HEAVY)


def test_shares_are_measured_time_not_estimates() -> None:
    simulation = SimulatedWorker(CLIENT, SECOND, truth={ADD: 400.0})
    simulation.flood(CLIENT, ADD_LARGE, 5000)
    simulation.flood(SECOND, ADD, 13_000)
    simulation.run(3_000_000)
    assert simulation.used[1] == pytest.approx(simulation.used[2], rel=0.15)
    # the turns have the right length by then, although each instruction takes a hundred times its estimate
    for _ in range(20):
        begun = simulation.now
        while simulation.one() != 1:
            assert simulation.executes
        assert simulation.now - begun <= 2 * MAX_AHEAD_US + TURN_US + 2 * HEAVY


@pytest.mark.parametrize("queued", [True, False])
def test_a_pause_gives_no_lasting_advantage(queued: bool) -> None:
    """Not even if the queue of the other client is empty at that moment."""
    simulation = SimulatedWorker(CLIENT, SECOND)
    for _ in range(100):
        simulation.flood(CLIENT, ADD_LARGE, 100)
        simulation.run(1e9)
    if queued:
        simulation.flood(CLIENT, ADD_LARGE, 2000)
    simulation.flood(SECOND, ADD_LARGE, 2000)
    if not queued:
        simulation.flood(CLIENT, ADD_LARGE, 2000)
    simulation.used.clear()
    simulation.run(200_000)
    assert simulation.used[1] == pytest.approx(simulation.used[2], rel=0.2)


def test_a_new_client_starts_level_with_the_others() -> None:
    simulation = SimulatedWorker(CLIENT)
    simulation.flood(CLIENT, ADD_LARGE, 5000)
    simulation.run(2_000_000)
    simulation.desk.hello(SECOND)
    simulation.submit(SECOND, FULL, 0, 1, 1.0, FULL_LARGE, 0, 2, 1.0)
    simulation.flood(SECOND, ADD_LARGE, 5000)
    simulation.used.clear()
    simulation.run(400_000)
    assert simulation.used[1] == pytest.approx(simulation.used[2], rel=0.15)


def test_time_used_on_one_worker_does_not_count_on_another() -> None:
    desk = Desk(WORKER, OTHER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL_LARGE, 0, 2, 1.0)
    desk.submit(SECOND, FULL, 0, 1, 1.0)
    desk.worker(WORKER).clock = desk.client(CLIENT).share.used = 1e12
    desk.hello(b"third client")
    desk.core.gone(WORKER)
    for peer in (CLIENT, b"third client"):
        desk.submit(peer, FULL, 0, 5, 1.0)
        assert desk.client(peer).share.used < 1e6


def test_a_huge_estimate_does_not_overflow_the_accounts() -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    shape = (1 << 30, 1 << 30)
    monster = sign(OPS["full"], (("shape", shape), ("dtype", "uint8")), (FLOAT,))
    desk.say(CLIENT, Submit(1, [definition(FULL, monster)], [FULL, 0, 1, 1.0] * 10, 1000))
    desk.submit(SECOND, FULL, 0, 1, 1.0)
    for _ in range(20):
        if desk.worker(WORKER).unconfirmed:
            client = desk.worker(WORKER).unconfirmed[0][0]
            desk.say(WORKER, Done(client, 0, 10))
    assert desk.client(CLIENT).share.used < 1e4
    assert desk.client(SECOND).share.used < 1e4


def test_a_client_that_takes_no_values_does_not_block_the_worker() -> None:
    simulation = SimulatedWorker(CLIENT, SECOND)
    simulation.flood(CLIENT, ADD_LARGE, 100)
    assert not simulation.desk.worker(WORKER).has_room_for(2, MAX_AHEAD_US)
    # the worker starts to send a large value; until it is taken, the worker runs nothing more of this client
    simulation.desk.say(WORKER, Reply(1, 77, last=False), b"part")
    simulation.executes.clear()
    before = len(simulation.desk.worker(WORKER).unconfirmed)
    simulation.flood(SECOND, ADD, 5)
    assert [m.client for m in simulation.executes] == [2]
    simulation._collect(simulation.desk.say(WORKER, Reply(1, 77, last=True), b"part"))
    assert len(simulation.desk.worker(WORKER).unconfirmed) == before + 1


# -- credit --------------------------------------------------------------------------------


def test_a_client_that_never_reads_has_at_most_the_window_pending() -> None:
    cluster = Cluster(1)
    session = cluster.add_client()
    cluster.paused.update(cluster.workers)

    class Blocked(Exception):
        pass

    def wait(*args: Any) -> bool:
        raise Blocked

    session.connection.link.wait = wait
    x = create(OPS["full"], (1.0,), (("shape", (2,)), ("dtype", "float32")), session)

    def run_ahead() -> None:
        y = x
        while True:
            y = call(OPS["add"], (y, 1.0))

    with pytest.raises(Blocked):
        run_ahead()
    assert WINDOW_WORDS < session.outbox.sent - session.outbox.finished <= WINDOW_WORDS + 2000
    assert len(session.outbox.words) < 2000


def test_many_workers_confirm_only_now_and_then() -> None:
    """The client still never waits for credit that only a tick would bring."""
    cluster = Cluster(16, backend="numpy")
    executes: list[Execute] = []
    act = cluster._act

    def listen(actions: list[Any]) -> None:
        executes.extend(a.message for a in actions if isinstance(a, SendAll) and isinstance(a.message, Execute))
        act(actions)

    cluster._act = listen  # type: ignore[method-assign]
    gt.auto_shard()
    try:
        with cluster.client() as session:
            x = y = gt.ones(64, 2)
            for _ in range(15000):
                y = y + x
            session.outbox.flush()
            assert session.outbox.sent > 1.1 * WINDOW_WORDS
            assert y.sum().item() == 128 * 15001
    finally:
        gt.auto_shard(False)
    assert cluster.now == 0.0
    assert len(executes) > 50
    assert sum(m.confirm for m in executes) < 0.6 * len(executes)


def test_unrequested_work_counts_as_done_when_a_worker_is_lost() -> None:
    cluster = Cluster(16, backend="numpy")
    cluster.after_step = always
    gt.auto_shard()
    try:
        with cluster.client() as session:
            x = gt.ones(64, 2)
            session.outbox.flush()
            cluster.settle()
            client = cluster.dispatcher.clients[session.id]
            assert client.unrequested
            cluster.kill_worker(next(iter(cluster.workers)))
            cluster.settle()
            assert client.received == client.done
            with pytest.raises(gt.WorkerLost):
                x.sum().item()
            assert gt.ones(64, 2).sum().item() == 128
    finally:
        gt.auto_shard(False)


def test_a_client_that_ignores_its_credit_is_refused() -> None:
    desk = Desk(WORKER, CLIENT)
    received = 0
    for _ in range(100):
        actions = desk.submit(CLIENT, *[FULL, 0, 1, 1.0] * 5000)
        if sent(actions, CLIENT, Refusal):
            assert refused(actions, CLIENT) == "the client submitted more work than its credit allows"
            break
        received += 20_000
    assert WINDOW_WORDS <= received <= 2 * WINDOW_WORDS + 4 * MAX_SUBMIT_WORDS + MAX_DEFINITION_BYTES


@pytest.mark.parametrize(
    ("words", "weight", "nbytes"),
    [
        (10, 9, 100),
        (10, -1, 100),
        (MAX_SUBMIT_WORDS + 1, MAX_SUBMIT_WORDS + 1, 100),
        (10, 1 << 62, 100),
        (4, 4, 1 << 20),  # bytes among its words that its weight does not count
        (4, 1 << 17, MAX_FRAME_BYTES - 10),  # the message to the worker would not fit into a frame
    ],
)
def test_the_weight_of_a_submission_is_checked(words: int, weight: int, nbytes: int) -> None:
    desk = Desk(WORKER, CLIENT)
    assert refused(desk.say(CLIENT, Submit(1, [], [-1] * words, weight), nbytes=nbytes), CLIENT)


def test_unacknowledged_chunks_are_bounded() -> None:
    desk = Desk(WORKER, CLIENT)
    frame = bytes(CHUNK_BYTES)
    passed = 0
    for i in range(200):
        actions = desk.say(CLIENT, Chunk(1, i * CHUNK_BYTES, CHUNK_BYTES, 1 << 40), frame)
        if sent(actions, CLIENT, Refusal):
            break
        passed += CHUNK_BYTES
    assert MAX_UNACKNOWLEDGED_BYTES < passed <= 4 * MAX_UNACKNOWLEDGED_BYTES


def test_unused_transfers_are_bounded() -> None:
    desk = Desk(WORKER, CLIENT)
    for i in range(2 * WINDOW_WORDS):
        actions = desk.say(CLIENT, Chunk(i, 0, 0, 0), b"")
        if sent(actions, CLIENT, Refusal):
            return
        desk.say(WORKER, ChunkTaken(i, 0, 1))
    raise AssertionError("no bound was reached")


def test_a_value_reaches_its_client_only() -> None:
    desk = Desk(WORKER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL, 0, 1, 2.5, FETCH, 1, 1)
    desk.submit(SECOND, FULL, 0, 1, 3.5, FETCH, 1, 1)
    assert [a.peer for a in desk.say(WORKER, Reply(1, 1), b"value")] == [CLIENT]
    assert desk.client(SECOND).reads == {1: {0}}


def test_a_worker_whose_device_broke_reports_the_reason() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 1.0, FETCH, 5, 1)
    actions = desk.say(WORKER, Bye("its device broke: an assertion"))
    (failed,) = sent(actions, CLIENT, NoValue)
    assert failed.kind == "WorkerLost"
    assert failed.text.endswith("and what it held with it: its device broke: an assertion")


def test_a_request_waits_for_what_was_submitted_before_it() -> None:
    desk = Desk(WORKER, CLIENT)
    words: list[Any] = [FULL_LARGE, 0, 1, 1.0]
    for id in range(2, 40):  # more than a worker gets ahead
        words += [ADD_LARGE, 0, id, 1, 1]
    assert sent(desk.submit(CLIENT, *words), WORKER, Execute)
    assert desk.client(CLIENT).queue
    assert not sent(desk.say(CLIENT, Ask(3)), WORKER, Query)
    last: list[Any] = []
    while not sent(last, WORKER, Query):
        client, weight, cost, _ = desk.worker(WORKER).unconfirmed[0]
        last = desk.say(WORKER, Done(client, weight, int(cost)))
    assert not desk.client(CLIENT).queue
    kinds = [type(m) for m in sent(last, WORKER)]
    assert kinds.index(Execute) < kinds.index(Query)


def test_a_request_behind_a_queue_is_answered_at_once_without_workers() -> None:
    desk = Desk(CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 1.0)
    assert sent(desk.say(CLIENT, Ask(3)), CLIENT, Answer) == [Answer(3, [])]


def test_an_unreachable_peer_is_handled_after_all_messages_are_sent(tmp_path, monkeypatch) -> None:
    """Otherwise a worker would get the end of a client before instructions of that client."""
    server = Server(f"unix:{tmp_path}/s", None)
    sent: list[tuple[bytes, bytes]] = []

    def send(peer: bytes, frames: list[bytes]) -> bool:
        sent.append((peer, frames[0]))
        return peer != CLIENT

    monkeypatch.setattr(server.listener, "send", send)
    monkeypatch.setattr(server.core, "gone", lambda peer: [SendMessage(WORKER, Drop(1))])
    credit, execute = Credit(3), Execute(1, [], [], 0)
    server._act([SendMessage(CLIENT, credit), SendMessage(CLIENT, credit), SendAll((WORKER, OTHER), execute)])
    server.close()
    assert sent == [
        (CLIENT, encode(credit)),
        (CLIENT, encode(credit)),
        (WORKER, encode(execute)),
        (OTHER, encode(execute)),
        (WORKER, encode(Drop(1))),
    ]
