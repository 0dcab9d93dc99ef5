"""Ctrl-C at any point of a client: no message is torn, nothing leaks, no thread starves, and the interrupt arrives."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import Any

import pytest

from gt.wire import interrupts
from gt.wire.interrupts import InterruptHandler, deferred, interruptible

#: Runs at the start of a client: `act` uses every path that changes the state of a session, and `check` looks at it.
CLIENT = """
    import gc
    import numpy as np
    from gt.client.stream import templates
    from gt.client.stream.connect import session
    from gt.data import batches_ahead

    templates.MAX_TEMPLATES = 2  # so that fragments are forgotten all the time
    large, lengths = np.ones(700_000, dtype=np.float32), itertools.cycle((5, 6, 7, 8))
    last = gt.zeros(2)

    def act():
        '''Upload chunks at once and in the background, free tensors, run and forget fragments, read values.'''
        x = gt.tensor(large)
        for _ in range(2):
            y = gt.ones(2)
            for _ in range(next(lengths)):
                y = y + 1
            last.copy_(y)
            y.sum().item()
        for x in batches_ahead([large] * 2, 1, lambda: True):  # in the background
            pass
        assert x[-1].item() == 1

    def turn_is_free(link, results):
        taken = link._turn.acquire(timeout=10)
        results.append(taken)
        if taken:
            link._turn.release()

    def check(point):
        link, results = session().connection.link, []
        thread = threading.Thread(target=turn_is_free, args=(link, results))
        thread.start()
        thread.join()
        assert results == [True], point
        assert gt.ones(7).sum().item() == 7, point

    def check_leaks():
        act()  # its acknowledgements come after all others
        gc.collect()
        assert session().uploads._channel._bytes_in_frames() <= 3 << 20
        ring = session().uploads._channel._ring
        assert ring is None or len(ring._used) <= 1, ring._used
        used = gt.debug.memory()["worker 0"]["all_clients"]["bytes"]
        assert used == 8, used
        assert len(session().replies.pending) == 0
"""

AT_EVERY_BYTECODE = (
    CLIENT
    + """
    folders = tuple(os.path.dirname(os.path.abspath(module.__file__)) for module in (gt, zmq))
    left = 0

    def trace(frame, event, argument):
        global left
        if not frame.f_code.co_filename.startswith(folders):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    def interrupted_at(point):
        global left
        left = point
        try:
            sys.settrace(trace)
            act()
            sys.settrace(None)
            if left <= 0:
                time.sleep(10)
                raise AssertionError(f"the interrupt at {point} is lost")
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)

    act(); act(); act()
    point = random.randrange(1, STEP + 1)
    while interrupted_at(point):
        check(point)
        point += STEP
    check_leaks()
    say("bytecodes:", point)
"""
)

STORM = (
    CLIENT
    + """
    act()
    stop, main, armed, count = threading.Event(), threading.get_ident(), False, 0

    def interrupt(number, frame):  # only inside the block below: elsewhere the program would end
        global armed, count
        if armed:
            armed, count = False, count + 1
            raise KeyboardInterrupt

    def storm():
        while not stop.wait(random.uniform(0.001, 0.02)):
            signal.pthread_kill(main, signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    thread, until = threading.Thread(target=storm), time.monotonic() + 2
    thread.start()
    while time.monotonic() < until:
        try:
            armed = True
            while time.monotonic() < until:
                act()
            armed = False
        except KeyboardInterrupt:
            pass
    stop.set()
    thread.join()
    check("after the storm")
    check_leaks()
    say("survived", count)
"""
)


def client(system: Any, text: str, memory: str) -> Any:
    modules = "import itertools, os, random, sys, threading, time, zmq"
    return system.client(f"\n    {modules}{text}", GT_SHM=memory)


@pytest.mark.parametrize("memory", ["0", "1"], ids=["frames", "shared memory"])
@pytest.mark.parametrize("step", [601, pytest.param(17, marks=pytest.mark.long)])
def test_an_interrupt_at_every_bytecode(system: Any, memory: str, step: int) -> None:
    """A signal at the k-th bytecode of GT and pyzmq, for every ``step``-th k from a random one."""
    process = client(system, AT_EVERY_BYTECODE.replace("STEP", str(step)), memory)
    said = process.expect("bytecodes:", 540)
    assert process.end() == 0, process.output
    assert int(said.split()[-1]) > 3000
    assert "Exception ignored" not in process.output


@pytest.mark.parametrize("memory", ["0", "1"], ids=["frames", "shared memory"])
def test_a_storm_of_interrupts(system: Any, memory: str) -> None:
    process = client(system, STORM, memory)
    said = process.expect("survived")
    assert process.end() == 0, process.output
    assert int(said.split()[-1]) > 10
    assert "Exception ignored" not in process.output


# -- the handler -------------------------------------------------------------------------


@pytest.fixture
def handler() -> Any:
    """The handler of SIGINT before the test is there again after it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_of_a_deferred_function(handler: Any) -> None:
    steps = []

    @deferred
    def change() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(3 * interrupts.RETRY_S)
        steps.append("complete")

    def change_and_wait() -> None:
        change()
        time.sleep(10)

    interrupts.install()
    with pytest.raises(KeyboardInterrupt):
        change_and_wait()
    assert steps == ["complete"]


def test_a_wait_inside_a_deferred_function_is_interrupted(handler: Any) -> None:
    @interruptible
    def wait() -> None:
        time.sleep(10)

    @deferred
    def change() -> None:
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        wait()

    interrupts.install()
    with pytest.raises(KeyboardInterrupt):
        change()


def test_the_mark_of_a_method_comes_before_that_of_its_class() -> None:
    @deferred
    class Both:
        @interruptible
        def wait(self) -> bool:
            return interrupts._is_deferred(sys._getframe())

        @property
        def change(self) -> bool:
            return interrupts._is_deferred(sys._getframe())

    assert (Both().wait(), Both().change) == (False, True)


def test_the_users_handler_is_kept(handler: Any) -> None:
    """A handler that the program sets later is called, and may call the one that it replaced."""
    calls = []
    interrupts.install()
    first = signal.getsignal(signal.SIGINT)

    def mine(number: int, frame: Any) -> None:
        calls.append(number)
        first(number, frame)  # type: ignore[operator, misc]

    signal.signal(signal.SIGINT, mine)
    interrupts.install()
    assert isinstance(signal.getsignal(signal.SIGINT), InterruptHandler)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert calls == [signal.SIGINT]


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_without_a_python_handler_is_left_alone(handler: Any, ignored: Any) -> None:
    signal.signal(signal.SIGINT, ignored)
    interrupts.install()
    assert signal.getsignal(signal.SIGINT) is ignored


def test_another_thread_installs_nothing(handler: Any) -> None:
    with contextlib.ExitStack() as stack:
        thread = threading.Thread(target=interrupts.install)
        stack.callback(thread.join)
        thread.start()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
