"""A server with a journal that is killed with -9 and started again: no process notices more than a pause."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import signal

import pytest

from benchmarks.chaos_child import KINDS
from gt.dispatcher.journal.journal_file import _HEAD, read_records
from tests.support.processes import Process, System, wait_until
from tests.test_leases import TRAIN

long = pytest.mark.long
STEPS, KILLS = 40, 3


class Restarted(System):
    """A system whose server can be started again."""

    def __init__(self, stack: contextlib.ExitStack, folder: pathlib.Path, *options: str, prelude: str = "") -> None:
        self.folder, self.options, self.prelude = folder, options, prelude
        super().__init__(stack, "--journal", str(folder), *options)
        if prelude:
            self.kill()
            self.restart()

    def kill(self) -> None:
        self.server.kill(signal.SIGKILL)
        self.server.end()

    def restart(self) -> Process:
        arguments = ["-p", str(self.port), "--journal", str(self.folder), *self.options]
        program = f"{self.prelude}\nimport gt.server, sys; sys.exit(gt.server.main({arguments!r}))"
        self.server = self.start("-c", program, GT_VERBOSE="1")
        self.server.expect("listening")
        return self.server

    @property
    def journal(self) -> pathlib.Path:
        return self.folder / "journal"


def losses(client: Process) -> list[float]:
    return [
        line["loss"] for line in map(json.loads, filter(lambda s: s.startswith("{"), client.lines)) if "loss" in line
    ]


@pytest.mark.parametrize(
    ("kind", "templates"),
    [
        ("plain", "1"),
        ("data_parallel", "1"),
        pytest.param("plain", "0", marks=long),
        *[pytest.param(kind, "1", marks=long) for kind in KINDS if kind not in ("plain", "data_parallel")],
    ],
)
def test_kill_9_of_the_server_changes_no_loss(
    stack: contextlib.ExitStack, tmp_path: pathlib.Path, kind: str, templates: str
) -> None:
    system = Restarted(stack, tmp_path / "journal")
    for _ in range(2):
        system.worker("--threads", "1")
    arguments = ("-m", "benchmarks.chaos_child", str(system.port), kind, str(STEPS), "off", "0", "1")
    undisturbed = system.start(*arguments, GT_TEMPLATES=templates)
    assert undisturbed.end() == 0, undisturbed.output
    client = system.start(*arguments, GT_TEMPLATES=templates)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: len(losses(client)) >= kill * STEPS // (KILLS + 1) or client.popen.poll() is not None)  # noqa: B023
        system.kill()
        assert client.popen.poll() is None, client.output
        system.restart().expect("continues the journal in")
    assert client.end() == 0, client.output
    assert losses(client) == losses(undisturbed), client.output
    assert "; trying again until" in client.output
    assert all(worker.popen.poll() is None for worker in system.workers)


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_uploads_and_a_read_that_waits(stack: contextlib.ExitStack, tmp_path: pathlib.Path, shared_memory: str) -> None:
    """The worker is stopped when the server is killed, so that a read waits for it."""
    system = Restarted(stack, tmp_path / "journal")
    worker = system.worker("--backend", "numpy", GT_SHM=shared_memory)
    client = system.client(TRAIN, GT_SHM=shared_memory)
    for part in range(0, 400, 80):
        client.expect(f"part {part}")
        worker.kill(signal.SIGSTOP)
        client.tell()
        if part % 160 == 0:  # the client goes on until it waits for a value
            before = journal_length(system)
            wait_until(lambda: journal_length(system) > before, what="messages of the client")  # noqa: B023
        system.kill()
        worker.kill(signal.SIGCONT)
        system.restart()
    client.expect("trained")
    assert client.end() == 0


def journal_length(system: Restarted) -> int:
    """The number of records."""
    return sum(1 for _ in read_records(system.journal.read_bytes()))


LOOP = """
    x = gt.zeros(8)
    say("ready", x.sum().item())
    go()
    for i in range(2000):
        x = x + 1
        if i % 10 == 0:
            assert x[0].item() == i + 1
    say("done", x.sum().item())
    go()
    say("again", x.sum().item())
