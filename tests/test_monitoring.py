"""The tools on the event stream: trace, top, explain_last_step; their files, their sums, and their errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ConfigError, GtError
from gt.events import intervals
from gt.events.breakdown import KINDS, break_down
from gt.events.critical_path import Work, critical_path
from gt.events.load import ClientLoad, WorkerLoad
from gt.events.log import read_log
from gt.events.perfetto import write_perfetto
from gt.events.table import EventTable
from gt.launch.running import running_servers, servers_folder
from gt.scripts import top
from gt.scripts.trace import _summarize
from gt.testing import Cluster
from gt.wire.event_messages import EVENT_FIELDS, EventBatch, Listening
from gt.wire.structures import EventName, WorkerInfo
from tests.support.processes import Process, environment, free_port, wait_until
from tests.test_events import training_step

OP, MOVE, WAIT, START = (
    EventName("op", "matmul", "matmul", "matmul(…)", "", 8),
    EventName("move", "moves", "all_reduce", "all_reduce among workers 0, 1", "", 8, (0, 1)),
    EventName("wait", "waiting", "wait", "wait for a move", "", 0),
    EventName("start", "moves", "all_reduce", "all_reduce among workers 0, 1", "", 8, (0, 1)),
)
NAMES = [OP, MOVE, WAIT, START]


def table_of(events: dict[int, list[tuple[EventName, int, int]]], dispatched: list[tuple[int, ...]] = ()) -> EventTable:
    """A table with these events of client 1: worker -> (name, started, ended); and rows of the dispatcher."""
    table = EventTable()
    for worker, entries in events.items():
        heads = [(1, start, 0, 0, start, end, row, 1) for row, (_, start, end) in enumerate(entries)]
        stretches = np.array(heads, dtype=np.int64).tobytes()
        rows = [(NAMES.index(name), 0, 1.0) for name, _, _ in entries]
        data = np.array(rows, dtype=EVENT_FIELDS).tobytes()
        table.add(EventBatch(worker, 1, 0, 0, 0, 0, 0, NAMES, [], stretches, data, [], 0, {}, 0))
    if dispatched:
        data = np.array(dispatched, dtype=np.int64).tobytes()
        table.add(EventBatch(-1, 1, 0, 0, 0, 0, 0, [], [], b"", data, [], 0, {}, 0))
    return table


# -- where the time went -------------------------------------------------------------------


def test_intervals_are_sets() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = (np.sort(rng.integers(0, 60, (rng.integers(0, 6), 2)), axis=1) for _ in range(2))
        inside = [{t for begin, end in spans.tolist() for t in range(begin, end)} for spans in (a, b)]
        a, b = intervals.union(a), intervals.union(b)

        def members(spans: Any) -> set[int]:
            assert (spans[:, 0] < spans[:, 1]).all()
            assert (spans[1:, 0] > spans[:-1, 1]).all()
            return {t for begin, end in spans.tolist() for t in range(begin, end)}

        assert [members(a), members(b)] == inside
        assert members(intervals.union(intervals.intersection(a, b))) == inside[0] & inside[1]
        assert members(intervals.union(intervals.difference(a, b))) == inside[0] - inside[1]
        assert members(intervals.complement(a, 0, 70)) == set(range(70)) - inside[0]
        assert intervals.length(a) == len(inside[0])


def test_each_moment_has_one_kind() -> None:
    table = table_of(
        {0: [(OP, 10, 30), (WAIT, 30, 40), (OP, 40, 50)], 1: [(OP, 20, 36)]},
        [(-1, 0, 1, 5, 5, 8), (0, 1, 1, 5, 5, 8)],
    )
    result = break_down(table, 0, 100, waits=np.array([[52, 70]]))
    wanted = {"compute": (30 + 16) / 2, "exposed communication": 5, "bubble": (0 + 24) / 2, "dispatcher": 3}
    wanted |= {"wire": 2 + 18, "client Python": 5 + 2 + 30, "idle": 0}
    assert result.times == wanted
    assert sum(result.times.values()) == 100
    assert result.computing == {0: 30, 1: 16}
    unknown = break_down(table, 0, 100)
    assert unknown.times == wanted | {"wire": 2, "client Python": 55}
    assert len([line for line in result.lines_of_text() if line.startswith(("  1.", "  2.", "  3."))]) == 3


def test_random_breakdowns_add_up() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        events: dict[int, Any] = {}
        for worker in range(rng.integers(1, 4)):
            starts = rng.integers(0, 1000, rng.integers(1, 9)).tolist()
            events[worker] = [(NAMES[rng.integers(4)], t, t + int(rng.integers(0, 90))) for t in starts]
        begun, ended = sorted(rng.choice(1100, 2, replace=False).tolist())
        spans = np.sort(rng.integers(0, 1000, (4, 2)), axis=1)
        handled = [(-1, 0, 1, a, a, b) for a, b in np.sort(rng.integers(0, 1000, (4, 2)), axis=1).tolist()]
        result = break_down(table_of(events, handled), begun, ended, waits=spans)
        assert sum(result.times.values()) == pytest.approx(ended - begun)
        assert all(value >= 0 for value in result.times.values())
        assert set(result.times) == set(KINDS)


def test_the_critical_path_goes_over_the_slower_worker() -> None:
    table = table_of(
        {
            0: [(OP, 0, 20), (MOVE, 20, 62), (WAIT, 21, 63), (OP, 63, 80)],
            1: [(OP, 0, 60), (MOVE, 60, 61), (WAIT, 60, 61), (OP, 61, 70)],
        }
    )
    path = critical_path(Work(table, [(0, 1), (1, 1)], 0, 100))
    assert path == [("worker 1", 0, 60), ("move to worker 0", 60, 63), ("worker 0", 63, 80)]


def test_explain_last_step() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client() as session:
        gt.auto_shard()
        try:
            step = training_step()
            for _ in range(3):
                step()
            assert "recording has begun" in gt.debug.explain_last_step()
            step()
            with pytest.raises(GtError, match=r"is recorded by gt\.debug\.explain_last_step"):
                gt.debug.trace("never.json").__enter__()
            text = str(gt.debug.explain_last_step())
            assert text.startswith("where ")
            assert [line.split("  ")[1].strip() for line in text.splitlines()[1:8]] == list(KINDS)
            step()
            step()
            assert gt.debug.explain_last_step(stop=True).startswith("where ")
            assert session.event_sink is None
            assert session.connection.waits is None
            step()
        finally:
            gt.auto_shard(False)


@gt.compile
def explained_inside(x: gt.Tensor) -> gt.Tensor:
    gt.debug.explain_last_step()
    return x + 1


def test_explaining_inside_a_compiled_function() -> None:
    with Cluster(workers=1, backend="numpy").client(), pytest.raises(gt.CompileError, match="call it outside"):
        explained_inside(gt.ones(3))


def test_workers_that_ran_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    workers = [WorkerInfo(i, "numpy", "cpu", "here", 1) for i in range(3)]
    _summarize(table_of({1: [(NAMES[0], 10, 20)]}), Listening(1, 0, 0, True, workers, [1]))
    assert "worker(s) 0, 2 ran nothing in this time" in capsys.readouterr().out
    _summarize(table_of({1: [(NAMES[0], 10, 20)]}), Listening(1, 0, 0, True, workers[1:2], [1]))
    assert "ran nothing" not in capsys.readouterr().out


# -- a running program ---------------------------------------------------------------------

PROGRAM = """
import gt
x = gt.rand(64, 64)
print("ready", flush=True)
while True:
    y = gt.relu(x @ x)  # the busy line
    y.sum().item()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("monitoring")


