"""Every failure in docs/failures.md, caused for real: processes killed, ports taken, secrets wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import time

import pytest

from gt.wire.sockets import SILENCE_MS
from gt.wire.unix import MAX_STOPPED_S
from tests.support.processes import Process, System, alive, free_port, script, wait_until

NUMPY = ("--backend", "numpy")
#: Seconds of silence that end a connection. The kernel reports earlier ends, however busy the machine is.
SILENCE = SILENCE_MS / 1000


def seconds(line: str) -> float:
    return float(re.search(r"after ([\d.]+)", line)[1])


# -- no server or worker -----------------------------------------------------------------


def test_no_server(stack):
    port = free_port()
    client = script(
        f"""
        import gt
        try:
            gt.connect("localhost:{port}")
        except gt.ConnectionLost as error:
            print(error)
        """,
        stack=stack,
    )
    line = client.expect("no GT server answers")
    assert "after 3 s" in line
    assert f"python -m gt.server -p {port}" in line
    assert client.end() == 0


def test_no_workers_then_one(stack):
    system = System(stack)
    client = system.client(
        """
        x = gt.ones(3)
        try:
            x.sum().item()
        except gt.NoWorkers as error:
            say(error)
        try:
            gt.from_numpy(np.ones(1 << 20))
        except gt.NoWorkers as error:
            say("upload:", error)
        go()
        say("sum", (x + 1).sum().item())
        """
    )
    command = "start one with: python -m gt.worker --host"
    assert f"{command} 127.0.0.1 -p {system.port}" in client.expect("no worker is connected")  # the server says it
    assert f"{command} localhost -p {system.port}" in client.expect("upload: no worker")
    system.worker(*NUMPY)
    client.tell()
    client.expect("sum 6.0")
    assert client.end() == 0


def test_port_taken(stack, system):
    second = system.start("-m", "gt.server", "-p", str(system.port))
    assert second.end() == 1
    assert f"{system.port} is taken: another program uses it; choose another port with -p" in second.output


def test_worker_without_server(stack):
    worker = Process(
        "-c", "import gt.worker.__main__ as m, sys; m.CONNECT_TIMEOUT_S = 1.0; sys.exit(m.main())", "-p", "1", *NUMPY
    )
    stack.callback(worker.close)
    assert worker.end() == 2
    assert "no GT server answers" in worker.output


# -- a worker ends -----------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_worker_killed(stack, system, how):
    """Pending reads raise, the other client and its worker continue, and a new worker takes over."""
    system.worker(*NUMPY)
    program = """
        x = gt.arange(6)
        say("ready", x.sum().item())
        go()
        big = gt.ones(1500, 1500)
        begun = None
        try:
            while True:
                big = big @ big * 1e-4
                begun = time.monotonic()
                big.sum().item()
        except gt.WorkerLost as error:
            say("after", time.monotonic() - begun, error)
        try:
            x.sum().item()
        except gt.WorkerLost as error:
            say("still lost:", error)
        say("new", gt.arange(5).sum().item())
    """
    victim = system.client(program)
    victim.expect("ready 15")
    other = system.client(
        """
        x = gt.arange(4)
        say("ready", x.sum().item())
        go()
        say("other", x.sum().item())
        """
    )
    other.expect("ready 6")
    victim.tell()
    system.workers[0].kill(how)
    line = victim.expect("is gone")
    assert seconds(line) < SILENCE
    assert f"pid {system.workers[0].pid}" in line
    victim.expect("still lost: worker 0")
    victim.expect("new 10")
    other.tell()
    other.expect("other 6")
    assert victim.end() == other.end() == 0


def test_last_worker_killed_and_replaced(system):
    client = system.client(
        """
        x = gt.ones(3)
        say("ready", x.sum().item())
        go()
        try:
            x.tolist()  # a result of x would raise NoWorkers, if the server has noticed the loss before
        except gt.WorkerLost:
            say("lost")
        go()
        say("again", gt.ones(4).sum().item())
        """
    )
    client.expect("ready 3.0")
    system.workers[0].kill()
    wait_until(lambda: system.workers[0].popen.poll() is not None)
    client.tell()
    client.expect("lost", SILENCE)
    system.worker(*NUMPY)
    client.tell()
    client.expect("again 4.0")


def test_worker_lost_during_large_transfers(system):
    """Chunks that no receiver takes any more must not block their sender forever."""
    client = system.client(
        """
        x = np.ones(16 << 20)
        y = gt.from_numpy(x)
        say("ready", y.sum().item())
        lost = 0
        while not lost:
            try:
                y = gt.from_numpy(x)
                y.numpy()
            except (gt.WorkerLost, gt.NoWorkers, gt.RemoteError) as error:
                lost += 1
                say("lost", type(error).__name__)
        go()
        say("again", float(gt.from_numpy(x).numpy().sum()))
        """
    )
    client.expect("ready")
    system.workers[0].kill()
    client.expect("lost")
    system.worker(*NUMPY)
    client.tell()
    client.expect(f"again {float(16 << 20)}")


@pytest.mark.long
def test_worker_that_hangs_is_given_up(system):
    """A stopped process keeps its connection open; only its silence shows that it hangs."""
    client = system.client(
        """
        x = gt.ones(3)
        say("ready", x.sum().item())
        go()
        try:
            x.sum().item()
        except gt.WorkerLost as error:
            say("lost:", error)
        """
    )
    client.expect("ready")
    system.workers[0].kill(signal.SIGSTOP)
    client.tell()
    client.expect("lost: worker 0")


@pytest.mark.long
def test_local_parts_that_hang_are_given_up(stack):
    client = script(
        """
        import gt, sys, os, signal
        from gt.client.stream import connect
        for part in ("worker 0", "server"):
            x = gt.ones(3)
            print("ready", x.sum().item(), flush=True)
            os.kill(connect._process.local.pids[part], signal.SIGSTOP)
            try:
                x.sum().item()
            except gt.ClusterError as error:
                print("lost:", type(error).__name__, error, flush=True)
            gt.disconnect()
        """,
        stack=stack,
        GT_BACKEND="numpy",
    )
    client.expect("lost: WorkerLost worker 0")
    client.expect("lost: ConnectionLost")
    assert client.end() == 0


@pytest.mark.long
def test_a_local_client_that_is_stopped_keeps_its_session(stack):
    """For longer than a worker or the server may be."""
    client = script(
        f"""
        import gt, os, signal, subprocess
        x = gt.ones(3)
        print("before", x.sum().item(), flush=True)
        subprocess.Popen(["sh", "-c", f"sleep {MAX_STOPPED_S + 3}; kill -CONT {{os.getpid()}}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        print("after", x.sum().item(), flush=True)
        """,
        stack=stack,
        GT_BACKEND="numpy",
    )
    client.expect("before 3.0")
    client.expect("after 3.0")
    assert client.end() == 0


# -- the server ends ---------------------------------------------------------------------


def test_server_killed(system):
    client = system.client(
        """
        x = gt.ones(1500, 1500)
        say("ready", x.sum().item())
        go()
        begun = time.monotonic()
        try:
            while True:
                begun = time.monotonic()
                (x @ x).sum().item()
        except gt.ConnectionLost as error:
            say("after", time.monotonic() - begun, error)
        try:
            x + 1
            (x + 2).numpy()
        except gt.ConnectionLost:
            say("still lost")
        """
    )
    client.expect("ready")
    client.tell()
    system.server.kill()
    assert seconds(client.expect("is lost")) < SILENCE
    client.expect("still lost")
    assert client.end() == 0
    assert system.workers[0].end(SILENCE) == 2


LOCAL = """
    import gt, sys, time, os
    from gt.client.stream import connect
    x = gt.ones(3)
    print("ready", x.sum().item(), *connect._process.local.pids.values(), flush=True)
    sys.stdin.readline()
"""


def children(line: str) -> list[int]:
    return [int(word) for word in line.split()[2:]]


@pytest.mark.parametrize("module", ["gt.server", "gt.worker"])
def test_a_child_whose_client_was_killed_before_it_started(stack, module):
    """The parent of the child is another process by then."""
    process = Process("-m", module, "--unix", "/nowhere", "--with-parent", str(os.getppid()))
    stack.callback(process.close)
    assert process.end() == 0, process.output


def test_local_children_end_with_their_killed_client(stack):
    client = script(LOCAL, stack=stack, GT_BACKEND="numpy")
    pids = children(client.expect("ready"))
    assert len(pids) == 2
    assert all(map(alive, pids))
    client.kill(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)), SILENCE, "the end of all children")


def test_local_children_end_with_a_clean_client(stack):
    client = script(LOCAL, stack=stack, GT_BACKEND="numpy")
    pids = children(client.expect("ready"))
    client.tell()
    assert client.end() == 0
    assert not any(map(alive, pids))
    assert client.lines[-1].startswith("ready"), "a clean end is silent"


def test_local_server_killed(stack):
    client = script(
        LOCAL
        + """
    try:
        x.sum().item()
    except gt.ConnectionLost as error:
        print("lost:", error, flush=True)
    print("anew", gt.ones(4).sum().item(), flush=True)
    """,
        stack=stack,
        GT_BACKEND="numpy",
    )
    pids = children(client.expect("ready"))
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)), SILENCE, "the end of all children")
    client.tell()
    client.expect("lost: the connection to the local system is lost")


def test_local_start_that_fails_says_why(stack):
    client = script("import gt; gt.ones(3)", stack=stack, GT_BACKEND="abacus")
    assert client.end() == 1
    assert "invalid choice: 'abacus'" in client.output


# -- a client ends -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill -9", "exit"])
def test_client_end_frees_its_tensors(system, how):
    hoarder = system.client(
        """
        keep = [gt.ones(1 << 18) for _ in range(8)]
        say("ready", keep[-1].sum().item())
        go()
        """
    )
    hoarder.expect("ready")
    watcher = system.client(
        """
        held = lambda: gt.debug.memory()["worker 0"]["all_clients"]["bytes"]
        say("before", held())
        go()
        begun = time.monotonic()
        while held() > 0: time.sleep(0.05)
        say("after", time.monotonic() - begun)
        """
    )
    assert watcher.expect("before") == f"before {8 << 20}"
    if how == "exit":
        hoarder.tell()
    else:
        hoarder.kill(signal.SIGKILL)
    hoarder.end()
    watcher.tell()
    assert seconds(watcher.expect("after")) < SILENCE


# -- a user's mistakes -------------------------------------------------------------------


def test_out_of_memory_names_op_shapes_and_holders(system):
    client = system.client(
        """
        keep = gt.ones(1 << 20)
        y = gt.ones(1 << 25, 1) + gt.ones(1, 1 << 25)
        z = y * 2
        try:
            z.sum().item()
        except gt.OutOfMemory as error:
            say(error)
        say("goes on", keep.sum().item())
        """
    )
    client.expect("goes on 1048576.0")
    output = client.output
    assert "add(float32[33554432,1], float32[1,33554432]) failed on worker 0 (cpu): out of memory" in output
    assert "(1048576,)" in output, "what holds the memory"
    assert "y = gt.ones(1 << 25, 1)" in output or "<string>" in output, "the user's own line"


def test_a_failed_instruction_poisons_only_what_depends_on_it(system, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import gt
gt.connect("localhost:{system.port}")
x = gt.arange(5)
bad = x[gt.tensor([7])]   # out of range: only the worker can know
worse = bad * 2
fine = x + 1
try:
    (worse + fine).sum().item()
except gt.RemoteError as error:
    print(error)
print("fine", fine.sum().item())
"""
    )
    client = system.start(str(program))
    assert client.end() == 0
    assert "index(int64[5], int64[1], dims=(0,)) failed on worker 0 (cpu)" in client.output
    assert f"{program}:5: bad = x[gt.tensor([7])]" in client.output
    assert "fine 15" in client.output


def test_a_failure_that_is_never_read_is_reported_at_exit(system):
    client = system.client("bad = gt.arange(5)[gt.tensor([7])]; gt.ones(2).sum().item()")
    assert client.end() == 0
    assert "1 instruction(s) failed whose results were never read" in client.output


def test_a_failure_of_the_last_instruction_is_reported_in_one_line(stack):
    """The program ends before a worker has received it."""
    client = script("import gt; table = gt.nn.Embedding(4, 2); y = table(gt.tensor([9])) * 2", stack=stack)
    assert client.end() == 0
    (line,) = client.lines
    assert line.startswith(
        "[gt] 1 instruction(s) failed whose results were never read; the first: embedding(float32[4,2]"
    )
    assert "index out of range" in line
    assert ", called at <string>:1" in line


def test_ctrl_c_during_a_read_leaves_a_usable_session(system):
    client = system.client(
        """
        x = gt.ones(1000, 1000)
        say("ready", x.sum().item())
        for interrupted in range(1, 6):
            try:
                say("reading", interrupted)
                while True:
                    y = x
                    for _ in range(8): y = y @ x * 1e-4
                    y.sum().item()
            except KeyboardInterrupt:
                say("interrupted", interrupted, gt.ones(7).sum().item())
        say("end", x.sum().item())
        """
    )
    client.expect("ready")
    for n in range(1, 6):
        client.expect(f"reading {n}")
        client.kill(signal.SIGINT)
        client.expect(f"interrupted {n} 7.0")
    client.expect("end 1000000.0")


def test_ctrl_c_anywhere_leaves_a_usable_session(system):
    """Interrupts while emitting and sending: nothing is lost and nothing runs twice."""
    client = system.client(
        """
        x, done = gt.zeros(2), 0
        for interrupted in range(20):
            try:
                say("count", interrupted)
                while True:
                    x.add_(1)
                    done += 1
            except KeyboardInterrupt:
                value = x[0].item()
                # the interrupt may fall between the instruction and its count
                assert value - done in (0, 1), (value, done)
                done = int(value)
        say("end")
        """
    )
    for n in range(20):
        client.expect(f"count {n}")
        time.sleep(0.02)  # wait a random time, so that the interrupt comes at a random point
        client.kill(signal.SIGINT)
    client.expect("end")


def test_a_forked_child_gets_a_separate_session(stack):
    client = script(
        """
        import gt, os, sys
        x = gt.ones(3)
        x.sum().item()
        if os.fork() == 0:
            try:
                (x + 1).sum().item()
            except gt.GtError as error:
                print("child:", error, flush=True)
            print("child sum", gt.ones(4).sum().item(), flush=True)
            gt.disconnect()
            os._exit(0)
        os.wait()
        print("parent sum", x.sum().item(), flush=True)
        """,
        stack=stack,
        GT_BACKEND="numpy",
    )
    assert client.end() == 0, client.output
    assert "child: " in client.output
    assert "child sum 4.0" in client.output
    assert "parent sum 3.0" in client.output


# -- who may connect ---------------------------------------------------------------------


def test_another_secret_is_refused(system):
    client = system.client("", GT_TOKEN="a guess")
    assert client.end() == 1
    assert "gt.errors.Refused" in client.output
    assert "secret" in client.output
    worker = system.start("-m", "gt.worker", "-p", str(system.port), *NUMPY, GT_TOKEN="a guess")
    assert worker.end() == 1
    assert "secret" in worker.output


def test_no_secret_on_this_machine(stack, system, tmp_path):
    client = script(
        f"import gt; gt.connect('localhost:{system.port}')",
        stack=stack,
        GT_TOKEN="",
        XDG_CONFIG_HOME=str(tmp_path / "none"),
    )
    assert client.end() == 1
    assert "set GT_TOKEN" in client.output


def test_no_secret_and_no_server(stack, tmp_path):
    """Nobody has mentioned a secret yet, so the advice is to start a server."""
    port = free_port()
    client = script(
        f"import gt; gt.connect('localhost:{port}')", stack=stack, GT_TOKEN="", XDG_CONFIG_HOME=str(tmp_path)
    )
    assert client.end() == 1
    assert f"ConnectionLost: no GT server answers at localhost:{port} after 3 s" in client.output
    assert f"start one with: python -m gt.server -p {port}" in client.output
    assert "secret" not in client.output


def test_a_worker_that_starts_before_the_first_server(stack, tmp_path):
    """The first server creates the secret; the worker waits for it."""
    port, home = free_port(), {"GT_TOKEN": "", "XDG_CONFIG_HOME": str(tmp_path)}
    worker = Process("-m", "gt.worker", "-p", str(port), *NUMPY, GT_VERBOSE="1", **home)
    stack.callback(worker.close)
    server = Process("-m", "gt.server", "-p", str(port), GT_VERBOSE="1", **home)
    stack.callback(server.close)
    worker.expect("worker 0 on")


def test_a_worker_rejoins_a_server_that_was_started_again(stack):
    port = free_port()

    def start_server():
        server = Process("-m", "gt.server", "-p", str(port), GT_VERBOSE="1")
        stack.callback(server.close)
        server.expect("listening")
        return server

    server = start_server()
    worker = Process("-m", "gt.worker", "-p", str(port), *NUMPY, "--retry", "100", GT_VERBOSE="1")
    stack.callback(worker.close)
    worker.expect("worker 0 on")
    server.kill()
    worker.expect("trying to reach the server again")
    start_server()
    wait_until(lambda: sum("worker 0 on" in line for line in worker.lines) == 2, what="the worker's return")
    client = script(f"import gt; gt.connect('localhost:{port}'); print(gt.ones(3).sum().item())", stack=stack)
    client.expect("3.0")


def test_the_first_start_makes_a_secret(stack, tmp_path):
    port = free_port()
    home = {"GT_TOKEN": "", "XDG_CONFIG_HOME": str(tmp_path)}
    server = Process("-m", "gt.server", "-p", str(port), GT_VERBOSE="1", **home)
    stack.callback(server.close)
    server.expect("listening")
    token = tmp_path / "gt" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    secret, _, key = token.read_text().partition("@")
    assert len(secret) == 64
    assert key == (tmp_path / "gt" / "server" / "key.pub").read_text()
    client = script(f"import gt; gt.connect('localhost:{port}'); print(gt.workers())", stack=stack, **home)
    client.expect("[]")
    token.chmod(0o644)
    client = script(f"import gt; gt.connect('localhost:{port}')", stack=stack, **home)
    assert client.end() == 1
    assert "can be read by others" in client.output


def test_open_to_the_network_needs_a_secret_first(stack, tmp_path):
    server = Process("-m", "gt.server", "--host", "0.0.0.0", GT_TOKEN="", XDG_CONFIG_HOME=str(tmp_path))
    stack.callback(server.close)
    assert server.end() == 1
    assert "Set GT_TOKEN here and on every client and worker" in server.output


def test_another_protocol_is_refused_naming_both(system):
    client = system.start(
        "-c",
        f"""
import gt, gt.client.stream.connect as connect
connect.PROTOCOL, connect.VERSION = 99, "9.9.9"
gt.connect("localhost:{system.port}")
""",
    )
    assert client.end() == 1
    assert re.search(
        r"this server is GT [\d.]+ \(protocol \d+\), the client is GT 9.9.9 \(protocol 99\)", client.output
    )


def test_noise_on_the_port_disturbs_no_client(system):
    """Random bytes, a foreign protocol, half a greeting: meanwhile the server answers its client."""
    client = system.client(
        """
        say("ready")
        x = gt.zeros(4)
        for i in range(300):
            x.add_(1)
            assert x.sum().item() == 4 * (i + 1)
        say("all right")
        """
    )
    client.expect("ready")
    greeting = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0])
    for noise in (
        os.urandom(4096),
        b"GET / HTTP/1.1\r\n\r\n",
        greeting,
        greeting + os.urandom(52),
        b"\xff" * 10_000,
    ) * 6:
        with socket.create_connection(("127.0.0.1", system.port), 5) as wire:
            try:
                wire.sendall(noise)
                wire.settimeout(0.05)
                wire.recv(4096)
            except (TimeoutError, ConnectionError):
                pass
    client.expect("all right")
    assert client.end() == 0
    assert system.server.popen.poll() is None


