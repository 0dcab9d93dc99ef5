"""Saving with real processes: a kill or a full disk in the middle leaves the old checkpoint, never a mixture."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap

import pytest

from gt.ops.system.files import MARK
from tests.support.processes import script, wait_until

safetensors = pytest.importorskip("safetensors.torch")

#: a local system of two workers, and a sharded and a replicated tensor of one value each
PROGRAM = """
    import os, signal, sys, threading, time
    import gt
    def say(*what): print(*what, flush=True)
    gt.gpu_workers(2)
    gt.auto_shard()
    def state(value):
        return {"data": gt.full((1000, 1000), value), "weight": gt.nn.Parameter(gt.full((700, 900), value))}
    def pids(): return [worker.pid for worker in gt.workers()]
    target = sys.argv[1]
"""


def start(stack, program, target, **extra):
    text = textwrap.dedent(PROGRAM) + textwrap.dedent(program)
    return script(text.replace("sys.argv[1]", repr(str(target))), stack=stack, **extra)


def contents(target):
    """The one value of all tensors in a checkpoint, as another library reads it."""
    files = [target] if target.is_file() else list(target.glob("*.safetensors"))
    found = {float(v) for file in files for x in safetensors.load_file(file).values() for v in x.unique()}
    assert len(found) == 1, found
    return found.pop()


def temporaries(target):
    folder = target if target.is_dir() else target.parent
    return [name for name in os.listdir(folder) if name.startswith(MARK)]


@pytest.fixture(params=["file", pytest.param("folder", marks=pytest.mark.long)])
def target(request, tmp_path):
    if request.param == "folder":
        (tmp_path / "x").mkdir()
    return tmp_path / "x"


def test_a_worker_is_killed_during_a_save(stack, target):
    client = start(
        stack,
        """
        gt.save(state(1.0), target)
        new = state(2.0)
        new["data"].sum().item()
        os.kill(pids()[1], signal.SIGSTOP)   # so the save cannot end before the kill
        say("stopped", pids()[1])
        try:
            gt.save(new, target)
            say("saved")
        except gt.GtError as error:
            say("raised", type(error).__name__)
        say("again", gt.load(target)["data"][0, 0].item())
        gt.save({"data": gt.ones(10) * 3}, target)
        say("end")
        """,
        target,
    )
    worker = int(client.expect("stopped").split()[1])
    wait_until(lambda: temporaries(target), what="a temporary file")
    os.kill(worker, signal.SIGKILL)
    client.expect("raised WorkerLost")
    client.expect("again 1.0")
    client.expect("end")
    assert client.end() == 0, client.output
    assert contents(target) == 3.0
    assert not temporaries(target)


def test_the_client_is_killed_during_a_save(stack, target):
    client = start(
        stack,
        """
        gt.save(state(1.0), target)
        new = state(2.0)
        new["data"].sum().item()
        os.kill(pids()[1], signal.SIGSTOP)
        say("stopped", *pids())
        gt.save(new, target)
        """,
        target,
    )
    workers = [int(pid) for pid in client.expect("stopped").split()[1:]]
    wait_until(lambda: temporaries(target), what="a temporary file")
    client.kill()
    client.end()
    os.kill(workers[1], signal.SIGCONT)
    assert contents(target) == 1.0
    (left,) = temporaries(target)
    folder = target if target.is_dir() else target.parent
    os.utime(folder / left, (1, 1))  # as if the kill had been long ago
    again = start(stack, "gt.save(state(4.0), target); say('end')", target)
    again.expect("end")
    assert contents(target) == 4.0
    assert not temporaries(target)


def test_the_disk_is_full(stack, tmp_path):
    """In a small file system: the old checkpoint stays, and the error is the system's own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    stack.callback(subprocess.run, ["umount", str(disk)], check=True)
    client = start(
        stack,
        """
        gt.save(state(1.0), target)
        big = {f"x{k}": gt.full((1000, 1000), 2.0) for k in range(6)}
        for path in (target, os.path.dirname(target) + "/folder/"):
            try:
                gt.save(big, path, max_shard_size="8MB")
            except OSError as error:
                say("refused", error.strerror)
        say("again", gt.load(target)["data"].mean().item())
        """,
        disk / "x",
    )
    client.expect("again 1.0")
    assert client.end() == 0, client.output
    assert client.output.count("refused No space left on device") == 2, client.output
    assert contents(disk / "x") == 1.0
    assert not temporaries(disk / "x")
    assert os.listdir(disk / "folder") == []


@pytest.mark.long
def test_a_reader_sees_one_save_or_the_next(stack, target):
    """One program saves, and two read all the time: every value that is read is of one save."""
    writer = start(
        stack,
        """
        for k in range(12):
            gt.save(state(float(k)), target)
            if k == 0: say("first")
        say("end")
        """,
        target,
    )
    writer.expect("first")
    readers = [
        start(
            stack,
            """
            seen = []
            while not seen or seen[-1] < 11:
                loaded = gt.load(target)
                (value,) = {v for x in loaded.values() for v in (x.min().item(), x.max().item())}
                assert not seen or value >= seen[-1]
                seen.append(value)
            say("seen", len(set(seen)))
            """,
            target,
        )
        for _ in range(2)
    ]
    writer.expect("end")
    for reader in readers:
        reader.expect("seen")
        assert reader.end() == 0, reader.output


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_another_number_of_workers_loads_the_same_bits(stack, tmp_path, workers):
    saver = start(
        stack,
        """
        gt.manual_seed(5)
        model = gt.nn.Sequential(gt.nn.Linear(300, 400), gt.nn.GELU(), gt.nn.Linear(400, 10))
        opt = gt.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            model(gt.randn(64, 300)).square().mean().backward()
            opt.step()
            opt.zero_grad()
        gt.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, target)
        say("sum", *[x.sum().item() for x in model.parameters()])
        """,
        tmp_path / "x",
    )
    assert saver.end() == 0, saver.output
    loader = script(
        f"""
        import gt
        gt.gpu_workers({workers})
        gt.auto_shard()
        model = gt.nn.Sequential(gt.nn.Linear(300, 400), gt.nn.GELU(), gt.nn.Linear(400, 10))
        opt = gt.optim.AdamW(model.parameters(), lr=0.01)
        model(gt.randn(64, 300)).square().mean().backward()
        opt.step()
        gt.load({str(tmp_path / "x")!r}, into={{"model": model.state_dict(), "optimizer": opt.state_dict()}})
        gt.save({{"model": model.state_dict(), "optimizer": opt.state_dict()}}, {str(tmp_path / "y")!r})
        """,
        stack=stack,
    )
    assert loader.end() == 0, loader.output
    ours, theirs = (safetensors.load_file(tmp_path / name) for name in "xy")
    assert ours.keys() == theirs.keys()
    assert all((ours[key].numpy().tobytes() == theirs[key].numpy().tobytes()) for key in ours)