@pytest.fixture(scope="module")
def running(folder: pathlib.Path) -> Iterator[Process]:
    """A program with its local system, found through a runtime folder of its own."""
    (folder / "program.py").write_text(PROGRAM)
    process = Process(str(folder / "program.py"), GT_BACKEND="numpy", XDG_RUNTIME_DIR=str(folder))
    process.expect("ready")
    yield process
    process.close()


def run_tool(folder: pathlib.Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    settings = environment(XDG_RUNTIME_DIR=str(folder), **extra)
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=120)


def test_trace_of_a_running_program(running: Process, folder: pathlib.Path) -> None:
    result = run_tool(folder, "gt.scripts.trace", "-s", "1", "--dir", "traces", "--perfetto")
    assert result.returncode == 0, result.stderr
    assert "recording: " in result.stderr
    (log,) = (folder / "traces").glob("trace_*.log")
    about, lines = read_log(str(log))
    done = [line for line in lines if line.event == "WORKER_DONE"]
    matmuls = [line for line in done if line.text == "matmul(float32[64,64], float32[64,64])"]
    assert len(matmuls) > 5
    assert matmuls[0].nbytes == 64 * 64 * 4
    assert "the busy line" in matmuls[0].details["site"]
    assert {line.event for line in lines} == {"RECV", "WORKER_SEND", "WORKER_DONE"}
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert about["dropped"] == 0
    check_shares(result.stdout)
    check_perfetto(json.loads(log.with_suffix(".json").read_text())["traceEvents"], len(matmuls))
    limited = run_tool(folder, "gt.scripts.trace", "-s", "60", "-n", "20", "--dir", "few")
    assert limited.returncode == 0
    assert len(list((folder / "few").glob("trace_*.log"))) == 1


