"""``gt doctor``: every finding, on a machine that is made wrong; the trials; the output for people and for programs."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import inspect
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from gt.doctor import __main__ as doctor
from gt.doctor import accelerators, findings, machine, trial_program, trials
from gt.doctor.accelerators import GpuFacts, TorchFacts
from gt.doctor.findings import NOTE, PROBLEM, find_problems
from gt.doctor.machine import Folder, Machine, Package, Port, SecretFile
from gt.doctor.trials import TrialResult, try_collective, try_round_trip
from gt.launch.cgroup import cgroup_limits
from gt.launch.running import registered
from gt.wire.shared import host_identity
from tests.support.processes import LONG, ROOT, environment, free_port

GIB = 1 << 30
TORCH = TorchFacts(True, version="2.13.0", gloo=True)
GPU_TORCH = TorchFacts(True, version="2.13.0+cu128", cuda="12.8", devices=("H200", "H200"), nccl="2.27.3", gloo=True)
GPUS = GpuFacts(("NVIDIA H200, 143771 MiB", "NVIDIA H200, 143771 MiB"), "570.86", visible=2)
SECRET = SecretFile("secret", "/home/x/.config/gt/token", exists=True, mode="600")
HEALTHY = Machine(
    gt="0.1.0",
    protocol=5,
    python="3.12.1 (/usr/bin/python3)",
    system="Linux",
    hostname="box",
    addresses=("10.0.0.3",),
    localhost=("127.0.0.1",),
    cores=8,
    usable_cores=8,
    cgroup_cores=None,
    threads_set=False,
    memory_bytes=64 * GIB,
    memory_available_bytes=32 * GIB,
    cgroup_memory_bytes=None,
    packages=(Package("msgspec", "0.19.0", "0.18"), Package("torch", "2.13.0+cpu", "2.11")),
    torch=TORCH,
    gpus=GpuFacts(),
    shared_memory=Folder("shared memory", "/dev/shm", 8 * GIB, 8 * GIB, True),
    shares_values=True,
    open_files=1024,
    open_files_limit=65536,
    folders=(Folder("temporary files", "/tmp", 99 * GIB, 9 * GIB, True), Folder("compiled code", "/c", GIB, GIB, True)),
    secrets=(SECRET, SecretFile("operator's token", "/home/x/.config/gt/operator", "GT_OPERATOR_TOKEN")),
    port=Port(9000),
)


def test_a_healthy_machine_has_no_finding():
    assert find_problems(HEALTHY, []) == []
    assert find_problems(replace(HEALTHY, torch=GPU_TORCH, gpus=GPUS), []) == []


def small(folder: Folder) -> Folder:
    return replace(folder, total_bytes=32 << 20, free_bytes=32 << 20)


#: what is different from a healthy machine -> (level, a part of what is said, a part of the remedy); one row a finding
WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no torch": (
        {"packages": (Package("torch", None, "2.11"),), "torch": TorchFacts()},
        NOTE, "torch is not installed: workers compute with numpy", "pip install 'gt-tensor[worker]'",
    ),
    "a missing package": (
        {"packages": (Package("pyzmq", None, "26"),)}, PROBLEM, "pyzmq is not installed", "pip install 'pyzmq>=26'",
    ),
    "an old package": (
        {"packages": (Package("msgspec", "0.9.1", "0.18"),)},
        PROBLEM, "msgspec 0.9.1 is too old: GT needs 0.18 or newer", "pip install 'msgspec>=0.18'",
    ),
    "broken torch": (
        {"torch": TorchFacts(True, "libcudart.so: not found")},
        PROBLEM, "torch cannot be used: libcudart.so: not found", "reinstall torch",
    ),
    "broken driver": (
        {"gpus": GpuFacts(error="Driver/library version mismatch")},
        PROBLEM, "the GPU driver does not answer: Driver/library version mismatch", "nvidia-smi",
    ),
    "hidden GPUs": (
        {"gpus": replace(GPUS, visible=0, chosen=True)},
        NOTE, "CUDA_VISIBLE_DEVICES hides the 2 GPU(s) of this machine", "unset CUDA_VISIBLE_DEVICES",
    ),
    "GPUs that GT does not find": (
        {"gpus": replace(GPUS, visible=0), "torch": GPU_TORCH},
        PROBLEM, "GT does not find the 2 GPU(s)", "CUDA_VISIBLE_DEVICES=0,1",
    ),
    "GPUs that torch cannot use": (
        {"gpus": GPUS}, PROBLEM, "torch 2.13.0 cannot use the GPUs: it was built without CUDA", "install a torch",
    ),
    "no NCCL": (
        {"gpus": GPUS, "torch": replace(GPU_TORCH, nccl="")}, PROBLEM, "torch has no NCCL", "with NCCL",
    ),
    "no gloo": ({"torch": replace(TORCH, gloo=False)}, PROBLEM, "torch has no gloo", "torch.distributed"),
    "few open files": ({"open_files": 256}, PROBLEM, "may open only 256 files", "ulimit -n 65536"),
    "little memory": (
        {"cgroup_memory_bytes": 512 << 20}, PROBLEM, "only 512.0 MiB of memory", "the container's limit",
    ),
    "a limit of cores": (
        {"cgroup_cores": 1.5}, NOTE, "the container may use 1.5 of 8 cores", "OMP_NUM_THREADS=1",
    ),
    "no shared memory": ({"shared_memory": None}, PROBLEM, "there is no /dev/shm", "mount a tmpfs there"),
    "little shared memory": (
        {"shared_memory": small(HEALTHY.shared_memory)},  # type: ignore[arg-type]
        PROBLEM, "/dev/shm has only 32.0 MiB: torch needs 64.0 MiB", "docker run --shm-size=1g",
    ),
    "values through sockets": ({"shares_values": False}, NOTE, "large values go through sockets", "unset GT_SHM"),
    "a folder that cannot be written": (
        {"folders": (replace(HEALTHY.folders[1], writable=False),)},
        PROBLEM, "/c (compiled code) cannot be written", "GT_CACHE_DIR=/path",
    ),
    "a full disk": (
        {"folders": (small(HEALTHY.folders[0]),)},
        PROBLEM, "/tmp (temporary files) has only 32.0 MiB free", "TMPDIR=/path",
    ),
    "a secret that others can read": (
        {"secrets": (replace(SECRET, mode="640"),)},
        PROBLEM, "has mode 640: others can read it", "chmod 600 /home/x/.config/gt/token",
    ),
    "an empty secret": ({"secrets": (replace(SECRET, empty=True),)}, PROBLEM, "(the secret) is empty", "rm /home/x/"),
    "a host name without address": ({"addresses": ()}, PROBLEM, "'box', has no address", "/etc/hosts: <address> box"),
    "localhost without address": ({"localhost": ()}, PROBLEM, "localhost has no address", "127.0.0.1 localhost"),
    "a port that is taken": (
        {"port": Port(9000, "another program uses it")},
        PROBLEM, "a server cannot use port 9000: another program uses it", "gt server -p PORT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_findings(name):
    facts, level, what, remedy = WRONG[name]
    (finding,) = find_problems(replace(HEALTHY, **facts), [])
    assert finding.level == level
    assert what in finding.what
    assert remedy in finding.remedy


def test_every_finding_has_a_row():
    calls = [
        node
        for check in findings.CHECKS
        for node in ast.walk(ast.parse(inspect.getsource(check)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    assert len(calls) == len(WRONG)


def test_variants_of_findings():
    hard = replace(HEALTHY, open_files=256, open_files_limit=256)
    assert "raise the hard limit, which is 256" in find_problems(hard, [])[0].remedy
    nccl = replace(HEALTHY, torch=GPU_TORCH, gpus=GPUS, shared_memory=small(HEALTHY.shared_memory))
    assert "NCCL needs 1.0 GiB for 2 GPUs" in find_problems(nccl, [])[0].what
    error = replace(HEALTHY, gpus=GPUS, torch=replace(TORCH, cuda="12.8", cuda_error="driver too old"))
    assert "cannot use the GPUs: driver too old" in find_problems(error, [])[0].what
    assert find_problems(replace(HEALTHY, cgroup_cores=1.5, threads_set=True), []) == []
    assert find_problems(replace(HEALTHY, port=Port(9000, "another program uses it", server_pid=7)), []) == []


# -- a machine that is made wrong ----------------------------------------------------------


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Torch is asked in other tests; the secret is none of this user's."""
    monkeypatch.setattr(machine, "probe_torch", lambda: TORCH)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GT_TOKEN", raising=False)
    monkeypatch.delenv("GT_OPERATOR_TOKEN", raising=False)


