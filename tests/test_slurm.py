"""GT on Slurm: a real cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.support import slurm
from tests.support.keys import copy_server_key
from tests.support.processes import ROOT, Process, alive, free_port, script, wait_until

needs_slurm = pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
NUMPY = {"GT_BACKEND": "numpy", "CUDA_VISIBLE_DEVICES": ""}
#: A client that starts two workers on two nodes; ``folder`` is where the job meets.
LAUNCH = """
    import os, sys
    import gt
    def say(*what): print(*what, flush=True)
    try:
        gt.launch.slurm(nodes=2, time="0:10:00", folder=os.environ["FOLDER"])
    except gt.GtError as error:
        say(type(error).__name__, error)
        sys.exit(3)
    say("ready", *(worker.pid for worker in gt.workers()))
"""


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.SlurmCluster]:
    with contextlib.ExitStack() as stack:
        try:
            started = slurm.SlurmCluster(stack, tmp_path_factory.mktemp("slurm"))
        except AssertionError as error:
            pytest.skip(f"Slurm's daemons do not run on this machine: {error}")
        yield started


@pytest.fixture
def cluster(shared_cluster: slurm.SlurmCluster) -> Iterator[slurm.SlurmCluster]:
    yield shared_cluster
    shared_cluster.cancel_all()


def client(program: str, cluster: slurm.SlurmCluster, stack: contextlib.ExitStack, folder: pathlib.Path, **extra: str):
    return script(program, stack=stack, **cluster.environment, **NUMPY, FOLDER=str(folder), **extra)


def pids_of(line: str) -> list[int]:
    return [int(word) for word in line.split()[1:]]


def job_processes(folder: pathlib.Path) -> list[int]:
    """The processes whose command line names the job's folder: the tasks and the server."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            pid = int(path.parent.name)
            if os.fsencode(str(folder)) in words or os.fsencode(f"{folder}/server") in words:
                found.append(pid)
    return found


@needs_slurm
def test_a_program_starts_a_job_and_ends_it(cluster, stack, tmp_path):
    program = (
        LAUNCH
        + """
    x = gt.ones(4, 3)
    say("sum", (x + 1).sum().item())
    sys.stdin.readline()
    """
    )
    process = client(program, cluster, stack, tmp_path)
    workers = pids_of(process.expect("ready"))
    process.expect("sum 24.0")
    assert len(set(workers)) == 2
    assert "of 2 workers have joined" in process.output
    _check_secrets(tmp_path)
    tasks = job_processes(tmp_path)
    assert len(tasks) >= 3
    process.tell()
    assert process.end() == 0, process.output
    cluster.wait_until_idle()
    wait_until(lambda: not any(map(alive, [*workers, *tasks])), what="the end of the job's processes")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".log"]  # the folder of the key, and the log


def _check_secrets(folder: pathlib.Path) -> None:
    """The token is in one file, which only its owner can read, and on no command line."""
    (file,) = folder.glob("*.0.0")
    assert file.stat().st_mode & 0o777 == 0o600
    secret = re.search(r"[0-9a-f]{64}", file.read_text())
    assert secret is not None
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert secret[0].encode() not in path.read_bytes()


@needs_slurm
@pytest.mark.long
def test_a_killed_client_leaves_no_job(cluster, stack, tmp_path):
    """Also if it has a forked child, which has copies of its files."""
    program = (
        LAUNCH
        + """
    import time
    if (child := os.fork()) == 0:
        time.sleep(600)
    say("child", child)
    time.sleep(600)
    """
    )
    process = client(program, cluster, stack, tmp_path)
    workers = pids_of(process.expect("ready"))
    child = pids_of(process.expect("child"))[0]
    stack.callback(os.kill, child, signal.SIGKILL)
    tasks = job_processes(tmp_path)
    process.kill(signal.SIGKILL)
    cluster.wait_until_idle()
    wait_until(lambda: not any(map(alive, [*workers, *tasks])), what="the end of the job's processes")