def check_shares(text: str) -> None:
    shares = [float(line.split()[-3].rstrip("%")) for line in text.splitlines() if line.strip().startswith(KINDS)]
    assert len(shares) == len(KINDS)
    assert sum(shares) == pytest.approx(100, abs=1)


def check_perfetto(events: list[dict[str, Any]], matmuls: int) -> None:
    lanes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert lanes == {"client 1", "dispatcher", "worker 0 (cpu)"}
    slices = [event for event in events if event["ph"] == "X"]
    assert sum(event["name"] == "matmul" for event in slices) == matmuls
    assert any("the busy line" in event["name"] for event in slices)
    flows = [[event["id"] for event in events if event["ph"] == phase] for phase in "stf"]
    assert flows[0] == flows[1] == flows[2] != []
    by_flow = {event["id"]: event for event in events if event["ph"] == "f"}
    for event in events:
        if event["ph"] == "s":
            assert event["ts"] <= by_flow[event["id"]]["ts"]
    assert {event["name"] for event in events if event["ph"] == "C"} == {"memory", "work ahead"}


def test_top_once(running: Process, folder: pathlib.Path) -> None:
    result = run_tool(folder, "gt.scripts.top", "--once", "--json", "--interval", "0.5")
    data = json.loads(result.stdout)
    (worker,), (client,) = data["workers"], data["clients"]
    assert 0 < worker["busy"] <= 1
    assert worker["idle"] == pytest.approx(1 - worker["busy"])
    assert {"matmul", "elementwise", "reduction"} <= set(worker["families"])
    assert 0 < worker["memory"]["used"] <= worker["memory"]["total"]
    assert client["instructions_per_s"] > 10
    assert client["memory"] >= 64 * 64 * 4
    for width in (20, 160):
        shown = run_tool(folder, "gt.scripts.top", "--once", "--interval", "0.2", COLUMNS=str(width))
        assert shown.returncode == 0, shown.stderr
        assert all(len(line) <= width for line in shown.stdout.splitlines())
        assert "worker" in shown.stdout
        assert "idle" in shown.stdout


def test_top_on_a_terminal(running: Process, folder: pathlib.Path) -> None:
    """q quits, and the terminal is as it was."""
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    settings = environment(XDG_RUNTIME_DIR=str(folder), TERM="xterm", COLUMNS="20", LINES="10")
    command = [sys.executable, "-m", "gt.scripts.top", "--interval", "0.1"]
    process = subprocess.Popen(command, env=settings, stdin=follower, stdout=follower, stderr=subprocess.PIPE)
    shown = b""

    def seen(text: bytes) -> bool:
        nonlocal shown
        if select.select([leader], [], [], 0.05)[0]:
            shown += os.read(leader, 65536)
        assert process.poll() is None or text in shown
        return text in shown

    wait_until(lambda: seen(b"idle"))
    assert termios.tcgetattr(follower)[3] != before[3]
    os.write(leader, b"q")
    wait_until(lambda: seen(b"\x1b[?1049l"))  # back from the alternate screen
    assert process.wait(60) == 0
    assert termios.tcgetattr(follower) == before
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    os.close(leader), os.close(follower)


def test_errors_are_one_line(running: Process, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        ("gt.scripts.trace", "-s", "0"): (2, "-s and -n must be more than 0"),
        ("gt.scripts.trace", "-s", "nan"): (2, "-s and -n must be more than 0"),
        ("gt.scripts.trace", "-s", "0.1", "--dir", str(tmp_path / "file")): (1, "File exists"),
        ("gt.scripts.top", "--once", "--interval", "0"): (2, "--interval must be from"),
        ("gt.scripts.top", "--once", "--port", "1"): (1, "no GT server answers at tcp://localhost:1"),
    }
    for arguments, (code, message) in cases.items():
        result = run_tool(folder, *arguments)
        assert result.returncode == code, arguments
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
    for tool in ("top", "trace"):
        result = run_tool(tmp_path, f"gt.scripts.{tool}")
        assert result.returncode == 1
        assert result.stderr.startswith(f"gt.scripts.{tool}: no GT server of this user runs on this machine; start one")
        assert len(result.stderr.splitlines()) == 1


