"""GT in real processes: servers, workers and clients, and what these roles guarantee each other."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.processes import LONG, Process, System, environment, free_port, script

NUMPY = ("--backend", "numpy")


def test_hello(stack):
    """The first program of a new user."""
    client = script("import gt; gt.manual_seed(0); print(gt.randn(2, 2))", stack=stack)
    assert client.end() == 0
    assert re.fullmatch(r"tensor\(\[\[.*\],\n        \[.*\]\]\)", client.output)


def test_files_of_the_current_folder_take_no_library_s_place(tmp_path):
    """A program in another folder runs where a ``random.py`` and a folder ``gt`` are."""
    here, program = tmp_path / "here", tmp_path / "program.py"
    (here / "gt").mkdir(parents=True)
    for name in ("gt/__init__.py", "random.py", "queue.py"):
        (here / name).write_text("raise SystemExit('the file of the user was imported')")
    program.write_text("import gt; print(gt.ones(3).sum().item())")
    command = [sys.executable, str(program)]
    settings = environment(GT_BACKEND="numpy")
    result = subprocess.run(command, cwd=here, env=settings, capture_output=True, text=True, timeout=LONG)
    assert (result.stdout, result.stderr) == ("3.0\n", "")


def test_same_seed_same_numbers_whatever_the_workers(stack):
    program = """
        import gt
        for n, backend in ((1, "torch"), (2, "torch"), (1, "numpy")):
            import os; os.environ["GT_BACKEND"] = backend
            gt.gpu_workers(n)
            gt.manual_seed(7)
            normal = [round(v, 4) for v in gt.randn(5).tolist()]
            print(normal, gt.rand(3).tolist(), gt.randint(0, 9, (4,)).tolist(), flush=True)
    """
    client = script(program, stack=stack, GT_SHARE_GPUS="1")
    assert client.end() == 0, client.output
    # a busy machine may take longer to start than a wait is silent
    lines = [line for line in client.lines if not line.startswith("[gt] waiting for")]
    assert len(lines) == 3
    assert len(set(lines)) == 1


def test_gpu_workers_really_changes_the_number(stack):
    client = script(
        """
        import gt
        old = gt.ones(2)
        for n in (1, 3, 2):
            gt.gpu_workers(n)
            print(n, len(gt.workers()), gt.ones(2).sum().item(), flush=True)
        try:
            old + 1
        except gt.ClusterError as error:
            print(error)
        try:
            gt.gpu_workers(0)
        except gt.ConfigError as error:
            print(error)
        """,
        stack=stack,
        GT_BACKEND="numpy",
        GT_SHARE_GPUS="1",
    )
    assert client.end() == 0, client.output
    assert client.lines[:3] == ["1 1 2.0", "3 3 2.0", "2 2 2.0"]
    assert client.lines[3] == (
        "this session was disconnected, and its tensors went with it; "
        "gt.gpu_workers and gt.connect begin a new session: call them before the first tensor"
    )
    assert client.lines[4] == "gpu_workers(0): at least one worker is needed"


def test_two_clients_never_see_each_other(system):
    """Each client writes its own numbers under the same ids, on the same worker, at the same time."""
    program = """
        mine = float(sys.argv[1])
        x = gt.full((50, 50), mine)
        say("ready")
        go()
        for i in range(200):
            y = x * i + mine
            assert float(y[3, 4]) == mine * i + mine, (i, float(y[3, 4]))
        say("all mine")
    """
    clients = [system.client(program.replace("sys.argv[1]", str(n))) for n in (1, 2, 3)]
    for client in clients:
        client.expect("ready")
    for client in clients:
        client.tell()
    for client in clients:
        client.expect("all mine")


def test_a_greedy_client_does_not_starve_another(system):
    """One client has hundreds of large products queued; another's small ops are answered in between, not after."""
    greedy = system.client(
        """
        x = gt.ones(600, 600)
        for _ in range(1000): x = (x @ x) * 1e-3
        say("queued")
        x.sum().item()
        say("all done")
        """
    )
    modest = system.client(
        """
        x = gt.ones(4)
        x.sum().item()
        say("ready")
        go()
        for _ in range(30): assert (x + 1).sum().item() == 8
        say("answered")
        """
    )
    modest.expect("ready")
    greedy.expect("queued")
    modest.tell()
    modest.expect("answered")
    assert "all done" not in greedy.output


