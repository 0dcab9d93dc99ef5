"""The examples on two workers, with each configuration, without one, and auto-sharded: they print the same losses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from tests.support.processes import ROOT, Process, System

EXAMPLES = {
    "train_gpt.py": ["--steps", "10", "--batch", "5", "--length", "16", "--width", "32"],
    "train_mlp.py": ["--epochs", "2"],
}
FILES = sorted((ROOT / "examples" / "parallel").glob("*.yaml"))
#: train_mlp.py prints them again with its progress bar: each counts once
NUMBERS = re.compile(r"loss[ =](\d+\.\d+)")
PROGRAM = """
import runpy, sys
import gt
gt.connect(sys.argv.pop(1))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def running() -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        system = System(stack)
        for _ in range(2):
            system.worker("--backend", "torch", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        yield system


def losses(system: System, example: str, **settings: str) -> list[float]:
    path, address = str(ROOT / "examples" / example), f"localhost:{system.port}"
    process = Process("-c", PROGRAM, address, path, *EXAMPLES[example], **settings)
    try:
        assert process.end(200) == 0, process.output
    finally:
        process.close()
    losses = [float(number) for number in dict.fromkeys(NUMBERS.findall(process.output))]
    assert losses, process.output
    return losses


@pytest.fixture(scope="module")
def plain(running: System) -> dict[str, list[float]]:
    return {example: losses(running, example) for example in EXAMPLES}


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES)
def test_auto_sharded(example: str, running: System, plain: dict[str, list[float]]) -> None:
    assert losses(running, example, GT_AUTO_SHARD="1") == pytest.approx(plain[example], abs=0.002)


@pytest.mark.parametrize(
    "path", [FILES[0], *(pytest.param(f, marks=pytest.mark.long) for f in FILES[1:])], ids=lambda path: path.stem
)
def test_with_a_file(path: object, running: System, plain: dict[str, list[float]]) -> None:
    assert losses(running, "train_gpt.py", GT_CONFIG=str(path)) == pytest.approx(plain["train_gpt.py"], abs=0.002)


@pytest.mark.parametrize("stem", ["data_parallel", "fully_sharded"])
def test_digits_with_a_file(stem: str, running: System, plain: dict[str, list[float]]) -> None:
    """These do not name parameters of a model."""
    path = ROOT / "examples" / "parallel" / f"{stem}.yaml"
    assert losses(running, "train_mlp.py", GT_CONFIG=str(path)) == pytest.approx(plain["train_mlp.py"], abs=0.002)


def test_the_demo_of_signals() -> None:
    process = Process(str(ROOT / "examples" / "signal_demo.py"), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
    assert "x              S(0) on workers 0, 1" in process.output
    assert "logits         worker 1" in process.output
    match = re.search(r"the losses differ by (\S+) at most", process.output)
    assert match, process.output
    assert float(match[1]) < 1e-5