"""
SHORT = "import gt.dispatcher.journal.journal as j; j.MIN_BYTES, j.LENGTH_LIMIT = 20_000, 1"


def test_the_audit_log_of_a_session_that_continues(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    audit = tmp_path / "audit"
    system = Restarted(stack, tmp_path / "journal", "--audit", str(audit))
    system.worker("--backend", "numpy")
    client = system.client(LOOP)
    client.expect("ready 0.0")
    system.kill()
    system.restart().expect("client 1 has a new connection")
    client.tell()
    client.expect("done")
    client.tell()
    assert client.end() == 0
    events = lambda: [line for line in map(json.loads, audit.read_text().splitlines()) if line["name"] == "client 1"]
    wait_until(lambda: events()[-1]["event"] == "disconnected", what="the end of the session in the log")
    assert [(line["event"], line.get("reason")) for line in events()] == [
        ("connected", None),
        ("session", "has a new connection"),
        ("disconnected", None),
    ]
    assert {(line["user"], line["role"]) for line in events()} == {("owner", "client")}
    assert len({line["address"] for line in events()}) == 2  # the old connection, and the new one


def test_a_journal_is_written_anew_when_it_is_long(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    system = Restarted(stack, tmp_path / "journal", prelude=SHORT)
    system.worker("--backend", "numpy")
    client = system.client(LOOP)
    client.expect("ready 0.0")
    first = system.journal.stat().st_ino
    client.tell()
    client.expect("done 16000.0")
    wait_until(lambda: system.journal.stat().st_ino != first, what="a new file")
    system.kill()
    system.restart()
    client.tell()
    client.expect("again 16000.0")
    assert client.end() == 0


def test_a_journal_without_its_end(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """As after the end of the machine: the sessions that the journal does not explain end; no value is wrong."""
    system = Restarted(stack, tmp_path / "journal")
    worker = system.worker("--backend", "numpy")
    client = system.client(LOOP)
    client.expect("ready 0.0")
    length = sum(_HEAD.size + len(payload) for *_, payload in read_records(system.journal.read_bytes()))
    client.tell()
    client.expect("done 16000.0")
    system.kill()
    with system.journal.open("r+b") as file:
        file.truncate(length)
    system.restart().expect("clients: 1, workers: 1")
    worker.expect("the server has ended this session, or was started again")
    client.tell()
    assert client.end() != 0
    assert "is lost: the server has ended this session, or was started again" in client.output
    system.worker("--backend", "numpy")
    other = system.client("say(gt.ones(3).sum().item())")
    other.expect("3.0")


def test_a_full_disk(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """The server says so once, and goes on. Its sessions end with it."""
    system = Restarted(stack, tmp_path / "journal")
    worker = system.worker("--backend", "numpy", GT_SHM="0")
    client = system.client(
        """
        for i in range(10):
            x = gt.from_numpy(np.full(200_000, i, dtype=np.float32))
            assert x.sum().item() == 200_000 * i
        say("done")
        go()
        x.sum().item()
        """,
        GT_SHM="0",
    )
    size = system.journal.stat().st_size
    resource.prlimit(system.server.pid, resource.RLIMIT_FSIZE, (size, size))
    client.expect("done")
    system.server.expect("the journal ends here")
    assert system.server.output.count("cannot be written (File too large); the server goes on") == 1
    assert not system.journal.exists()
    system.kill()
    system.restart()
    client.tell()
    assert client.end() != 0
    assert "is lost: the server has ended this session, or was started again" in client.output
    assert worker.end() == 2


def test_folders_that_a_server_does_not_continue(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    system = Restarted(stack, tmp_path / "journal")

    def refusal(*options: str) -> str:
        process = system.start("-m", "gt.server", *options)
        assert process.end() == 1
        assert len(process.lines) == 1
        return process.lines[0]

    journal = ("--journal", str(tmp_path / "journal"))
    assert "another server that runs uses this folder" in refusal("-p", str(system.port), *journal)
    assert "--journal needs a server on TCP" in refusal("--unix", str(tmp_path / "socket"), *journal)
    system.kill()
    another_key = ("-p", str(system.port), "--folder", str(tmp_path / "keys"))
    assert "its journal is of the server with the public key" in refusal(*another_key, *journal)


@pytest.mark.parametrize(
    ("kind", "is_lost"), [("data_parallel", False), ("plain", True), pytest.param("pipelined", False, marks=long)]
)
def test_a_worker_dies_after_the_server_was_started_again(
    stack: contextlib.ExitStack, tmp_path: pathlib.Path, kind: str, is_lost: bool
) -> None:
    """Training goes on from the snapshot, on workers that share no memory. It is lost if its file is."""
    system = Restarted(stack, tmp_path / "journal", "--snapshots", str(tmp_path / "snapshots"))
    for _ in range(2):
        system.worker("--threads", "1", GT_SHM="0")
    arguments = ("-m", "benchmarks.chaos_child", str(system.port), kind, str(STEPS))
    undisturbed = system.start(*arguments, "off", "0", "1")
    assert undisturbed.end() == 0, undisturbed.output
    client = system.start(*arguments, "120", "3", "1")
    wait_until(lambda: len(losses(client)) >= STEPS // 2 or client.popen.poll() is not None)
    client.kill(signal.SIGSTOP)  # so that it has not ended when the worker dies
    system.kill()
    files = list((tmp_path / "snapshots").glob("snapshots-*/*"))
    assert files
    if is_lost:
        for file in files:
            file.unlink()
    restarted = system.restart()
    if is_lost:
        restarted.expect("the snapshots of 1 sessions are not there any more")
    for worker in range(2):
        restarted.expect(f"worker {worker} has a new connection")
    os.kill(json.loads(client.lines[0])["workers"][0], signal.SIGKILL)
    client.kill(signal.SIGCONT)
    system.worker("--threads", "1", GT_SHM="0")
    assert client.end() == 0, client.output
    if is_lost:
        assert "its snapshot was lost when the server was started again" in client.output
    else:
        assert losses(client) == losses(undisturbed), client.output
        assert "the program runs again" in client.output or "the program waits" in client.output
    wait_until(lambda: not list((tmp_path / "snapshots").glob("snapshots-*/*")), what="an empty folder")


def test_a_full_disk_during_a_snapshot(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """With the folder that follows from that of the journal. The snapshot before it counts."""
    system = Restarted(stack, tmp_path / "journal")
    worker = system.worker("--backend", "numpy")
    client = system.client(
        """
        gt.recovery("replay", wait=60)
        x = gt.zeros(100_000)
        for _ in range(3):
            x += 1
            try:
                say(gt.snapshot().wait())
            except gt.errors.ClusterError as error:
                say("none:", error)
            go()
        x += 1
        say("sum", x.sum().item())
        """
    )
    client.expect("True")
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    for _ in range(2):
        client.tell()
    wait_until(lambda: sum(line.startswith("none:") for line in client.lines) == 2)
    worker.kill(signal.SIGKILL)
    system.worker("--backend", "numpy")
    client.tell()
    client.expect("sum 400000.0")
    assert client.output.count("File too large; the one before it counts") == 1
    assert len(list((tmp_path / "journal" / "snapshots").glob("snapshots-*/*"))) == 1


def test_a_worker_that_does_not_come_back(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """The worker was killed together with the server: its tensors are lost after a while, not the session."""
    short = "import gt.wire.leases.leased_listener as l; l.WORKER_RETURN_S = 1.0"
    system = Restarted(stack, tmp_path / "journal", prelude=short)
    worker = system.worker("--backend", "numpy")
    client = system.client(
        """
        x = gt.ones(3)
        say("first", x.sum().item())
        go()
        try:
            say(x.sum().item())
        except gt.WorkerLost as error:
            say("lost:", error)
        go()
        say("new", gt.ones(4).sum().item())
        """
    )
    client.expect("first 3.0")
    system.kill()
    worker.kill(signal.SIGKILL)
    worker.end()
    system.restart()
    client.tell()
    client.expect("lost: ")
    system.worker("--backend", "numpy")
    client.tell()
    client.expect("new 4.0")
    assert client.end() == 0
