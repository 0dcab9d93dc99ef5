"""``gt up`` and ``gt down``: hosts behind a real sshd, what is said when one is missing, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import stat
import sys

import pytest

from gt.errors import ConfigError
from gt.launch.host_connection import explain_end
from gt.launch.hosts import Host, parse_hosts
from tests.support.processes import ROOT, Process, free_port, wait_until
from tests.support.sshd import Sshd, why_not

needs_sshd = pytest.mark.skipif(bool(why_not()), reason=why_not())
SUM = "import gt; gt.connect(); print(len(gt.workers()), 'workers', (gt.ones(3) + 1).tolist())"


@pytest.fixture
def sshd(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> Sshd:
    return Sshd(stack, tmp_path)


# -- hosts ---------------------------------------------------------------------------------


def test_hosts_of_words_and_of_a_file(tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text("# the rack\n\nhost1:8\nalice@host2   # one worker\n[fe80::1]:2\n")
    hosts = parse_hosts(["localhost:2"], file)
    assert hosts == [Host("localhost", 2), Host("host1", 8), Host("alice@host2", 1), Host("fe80::1", 2)]
    assert [host.is_here for host in hosts] == [True, False, False, False]


@pytest.mark.parametrize("text", ["", ":3", "host:", "host:0", "host:x", "a b", "-oProxyCommand=x", "::1:2"])
def test_a_wrong_host(text):
    with pytest.raises(ConfigError, match="expected HOST or HOST:WORKERS"):
        parse_hosts([text], None)


def test_wrong_lists_of_hosts(tmp_path):
    with pytest.raises(ConfigError, match="no hosts"):
        parse_hosts([], None)
    with pytest.raises(ConfigError, match="host1 is named twice"):
        parse_hosts(["host1:2", "host1:3"], None)
    with pytest.raises(ConfigError, match="No such file"):
        parse_hosts([], tmp_path / "missing")


@pytest.mark.parametrize(
    ("code", "errors", "text"),
    [
        (255, ["ssh: connect to host x port 22: Connection refused"], "ssh: connect to host x port 22: Connection"),
        (255, [], "ssh: the agent was killed there"),
        (1, ["No module named gt.launch.host_agent"], "another version of GT, or not all of it, is installed there"),
        (1, ["ModuleNotFoundError: No module named 'msgspec'"], "(No module named 'msgspec)"),
        (
            126,
            ["bash: line 1: /opt: Is a directory"],
            "Python cannot be run there (bash: line 1: /opt: Is a directory)",
        ),
        (
            2,
            ["Unknown option: -P", "usage: python3 [option] ..."],
            "GT needs Python 3.11 or newer, and python3 is older",
        ),
        (3, [], "the agent ended (exit code 3): it printed nothing"),
    ],
)
def test_reasons(code, errors, text):
    assert text in explain_end(code, errors, "python3")


def test_server_and_worker_end_with_their_input(stack, tmp_path):
    def start(*words: str) -> Process:
        process = Process("-m", *words, "-p", port, "--with-stdin", XDG_RUNTIME_DIR=str(tmp_path))
        stack.callback(process.close)
        return process

    port = str(free_port())
    server = start("gt.server")
    server.expect("listening")
    worker = start("gt.worker", "--backend", "numpy")
    worker.expect("joined")
    worker.popen.stdin.close()
    assert worker.end() == 0
    assert list((tmp_path / "gt").iterdir())
    server.popen.stdin.close()
    assert server.end() == 0
    assert not list((tmp_path / "gt").iterdir())  # it has cleaned up


# -- one system ----------------------------------------------------------------------------


@needs_sshd
def test_workers_on_three_hosts(sshd, tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node1:2\nnode2:1  # a small one\n")
    up = sshd.up("--hosts", str(hosts), "localhost:1")
    line = up.expect("4 of 4 workers joined the server at 127.0.0.1:")
    for name in ("node1/0", "node1/1", "node2/0", "localhost/0"):
        assert f"{name}  joined: worker " in up.output

    assert sshd.run("-c", SUM).stdout == "4 workers [2.0, 2.0, 2.0]\n"
    state = tmp_path / "here" / "gt" / "up.json"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    secret = json.loads(state.read_text())["token"].partition("@")[0]
    assert (tmp_path / "here" / "gt" / "token").read_text().startswith(secret)
    join_token = join_token_of_a_worker(sshd)
    assert re.match(r"join-[\w-]+\.worker\.", join_token)
    commands = sshd.processes().values()
    assert sum("gt.worker" in command for command in commands) == 4
    assert not [command for command in commands if secret in command or join_token.partition("@")[0] in command]
    # the other hosts got the join token only
    assert not (tmp_path / "there" / "gt" / "token").exists()

    again = sshd.run("-m", "gt", "up", "localhost:1")
    assert again.returncode == 0
    assert again.stdout.startswith(f"already up with 4 workers at {line.split(' at ')[1].split(';')[0]} (gt up, pid ")
    down = sshd.run("-m", "gt", "down")
    assert (down.returncode, down.stdout) == (0, "ended the server and its workers (4)\n")
    assert up.end() == 0
    sshd.wait_for_the_end()
    assert not state.exists()
    assert "join-" not in (tmp_path / "here" / "gt" / "server" / "tokens.json").read_text()
    assert sshd.run("-m", "gt", "down").stdout == "nothing is up\n"
    assert "nothing is up" in sshd.run("-c", SUM).stderr


def join_token_of_a_worker(sshd: Sshd) -> str:
    pid = next(pid for pid, command in sshd.processes().items() if "gt.worker" in command)
    variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v for v in variables if v.startswith(b"GT_TOKEN=")).partition(b"=")[2].decode()


@needs_sshd
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.long
def test_nothing_is_left_behind(sshd, number):
    up = sshd.up("node1:1", "localhost:1")
    up.expect("2 of 2 workers joined")
    assert sum("gt.worker" in command for command in sshd.processes().values()) == 2
    up.kill(number)
    assert up.end() == (-9 if number == signal.SIGKILL else 0)
    sshd.wait_for_the_end()
    assert sshd.run("-m", "gt", "down").stdout == "nothing is up\n"


@needs_sshd
@pytest.mark.long
def test_an_agent_that_is_killed_takes_its_workers_along(sshd):
    up = sshd.up("node1:1", "node2:1")
    up.expect("2 of 2 workers joined")
    agents = {p: c for p, c in sshd.processes().items() if "host_agent" in c and "ssh" not in c}
    worker = next(p for p, c in sshd.processes().items() if "gt.worker" in c)
    os.kill(parent_of(worker), signal.SIGKILL)
    up.expect("ssh: the agent was killed there")
    wait_until(lambda: worker not in sshd.processes(), what="the end of its worker")
    assert len(agents) == 3  # the server's too
    wait_until(lambda: sshd.run("-c", SUM).stdout == "1 workers [2.0, 2.0, 2.0]\n", what="the server notices the loss")
    assert sshd.run("-m", "gt", "down").returncode == 0
    sshd.wait_for_the_end()


def parent_of(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@needs_sshd
@pytest.mark.long
def test_a_worker_and_then_the_server_end(sshd):
    up = sshd.up("node1:1", "localhost:1")
    up.expect("2 of 2 workers joined")
    os.kill(next(p for p, c in sshd.processes().items() if "gt.worker" in c), signal.SIGKILL)
    assert "it ended, exit code -9" in up.expect("it ended")
    os.kill(next(p for p, c in sshd.processes().items() if "gt.server" in c), signal.SIGKILL)
    assert up.end() == 1
    assert "gt up: the server ended (exit code -9" in up.output
    sshd.wait_for_the_end()


@needs_sshd
@pytest.mark.long
def test_in_the_background(sshd, tmp_path):
    port = free_port()
    words = ["-m", "gt", "up", "localhost:1", "--detach", "--backend", "numpy", "--ports", f"{port}-{port + 5}"]
    up = sshd.run(*words)
    assert up.returncode == 0, up.stderr
    assert f"1 of 1 worker joined the server at 127.0.0.1:{port}" in up.stdout
    assert stat.S_IMODE((tmp_path / "here" / "gt" / "up.log").stat().st_mode) == 0o600
    assert sshd.run(*words).stdout.startswith("already up with 1 workers")
    assert sshd.run("-c", SUM).stdout == "1 workers [2.0, 2.0, 2.0]\n"
    assert sshd.run("-m", "gt", "down").returncode == 0
    sshd.wait_for_the_end()
    failed = sshd.run(*words[:3], "localhost:0", "--detach")
    assert failed.returncode == 2
    assert "expected HOST or HOST:WORKERS" in failed.stdout


@needs_sshd
@pytest.mark.long
def test_two_at_once_in_the_background(sshd, tmp_path):
    """One of them starts the system, and both return when its workers have joined."""
    port = free_port()
    words = ["-m", "gt", "up", "localhost:1", "--detach", "--backend", "numpy", "--ports", f"{port}-{port + 5}"]
    both = [sshd.start(*words) for _ in range(2)]
    for up in both:
        assert up.end() == 0
        assert json.loads((tmp_path / "here" / "gt" / "up.json").read_text())["workers"] == 1
    assert [p.name for p in (tmp_path / "here" / "gt").glob("up*.log")] == ["up.log"]
    log = (tmp_path / "here" / "gt" / "up.log").read_text()
    assert "1 of 1 worker joined" in log
    assert sorted("1 of 1 worker joined" in up.output for up in both) == [False, True]
    assert sshd.run("-m", "gt", "down").returncode == 0
    sshd.wait_for_the_end()


@needs_sshd
@pytest.mark.parametrize("options", [[], ["--detach"]], ids=["foreground", "detach"])
def test_an_end_before_the_workers_have_joined(sshd, tmp_path, options):
    """Its exit code is not 0, so that a shell does not go on to the program."""
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec cat > /dev/null\n")  # until the connection ends
    silent.chmod(0o755)
    up = sshd.up("node1:1", "--python", str(silent), *options)
    up.expect("waiting: ", 60)
    assert sshd.run("-m", "gt", "down").returncode == 0
    assert up.end() == 130
    sshd.wait_for_the_end()


@needs_sshd
@pytest.mark.long
def test_the_server_on_the_first_host(sshd, tmp_path):
    up = sshd.up("node1:1", "node2:1", "--server-on-first-host")
    assert "the server at 127.0.0.2:" in up.expect("2 of 2 workers joined")
    assert not (tmp_path / "here" / "gt" / "server").exists()
    assert sshd.run("-c", SUM).stdout == "2 workers [2.0, 2.0, 2.0]\n"
    assert sshd.run("-m", "gt", "down").returncode == 0
    sshd.wait_for_the_end()


WAIT = """
import sys, gt
gt.recovery("replay", wait=60)
gt.connect()
x = gt.arange(5)
print("first", x.sum().item(), flush=True)
sys.stdin.readline()
print("second", (x + 1).sum().item(), flush=True)
"""


@needs_sshd
def test_the_next_system_continues_the_journal(sshd, tmp_path):
    """Everything ends with gt up. A client that waits gets its values from the next one, which has other workers."""
    port, journal, snapshots = free_port(), tmp_path / "a journal", tmp_path / "snapshots"
    words = ("localhost:1", "--ports", f"{port}-{port + 20}", "--journal", str(journal), "--snapshots", str(snapshots))
    up = sshd.up(*words)
    up.expect("1 of 1 worker joined")
    client = sshd.start("-c", WAIT)
    client.expect("first 10")
    assert snapshots.is_dir()
    up.kill()
    up.end()
    wait_until(lambda: not [c for c in sshd.processes().values() if "gt.server" in c or "gt.worker" in c])
    sshd.up(*words).expect("1 of 1 worker joined")
    client.tell()
    client.expect("second 15")
    assert client.end() == 0
    assert sshd.run("-m", "gt", "down").returncode == 0


# -- what can go wrong -----------------------------------------------------------------------


def other_version(folder: pathlib.Path) -> None:
    """A GT of another version."""
    (folder / "old" / "gt").mkdir(parents=True)
    for path in (ROOT / "gt").iterdir():
        if path.name not in ("version.py", "__pycache__"):
            (folder / "old" / "gt" / path.name).symlink_to(path)
    (folder / "old" / "gt" / "version.py").write_text('VERSION = "0.0.9"\nPROTOCOL = 1\n')


PROBLEMS = {
    "unknown host": (["node1:1", "no-such-host.invalid:1"], "no-such-host.invalid/0: ssh: Could not resolve hostname"),
    "unknown first host": (["no-such-host.invalid:1"], "no-such-host.invalid: the name no-such-host.invalid is not"),
    "refused key": (["locked:2"], "locked/0, locked/1: ssh: "),
    "no python there": (["node1:1", "--python", "/nowhere/python"], "node1/0: Python cannot be run there ("),
    "no GT there": (["node1:1", "--python", f"{sys.executable} -I -S"], "node1/0: GT is not installed there for "),
    "another version": (["old:1"], "old/0: GT 0.0.9 (protocol 1) is installed there, and GT "),
    "several hosts": (["no-such-host.invalid:1", "old:1", "--address", "127.0.0.1"], "old/0: GT 0.0.9 (protocol 1)"),
    "a worker that dies": (["node1:1", "broken:1"], "broken/0: it ended, exit code 1: "),
    "no ssh": (["node1:1", "--ssh", "/nowhere/ssh"], "--ssh /nowhere/ssh: "),
    "a folder of another host": (
        ["node1:1", "--server-on-first-host", "--journal", "journal"],
        "--journal journal: the server runs on node1, so name the whole path there",
    ),
    "wrong ports": (["localhost:1", "--ports", "9100-9000"], "--ports 9100-9000: expected a range of ports"),
}


@needs_sshd
@pytest.mark.parametrize(("words", "reason"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_missing_and_why(sshd, tmp_path, words, reason):
    other_version(tmp_path)
    up = sshd.up(*words)
    assert up.end() in (1, 2)
    assert reason in up.output, up.output
    assert up.lines[-1].strip().startswith(("gt up: ", reason[:20])), up.output
    sshd.wait_for_the_end()


@needs_sshd
@pytest.mark.long
def test_a_port_that_is_taken(sshd):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        up = sshd.up("localhost:1", "--ports", f"{port}-{port}")
        assert up.end() == 1
        assert f"tcp://127.0.0.1:{port} is taken" in up.output
        sshd.wait_for_the_end()
        # the next one of a range is used
        up = sshd.up("localhost:1", "--ports", f"{port}-{port + 9}")
        up.expect("1 of 1 worker joined")
        assert f"127.0.0.1:{port};" not in up.output


@needs_sshd
@pytest.mark.long
def test_no_time_to_join(sshd):
    up = sshd.up("localhost:1", "--timeout", "0.01")
    assert up.end() == 1
    assert "did not start within 0.01 s" in up.output
    sshd.wait_for_the_end()