@needs_slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.long
def test_the_end_of_a_waiting_client_cancels_its_job(cluster, stack, tmp_path, number):
    cluster.run("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    process = client(LAUNCH, cluster, stack, tmp_path)
    process.expect("waiting, pending (Resources)")
    assert len(cluster.jobs().splitlines()) == 2
    process.kill(number)
    wait_until(lambda: "PENDING" not in cluster.jobs(), what="the end of the job that waited")
    if number == signal.SIGINT:
        process.end()
        assert "KeyboardInterrupt" in process.output
    assert "RUNNING" in cluster.jobs()  # somebody else's


@needs_slurm
@pytest.mark.long
def test_a_lost_worker_is_not_the_end_of_the_job(cluster, stack, tmp_path):
    program = (
        LAUNCH
        + """
    workers = [worker.pid for worker in gt.workers()]
    for i in (0, 1):
        gt.register_config(f"on {i}", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[i])))
    def place(i):
        with gt.signal.context(f"on {i}"):
            return gt.ones(3)
    x, y = place(0), place(1)
    say("sums", x.sum().item(), y.sum().item())
    sys.stdin.readline()
    for name, tensor in (("x", x), ("y", y)):
        try:
            say(name, tensor.sum().item())
        except gt.WorkerLost as error:
            say(name, "WorkerLost", error)
    """
    )
    process = client(program, cluster, stack, tmp_path)
    pids = pids_of(process.expect("ready"))
    process.expect("sums 3.0 3.0")
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: not alive(pids[0]))
    process.tell()
    assert "worker 0" in process.expect("x WorkerLost")
    process.expect("y 3.0")


@needs_slurm
@pytest.mark.long
def test_a_cancelled_job(cluster, stack, tmp_path):
    program = (
        LAUNCH
        + """
    x = gt.ones(3)
    say("sum", x.sum().item())
    sys.stdin.readline()
    try:
        while True:
            x.sum().item()
    except gt.WorkerLost as error:
        say("WorkerLost", error)
    """
    )
    process = client(program, cluster, stack, tmp_path)
    process.expect("sum 3.0")
    job = cluster.jobs().split()[0]
    cluster.run("scancel", job)
    process.tell()
    assert f"Slurm job {job} was cancelled" in process.expect("WorkerLost")
    assert process.end() == 0, process.output


@needs_slurm
@pytest.mark.long
def test_the_time_limit(cluster, stack, tmp_path):
    """Slurm counts time limits in minutes, and checks them twice a minute."""
    program = (
        LAUNCH.replace("0:10:00", "0:01:00")
        + """
    x = gt.ones(3)
    try:
        while True:
            x.sum().item()
            time.sleep(0.1)
    except gt.WorkerLost as error:
        say("WorkerLost", error)
    """
    )
    process = client(program.replace("import os, sys", "import os, sys, time"), cluster, stack, tmp_path)
    process.expect("ready")
    assert "reached its time limit (0:01:00)" in process.expect("WorkerLost", 240)


# -- errors --------------------------------------------------------------------------------


def test_no_sbatch(stack, tmp_path):
    process = script(LAUNCH, stack=stack, FOLDER=str(tmp_path), PATH="/nonexistent")
    assert "there is no sbatch here" in process.expect("ConfigError")
    assert process.end() == 3


@needs_slurm
def test_a_job_that_slurm_refuses(cluster, stack, tmp_path):
    process = client(LAUNCH.replace("nodes=2", "partition='nowhere'"), cluster, stack, tmp_path)
    assert "Slurm refused the job: " in (line := process.expect("ConfigError"))
    assert "invalid partition specified: nowhere" in line
    assert process.end() == 3
    assert cluster.jobs() == ""


@needs_slurm
@pytest.mark.long
def test_a_worker_that_cannot_start(cluster, stack, tmp_path):
    """The log of the job has the reason."""
    process = script(LAUNCH, stack=stack, **cluster.environment, FOLDER=str(tmp_path), GT_BACKEND="abacus")
    assert "Its log, " in process.expect("NoWorkers")
    assert process.end() == 3
    assert "abacus" in process.output
    cluster.wait_until_idle()


