"""Waits that look for a message for a moment before they block: when they do, and what that costs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
from collections.abc import Callable
from typing import Any

import pytest

from gt.launch import idle_cores
from gt.launch.idle_cores import MIN_CORES, make_spinning
from gt.wire import unix
from gt.wire.spinning import CHECK_S, INTERRUPTED_S, LIMIT_S, SHORT_WAITS, Spinning
from gt.wire.unix import UnixConnection, UnixListener
from tests.support.processes import script

SOON, LATE, LOOK_S = LIMIT_S / 2, LIMIT_S * 3, 1e-6


class Clock:
    """The time passes by itself: each reading is one look later."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += LOOK_S
        return self.now


class Messages:
    """In place of `select.poll`: a message arrives at a given time. Counts the looks, and the calls that block."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.arrival = clock, 0.0
        self.looks = self.blocked = 0

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        if milliseconds:
            self.blocked += 1
            self.clock.now = max(self.clock.now, min(self.arrival, self.clock.now + milliseconds / 1000))
        else:
            self.looks += 1
        return [(0, select.POLLIN)] if self.clock.now >= self.arrival else []


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Waits for messages that arrive after these times; whether each one was found by looking, or by blocking."""
    clock = Clock()
    messages: Any = Messages(clock)
    monkeypatch.setattr(unix, "time", clock)

    def run(delays: list[float], decides: Spinning | None) -> list[str]:
        how = []
        for delay in delays:
            messages.arrival, messages.looks, messages.blocked = clock.now + delay, 0, 0
            unix._poll(messages, 100, decides)
            assert messages.looks <= 2 + LIMIT_S / LOOK_S
            how.append("looks" * bool(messages.looks) + " blocks" * messages.blocked)
        return how

    return run


LEARNED, BLOCKS, LOOKS, BOTH = [SOON] * SHORT_WAITS, " blocks", "looks", "looks blocks"
#: when messages arrive after the begin of each wait, and what the waits after the first `SHORT_WAITS` do
CASES: dict[str, tuple[list[float], list[str]]] = {
    "messages come soon": ([SOON] * 5, [LOOKS] * 5),
    "the last one came late": ([SOON, LATE, SOON], [LOOKS, BOTH, BLOCKS]),
    "it has to learn again": ([LATE, SOON, SOON, SOON], [BOTH, BLOCKS, BLOCKS, LOOKS]),
    "every second one is late": ([LATE, SOON, LATE, SOON], [BOTH, BLOCKS, BLOCKS, BLOCKS]),
    "none comes": ([9.0, 9.0, 9.0], [BOTH, BLOCKS, BLOCKS]),
}


@pytest.mark.parametrize("case", CASES)
def test_when_a_wait_looks_before_it_blocks(case: str, waits: Callable[..., list[str]]) -> None:
    delays, expected = CASES[case]
    assert waits([*LEARNED, *delays], Spinning(lambda: False)) == [BLOCKS] * SHORT_WAITS + expected


def test_a_busy_machine_and_none_to_decide(waits: Callable[..., list[str]]) -> None:
    """How busy the machine is is looked at now and then, not in each wait."""
    asked: list[bool] = []

    def is_busy() -> bool:
        asked.append(len(asked) < 2)
        return asked[-1]

    count = int(3 * CHECK_S / SOON)
    how = waits([*LEARNED, *[SOON] * count], Spinning(is_busy))
    assert asked[:3] == [True, True, False]
    assert len(asked) <= 4
    assert how[: count // 2] == [BLOCKS] * (count // 2)
    assert how[-count // 4 :] == [LOOKS] * len(how[-count // 4 :])
    assert waits([*LEARNED, SOON], None) == [BLOCKS] * (SHORT_WAITS + 1)


def test_a_look_that_takes_long_ends_the_looking() -> None:
    """Another process had the core, or another thread Python's lock."""
    decides = Spinning(lambda: False)
    for _ in LEARNED:
        decides.begin(0.0)
        decides.end(SOON, found=True)
    assert decides.begin(1.0)
    assert decides.goes_on(1.0 + LOOK_S)
    assert not decides.goes_on(1.0 + 2 * LOOK_S + INTERRUPTED_S)
    decides.end(1.0 + SOON, found=True)
    assert not decides.begin(2.0)


def test_a_call_that_does_not_wait_decides_nothing() -> None:
    poll: Any = Messages(Clock())
    poll.arrival = 1.0
    decides: Any = None
    assert unix._poll(poll, 0, decides) == []
    assert (poll.looks, poll.blocked) == (1, 0)


#: (setting, cores of the affinity, cores of the cgroup) -> may a wait look before it blocks?
MACHINES: dict[tuple[str | None, int, float | None], bool] = {
    (None, 16, None): True,
    (None, 16, 8.0): True,
    (None, MIN_CORES, None): True,
    (None, MIN_CORES - 1, None): False,
    (None, 16, 2.0): False,
    ("0", 16, None): False,
    ("1", 2, None): True,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_which_machines_have_enough_cores(
    machine: tuple[str | None, int, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, cores, limit = machine
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(idle_cores, "cgroup_limits", lambda: (limit, None))
    monkeypatch.delenv("GT_SPIN", raising=False)
    if setting is not None:
        monkeypatch.setenv("GT_SPIN", setting)
    assert (make_spinning() is not None) is MACHINES[machine]


@pytest.mark.skipif(not pathlib.Path("/proc/loadavg").exists(), reason="the kernel does not tell how busy it is")
def test_running_threads_of_other_processes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert idle_cores._machine_is_busy()  # this process itself runs
    monkeypatch.setattr(os, "cpu_count", lambda: 1 << 20)
    assert not idle_cores._machine_is_busy()


def test_messages_arrive_in_order_while_both_sides_look(tmp_path: Any, stack: contextlib.ExitStack) -> None:
    listener = UnixListener(str(tmp_path / "socket"), Spinning(lambda: False))
    stack.callback(listener.close)
    connection = UnixConnection(str(tmp_path / "socket"), Spinning(lambda: False))
    stack.callback(connection.close)
    connection.wait(0)
    for k in range(50):
        connection.send([b"%d" % k])
        arrived: list[Any] = []
        while not arrived:
            arrived += [(peer, frames) for peer, frames in listener.receive(1.0) if frames is not None]
        ((peer, frames),) = arrived
        listener.send(peer, frames)
        assert connection.wait(1000)
        assert connection.take() == [[b"%d" % k]]


IDLE = """
    import os, pathlib, time
    import gt

    def nanoseconds():
        with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
            server = int(file.read().split()[0])
        pids = os.getpid(), server, gt.workers()[0].pid
        return sum(int((task / "schedstat").read_text().split()[0])
                   for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir())

    a = gt.ones(2)
    for k in range(300):
        assert (a * k).sum().item() == 2 * k
    time.sleep(0.1)
    begun = nanoseconds()
    time.sleep(1)
    print((nanoseconds() - begun) / 1e9)
"""


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/schedstat").exists(), reason="the kernel does not tell processor times"
)
def test_an_idle_system_uses_no_processor_time(stack: contextlib.ExitStack) -> None:
    """Right after many reads: three processes that looked all the time would take a second and more."""
    client = script(IDLE, stack=stack, GT_SPIN="1", GT_BACKEND="numpy")
    assert client.end() == 0, client.output
    assert float(client.lines[-1]) < 0.15
