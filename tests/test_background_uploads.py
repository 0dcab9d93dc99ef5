"""Batches of a loader whose bytes travel in the background: values, order, errors, and ends at any point."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gt
from gt import data
from gt.client.stream.uploads import Uploads
from gt.errors import ConnectionLost, NoWorkers
from gt.testing import Cluster
from gt.wire import transfers
from gt.wire.codec import Decode
from gt.wire.messages import Chunk, ChunkTaken
from gt.wire.words import DROPPED, WINDOW_WORDS
from tests.support.processes import System, wait_until

decode = Decode("dispatcher")


def sends_nothing() -> bool:
    return not any(thread.name == "gt-upload" for thread in threading.enumerate())


def ended(upload: Any) -> None:
    assert upload._state.ended.wait(30)


def interrupted() -> None:
    raise KeyboardInterrupt


# -- one value -----------------------------------------------------------------------------


class FakeConnection:
    """Assembles the values of the chunks that arrive in frames. ``room``: how many may be sent before one is taken."""

    recovery = object()  # so that nothing is in shared memory
    address, ended, workers = "unix:somewhere", None, ()

    def __init__(self, error: Exception | None = None) -> None:
        self.link, self.error = self, error
        self.values: dict[int, bytes] = {}
        self.dropped: list[int] = []
        self.waits, self.go_on = threading.Event(), threading.Event()
        self.uploads: Any = None

    def send(self, frames: list[Any]) -> None:
        chunk: Any = decode(bytes(frames[0]))
        assert isinstance(chunk, Chunk)
        if chunk.offset == DROPPED:
            self.dropped.append(chunk.transfer)
            return
        if self.error is not None:
            raise self.error
        value = self.values.setdefault(chunk.transfer, b"")
        assert chunk.offset == len(value)
        self.values[chunk.transfer] = value + frames[1]

    def wait_for_progress(self, ready: Any) -> None:
        """All that was sent is taken, as soon as the test says so."""
        self.waits.set()
        assert self.go_on.wait(30)
        for transfer in list(self.values):
            while self.uploads._channel._unacknowledged:
                self.uploads.taken(ChunkTaken(transfer, 0), None)
                transfer = next((t for t, *_ in self.uploads._channel._unacknowledged), transfer)
        assert ready()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "CHUNK_BYTES", 10)
    monkeypatch.setattr(transfers, "MAX_UNACKNOWLEDGED_BYTES", 30)


def sender(error: Exception | None = None) -> tuple[FakeConnection, Uploads]:
    connection = FakeConnection(error)
    uploads = connection.uploads = Uploads(connection)  # type: ignore[arg-type]
    return connection, uploads


VALUE = bytes(range(100))


def test_a_value_is_sent_while_the_program_goes_on(short: None) -> None:
    connection, uploads = sender()
    upload = uploads.send_in_background(memoryview(VALUE))
    assert connection.waits.wait(30)
    assert len(connection.values[1]) == 30
    connection.go_on.set()
    assert upload.take() == 1
    assert connection.values == {1: VALUE}
    del upload
    assert connection.dropped == []
    wait_until(sends_nothing)


def test_an_upload_that_nobody_takes_is_dropped(short: None) -> None:
    connection, uploads = sender()
    connection.go_on.set()
    upload = uploads.send_in_background(memoryview(VALUE))
    ended(upload)
    assert connection.dropped == []
    del upload
    assert connection.dropped == [1]


def test_an_upload_is_given_up_while_it_waits(short: None) -> None:
    connection, uploads = sender()
    upload = uploads.send_in_background(memoryview(VALUE))
    assert connection.waits.wait(30)
    del upload
    assert connection.dropped == []
    connection.go_on.set()
    wait_until(sends_nothing)
    assert set(connection.dropped) == {1}
    assert len(connection.values[1]) == 30


@pytest.mark.parametrize("error", [ConnectionLost("gone"), NoWorkers("none")])
def test_the_program_gets_the_error_of_the_thread(short: None, error: Exception) -> None:
    connection, uploads = sender(error)
    upload = uploads.send_in_background(memoryview(VALUE))
    with pytest.raises(type(error), match=str(error)):
        upload.take()
    assert connection.dropped == [1]
    del upload
    assert connection.dropped == [1]
    wait_until(sends_nothing)


def test_a_forked_process_sends_nothing(short: None) -> None:
    connection, uploads = sender()
    connection.go_on.set()
    upload = uploads.send_in_background(memoryview(VALUE))
    ended(upload)
    connection.ended = ConnectionLost("forked")  # type: ignore[assignment]
    del upload
    assert connection.dropped == []


@pytest.mark.parametrize("seed", range(20))
def test_values_of_several_threads(short: None, seed: int) -> None:
    """Sent at the same time, at once and in the background, some of them given up."""
    rng = random.Random(seed)
    connection, uploads = sender()
    connection.go_on.set()
    expected, waiting, given_up = {}, [], set()
    for number in range(1, 13):
        value = rng.randbytes(rng.choice((1, 9, 10, 11, 30, 31, 400)))
        if rng.random() < 0.4:
            assert uploads.send(memoryview(value), 0) == number
            expected[number] = value
        else:
            waiting.append((number, value, uploads.send_in_background(memoryview(value))))
        if waiting and rng.random() < 0.6:
            taken, sent, upload = waiting.pop(rng.randrange(len(waiting)))
            if rng.random() < 0.5:
                assert upload.take() == taken
                expected[taken] = sent
            else:
                given_up.add(taken)
            del upload
    for number, value, upload in waiting:
        assert upload.take() == number
        expected[number] = value
    wait_until(sends_nothing)
    assert {number: value for number, value in connection.values.items() if number not in given_up} == expected
    assert set(connection.dropped) == given_up


def test_a_dropped_transfer_leaves_nothing() -> None:
    cluster = Cluster()
    with cluster.client() as session:
        for _ in range(3):
            number = session.uploads.send(memoryview(bytes(100_000)), 0)
            cluster.settle()
            (space,) = [worker.spaces[session.id] for worker in cluster.workers.values()]
            client = cluster.dispatcher.clients[session.id]
            assert list(space.transfers) == list(client.transfers) == [number]
            for _ in range(2):  # the second one changes nothing
                session.uploads._drop(number)
            cluster.settle()
            assert not space.transfers
            assert not client.transfers
            assert not client.chunks


def test_an_interrupt_before_the_instruction_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is far ahead, and waits before it emits."""
    cluster, large = Cluster(), np.ones(100_000)
    with cluster.client() as session:
        gt.tensor(large).sum().item()
        with monkeypatch.context() as patch:
            patch.setattr(session.outbox, "sent", session.outbox.finished + WINDOW_WORDS + 1)
            patch.setattr(session.outbox, "_wait_for_credit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                gt.tensor(large)
        cluster.settle()
        assert not any(worker.spaces[session.id].transfers for worker in cluster.workers.values())
        assert gt.tensor(large).sum().item() == 100_000


# -- batches -------------------------------------------------------------------------------


def test_what_comes_from_a_loaders_processes() -> None:
    for loader, expected in (
        (SimpleNamespace(num_workers=2), True),
        (SimpleNamespace(num_workers=0), False),
        (SimpleNamespace(num_workers=None), False),
        ([np.ones(3)], False),
    ):
        assert data.loads_in_processes(loader) == expected


def test_arrays_of_the_program_are_sent_before_it_goes_on(system: System) -> None:
    """A loop may change the array that it gets its next batches from."""
    process = system.client("""
        buffer = np.zeros(1 << 19, np.float32)
        seen = []
        for batch in gt.to_device([buffer] * 4, ahead=1):
            buffer += 1
            seen.append(batch)
        say([int(x[-1]) for x in seen])
    """)
    process.expect("[0, 0, 1, 2]")
    assert process.end() == 0, process.output


LOADER = """
    import warnings
    import torch
    from gt.client.stream.connect import session

    SHAPE, WIDE = (1 << 19,), torch.float16

    class Data(torch.utils.data.Dataset):
        def __init__(self, count, fails=-1):
            self.count, self.fails = count, fails
        def __len__(self):
            return self.count
        def __getitem__(self, i):
            if i == self.fails:
                raise ValueError("a bad sample")
            torch.manual_seed(i)
            return torch.randint(0, 256, SHAPE, dtype=torch.uint8), i, torch.full((1 << 19,), i).to(WIDE)

    def loader(count, fails=-1, **options):
        options = {"batch_size": 4, "num_workers": 2, **options}
        return gt.utils.data.DataLoader(Data(count, fails), **options)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "gt-upload"]

    def wait_for(condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
"""


@pytest.mark.parametrize("memory", ["0", "1"], ids=["frames", "shared memory"])
def test_batches_are_those_of_the_dataset(stack: contextlib.ExitStack, memory: str) -> None:
    system = System(stack)
    system.worker()  # with torch, which has bfloat16
    process = system.client(
        LOADER
        + """
    from gt.client.stream.uploads import Uploads
    WIDE = torch.bfloat16
    begin, begun = Uploads.send_in_background, []
    def counted(self, data):
        begun.append(data.nbytes)
        return begin(self, data)
    Uploads.send_in_background = counted
    for wrap in (iter, gt.to_device):
        source = loader(22) if wrap is iter else torch.utils.data.DataLoader(Data(22), batch_size=4, num_workers=2)
        begun.clear()
        count = 0
        for x, numbers, wide in wrap(source):
            expected = [Data(22)[i] for i in range(count, min(count + 4, 22))]
            assert numbers.tolist() == [i for _, i, _ in expected]
            assert (x.numpy() == np.stack([x.numpy() for x, _, _ in expected])).all()
            assert wide.dtype is gt.bfloat16
            assert wide[:, -1].tolist() == numbers.tolist()
            count += len(numbers)
        assert count == 22
        assert begun == [2 << 20, 8 << 20] * 5 + [1 << 20, 4 << 20], begun
    wait_for(lambda: not threads())
    say("right")
    """,
        GT_SHM=memory,
    )
    process.expect("right")
    assert process.end() == 0, process.output


def test_an_error_of_the_dataset_comes_at_the_same_place(system: System) -> None:
    """Where it comes without processes but as many batches ahead."""
    process = system.client(
        LOADER
        + """
    def seen(batches):
        numbers = []
        try:
            for _, number, _ in batches:
                numbers += number.tolist()
        except ValueError as error:
            assert "a bad sample" in str(error)
            numbers.append("error")
        return numbers
    plain = torch.utils.data.DataLoader(Data(20, fails=17), batch_size=4)
    ours = seen(loader(20, fails=17))
    say(ours == seen(gt.to_device(plain)), ours[-2:], gt.ones(3).sum().item())
    wait_for(lambda: not threads())
    """
    )
    process.expect("True [7, 'error'] 3.0")
    assert process.end() == 0, process.output


def test_iterators_abandoned_at_any_point(system: System) -> None:
    process = system.client(
        LOADER
        + """
    ring = lambda: session().uploads._channel._ring
    for steps in range(6):
        for count, (x, numbers, _) in enumerate(loader(20, persistent_workers=False)):
            if count == steps:
                break
        assert numbers.tolist()[0] == 4 * min(steps, 4)
        wait_for(lambda: not threads())
    gt.ones(1).item()
    wait_for(lambda: gt.ones(1).item() and not ring()._used)
    del x, numbers, _
    used = gt.debug.memory()["worker 0"]["all_clients"]["bytes"]
    say("left", used)
    """
    )
    process.expect("left 0")
    assert process.end() == 0, process.output


def test_the_end_of_a_session_between_two_batches(system: System) -> None:
    process = system.client(
        LOADER
        + f"""
    batches = iter(loader(20))
    next(batches)
    gt.disconnect()
    try:
        next(batches)
    except gt.ConnectionLost as error:
        say("raised", error)
    wait_for(lambda: not threads())
    gt.connect("{system.host}:{system.port}")
    say(*(numbers.tolist()[0] for _, numbers, _ in loader(20)))
    """
    )
    process.expect("raised this session was disconnected")
    process.expect("0 4 8 12 16")
    assert process.end() == 0, process.output


WAITING = (
    LOADER
    + """
    SHAPE = (1 << 22,)
    batches = iter(loader(20))
    next(batches)[1].tolist()
    wait_for(lambda: not threads())
    say("ready")
    go()
    next(batches)
    wait_for(threads)
    say("waits")
"""
)


def test_an_interrupt_while_bytes_are_sent(system: System) -> None:
    """The worker stands still, so that the channel is full."""
    process = system.client(
        WAITING
        + """
    try:
        next(batches)
    except KeyboardInterrupt:
        say("interrupted")
    go()
    wait_for(lambda: not threads())
    say("again", *(numbers.tolist()[0] for _, numbers, _ in loader(20)))
    """,
        GT_SHM="0",
    )
    process.expect("ready")
    os.kill(system.workers[0].pid, signal.SIGSTOP)
    process.tell()
    process.expect("waits")
    os.kill(process.pid, signal.SIGINT)
    process.expect("interrupted")
    os.kill(system.workers[0].pid, signal.SIGCONT)
    process.tell()
    process.expect("again 0 4 8 12 16")
    assert process.end() == 0, process.output
    assert "Exception ignored" not in process.output


def test_a_worker_is_lost_while_bytes_are_sent(system: System) -> None:
    process = system.client(
        WAITING
        + """
    go()
    try:
        for x, *_ in batches:
            x.sum().item()
    except (gt.NoWorkers, gt.WorkerLost) as error:
        say("raised", type(error).__name__)
    wait_for(lambda: not threads())
    go()
    say("again", *(numbers.tolist()[0] for _, numbers, _ in loader(20)))
    """,
        GT_SHM="0",
    )
    process.expect("ready")
    os.kill(system.workers[0].pid, signal.SIGSTOP)
    process.tell()
    process.expect("waits")
    system.workers[0].kill()
    process.tell()
    process.expect("raised")
    system.worker("--backend", "numpy")
    process.tell()
    process.expect("again 0 4 8 12 16")
    assert process.end() == 0, process.output


def test_a_fork_while_an_upload_is_not_taken(system: System) -> None:
    """The child frees its copy of the iterator and sends nothing: the batch arrives."""
    process = system.client(
        LOADER
        + """
    batches = iter(loader(20))
    next(batches)
    wait_for(lambda: not threads())
    child = os.fork()
    if child == 0:
        del batches
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    say(*(numbers.tolist()[0] for _, numbers, _ in batches))
    """
    )
    process.expect("4 8 12 16")
    assert process.end() == 0, process.output


def test_a_fork_while_bytes_are_sent(system: System) -> None:
    """The worker stands still, so that the channel is full. In the child no thread sends the rest."""
    process = system.client(
        WAITING
        + """
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except gt.ConnectionLost as error:
            say("child:", error)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    say("parent goes on")
    say(*(numbers.tolist()[0] for _, numbers, _ in batches))
    """,
        GT_SHM="0",
    )
    process.expect("ready")
    os.kill(system.workers[0].pid, signal.SIGSTOP)
    process.tell()
    process.expect("waits")
    process.expect("child: a forked process cannot use its parent's tensors")
    process.expect("parent goes on")
    os.kill(system.workers[0].pid, signal.SIGCONT)
    process.expect("8 12 16")
    assert process.end() == 0, process.output