def test_a_client_far_ahead_of_its_worker_holds_flat_memory(system):
    """Without a read, credits stop the client, and no queue grows."""
    client = system.client(
        """
        import psutil
        processes = [psutil.Process(p) for p in map(int, sys.stdin.readline().split())] + [psutil.Process()]
        x = gt.ones(8)
        def run(n):
            y = x
            for _ in range(n): y = y + x
            return y
        run(20_000).sum().item()
        before = [p.memory_info().rss >> 20 for p in processes]
        y = run(150_000)
        grown = [(p.memory_info().rss >> 20) - b for p, b in zip(processes, before)]
        say("grown", *grown)
        say("right", y[0].item())
        """
    )
    client.tell(f"{system.server.pid} {system.workers[0].pid}")
    grown = [int(n) for n in client.expect("grown").split()[1:]]
    assert max(grown) < 30, f"MiB more in server, worker, client: {grown}"
    client.expect("right 150001.0")


def test_many_signatures_hold_flat_memory(system):
    """A program that keeps creating new shapes: the tables of all three roles stay small."""
    client = system.client(
        """
        import gt.client.stream.signatures
        gt.client.stream.signatures.MAX_SIGNATURES = 500
        total = 0
        for n in range(1, 3000):
            total += (gt.ones(n) + 1)[0].item() if n % 100 == 0 else 0
            gt.zeros(n) * 2
        from gt.client.stream.connect import session
        say("known", len(session().signatures.plain), total)
        """
    )
    count, total = client.expect("known").split()[1:]
    assert int(count) <= 501
    assert float(total) == 58.0


@pytest.mark.parametrize("shm", ["0", "1"])
def test_large_values_by_frames_and_by_shared_memory(stack, shm):
    system = System(stack)
    system.worker(*NUMPY, GT_SHM=shm)
    client = system.client(
        """
        rng = np.random.default_rng(0)
        for size in (1 << 13, (1 << 13) + 1, 1 << 20, (9 << 20) + 3, 20 << 20):
            x = rng.random(size)
            y = gt.from_numpy(x)
            x2 = x.copy(); x[:] = 0   # the tensor has its own copy
            assert (y.numpy() == x2).all()
            assert ((y + 1).numpy() == x2 + 1).all()
        say("all right")
        """,
        GT_SHM=shm,
    )
    client.expect("all right")


def test_a_large_transfer_does_not_block_others(stack):
    """One client moves hundreds of megabytes in frames through the server; another's round trips continue."""
    system = System(stack)
    system.worker(*NUMPY, GT_SHM="0")
    mover = system.client(
        """
        x = np.ones(32 << 20)
        say("ready")
        while True:
            gt.from_numpy(x).numpy()
            say("moved")
        """,
        GT_SHM="0",
    )
    other = system.client(
        """
        x = gt.ones(2)
        x.sum().item()
        say("ready")
        go()
        for _ in range(100): x.sum().item()
        say("answered")
        """
    )
    mover.expect("ready")
    other.expect("ready")
    other.tell()
    other.expect("answered")
    assert mover.output.count("moved") < 50, "a round trip waits for a few parts of a transfer, not for all of them"


def test_several_threads_share_a_session(system):
    client = system.client(
        """
        wrong = []
        def work(k):
            x = gt.full((20, 20), float(k))
            for i in range(60):
                x = x + k
                if i % 7 == 0 and x[0, 0].item() != k * (i + 2):
                    wrong.append((k, i))
                if i == 30 and (gt.from_numpy(np.full(50_000, k)).numpy() != k).any():
                    wrong.append((k, "large"))
        threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 9)]
        for t in threads: t.start()
        for t in threads: t.join()
        say("wrong", wrong)
        """
    )
    assert client.expect("wrong") == "wrong []"


def test_the_client_waits_only_to_read(system):
    """Every wait of a client goes through one function: submitting slow work does not call it, the read does."""
    client = system.client(
        """
        from gt.client.stream.connect import session
        x = gt.ones(700, 700)
        x.sum().item()
        waits, wait = 0, session().connection.link.wait
        def counted(*arguments):
            global waits
            waits += 1
            return wait(*arguments)
        session().connection.link.wait = counted
        y = x
        for _ in range(20): y = (y @ x) * 1e-3
        session().outbox.flush()
        emitted = waits
        y.sum().item()
        say("waits", emitted, waits - emitted)
        """
    )
    assert client.expect("waits") == "waits 0 1"


def test_instructions_are_sent_without_a_read(system):
    """Without a read and without a full batch, the work still runs a moment later."""
    client = system.client(
        """
        x = gt.ones(16)
        x.sum().item()
        y = x + 1
        from gt.client.stream.connect import session
        while session().outbox.words: time.sleep(0.005)
        say("sent")
        """
    )
    client.expect("sent")


