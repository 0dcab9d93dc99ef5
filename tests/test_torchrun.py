"""Workers that two real torchrun processes start, which meet in torchrun's store; and their end."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
import socket

import pytest

from tests.support.marked import MARK, Marked
from tests.support.processes import Process, free_port

pytest.importorskip("torch")


class Torchruns(Marked):
    """Two nodes, each with its own torchrun."""

    def __init__(self, stack: contextlib.ExitStack, folder: pathlib.Path) -> None:
        super().__init__()
        self._stack, self._folder, self._master = stack, folder, free_port()

    def variables(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "XDG_CONFIG_HOME": folder,
            "XDG_RUNTIME_DIR": folder,
            MARK: self.mark,
            "GT_TOKEN": "",
            "LOGLEVEL": "ERROR",
        }

    def start(self, *words: str) -> Process:
        process = Process(*words, **self.variables())
        self._stack.callback(process.close)
        return process

    def node(self, rank: int, *options: str, workers: int = 1) -> Process:
        nodes = ("--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", str(workers))
        meeting = ("--master-addr", "127.0.0.1", "--master-port", str(self._master))
        worker = ("-m", "gt.worker", "--torchrun", "--backend", "numpy", *options)
        return self.start("-m", "torch.distributed.run", *nodes, *meeting, *worker)


@pytest.fixture
def runs(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> Torchruns:
    return Torchruns(stack, tmp_path)


def ports() -> tuple[str, str]:
    first = free_port()
    return "--ports", f"{first}-{first + 30}"


@pytest.mark.parametrize(
    ("node", "number"),
    [
        (0, signal.SIGKILL),
        (1, signal.SIGTERM),
        pytest.param(0, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(1, signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_the_end_of_either_ends_both(runs, node, number):
    nodes = [runs.node(rank, *ports(), workers=1 + (node == rank)) for rank in (0, 1)]
    line = nodes[0].expect("gt.connect(")
    assert re.fullmatch(r'gt\.connect\("tcp://127\.0\.0\.1:\d+"\)', line)
    assert "3 of 3 workers joined" in nodes[0].output
    client = runs.start("-c", f"import gt; {line}; print(len(gt.workers()), (gt.ones(3) + 1).tolist())")
    client.expect("3 [2.0, 2.0, 2.0]")
    assert client.end() == 0
    assert sum("-m gt.server" in command for command in runs.processes().values()) == 1
    nodes[node].kill(number)
    for process in nodes:
        assert process.end() != 0
    runs.wait_for_the_end()
    assert "join-" not in (runs._folder / "gt" / "server" / "tokens.json").read_text()


def test_a_rank_that_cannot_join_is_named(runs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        nodes = [runs.node(0, *ports()), runs.node(1, "--ports", port)]
        for process in nodes:
            assert process.end() != 0
    assert "so all end" in nodes[0].output
    assert f"rank 1: AddressTaken: all ports from {port} to {port} of 127.0.0.1 are taken" in nodes[0].output
    runs.wait_for_the_end()


def test_a_server_that_cannot_listen(runs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        nodes = [runs.node(0, "--ports", port), runs.node(1)]
        assert nodes[0].end() != 0
        assert f"tcp://127.0.0.1:{port} is taken" in nodes[0].output
        assert nodes[1].end() != 0
    runs.wait_for_the_end()


def test_no_retry(runs):
    worker = runs.start("-m", "gt.worker", "--torchrun", "--retry", "5")
    assert worker.end() == 1
    assert worker.output.startswith("gt.worker: --retry has no use with --torchrun")


def test_without_torchrun(runs):
    worker = runs.start("-m", "gt.worker", "--torchrun")
    assert worker.end() == 1
    assert worker.output == "gt.worker: --torchrun: torchrun has not started this process (RANK is not set)"
