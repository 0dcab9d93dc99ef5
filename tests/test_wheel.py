"""The wheel, installed in an environment of its own without torch: what it contains, and that it works by itself."""

from __future__ import annotations

import email
import os
import shutil
import socket
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution

import pytest

import gt
from tests.support.processes import LONG, ROOT, TOKEN, free_port, wait_until

INSTALL = "pip install 'gt-tensor[worker]'"
NO_TORCH = f"[gt] torch is not installed, so GT computes with numpy, which is slow; for torch: {INSTALL}\n"


def sources(folder):
    """A copy of what a checkout has of the package."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "gt_autoload.py"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "gt", folder / "gt", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the checkout: a build leaves files behind."""
    folder = sources(tmp_path_factory.mktemp("wheel"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(build, cwd=folder, check=True, timeout=LONG)
    (path,) = (folder / "dist").glob("*.whl")
    return path


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(wheel):
    """The names of the distributions that a plain install needs."""
    plain = [line for line in metadata(wheel).get_all("Requires-Dist") if "extra ==" not in line]
    return [line.partition(">")[0].strip() for line in plain]


def link(name, site):
    """Give another environment a distribution of this one."""
    required = distribution(name)
    for top in {file.parts[0] for file in required.files if file.parts[0] != ".."}:
        if not (site / top).exists():
            (site / top).symlink_to(required.locate_file(top))


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The ``bin`` of a new environment with the wheel, and with what the wheel requires and nothing else.

    The required packages are links to those of this environment, so that the test needs no network.
    """
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    (site,) = root.glob("lib/python3*/site-packages")
    for name in requirements(wheel):
        link(name, site)
    python = root / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, timeout=LONG)
    return root / "bin"


def test_a_script_beside_a_checkout_called_gt(tmp_path):
    """Python would take that folder for the package, if an editable install did not put the checkout on the path."""
    checkout = tmp_path / "gt"
    checkout.mkdir()
    sources(checkout)
    venv.create(tmp_path / "environment", symlinks=True)
    (site,) = tmp_path.glob("environment/lib/python3*/site-packages")
    link("setuptools", site)
    python = str(tmp_path / "environment/bin/python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "-e", str(checkout)], check=True, timeout=LONG)
    find = "import importlib.util; print(importlib.util.find_spec('gt').origin)"
    (tmp_path / "script.py").write_text(find)
    process = subprocess.run([python, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert process.stdout.strip() == str(checkout / "gt/__init__.py"), process.stderr


CLIENT = """
import time, gt
gt.connect("localhost:{}")
while not gt.workers():
    time.sleep(0.01)
print(gt.arange(4).sum().item(), gt.__file__)
"""


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment():
    """No GT setting, and no path to the checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GT_", "PYTHON"))}
    return {**kept, "GT_TOKEN": TOKEN, "CUDA_VISIBLE_DEVICES": ""}


def run(*command, cwd):
    arguments = list(map(str, command))
    return subprocess.run(arguments, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=LONG)


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "gt").rglob("*.py*") if path.suffix in (".py", ".pyi")}
    assert {*sources, "gt/py.typed", "gt/torch_names.txt"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"gt", "gt_autoload.py", f"gt_tensor-{gt.__version__}.dist-info"}


def test_metadata(wheel):
    fields = metadata(wheel)
    assert (fields["Name"], fields["Version"]) == ("gt-tensor", gt.__version__)
    for field in ("Summary", "Author", "License-Expression", "Requires-Python", "Classifier", "Keywords"):
        assert fields[field], field
    assert requirements(wheel) == ["pyzmq", "msgspec", "numpy", "pyyaml", "array-api-compat", "rich"]
    assert 'torch>=2.11; extra == "worker"' in fields.get_all("Requires-Dist")


def test_first_tensor(binaries, tmp_path):
    """A plain install computes with numpy, and says so once."""
    program = "import gt; x = gt.ones(2, 3) + 1; print(gt.relu(x).sum().item(), gt.workers()[0].backend)"
    result = run(binaries / "python", "-c", program, cwd=tmp_path)
    assert (result.stdout, result.stderr, result.returncode) == ("12.0 numpy\n", NO_TORCH, 0)


def test_server_and_worker(binaries, tmp_path):
    port = str(free_port())
    server, worker = [binaries / "gt", "server", "-p", port], [binaries / "python", "-m", "gt.worker", "-p", port]
    processes = [subprocess.Popen(c, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE) for c in (server, worker)]
    try:
        wait_until(lambda: listens(int(port)), what="the server's port")
        result = run(binaries / "python", "-c", CLIENT.format(port), cwd=tmp_path)
    finally:
        said = []
        for process in reversed(processes):  # the worker first: otherwise it reports a lost server
            process.terminate()
            said.append(process.communicate(timeout=LONG)[1].decode())
    assert result.returncode == 0, (result.stderr, said)
    total, file = result.stdout.split()
    assert total == "6"
    assert file.startswith(str(binaries.parent))
    assert said == [NO_TORCH, ""]
    assert [process.returncode for process in processes] == [0, 0]


def test_command(binaries, tmp_path):
    assert run(binaries / "gt", "--version", cwd=tmp_path).stdout == f"GT {gt.__version__}\n"
    assert "usage: gt worker" in run(binaries / "gt", "worker", "--help", cwd=tmp_path).stdout
    unknown = run(binaries / "gt", "compute", cwd=tmp_path)
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("gt: there is no command 'compute'; ")
    bench = run(binaries / "gt", "bench", cwd=tmp_path)
    assert (bench.stdout, bench.returncode) == ("", 1)
    assert "is not in the installed package: run this in a clone of the repository" in bench.stderr


def test_two_workers_need_torch_for_moves(binaries, tmp_path):
    program = """
import gt
gt.gpu_workers(2)
gt.auto_shard()
x = gt.ones(1000, 64)
print(x.layout)
try:
    x.sum(0).tolist()
except gt.RemoteError as error:
    print(error)
"""
    result = run(binaries / "python", "-c", program, cwd=tmp_path)
    assert f"the 2 workers cannot move tensors to each other: {INSTALL}" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "S(0) on workers 0, 1"
    assert "workers move tensors with torch (No module named 'torch'): " + INSTALL in lines[1]


def test_torch_is_wanted_and_missing(binaries, tmp_path):
    result = run(binaries / "python", "-m", "gt.worker", "--backend", "torch", cwd=tmp_path)
    expected = f"--backend torch: torch is not installed; {INSTALL}, or use --backend numpy"
    assert (result.stderr, result.returncode) == (f"gt.worker: {expected}\n", 1)
