"""The scripts that start the suites on several nodes: two torchrun agents on this machine, and a real Slurm."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys

import pytest

from benchmarks.core import results
from tests.support import slurm
from tests.support.launches import ONE_THREAD, only_record
from tests.support.processes import LONG, ROOT, environment, free_port, wait_until

CLUSTER = ROOT / "benchmarks" / "cluster"
TORCHRUN, SLURM = CLUSTER / "torchrun.sh", CLUSTER / "slurm.sh"
needs_slurm = pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
SMALL = ["--benchmark", "comm", "--iters", "2", "--warmup", "1", "--sizes", "1K"]


def check_two_ranks(folder):
    data = only_record(folder)[1]
    assert results.problems(data) == []
    assert (data["status"], data["world_size"]) == ("complete", 2)
    part = data["results"]["communication"]
    assert [row["wrong_elements"] for row in part["allreduce"]["rows"] + part["p2p"]["rows"]] == [0, 0]


@pytest.mark.long
def test_two_nodes_of_torchrun(stack, tmp_path):
    settings = {"NODES": "2", "HEAD": f"127.0.0.1:{free_port()}", "LOCAL_ADDR": "127.0.0.1", "RANKS": "1"}
    command = ["bash", str(TORCHRUN), "distributed", *SMALL, "--output-dir", str(tmp_path)]
    clean = environment(**ONE_THREAD, **settings, PYTHON=sys.executable)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    nodes = [subprocess.Popen(command, env=clean, cwd=tmp_path, **pipes) for _ in range(2)]
    for node in nodes:
        stack.callback(end, node)
    outputs = [node.communicate(timeout=2 * LONG)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert sum("written:" in output for output in outputs) == 1
    check_two_ranks(tmp_path)


def end(process):
    process.terminate()
    process.communicate()


def refused(*words, folder=None, **settings):
    process = subprocess.run(
        words, env=environment(**settings), cwd=folder, capture_output=True, text=True, timeout=LONG
    )
    assert process.returncode == 2
    return process.stderr


def test_bad_input(tmp_path):
    assert "no suite 'comm'; one of distributed" in refused("bash", str(TORCHRUN), "comm")
    assert "NODES=2 needs HEAD=HOST:PORT" in refused("bash", str(TORCHRUN), "node", NODES="2")
    assert "/nowhere has no torch" in refused("bash", str(TORCHRUN), "node", PYTHON="/nowhere")
    assert "submit this script with sbatch" in refused("bash", str(SLURM), "node")
    assert "from the root of the repository" in refused("bash", str(SLURM), "node", folder=tmp_path, SLURM_JOB_ID="1")
    help_text = subprocess.run(["bash", str(TORCHRUN), "--help"], capture_output=True, text=True, check=True).stdout
    assert "NODES=2 HEAD=first-node:29500" in help_text


@needs_slurm
@pytest.mark.long
def test_two_nodes_of_slurm(tmp_path):
    out, log = tmp_path / "records", tmp_path / "job.log"
    (tmp_path / "slurm").mkdir()
    with contextlib.ExitStack() as stack:
        try:
            cluster = slurm.SlurmCluster(stack, tmp_path / "slurm")
        except AssertionError as error:
            pytest.skip(f"Slurm's daemons do not run on this machine: {error}")
        settings = {**ONE_THREAD, "PYTHON": sys.executable, "RANKS": "1", "LOCAL_ADDR": "127.0.0.1"}
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in settings.items())])
        options = [f"--chdir={ROOT}", f"--output={log}", f"--export={exported}"]
        cluster.run("sbatch", *options, str(SLURM), "distributed", *SMALL, "--output-dir", str(out))
        wait_until(lambda: not cluster.jobs(), 2 * LONG, "the end of the job")
        assert "written:" in log.read_text(), log.read_text() + cluster.logs()
    check_two_ranks(out)


def test_the_container_file_names_what_there_is():
    text = (CLUSTER / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (\S+) ", text, re.M):
        assert (ROOT / source).exists()
    extras = re.search(r"'\.\[([\w,]+)\]'", text)[1].split(",")
    for extra in extras:
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    assert re.findall(r"^FROM (\S+)$", text, re.M) == ["python:3.12-slim-bookworm"]
    assert (ROOT / "benchmarks" / "machine.py").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("script", [TORCHRUN, SLURM], ids=lambda path: path.name)
def test_the_scripts_are_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
