"""The encoder-decoder benchmark: its formulas against torch's counts, its options, and real runs."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.core import results
from benchmarks.core.ranks import World
from benchmarks.transformer import benchmark, dataset, engine_gt, fitting, launch, loader, measuring, model
from benchmarks.transformer.engines import torch_engine
from benchmarks.transformer.options import DEFAULTS, parser
from benchmarks.transformer.problems import BadInput
from tests.support.processes import LONG, ROOT, environment, wait_until

FOLDER = ROOT / "benchmarks" / "transformer"
TINY = [
    *("--d-model", "16", "--nhead", "2", "--num-encoder-layers", "1", "--num-decoder-layers", "1"),
    *("--dim-feedforward", "32", "--vocab-size", "64", "--seq-len", "8", "--batch-size", "4", "--num-samples", "34"),
    *("--epochs", "2", "--warmup-epochs", "0", "--warmup-steps", "1"),
]
ALONE = World(0, 1, 0, torch.device("cpu"), "gloo", members=[{"host": "here", "gpu": None, "pid": os.getpid()}])


def command(*flags, ranks=1):
    return [sys.executable, str(FOLDER / "launch.py"), *flags], environment(
        BENCH_PROCESSES=str(ranks), OMP_NUM_THREADS="1"
    )


def run(folder, *flags, ranks=1, code=0, **options):
    words, env = command(*flags, ranks=ranks)
    process = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, **options)
    assert process.returncode == code, f"{process.returncode}\n{process.stdout}\n{process.stderr}"
    return process


def record(folder):
    (path,) = pathlib.Path(folder).glob("results/*.json")
    data = results.load(path)
    assert not results.problems(data)
    return data


def tiny(*flags):
    return benchmark.options([*TINY, *flags])


# -- formulas ------------------------------------------------------------------------------

#: name -> parameters, forward FLOPs of a sample
TABLE = {
    "3.5M": (3_486_208, 1_543_503_872),
    "60M": (52_529_152, 27_111_981_056),
    "220M": (211_061_760, 111_937_585_152),
    "2.9B": (2_853_707_776, 3_058_016_714_752),
}


@pytest.mark.long
@pytest.mark.parametrize("name", model.NAMED)
def test_parameters_and_flops_are_what_torch_counts(name):
    sizes = model.NAMED[name]
    with torch.device("meta"):
        built = model.build(torch, sizes)
        tokens = torch.zeros(1, sizes.seq_len, dtype=torch.long)
    assert (model.check_parameters(built, sizes), model.forward_flops(sizes)) == TABLE[name]
    with FlopCounterMode(display=False) as counted:
        scores = built(tokens, tokens)
        assert counted.get_total_flops() == model.forward_flops(sizes)
        scores.sum().backward()
    assert counted.get_total_flops() == model.training_flops(sizes)


def test_the_body_is_that_of_the_formula():
    sizes = model.NAMED["60M"]
    assert model.parameters(sizes) - 2 * sizes.vocab_size * sizes.d_model == 44_140_544


def test_a_count_that_is_not_the_formulas_is_an_error():
    with pytest.raises(AssertionError, match="by formula"):
        model.check_parameters(torch.nn.Linear(2, 2), model.NAMED["60M"])


# -- options -------------------------------------------------------------------------------

REFUSED = {
    "--nhead 3": "--nhead 3 does not divide --d-model 16: try --nhead 1 or 2 or 4",
    "--num-samples 3": "give 4 or more",
    "--num-shards 2": "needs --data-dir",
    "--target-vram 0.5": "leave --batch-size out",
    "--engine gt --compile": "leave it out",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_options_that_cannot_run_are_refused(flags):
    with pytest.raises(BadInput, match=REFUSED[flags]):
        tiny(*flags.split())


@pytest.mark.parametrize(
    "flags",
    ["--epochs 0", "--seq-len x", "--target-vram 1.5", "--target-vram 5XB", "--target-vram .", "--amp-dtype fp8"],
)
def test_invalid_values_are_refused(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        tiny(*flags.split())
    assert ended.value.code == 2
    assert flags.split()[1] in capsys.readouterr().err


def test_gt_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="in 2 processes: GT is one process that has its workers itself"):
        tiny("--engine", "gt")


def test_workers_of_gt_share_a_gpu_only_if_requested(monkeypatch):
    monkeypatch.setenv("BENCH_PROCESSES", "2")
    monkeypatch.delenv("GT_SHARE_GPUS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match="on 2 workers: there are 1 GPU"):
        tiny("--engine", "gt")
    monkeypatch.setenv("GT_SHARE_GPUS", "1")
    tiny("--engine", "gt")


def test_every_worker_of_gt_has_a_batch(monkeypatch):
    monkeypatch.setenv("BENCH_PROCESSES", "3")
    with pytest.raises(BadInput, match="give 12 or more"):
        tiny("--engine", "gt", "--num-samples", "11")


FLAGS = [
    *("epochs", "warmup-epochs", "warmup-steps", "batch-size", "seq-len", "vocab-size", "d-model", "nhead"),
    *("num-encoder-layers", "num-decoder-layers", "dim-feedforward", "data-dir", "num-shards", "num-samples", "no-amp"),
    *("amp-dtype", "compile", "engine", "results-dir", "target-vram"),
]


def test_help_explains_every_flag():
    text = parser().format_help()
    for name in FLAGS:
        assert f"--{name}" in text
    assert all(action.help for action in parser()._actions)


def test_defaults_are_the_seeds_on_a_gpu_and_small_without():
    options = parser().parse_args([])
    gpu, cpu = (benchmark.resolve(options, cuda) for cuda in (True, False))
    assert gpu.sizes == model.Sizes()
    assert (gpu.precision, gpu.epochs, gpu.warmup_epochs, gpu.data_dir) == ("fp16", 3, 1, None)
    assert (cpu.precision, cpu.num_samples) == ("fp32", DEFAULTS["num_samples"][1])
    full = benchmark.resolve(parser().parse_args(["--num-samples", "full"]), True)
    assert full.num_samples == 7_324_218


@pytest.mark.parametrize(
    ("text", "value"), [("0.9", 0.9), ("90%", 0.9), ("60GiB", 60 * 2**30), ("1.5 gb", 1_500_000_000)]
)
def test_target_vram_is_a_share_or_an_amount(text, value):
    assert parser().parse_args(["--target-vram", text]).target_vram == value


def test_the_script_passes_on_unknown_arguments():
    script = [str(FOLDER / "run_benchmark.sh"), "--single", "--full", "--disk", "--batch-size", "64"]
    process = subprocess.run(script, env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True, check=True)
    words = process.stdout.split()
    assert words[1:] == ["--single", "--num-samples", "full", "--data-dir", "data", "--batch-size", "64"]
    helped = subprocess.run([script[0], "--help"], env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True)
    assert "--single" in helped.stdout
    assert helped.stdout.split()[-1] == "--help"


def test_one_process_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert (launch.processes(False), launch.processes(True)) == (8, 1)


STARTED = [(["--engine", "gt"], "8"), (["--engine=gt", "--single"], "1"), (["--engine", "ddp", "--engine", "gt"], "8")]


@pytest.mark.parametrize(("flags", "workers"), STARTED)
def test_one_process_for_gt_and_a_worker_a_gpu(monkeypatch, flags, workers):
    started = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words[2:]) or sys.exit(0))
    monkeypatch.setenv("BENCH_PROCESSES", "")
    with pytest.raises(SystemExit):
        launch.main(flags)
    assert started == [[flag for flag in flags if flag != "--single"]]
    assert os.environ["BENCH_PROCESSES"] == workers


def test_file_names_are_safe_and_a_cpu_says_so():
    gpu = torch.device("cuda", 0)
    assert benchmark.file_stem(gpu, "NVIDIA H200", 8) == "bench_H200_8gpu"
    assert benchmark.file_stem(gpu, "Tesla V100/16 GB", 1) == "bench_Tesla-V100-16-GB_1gpu"
    assert benchmark.file_stem(torch.device("cpu"), "x", 2) == "bench_CPU_2ranks"


# -- engines -------------------------------------------------------------------------------


def test_skipped_steps_are_counted_by_what_the_optimizer_did():
    engine = torch_engine(tiny("--no-amp"), ALONE)
    engine.scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))  # with this scale no gradient is finite
    batch = engine.stage(loader.tensors(dataset.generated(dataset.Spec(4, 8, 64), 0, 4)))
    engine.begin()
    for _ in range(3):
        engine.step(batch)
    steps = engine.finish()
    assert (steps.skipped, len(steps.laps), len(steps.losses)) == (3, 3, 3)
    engine.close()


@pytest.mark.long
def test_target_vram_chooses_on_a_real_engine():
    words = [w for w in TINY if w not in ("--batch-size", "4")]
    config = benchmark.options([*words, "--target-vram", "64GiB"])
    chosen = fitting.choose_batch(config, ALONE, torch_engine, benchmark._spec(config))
    assert 1 <= chosen["ran"] <= 34
    assert chosen["tries"][-1]["peak_bytes"] <= chosen["tries"][-1]["needed_bytes"] <= chosen["budget_bytes"]


def test_no_process_of_gt_is_a_stranger(monkeypatch):
    monkeypatch.setenv("BENCH_PROCESSES", "2")
    engine = object.__new__(engine_gt.GtEngine)
    engine.world = engine_gt.world()
    engine.gt = mock.Mock()
    engine.gt.workers.return_value = [mock.Mock(pid=-2), mock.Mock(pid=-3)]
    engine._start()
    assert [member["pid"] for member in engine.world.members] == [-2, -3, os.getpid()]
    assert (engine.world.size, engine.world.nodes(), engine.world.gather("all")) == (2, 1, ["all"])
    engine.gt.auto_shard.assert_called_once_with()


@pytest.mark.parametrize(("workers", "sharing"), [(1, 1), (2, 1), (4, 2)])
def test_workers_of_gt_on_two_gpus(monkeypatch, workers, sharing):
    monkeypatch.setenv("BENCH_PROCESSES", str(workers))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(engine_gt, "uuid", "GPU-{}".format)
    world = engine_gt.world()
    assert (world.size, world.ranks_per_gpu(), len(world.members)) == (workers, sharing, workers + 1)


def test_memory_of_gt_is_that_of_its_workers():
    engine = object.__new__(engine_gt.GtEngine)
    engine.gt = mock.Mock()
    engine.gt.debug.memory.return_value = {
        f"worker {n}": {"client": {"bytes": 5}, "device": {"allocated_peak": peak, "total": 100}}
        for n, peak in enumerate([7, 9])
    }
    memory = measuring.worst(engine.memory())
    assert (memory["worst_rank"], [rank["peak_bytes"] for rank in memory["ranks"]]) == (1, [7, 9])


def losses_of_torch(config, steps):
    """The losses of a run on one rank, from the same engine by hand."""
    engine, spec = torch_engine(config, ALONE), benchmark._spec(config)
    data = loader.Batches(dataset.InMemory(spec), loader.plan(config.num_samples, 4, 0, 1), engine.stage)
    engine.begin(steps)
    for batch in data.first(steps):
        engine.step(batch)
    losses = engine.finish().losses
    engine.close()
    return losses


# -- real runs -----------------------------------------------------------------------------


ON_DISK = ["--data-dir", "data", "--num-shards", "2"]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder of a ddp run on two ranks, its output, and its record."""
    folder = tmp_path_factory.mktemp("ddp")
    process = run(folder, *TINY, *ON_DISK, ranks=2)
    return folder, process, record(folder)


