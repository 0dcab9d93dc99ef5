"""The demo of a Mini-GPT on 8 workers: losses equal those of one worker, whatever the YAML file and the schedule."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
from functools import partial

import pytest

import gt
from examples.tuning_demo import train, train_simple
from gt.errors import ConfigError, ConnectionLost, NoWorkers
from gt.pipeline import make_schedule
from gt.pipeline.files import to_csv
from gt.pipeline.schedules import SCHEDULES
from gt.testing import Cluster
from tests.support.processes import ROOT, TOKEN, Process, System, free_port

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


def as_in_the_seed() -> str:
    """TP=2 x PP=4 as the first description of the demo has it: the data of a stage is split by rows."""
    return "".join(
        f"pp_stage{s}{end}:\n  shard:\n    axis: {axis}\n    workers: [{2 * s}, {2 * s + 1}]\n"
        for s in range(4)
        for end, axis in (("", 0), ("_colpar", 1), ("_rowpar", 0))
    )


CONFIGS = {
    "TP=2 x PP=4": train.CONFIG.read_text(),
    "TP=4 x PP=2": two_stages(),
    "TP=1 x PP=8": eight_stages(),
    "rows, PP=4": as_in_the_seed(),
}


def options(*words: str) -> argparse.Namespace:
    return train.arguments(None).parse_args(
        ["--steps", str(STEPS), "--batch-size", "4", "--microbatches", "2", "--seq-len", "8", *words]
    )


@pytest.fixture(scope="module")
def one_worker() -> list[float]:
    gt.load_config(None)
    with Cluster(1, backend="numpy").client():
        model = train.make_model(options(), make_schedule("1f1b", 4, 2))
        return train.train(options(), model, partial(train.whole, model))[0]


CASES = [(config, step, "1f1b") for config in CONFIGS for step in ("hand", "pipeline")]
CASES += [("TP=2 x PP=4", step, name) for name in SCHEDULES if name != "1f1b" for step in ("hand", "pipeline")]
CASES += [("TP=1 x PP=8", "pipeline", "zbv"), ("TP=4 x PP=2", "hand", "interleaved_1f1b")]


@pytest.mark.parametrize(("config", "step", "name"), CASES)
def test_losses_equal_those_of_one_worker(
    config: str, step: str, name: str, one_worker: list[float], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "sharding.yaml"
    path.write_text(CONFIGS[config])
    stages = train.stages_of(str(path))
    assert f"PP={stages}" in config
    schedule = train.chosen_schedule(name, stages, 2)
    with Cluster(8, backend="numpy").client():
        gt.load_config(path)
        model = train.make_model(options(), schedule)
        run = partial(train.by_hand, model, schedule) if step == "hand" else train_simple.pipelined(model, schedule)
        losses, _ = train.train(options(), model, run)
        for layer in (layer for part in model.parts if part.name == "pp_stage1" for layer in part.layers):
            layout = str(layer.up_weight.layout)
            assert layout == "worker 1" if stages == 8 else layout.startswith("S(1) on workers")
        gt.load_config(None)
    assert losses == pytest.approx(one_worker, abs=1e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("step", ["hand", "pipeline"])
def test_mixed_precision_and_checkpointing(step: str) -> None:
    """With both flags, a layer runs again with the dtypes of its first run, and the losses are those of one worker."""
    given = options("--amp", "--checkpoint", "--layers", "4")
    schedule = make_schedule("1f1b", 4, 2)
    losses = []
    for workers in (1, 8):
        with Cluster(workers).client():
            gt.load_config(train.CONFIG if workers == 8 else None)
            model = train.make_model(given, schedule)
            run = partial(train.whole, model)
            if workers == 8:
                by_hand = partial(train.by_hand, model, schedule)
                run = by_hand if step == "hand" else train_simple.pipelined(model, schedule)
            losses.append(train.train(given, model, run)[0])
            gt.load_config(None)
    assert losses[1] == pytest.approx(losses[0], abs=2e-2)


def test_a_schedule_from_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(to_csv(make_schedule("zbv", 2, 3)))
    schedule = train.chosen_schedule(str(path), 2, None)
    assert (schedule.parts, schedule.microbatches) == (4, 3)
    assert train.expected_bubble(schedule).startswith("simulated ")
    assert train.expected_bubble(make_schedule("zbv", 4, 8)) == "by formula 5.9%"
    for stages, microbatches, wanted in ((4, None, "4 stages"), (2, 8, "2 stages and 8 microbatches")):
        with pytest.raises(ConfigError, match=f"own.csv has 2 stages and 3 microbatches, not {wanted}"):
            train.chosen_schedule(str(path), stages, microbatches)
    with pytest.raises(ConfigError, match="there is no schedule '2f2b'"):
        train.chosen_schedule("2f2b", 4, 8)


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
        assert train.MiniGpt(tiny, range(4)).count() == count
    assert [train.readable(n) for n in (940, count, 204_723_200)] == ["940", f"{count / 1e3:.1f}K", "204.7M"]
    assert 200e6 < size.layers * layer + 2 * size.vocabulary * size.hidden < 206e6


# -- the commands ----------------------------------------------------------------------------------

#: a start of a worker that takes longer than a client waits for its first worker, and one that fails
SLOW_WORKER = "import sys, time\nif 'gt.worker' in sys.orig_argv: time.sleep(5)\n"
NO_WORKER = "import os, sys\nif 'gt.worker' in sys.orig_argv: os._exit(3)\n"


def launch(tmp_path: pathlib.Path, at_start: str, *words: str, **extra: str) -> Process:
    """The demo with few workers; ``at_start`` runs at the start of each of its processes."""
    (tmp_path / "sitecustomize.py").write_text(at_start)
    (tmp_path / "stages.yaml").write_text(
        "".join(
            f"pp_stage{s}: {{workers: [{s}], replicate: true}}\n"
            f"stage{1 - s}_to_stage{s}: {{workers: [{s}], replicate: true}}\n"
            for s in range(2)
        )
    )
    small = ("--batch-size", "8", "--microbatches", "2", "--seq-len", "8", "--layers", "2", "--workers", "2")
    return Process(
        str(ROOT / "examples" / "tuning_demo" / "launch.py"),
        *("--steps", "2", "--port", str(free_port()), *small, *words),
        GT_BACKEND="numpy",
        GT_CONFIG=str(tmp_path / "stages.yaml"),
        PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))),
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
        **extra,
    )


def test_launch_waits_for_slow_workers(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "trace.log"
    process = launch(tmp_path, SLOW_WORKER, "--schedule", "zbv", GT_INSTRUCTION_LOG=str(log))
    try:
        assert process.end() == 0, process.output
        assert re.search(r"Mini-GPT: \d+\.\dK parameters, 2 stages, 2 workers", process.output), process.output
        assert re.search(r"bubble of zbv: simulated \d+\.\d%, measured \d+\.\d%", process.output), process.output
        assert float(re.search(r"largest difference: (\S+)", process.output)[1]) < 1e-4
    finally:
        process.close()
    assert "signal=stage0_to_stage1" in log.read_text()


def test_launch_names_a_process_that_does_not_start(tmp_path: pathlib.Path) -> None:
    process = launch(tmp_path, NO_WORKER)
    try:
        assert process.end() == 1, process.output
        assert re.search(r"launch.py: worker process \d ended before the training \(exit code 3\)", process.output)
    finally:
        process.close()


def test_training_without_workers_or_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    with contextlib.ExitStack() as stack:
        port = System(stack).port
        stack.callback(gt.disconnect)
        with pytest.raises(NoWorkers, match=f"0 of 8 workers have joined localhost:{port} within 0.1 s; start more"):
            train.connect(f"localhost:{port}", 8, 0.1)
    with pytest.raises(ConnectionLost, match="no GT server answers"):
        train.connect(f"localhost:{free_port()}", 8, 0.1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["train_simple", "launch"])
def test_the_commands_with_eight_workers(name: str) -> None:
    port = ("--port", str(free_port())) if name == "launch" else ()
    process = Process(
        str(ROOT / "examples" / "tuning_demo" / f"{name}.py"),
        *("--steps", "2", "--batch-size", "8", "--microbatches", "2", "--seq-len", "8", *port),
        GT_BACKEND="numpy",
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
    )
    try:
        assert process.end() == 0, process.output
        assert re.search(r"Mini-GPT: \d+\.\dK parameters, 4 stages, 8 workers", process.output), process.output
        assert float(re.search(r"largest difference: (\S+)", process.output)[1]) < 1e-4
    finally:
        process.close()


@pytest.mark.parametrize("name", ["debug_demo", "config_from_python"])
def test_short_examples(name: str) -> None:
    process = Process(str(ROOT / "examples" / f"{name}.py"), GT_BACKEND="numpy", CUDA_VISIBLE_DEVICES="")
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