def test_the_instruction_log(stack, tmp_path):
    log = tmp_path / "instructions.log"
    client = script(
        """
        import gt
        x = gt.ones(3, 4)
        (x @ x.T).sum().item()
        try:
            gt.arange(3)[gt.tensor([5])].tolist()
        except gt.RemoteError:
            pass
        """,
        stack=stack,
        GT_INSTRUCTION_LOG=str(log),
        GT_BACKEND="numpy",
    )
    assert client.end() == 0, client.output
    lines = log.read_text().splitlines()
    for line in lines:
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d\.\d{6} \| #\d+ \| (RECV|SEND|WORKER_SEND|WORKER_RECV) \| \S+ \| [^|]+ \| \d+B \| .*", line
        ), line
    matmul = [line for line in lines if "matmul(float32[3,4], float32[4,3])" in line]
    assert [line.split(" | ")[2] for line in matmul] == ["RECV", "WORKER_SEND"]
    assert any("ERROR RemoteError: index(" in line for line in lines)


def test_a_server_and_a_worker_say_where_they_are(stack):
    port = free_port()
    started = []
    for module in ("worker", "server"):
        backend = ("--backend", "numpy") if module == "worker" else ()
        started.append(Process("-m", f"gt.{module}", "-p", str(port), *backend))
        stack.callback(started[-1].close)
        if module == "worker":  # it starts first, so it has to wait
            started[-1].expect(f"waiting for a server at localhost:{port}, at most 30 s")
    worker, server = started
    worker.expect(f"joined localhost:{port} as worker 0 on cpu (numpy)")
    assert server.lines == [f"listening on 127.0.0.1:{port}"]
    assert len(worker.lines) == 2


def test_silent_by_default_and_verbose_on_request(stack):
    program = "import gt; gt.ones(3).sum().item()"
    quiet = script(program, stack=stack, GT_BACKEND="numpy")
    assert quiet.end() == 0
    assert quiet.output == ""
    loud = script(
        program,
        stack=stack,
        GT_BACKEND="numpy",
        GT_VERBOSE="1",
        GT_DEBUG_CLIENT="1",
        GT_DEBUG_DISPATCHER="1",
        GT_DEBUG_WORKER="1",
    )
    assert loud.end() == 0
    for word in ("gt verbose", "gt client", "gt dispatcher", "gt worker"):
        assert word in loud.output
    for part in ("client", "dispatcher", "worker"):
        alone = script(program, stack=stack, GT_BACKEND="numpy", **{f"GT_DEBUG_{part.upper()}": "1"})
        assert alone.end() == 0
        assert f"[gt {part}" in alone.output
        assert alone.output.count("[gt ") == alone.output.count(f"[gt {part}")


def test_debug(system):
    client = system.client(
        """
        x = gt.ones(256, 256)
        y = x @ x
        y.sum().item()
        stats = gt.debug.get_worker_stats()
        say("stats", sorted(stats["worker 0"]), stats["worker 0"]["total_instructions"] >= 3)
        say("memory", gt.debug.memory()["worker 0"]["client"])
        del y
        say("less", gt.debug.memory()["worker 0"]["client"])
        gt.debug.print_tape(4)
        """
    )
    assert client.end() == 0, client.output
    keys = ["backend", "compilation_stats", "device", "hot_instructions", "total_instructions", "unique_sequences"]
    assert f"stats {keys} True" in client.output
    assert "memory {'tensors': 2, 'bytes': 524288}" in client.output
    assert "less {'tensors': 1, 'bytes': 262144}" in client.output
    assert "matmul(float32[256,256], float32[256,256]) of %1, %1" in client.output or "free" in client.output


def test_a_client_needs_no_torch(system):
    client = system.client(
        """
        import importlib.abc
        class NoTorch(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch": raise ImportError("no torch here")
        sys.meta_path.insert(0, NoTorch())
        x = gt.randn(3, 3)
        print(x @ x)
        x[0] = 1; x[x > 0]
        say("torch" in sys.modules)
        """
    )
    client.expect("False")


def test_bfloat16_on_a_numpy_worker_is_a_clear_error(system):
    client = system.client(
        """
        try:
            gt.ones(2, dtype=gt.bfloat16).float().numpy()
        except gt.RemoteError as error:
            say(error)
        """
    )
    client.expect("the numpy backend has no bfloat16; use float32, or a worker with --backend torch")