@needs_slurm
@pytest.mark.long
def test_a_job_that_fails_at_once(cluster, stack, tmp_path):
    options = "options=['--chdir=/'], ports='70000', "
    process = client(LAUNCH.replace("nodes=2,", f"nodes=1, {options}"), cluster, stack, tmp_path)
    assert "Its log, " in process.expect("NoWorkers")
    assert process.end() == 3
    assert "port 70000: ports go from 1 to 65535" in process.output
    cluster.wait_until_idle()


def test_no_job(stack, tmp_path):
    process = Process("-m", "gt", "slurm-worker")
    stack.callback(process.close)
    assert process.end() == 1
    assert "SLURM_PROCID is not set: run it in a Slurm job, with srun gt slurm-worker" in process.output
    process = script("import gt; gt.launch.slurm_workers()", stack=stack)
    assert process.end() == 1
    assert "this program does not run in a Slurm job" in process.output


def test_snapshots_in_a_folder(stack, tmp_path):
    """One task, with the variables that Slurm sets."""
    job = {"JOB_ID": "1", "STEP_ID": "0", "PROCID": "0", "STEP_NUM_TASKS": "1", "LAUNCH_NODE_IPADDR": "127.0.0.1"}
    port, snapshots = free_port(), tmp_path / "snapshots"
    options = ("--folder", str(tmp_path), "--ports", f"{port}-{port + 20}", "--snapshots", str(snapshots))
    variables = {f"SLURM_{name}": value for name, value in job.items()}
    process = Process("-m", "gt", "slurm-worker", "--backend", "numpy", *options, **variables)
    stack.callback(process.close)
    process.expect("listening on 127.0.0.1:")
    wait_until(snapshots.is_dir)


# -- the batch script ----------------------------------------------------------------------


@needs_slurm
@pytest.mark.long
def test_the_batch_script(cluster, stack, tmp_path):
    """The example as it is, except that this cluster has no GPUs, and that the workers compute with numpy."""
    text = (ROOT / "examples" / "slurm.sbatch").read_text()
    text = text.replace("#SBATCH --gpus-per-node=8\n", "").replace("ntasks-per-node=8", "ntasks-per-node=2")
    (tmp_path / "job").write_text(text)
    for name, arguments in (("gt", "-m gt"), ("python", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {**NUMPY, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    copy_server_key(tmp_path / "config")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setitem(cluster.environment, "PATH", f"{tmp_path}:{slurm.PATH}")
        cluster.run("sbatch", "--wait", f"--chdir={ROOT}", f"--output={tmp_path}/log", str(tmp_path / "job"))
    assert "4 workers, x is S(0)" in (tmp_path / "log").read_text()


@needs_slurm
@pytest.mark.long
def test_each_worker_has_its_gpu(cluster, stack, tmp_path):
    """As far as Slurm knows, the nodes have GPUs; numpy does not mind."""
    launch = LAUNCH.replace("nodes=2,", "nodes=2, gpus_per_node=2,")
    process = script(
        launch + "    sys.stdin.readline()",
        stack=stack,
        **cluster.environment,
        FOLDER=str(tmp_path),
        GT_BACKEND="numpy",
    )
    pids = pids_of(process.expect("ready"))
    environments = [pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids]
    pairs = [dict(line.split(b"=", 1) for line in lines if line) for lines in environments]
    gpus = sorted((pair[b"SLURMD_NODENAME"], pair[b"CUDA_VISIBLE_DEVICES"]) for pair in pairs)
    assert gpus == [(b"node1", b"0"), (b"node1", b"1"), (b"node2", b"0"), (b"node2", b"1")]


@needs_slurm
@pytest.mark.long
def test_more_workers_than_gpus(cluster, stack, tmp_path):
    launch = LAUNCH.replace("nodes=2,", "nodes=1, gpus_per_node=2, workers_per_node=3,")
    process = script(launch, stack=stack, **cluster.environment, FOLDER=str(tmp_path), GT_BACKEND="numpy")
    process.expect("NoWorkers")
    assert process.end() == 3
    assert "task 2 of node1 has no GPU of its own: the job has 2 there" in process.output