@pytest.mark.long
def test_ddp_and_fsdp_on_two_ranks(tmp_path, two_ranks):
    folder, process, ddp = two_ranks
    assert "7,680 parameters" in process.stdout
    assert "no GPU found" in process.stdout
    assert (ddp["status"], ddp["world_size"], ddp["config"]["global_batch_size"]) == ("complete", 2, 8)
    assert ddp["name"] == "bench_CPU_2ranks"
    assert ddp["config"]["data"] == "disk"
    for e in ddp["results"]["epochs"].values():
        # 4 full steps and a short one with one sample per rank: counted, but not timed
        assert (e["samples"], e["steps"], e["timing"]["count"], len(e["losses"])) == (34, 5, 4, 5)
        assert e["samples_per_s"] == pytest.approx(34 / e["wall_s"])
        assert e["io"]["logical_bytes"] == 34 * 32
    summary = ddp["results"]["summary"]
    assert summary["mfu"]["mfu"] is None
    exposed = summary["exposed"]
    synced, unsynced = (exposed[side]["timing"]["p50_s"] for side in ("synced", "unsynced"))
    assert exposed["seconds"] == pytest.approx(synced - unsynced)
    assert ddp["results"]["data"]["written"] == 2
    (table,) = folder.glob("results/bench_CPU_2ranks_*.txt")
    assert "verdict:" in table.read_text()
    shutil.copytree(folder / "data", tmp_path / "data")

    half = ["--engine", "fsdp", "--amp-dtype", "fp16", "--page-cache", "keep"]
    run(tmp_path, *TINY, *ON_DISK, *half, ranks=2)
    fsdp = record(tmp_path)
    assert fsdp["results"]["data"]["reused"] == 2
    assert fsdp["results"]["epochs"]["2"]["io"]["label"] == "warm"
    assert "cached_io" in [reason["code"] for reason in fsdp["verdict"]["reasons"]]
    assert fsdp["results"]["summary"]["skipped_steps"] == 0
    for number in "12":
        ours, theirs = (r["results"]["epochs"][number]["losses"] for r in (fsdp, ddp))
        assert ours == pytest.approx(theirs, rel=5e-3)