def test_bad_frames_from_a_client_with_the_secret(system, monkeypatch):
    """Random, truncated and oversized frames over real, authenticated sockets: each ends its sender's connection."""
    import random

    from gt.version import PROTOCOL, VERSION
    from gt.wire.auth import connection_keys
    from gt.wire.codec import encode
    from gt.wire.messages import Hello, Submit
    from gt.wire.sockets import ZmqConnection
    from gt.wire.words import MAX_FRAME_BYTES
    from tests.support.processes import TOKEN

    client = system.client(
        """
        say("ready")
        x = gt.zeros(4)
        for i in range(400):
            x.add_(1)
            assert x.sum().item() == 4 * (i + 1)
        say("all right")
        """
    )
    client.expect("ready")
    rng = random.Random(0)
    hello = encode(Hello("client", PROTOCOL, VERSION, "", 1))
    submit = encode(Submit(1, [], [16, 0, 1, 2, 3], 5))
    bad = [rng.randbytes(rng.randrange(1, 300)) for _ in range(6)]
    bad += [submit[:n] for n in (1, 4, len(submit) - 1)] + [submit, b"", b"\xc1" * 50, b"x" * (MAX_FRAME_BYTES + 1)]
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    keys = connection_keys("localhost", system.port, 10)
    for frame in bad:
        for first in ([hello], []):
            connection = ZmqConnection(f"tcp://127.0.0.1:{system.port}", keys)
            for message in (*first, frame):
                connection.send([message])
            replies = []
            wait_until(
                lambda connection=connection, replies=replies: (
                    (connection.wait(100) and replies.extend(connection.take()))
                    or connection.ended
                    or any(b"Refusal" in frames[0] for frames in replies)
                ),
                what=f"the end of a connection that sent {frame[:20]!r}",
            )
            connection.close()
    client.expect("all right")
    assert client.end() == 0
    assert "a connection was ended" in system.server.output