def test_a_full_disk(running: Process, folder: pathlib.Path) -> None:
    """Files may have at most 512 bytes: writing them fails as on a full disk. No part of a file is left behind."""
    settings = environment(XDG_RUNTIME_DIR=str(folder))
    command = f"ulimit -f 1; exec {sys.executable} -m gt.scripts.trace -s 0.3 --dir full"
    result = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=settings, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith(".log: cannot be written: File too large")
    assert "Traceback" not in result.stderr
    assert os.listdir(folder / "full") == []
    for tool in (["gt.scripts.top", "--once"], ["gt.scripts.top", "--json"], ["gt.scripts.trace", "-s", "0.3"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", *tool]
            process = subprocess.run(
                command, cwd=folder, env=settings, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
            )
        assert process.returncode == 1
        assert process.stderr.splitlines()[-1] == f"{tool[0]}: No space left on device"
        assert "Traceback" not in process.stderr
        assert "Exception ignored" not in process.stderr


def test_a_closed_pipe(running: Process, folder: pathlib.Path) -> None:
    for tool in (["top", "--json", "--interval", "0.1"], ["trace", "-s", "0.5", "--dir", "piped"]):
        settings = environment(XDG_RUNTIME_DIR=str(folder))
        command = [sys.executable, "-m", f"gt.scripts.{tool[0]}", *tool[1:]]
        process = subprocess.Popen(
            command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        if tool[0] == "top":
            assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert [line for line in process.stderr.read().splitlines() if not line.startswith("recording: ")] == []
        process.stderr.close()


def test_servers_are_listed_while_they_run(running: Process, folder: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (server,) = running_servers()
    assert server.address.startswith("unix:")
    stale = servers_folder() / "999999999.json"
    stale.write_text(json.dumps({"address": "unix:/nowhere", "pid": 999999999, "started": 0}))
    (servers_folder() / "broken.json").write_text("{")
    assert running_servers() == [server]
    assert not stale.exists()
    (servers_folder() / "broken.json").unlink()


def test_one_of_several_systems(running: Process, folder: pathlib.Path, monkeypatch: Any) -> None:
    """The newest one is chosen, and the others are listed with the programs that started them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (first,) = running_servers()
    assert (first.program, first.program_pid) == ("program.py", running.pid)
    with contextlib.closing(
        Process("-m", "gt.server", "-p", str(port := free_port()), XDG_RUNTIME_DIR=str(folder))
    ) as own:
        own.expect(f"listening on 127.0.0.1:{port}")
        second, _ = wait_until(lambda: len(both := running_servers()) == 2 and both)
        chosen = run_tool(folder, "gt.scripts.top", "--once", "--json", "--interval", "0.1")
        named = run_tool(folder, "gt.scripts.top", "--once", "--json", "--interval", "0.1", "--unix", first.address)
    assert json.loads(chosen.stdout)["server"] == second.address == f"tcp://127.0.0.1:{port}"
    assert chosen.stderr.splitlines() == [
        f"2 GT systems of this user run here; this is the newest: {second.address} (gt server, pid {own.pid})",
        f"  another one: {first.address} (started by program.py, pid {running.pid})",
        "  --unix PATH, or --host and --port, choose one",
    ]
    assert json.loads(named.stdout)["server"] == first.address
    assert named.stderr == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("something\n", "this is not a trace"),
        ('# gt-trace 99 {"wall": 0}\n# end 0\n', "a trace of format 99; this version of GT reads format 1"),
        ('# gt-trace 1 {"wall": 0, "now": 0}\n12:00:00.000000 | #1 | RECV | cli', "is not complete"),
        ('# gt-trace 1 {"wall": 0, "now": 0}\nnonsense\n# end 1\n', "the trace is damaged"),
    ],
)
def test_bad_traces(text: str, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "trace.log").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_log(str(tmp_path / "trace.log"))
    with pytest.raises(ConfigError, match="No such file"):
        read_log(str(tmp_path / "none.log"))


def test_idle_is_idle(tmp_path: pathlib.Path, stack: contextlib.ExitStack) -> None:
    """The busy share agrees with the one that the worker itself measures."""
    total, socket = tmp_path / "total", str(tmp_path / "server")
    total.write_bytes(struct.pack("q", 0))

    def start(*arguments: str) -> Process:
        process = Process(*arguments, XDG_RUNTIME_DIR=str(tmp_path), GT_VERBOSE="1")
        stack.callback(process.close)
        return process

    start("-m", "gt.server", "--unix", socket).expect("listening")
    start("-m", "tests.support.busy_worker", socket, str(total)).expect("registered")
    program = f"""
import sys, time, gt
from gt.client.stream import connect
connect._process.session = connect.open_session("unix:{socket}", None, "test", 60)
gt.ones(3).sum().item()
print("ready", flush=True)
sys.stdin.readline()
while True:
    gt.ones(3).sum().item()
    time.sleep(0.01)
"""
    client = start("-c", program)
    client.expect("ready")
    quiet = json.loads(run_tool(tmp_path, "gt.scripts.top", "--once", "--json").stdout)
    assert quiet["workers"][0]["idle"] == pytest.approx(1.0, abs=0.001)
    client.tell()

    def spent() -> int:
        return int(struct.unpack("q", total.read_bytes())[0])

    wait_until(lambda: spent() > 100_000_000)
    process = start("-m", "gt.scripts.top", "--json", "--interval", "1")
    lines: list[str] = []
    moments: list[tuple[float, int]] = []
    while len(moments) < 3:
        wait_until(lambda: len(process.lines) > len(moments))
        moments.append((time.monotonic(), spent()))
        lines.append(process.lines[len(moments) - 1])
    known = (moments[2][1] - moments[0][1]) / (moments[2][0] - moments[0][0]) / 1e9
    shown = sum(json.loads(line)["workers"][0]["busy"] for line in lines[1:]) / 2
    assert 0.1 < known < 0.9
    assert shown == pytest.approx(known, abs=0.06)


# -- gt.debug.trace ------------------------------------------------------------------------


def test_debug_trace_on_shared_workers(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(workers=1, backend="numpy")
    other = cluster.add_client()
    with cluster.client() as session:
        x = gt.ones(4)
        with gt.debug.trace(tmp_path / "step.json"):
            with gt.client.stream.connect.use(other):
                assert gt.ones(3).sin().sum().item() > 0
            assert x.exp().sum().item() > 0
        assert session.event_sink is None
        assert x.tan().sum().item() > 0
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 10] == ["exp", "sum"]
    assert any("x.exp()" in event["args"].get("line", "") for event in events if event["ph"] == "X")
    others = [event["args"] for event in events if event["name"] == "other clients (%)"]
    assert {family for values in others for family in values} <= {"data", "elementwise", "reduction"} != set()
    assert "sin" not in json.dumps(events)
    other.close()


def test_a_trace_shows_what_others_did_before_its_own_first_instruction() -> None:
    table = table_of({0: [(OP, 5_000, 6_000)]})
    table.add(EventBatch(0, 2, 0, 0, 0, 1_000, 3_000, [], [], b"", b"", [("reduction", 4, 500, 8)], 0, {}, 0))
    file = io.StringIO()
    write_perfetto(file, table, Listening(1, 2_000, 0, False, [], [1, 2]), own=1)
    events = json.loads(file.getvalue())["traceEvents"]
    assert [(event["ts"], event["args"]) for event in events if event["ph"] == "C" and "%" in event["name"]] == [
        (1.0, {"reduction": 25})
    ]
    assert [event["ts"] for event in events if event["ph"] == "X" and event["pid"] == 10] == [5.0]


def fail_inside(path: pathlib.Path) -> None:
    with gt.debug.trace(path):
        gt.ones(3).exp().sum().item()
        raise ZeroDivisionError


def test_debug_trace_of_a_block_that_fails(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.json"
    with Cluster(workers=1, backend="numpy").client():
        with pytest.raises(ZeroDivisionError):
            fail_inside(path)
        assert os.listdir(tmp_path) == ["step.json"]
        assert sum(event["name"] == "exp" for event in json.loads(path.read_text())["traceEvents"]) == 1
        with gt.debug.trace(path):
            pass


def test_pictures_fit_any_width() -> None:
    from rich.console import Console

    workers = {k: WorkerLoad("cuda:0", {"matmul": 0.5, "compiled": 0.25}, {"used": 10**11}, 900, 1e9) for k in range(9)}
    clients = {1: ClientLoad(123456.7, 0.5, 10**12, 0.99)}
    for width in (20, 40, 60, 80, 100, 200):
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(top.picture("tcp://a.very.long.name.of.a.host:9000", (workers, clients), width))
        assert all(len(line) <= width for line in console.file.getvalue().splitlines())