@pytest.mark.long
def test_gt_on_two_workers_sees_the_losses_of_ddp_on_two_ranks(tmp_path, two_ranks):
    folder, _, ddp = two_ranks
    shutil.copytree(folder / "data", tmp_path / "data")
    run(tmp_path, *TINY, *ON_DISK, "--engine", "gt", ranks=2)
    gt = record(tmp_path)
    assert (gt["status"], gt["world_size"], gt["name"]) == ("complete", 2, "bench_CPU_2ranks")
    assert (gt["config"]["engine"], gt["config"]["global_batch_size"], gt["config"]["nodes"]) == ("gt", 8, 1)
    assert len(gt["results"]["memory"]["ranks"]) == 2
    summary = gt["results"]["summary"]
    assert summary["samples_per_s_per_rank"] == pytest.approx(summary["samples_per_s"] / 2)
    for number in "12":
        ours, theirs = (r["results"]["epochs"][number] for r in (gt, ddp))
        assert (ours["samples"], ours["steps"], ours["timing"]["count"]) == (34, 5, 4)
        assert ours["samples_per_s_per_rank"] == pytest.approx(34 / ours["wall_s"] / 2)
        assert ours["io"]["logical_bytes"] == theirs["io"]["logical_bytes"]
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-4)
    one_table_shows_both(tmp_path, folder / "results", tmp_path / "results")


