"""The demo of a Mini-GPT on 8 workers: losses equal those of one worker, whatever the YAML file and the schedule."""

from __future__ import annotations

import argparse
import pathlib
import re

import pytest

import gt
from examples.tuning_demo import train, train_simple
from gt.pipeline import make_schedule
from gt.testing import Cluster
from tests.support.processes import ROOT, Process, free_port

STEPS = 2


def two_stages() -> str:
    """TP=4 x PP=2."""
    return "".join(
        f"pp_stage{s}: {{workers: {w}, replicate: true}}\n"
        f"pp_stage{s}_colpar: {{shard: {{axis: 1, workers: {w}}}}}\n"
        f"pp_stage{s}_rowpar: {{shard: {{axis: 0, workers: {w}}}}}\n"
        f"stage{1 - s}_to_stage{s}: {{workers: {w}, replicate: true}}\n"
        for s, w in enumerate(([0, 1, 2, 3], [4, 5, 6, 7]))
    )


def eight_stages() -> str:
    """TP=1 x PP=8."""
    names = {f"pp_stage{s}{end}": s for s in range(8) for end in ("", "_colpar", "_rowpar")}
    names |= {f"stage{a}_to_stage{b}": b for a in range(8) for b in (a - 1, a + 1) if 0 <= b < 8}
    return "\n".join(f"{name}: {{workers: [{worker}], replicate: true}}" for name, worker in names.items())


CONFIGS = {"TP=2 x PP=4": train.CONFIG.read_text(), "TP=4 x PP=2": two_stages(), "TP=1 x PP=8": eight_stages()}


def options(*words: str) -> argparse.Namespace:
    return train.arguments(None).parse_args(
        ["--steps", str(STEPS), "--batch-size", "4", "--microbatches", "2", "--seq-len", "8", *words]
    )


@pytest.fixture(scope="module")
def one_worker() -> list[float]:
    gt.load_config(None)
    with Cluster(1, backend="numpy").client():
        return train.train(options(), 4, train.whole)[1]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("step", "schedule"), [("hand", "1f1b"), ("pipeline", "1f1b"), ("pipeline", "zb_h1")])
def test_losses_equal_those_of_one_worker(
    config: str, step: str, schedule: str, one_worker: list[float], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "sharding.yaml"
    path.write_text(CONFIGS[config])
    stages = train.stages_of(str(path))
    assert f"PP={stages}" in config
    chosen = make_schedule(schedule, stages, 2)
    run = train.by_hand if step == "hand" else train_simple.pipelined
    with Cluster(8, backend="numpy").client():
        gt.load_config(path)
        model, losses, _ = train.train(options(), stages, lambda m, *batch: run(m, chosen, *batch))
        tensor_parallel = 8 // stages
        layout = str(model.stages[1].layers[0].up_weight.layout)
        assert layout == "worker 1" if tensor_parallel == 1 else layout.startswith("S(1) on workers")
        gt.load_config(None)
    assert losses == pytest.approx(one_worker, abs=1e-4)


def test_the_number_of_parameters() -> None:
    """As counted on paper: embeddings, 8 layers, a norm, and a head that is not tied."""
    size = train.PRESETS["seed"]
    assert (size.layers, size.hidden, size.heads, size.intermediate, size.vocabulary) == (8, 1024, 16, 4096, 50257)
    layer = 4 * size.hidden**2 + 2 * size.hidden * size.intermediate + 4 * size.hidden
    tiny = train.PRESETS["tiny"]
    count = tiny.layers * (4 * tiny.hidden**2 + 2 * tiny.hidden * tiny.intermediate + 4 * tiny.hidden)
    count += (2 * tiny.vocabulary + tiny.seq_len + 2) * tiny.hidden
    with Cluster(1, backend="numpy").client():
        gt.load_config(None)
        assert train.MiniGpt(tiny, 4).count() == count
    assert 200e6 < size.layers * layer + 2 * size.vocabulary * size.hidden < 206e6


def test_the_commands(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "trace.log"
    process = Process(
        str(ROOT / "examples" / "tuning_demo" / "launch.py"),
        *("--steps", "2", "--port", str(free_port()), "--batch-size", "8", "--microbatches", "2", "--seq-len", "8"),
        GT_BACKEND="numpy",
        GT_INSTRUCTION_LOG=str(log),
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
    )
    try:
        assert process.end() == 0, process.output
        assert re.search(r"Mini-GPT: 0\.1M parameters, 4 stages, 8 workers", process.output), process.output
        assert float(re.search(r"largest difference: (\S+)", process.output)[1]) < 1e-4
    finally:
        process.close()
    assert "signal=stage0_to_stage1" in log.read_text()


@pytest.mark.parametrize("name", ["debug_demo", "config_from_python"])
def test_short_examples(name: str) -> None:
    process = Process(str(ROOT / "examples" / f"{name}.py"), GT_BACKEND="numpy", CUDA_VISIBLE_DEVICES="")
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