def report(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What ``gt doctor --json`` prints; its exit code agrees with it."""
    capsys.readouterr()
    code = doctor.main(["--json", "--no-trials", *options])
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["ok"] == (not any(finding["level"] == PROBLEM for finding in printed["findings"])) == (code == 0)
    return printed


def said(printed: dict[str, Any], text: str) -> bool:
    return any(text in finding["what"] for finding in printed["findings"])


@pytest.mark.usefixtures("quick")
def test_a_small_file_limit(capsys):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        printed = report(capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert printed["machine"]["open_files"] == 512
    assert said(printed, "a process may open only 512 files")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["token", "operator"])
def test_a_secret_that_others_can_read(name, capsys, tmp_path):
    path = tmp_path / "gt" / name
    path.parent.mkdir()
    path.write_text("do-not-print-me")
    path.chmod(0o600)
    assert not said(report(capsys), "others can read it")
    path.chmod(0o604)
    printed = report(capsys)
    assert said(printed, f"{path} (the {'secret' if name == 'token' else 'operator'}")
    assert said(printed, "has mode 604: others can read it")
    assert "do-not-print-me" not in json.dumps(printed)
    path.chmod(0o600)
    path.write_text("")
    assert said(report(capsys), "is empty")


@pytest.mark.usefixtures("quick")
def test_a_secret_in_the_environment_is_not_printed(capsys, monkeypatch):
    monkeypatch.setenv("GT_TOKEN", "do-not-print-me")
    doctor.main(["--no-trials"])
    text = capsys.readouterr().out
    assert re.search(r"^secret +from GT_TOKEN$", text, re.M)
    assert "do-not-print-me" not in text


@pytest.mark.usefixtures("quick")
def test_a_port_that_is_taken(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = free_port()
    assert report(capsys, "-p", str(port))["machine"]["port"] == {"number": port, "error": "", "server_pid": 0}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert said(report(capsys, "-p", str(port)), f"a server cannot use port {port}: another program uses it")
        with registered(f"tcp://127.0.0.1:{port}", time.time()):
            printed = report(capsys, "-p", str(port))
    assert printed["machine"]["port"]["server_pid"] == os.getpid()
    assert printed["machine"]["servers"] == [f"tcp://127.0.0.1:{port}"]
    assert not said(printed, f"port {port}")


@pytest.mark.usefixtures("quick")
def test_a_port_that_is_not_allowed(capsys, monkeypatch):
    def refuse(self: object, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert said(report(capsys), "a server cannot use port 9000: Permission denied")


@pytest.mark.usefixtures("quick")
def test_a_host_name_that_does_not_resolve(capsys, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert said(report(capsys), "'no-such-host.invalid', has no address")


@pytest.mark.usefixtures("quick")
def test_packages(capsys, monkeypatch):
    lines = ["msgspec>=99", "no-such-package>=1", 'torch>=2.11; extra == "worker"', 'pytest>=99; extra == "test"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    printed = report(capsys)
    assert said(printed, "is too old: GT needs 99 or newer")
    assert said(printed, "no-such-package is not installed")
    assert not said(printed, "pytest")


@pytest.mark.usefixtures("quick")
def test_source_that_is_not_installed(capsys, monkeypatch):
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert report(capsys)["machine"]["packages"] == []


@pytest.mark.usefixtures("quick")
def test_values_through_sockets(capsys, monkeypatch):
    monkeypatch.setenv("GT_SHM", "0")
    host_identity.cache_clear()
    try:
        assert said(report(capsys), "large values go through sockets")
    finally:
        host_identity.cache_clear()


@pytest.mark.usefixtures("quick")
def test_no_shared_memory(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SHARED_MEMORY", str(tmp_path / "none"))
    assert said(report(capsys), "there is no /dev/shm")


def can_mount() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    return False


@pytest.mark.skipif(not can_mount(), reason="this user may not mount anything")
def test_small_file_systems(tmp_path):
    """A tiny /dev/shm, a full folder for temporary files, and a cache folder that cannot be written."""
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    cache.mkdir()
    mounts = [
        "mount -t tmpfs -o size=16m tmpfs /dev/shm",
        f"mount -t tmpfs -o size=8m tmpfs {temporary}",
        f"mount -t tmpfs -o ro tmpfs {cache}",
    ]
    program = f"exec {sys.executable} -m gt doctor --json --no-trials"
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-c", " && ".join([*mounts, program])],
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=ROOT,
        env=environment(TMPDIR=str(temporary), GT_CACHE_DIR=str(cache)),
    )
    assert result.returncode == 1, result.stderr
    printed = json.loads(result.stdout)
    assert said(printed, "/dev/shm has only 16.0 MiB: torch needs 64.0 MiB")
    assert said(printed, f"{temporary} (temporary files) has only 8.0 MiB free")
    assert said(printed, f"{cache} (compiled code) cannot be written")


# -- GPUs and torch ------------------------------------------------------------------------


def fake_program(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A program ``nvidia-smi`` that does this."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("quick")
def test_gpus_that_torch_cannot_use(capsys, monkeypatch, tmp_path):
    fake_program(
        tmp_path, monkeypatch, "echo '570.86, NVIDIA H200, 143771 MiB'\necho '570.86, NVIDIA H200, 143771 MiB'"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    printed = report(capsys)
    assert printed["machine"]["gpus"]["names"] == ["NVIDIA H200, 143771 MiB"] * 2
    assert printed["machine"]["gpus"]["driver"] == "570.86"
    assert said(printed, "torch 2.13.0 cannot use the GPUs: it was built without CUDA")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert said(report(capsys), "CUDA_VISIBLE_DEVICES hides the 2 GPU(s)")


@pytest.mark.usefixtures("quick")
def test_a_driver_that_fails(capsys, monkeypatch, tmp_path):
    fake_program(tmp_path, monkeypatch, "echo 'no devices were found' >&2; exit 9")
    assert said(report(capsys), "the GPU driver does not answer: no devices were found")


def test_a_driver_that_hangs(monkeypatch, tmp_path):
    fake_program(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(accelerators, "DRIVER_TIMEOUT_S", 0.2)
    assert accelerators.find_gpus().error == "nvidia-smi did not end within 0.2 s"


def test_a_driver_without_its_program(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accelerators.find_gpus().error == ""
    monkeypatch.setattr(accelerators, "DRIVER_FOLDER", str(tmp_path))
    assert accelerators.find_gpus().error == "there is a driver, but no nvidia-smi"


def test_torch_that_cannot_be_imported(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    facts = accelerators.probe_torch()
    assert facts == TorchFacts(True, "ImportError: libcudart.so.12: cannot open shared object file")


def test_torch_that_crashes(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert accelerators.probe_torch().error == "exit code -6"


def test_torch_is_missing(monkeypatch):
    monkeypatch.setattr(accelerators, "find_spec", lambda name: None)
    assert accelerators.probe_torch() == TorchFacts()


def test_what_torch_says():
    import torch

    facts = accelerators.probe_torch()
    assert (facts.error, facts.version, facts.gloo) == ("", torch.__version__, True)
    assert len(facts.devices) == torch.cuda.device_count()


# -- cgroups -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {}, (None, None)),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, (None, None)),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, (1.5, None)),
        ("0::/a/b", {"a/memory.max": "2048", "a/b/memory.max": "4096"}, (None, 2048)),
        (
            "4:memory:/docker/1\n1:cpu:/docker/1",
            {"memory/memory.limit_in_bytes": str((1 << 63) - 4096), "cpu/docker/1/cpu.cfs_quota_us": "-1"},
            (None, None),
        ),
        (
            "4:memory:/docker/1\n1:cpu:/docker/1",
            {
                "memory/memory.limit_in_bytes": "1073741824",
                "cpu/docker/1/cpu.cfs_quota_us": "400000",
                "cpu/docker/1/cpu.cfs_period_us": "100000",
            },
            (4.0, 1 << 30),
        ),
    ],
)
def test_cgroup_limits(own, files, expected, tmp_path):
    (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cgroup_limits(tmp_path / "root", tmp_path / "own") == expected


# -- trials --------------------------------------------------------------------------------


def test_trials_measure():
    """The whole command, as a user runs it."""
    command = [sys.executable, "-m", "gt", "doctor", "--json", "-p", str(free_port())]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=3 * LONG)
    printed = json.loads(result.stdout)
    assert result.returncode == (0 if printed["ok"] else 1)
    round_trip, collective = (TrialResult(**trial) for trial in printed["trials"])
    assert (round_trip.error, collective.error) == ("", ""), result.stderr
    assert 0 < round_trip.figures["round_trip_ms"] < 60_000
    assert round_trip.figures["large_value_bytes"] == 16 << 20
    assert 0 < collective.figures["collective_ms"] < 60_000
    assert len(collective.figures["devices"]) == 2
    assert collective.figures["transport"] in ("gloo", "nccl")
    assert re.fullmatch(r"[\d.]+ ms on \w+ \(\w+\); 16\.0 MiB .* s", doctor.trial_text(round_trip))
    assert re.fullmatch(r"[\d.]+ ms: 4\.0 MiB summed over 2 workers .* ms", doctor.trial_text(collective))


@pytest.mark.parametrize("attempt", [try_round_trip, try_collective])
def test_a_trial_that_fails(attempt, monkeypatch):
    monkeypatch.setenv("GT_BACKEND", "abacus")
    result = attempt()
    assert "the local worker" in result.error
    assert result.figures == {}
    (finding,) = find_problems(HEALTHY, [result])
    assert (finding.level, finding.what) == (PROBLEM, f"{result.name}: {result.error}")
    assert "GT_VERBOSE=1" in finding.remedy
    assert doctor.trial_text(result) == f"failed: {result.error}"


def test_a_trial_that_hangs():
    assert try_round_trip(timeout=0.05).error == "it did not end within 0.05 s"


def test_a_trial_with_a_wrong_result():
    with pytest.raises(SystemExit, match=r"a wrong result: 3.0 instead of 4.0"):
        trial_program._check(3.0, 4.0)


def test_the_users_settings_do_not_disturb_a_trial(monkeypatch, tmp_path):
    monkeypatch.setenv("GT_CONFIG", str(tmp_path / "missing.yaml"))
    monkeypatch.setenv("GT_BACKEND", "numpy")
    assert try_round_trip().error == ""


@pytest.mark.usefixtures("quick")
def test_without_torch_there_is_no_collective(capsys, monkeypatch):
    monkeypatch.setattr(machine, "probe_torch", lambda: TorchFacts())
    monkeypatch.setattr(doctor, "try_round_trip", lambda: TrialResult("round trip", error="it was only a test"))
    assert doctor.main(["--json"]) == 1
    assert [trial["name"] for trial in json.loads(capsys.readouterr().out)["trials"]] == ["round trip"]


# -- output --------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_the_text_has_a_row_for_each_fact(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code = doctor.main(["--no-trials"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[: lines.index("")])) <= 60
    labels = [line[: doctor.LABEL_WIDTH].strip() for line in lines[: lines.index("")]]
    assert [label for label in labels if label] == [label for label, _ in doctor.fact_rows(HEALTHY)]
    assert (lines[-1] == "no problem found") == (code == 0)


def test_problems_come_first():
    ill = replace(HEALTHY, cgroup_cores=1.5, open_files=100)
    lines = list(doctor.finding_lines(find_problems(ill, [])))
    assert [line.partition(":")[0].strip() for line in lines[::2]] == [PROBLEM, NOTE]
    assert lines[1] == "    ulimit -n 65536"


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_wrong_port(port, capsys):
    with pytest.raises(SystemExit) as end:
        doctor.main(["-p", port])
    assert end.value.code == 2


@pytest.mark.usefixtures("quick")
def test_an_interrupt(monkeypatch):
    def interrupt(port: int) -> Machine:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupt)
    assert doctor.main([]) == 130


def test_the_page_shows_the_rows_of_the_command():
    """The example in the documentation has the labels that the command prints, in its order."""
    text = (ROOT / "docs" / "command.md").read_text()
    (example,) = re.findall(r"```text\n(GT  .*?)```", text, re.S)
    labels = [line[: doctor.LABEL_WIDTH].strip() for line in example.partition("\n\n")[0].splitlines()]
    expected = [label for label, _ in doctor.fact_rows(HEALTHY)] + ["round trip", "collective"]
    assert [label for label in labels if label] == expected
    assert f"longer than {trials.TRIAL_TIMEOUT_S:g} s" in text
