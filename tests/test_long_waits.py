"""A wait that takes long says what it waits for, whatever the wait is."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gt.client.stream import long_wait
from gt.client.stream.long_wait import LongWait, Questions
from gt.dispatcher.tenants.waits import MAX_ANSWERS
from gt.wire.event_messages import ExplainWait, WaitExplained
from gt.wire.messages import Done
from gt.wire.recovery_messages import Recover
from gt.wire.words import FETCH
from tests.support.processes import System, wait_until
from tests.test_dispatcher import CLIENT, FULL, OTHER, SECOND, WORKER, Desk, sent

# -- what the server says ----------------------------------------------------------------

COMPUTES = "worker 0 (cpu, pid 7) computes for"


def cause(desk: Desk, client: bytes = CLIENT) -> str:
    (answer,) = sent(desk.say(client, ExplainWait()), client, WaitExplained)
    return str(answer.text)


def test_a_program_without_a_worker() -> None:
    assert cause(Desk(CLIENT)).startswith("no worker is connected")


def test_a_program_that_waits_for_another_worker() -> None:
    desk = Desk(WORKER, OTHER, CLIENT)
    desk.say(CLIENT, Recover(60.0, 0.0))
    desk.submit(CLIENT, FULL, 0, 1, 2.0, FETCH, 1, 1)
    desk.client(CLIENT).min_workers = 2
    desk.core.gone(OTHER)
    assert cause(desk) == "1 of 2 workers are connected; the program waits for another one"


def test_a_worker_that_computes_and_how_long_it_has_said_nothing() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.0, FETCH, 1, 1)
    desk.core.tick(100.0)
    assert cause(desk) == f"{COMPUTES} this program"
    desk.core.tick(112.0)
    assert cause(desk) == f"{COMPUTES} this program, and has confirmed nothing for 12 s"


def test_a_worker_that_computes_for_somebody_else() -> None:
    """The number of the other client is all that a user learns."""
    desk = Desk(WORKER, CLIENT, SECOND)
    desk.submit(CLIENT, FULL, 0, 1, 2.0, FETCH, 1, 1)
    desk.submit(SECOND, FULL, 0, 1, 2.0, FETCH, 1, 1)
    assert cause(desk, SECOND) == f"{COMPUTES} client 1"


def test_a_value_that_has_not_come() -> None:
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.0, FETCH, 1, 1)
    while desk.worker(WORKER).unconfirmed:
        desk.say(WORKER, Done(1, 0, 5))
    assert cause(desk) == "a value from worker 0 (cpu, pid 7)"


def test_a_program_that_waits_for_nothing() -> None:
    assert cause(Desk(WORKER, CLIENT)).startswith("nothing at the server")


def test_a_client_that_asks_without_end_gets_few_answers() -> None:
    desk = Desk(WORKER, CLIENT)
    answers = [bool(desk.say(CLIENT, ExplainWait())) for _ in range(2 * MAX_ANSWERS)]
    assert answers == [True] * MAX_ANSWERS + [False] * MAX_ANSWERS
    desk.core.tick(1.0)
    assert cause(desk)


# -- what the client prints --------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    times = [0.0]
    monkeypatch.setattr(long_wait.time, "monotonic", lambda: times[0])
    return times


def test_the_lines_of_one_wait_become_rare(clock: Any, capfd: Any) -> None:
    questions = Questions(lambda: None)
    wait = LongWait(questions)
    for now in range(300):
        clock[0] = float(now)
        assert not wait.check()
        if wait in questions.open:
            questions.explained("a reason")
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"[gt] waiting for {seconds} s: a reason" for seconds in (15, 60, 240)]


def test_one_question_for_all_threads_and_none_after_the_wait(clock: Any, capfd: Any) -> None:
    asked: list[int] = []
    questions = Questions(lambda: asked.append(1))
    waits = [LongWait(questions) for _ in range(3)]
    clock[0] = 16.0
    assert not any(wait.check() for wait in waits)
    assert len(asked) == 1
    questions.open.clear()  # the waits end
    questions.explained("too late")
    assert not capfd.readouterr().err


def test_a_server_that_does_not_answer(clock: Any, capfd: Any) -> None:
    questions = Questions(lambda: None)
    wait = LongWait(questions)
    for now in (15.0, 24.0, 26.0):
        clock[0] = now
        wait.check()
    assert capfd.readouterr().err.startswith("[gt] waiting for 26 s: the server does not say for what")


# -- real processes ----------------------------------------------------------------------

SOON = """
from gt.client.stream import long_wait
long_wait.FIRST_REPORT_S = 0.3
"""
#: What may wait for a worker.
WAITS = {
    "a read": "gt.ones(3).tolist()",
    "an upload": "[gt.tensor(np.zeros(8_000_000)) for _ in range(40)]; gt.ones(3).tolist()",
    "instructions": "x = gt.ones(3)\nfor k in range(300_000): x = x + k\nx.tolist()",
    "a question": "gt.cuda.max_memory_allocated()",
    "a trace": "import tempfile\nwith gt.debug.trace(tempfile.mkdtemp() + '/trace.json'): pass",
}


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        system = System(stack)
        system.worker("--backend", "numpy")
        yield system


@pytest.mark.parametrize("wait", WAITS)
def test_every_wait_for_a_worker_says_so(system: System, wait: str) -> None:
    (worker,) = system.workers
    client = system.client(f"{SOON}\ngt.ones(2).tolist()\nsay('ready')\ngo()\n{WAITS[wait]}\nsay('done')")
    client.expect("ready")
    worker.kill(signal.SIGSTOP)  # shorter than the 10 s after which it counts as lost
    try:
        client.tell()
        line = client.expect("waiting for")
    finally:
        worker.kill(signal.SIGCONT)
    assert f"pid {worker.pid}" in line
    client.expect("done", 60)
    assert client.end() == 0


def test_the_first_run_of_compiled_code_says_so(system: System) -> None:
    """Later runs do not: the server reports each second what is finished."""
    (worker,) = system.workers
    client = system.client(
        f"{SOON}\nf = gt.compile(lambda x: ((x + 1) * x).exp().sum() + x)\n"
        "for k in range(2): f(gt.ones(3)).tolist()  # recorded\n"
        "for k in range(2):\n"
        "    while gt.client.stream.connect.session().outbox.compiles: time.sleep(0.05)\n"
        "    say('ready', k); go(); f(gt.ones(3)).tolist(); say('done', k)"
    )
    waits: list[list[str]] = []
    for k in range(2):
        client.expect(f"ready {k}")
        before = len(client.lines)
        worker.kill(signal.SIGSTOP)
        try:
            client.tell()
            wait_until(lambda before=before: len(client.lines) > before, what="a line")
            waits.append(client.lines[before:])
        finally:
            worker.kill(signal.SIGCONT)
        client.expect(f"done {k}")
    assert ["computes for this program" in lines[0] for lines in waits] == [True, True]
    assert ["workers may be compiling it" in lines[0] for lines in waits] == [True, False]
    assert client.end() == 0


def test_a_server_that_is_stopped(system: System) -> None:
    program = f"{SOON}\nlong_wait.ANSWER_TIMEOUT_S = 0.3\nsay('ready')\ngo()\ngt.ones(3).tolist()\nsay('done')"
    client = system.client(program)
    client.expect("ready")
    system.server.kill(signal.SIGSTOP)
    try:
        client.tell()
        assert "the server does not say for what" in client.expect("waiting for")
    finally:
        system.server.kill(signal.SIGCONT)
    client.expect("done")
    assert client.end() == 0