def one_table_shows_both(tmp_path, *folders):
    script = [sys.executable, str(FOLDER / "compare_results.py"), *map(str, folders), "--html", "out.html"]
    process = subprocess.run(script, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert " gt " in process.stdout
    assert " ddp " in process.stdout
    assert (tmp_path / "out.html").read_text().count("<tr>") == 3


def test_gt_sees_the_losses_of_torch(tmp_path):
    config = tiny("--num-samples", "90", "--epochs", "1")  # 22 full steps and a short one
    engine, data = engine_gt.GtEngine(config, engine_gt.world()), benchmark._spec(config)
    batches = loader.Batches(dataset.InMemory(data), loader.plan(90, 4, 0, 1), engine.stage)
    engine.begin(23)
    for batch in batches.first(23):
        engine.step(batch)
    steps = engine.finish()
    engine.close()
    # blocks of a tenth of the steps, and the short batch in its own block
    assert [count for count, _ in steps.laps] == [2] * 11 + [1]
    assert sum(seconds for _, seconds in steps.laps) <= steps.wall
    assert steps.losses == pytest.approx(losses_of_torch(config, 23), rel=1e-4)


@pytest.mark.long
def test_a_failure_of_one_rank_ends_all_with_its_code(tmp_path):
    process = run(tmp_path, *TINY, "--data-dir", "/proc/nowhere", ranks=2, code=4)
    assert process.stderr.count("failed: /proc/nowhere: ") == 1
    assert "Traceback" not in process.stderr
    assert record(tmp_path)["status"] == "failed"


def test_bad_input_is_said_once(tmp_path):
    process = run(tmp_path, *TINY, "--nhead", "3", code=2)
    assert process.stderr.count("--nhead 3 does not divide --d-model 16") == 1


def test_out_of_memory_ends_with_the_batch_to_try(tmp_path):
    words = [*TINY, "--vocab-size", "60000", "--batch-size", "5000", "--num-samples", "5000"]  # 9.6 GB of scores
    limit = 6 * 2**30
    process = run(tmp_path, *words, code=3, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert "out of memory with --batch-size 5000: try --batch-size 2500" in process.stderr
    assert record(tmp_path)["status"] == "failed"


def interrupted(folder, until, *flags):
    """Interrupt with Ctrl-C once something is recorded; the record that is left."""
    words, env = command(*flags)
    process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: until() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=LONG)[1]
    finally:
        process.kill()
    assert process.returncode == 130, errors
    data = record(folder)
    assert (data["status"], data["verdict"]["valid"]) == ("interrupted", False)
    return data


def test_ctrl_c_in_the_middle_leaves_a_valid_record(tmp_path):
    def until():
        return any("epochs" in results.load(path)["results"] for path in tmp_path.glob("results/*.json"))

    data = interrupted(tmp_path, until, *TINY, "--epochs", "100000")
    assert data["results"]["epochs"]["1"]["samples"] == 34
    assert "summary" not in data["results"]


def test_ctrl_c_while_data_are_written_leaves_whole_shards(tmp_path):
    spec = dataset.spec_of(400_000, 64, 64, 0, 100)
    words = ["--seq-len", "64", "--num-samples", "400000", "--num-shards", "100", "--data-dir", "data"]
    folder = tmp_path / "data"
    interrupted(tmp_path, lambda: (folder / "shard_0002.bin").exists(), *TINY, *words)
    left = sorted(p.name for p in folder.iterdir())
    shards = [name for name in left if name.startswith("shard")]
    assert left == ["dataset.json", *shards]
    assert len(shards) < 100
    assert {(folder / name).stat().st_size for name in shards} == {spec.bytes // 100}


def test_the_requirements_are_those_of_the_project():
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    wanted = {line for line in lines if not line.startswith("#")}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert wanted <= {*extras["worker"], *extras["bench"]}
    assert {"torch", "numpy", "nvidia-ml-py"} <= {line.partition(">")[0] for line in wanted}


def test_an_interpreter_without_torch_is_named(monkeypatch, capsys):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert launch.main([]) == 2
    assert f"{sys.executable} has no torch" in capsys.readouterr().err


def test_the_engines_share_one_protocol():
    assert {name for name in dir(engine_gt.GtEngine) if not name.startswith("_")} >= {
        "stage", "begin", "step", "finish", "reset_memory", "memory", "recover", "close",
    }  # fmt: skip


def test_the_figures_in_the_readme_are_those_of_their_records():
    text = (FOLDER / "README.md").read_text()
    names = re.findall(r"\(\.\./(results/[\w/]+\.json)\)", text)
    assert len(names) == 4
    for name in names:
        data = results.load(FOLDER.parent / name)
        summary, file = data["results"]["summary"], pathlib.Path(name).name
        sizes = model.Sizes(**{field: data["config"][field] for field in model.Sizes.__dataclass_fields__})
        (of,) = (size_name for size_name, each in model.NAMED.items() if each == sizes)
        card = f"{data['world_size']} × {data['config']['device'].removeprefix('NVIDIA ')}"
        shown = [
            f"{summary['samples_per_s']:,.1f}", f"{summary['timing']['p50_s'] * 1e3:.1f} ms",
            f"{summary['mfu']['mfu']:.1%}", f"{summary['joules_per_sample']:.3f}",
            "yes" if data["verdict"]["valid"] else "**no**",
            f"[`{file}`](../{name})",
        ]  # fmt: skip
        (line,) = (line for line in text.splitlines() if f"(../{name})" in line)
        assert line.startswith(f"| {card} | ~{of} | {data['config']['engine']} | ")
        assert line.endswith(f" | {' | '.join(shown)} |")
        command = line.split("`")[1].removesuffix(" …").split()
        assert command[:2] == ["run_benchmark.sh", "--single"]
        assert {*command[2:]} <= {*data["environment"]["argv"]}
