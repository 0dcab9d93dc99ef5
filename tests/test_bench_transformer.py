"""The encoder-decoder benchmark: its formulas against what torch counts, its data against damage, and real runs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.core import results
from benchmarks.core.ranks import World
from benchmarks.transformer import benchmark, dataset, engine_gt, fitting, launch, loader, measuring, model, pagecache
from benchmarks.transformer.engines import TorchEngine
from benchmarks.transformer.options import DEFAULTS, parser
from benchmarks.transformer.problems import BadInput, NoDisk, NoMemory
from tests.processes import ROOT, environment, wait_until

FOLDER = ROOT / "benchmarks" / "transformer"
TINY = (
    "--d-model 16 --nhead 2 --num-encoder-layers 1 --num-decoder-layers 1 --dim-feedforward 32 --vocab-size 64 "
    "--seq-len 8 --batch-size 4 --num-samples 34 --epochs 2 --warmup-epochs 0 --warmup-steps 1"
).split()
ALONE = World(0, 1, 0, torch.device("cpu"), "gloo", members=[{"host": "here", "gpu": None, "pid": os.getpid()}])


def command(*flags, ranks=1):
    return [sys.executable, str(FOLDER / "launch.py"), *flags], environment(BENCH_PROCESSES=str(ranks))


def run(folder, *flags, ranks=1, code=0, **options):
    words, env = command(*flags, ranks=ranks)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=110, **options)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


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


@pytest.mark.parametrize("name", model.NAMED)
def test_parameters_and_flops_are_what_torch_counts(name):
    sizes = model.NAMED[name]
    with torch.device("meta"):
        made = model.build(torch, sizes)
        tokens = torch.zeros(1, sizes.seq_len, dtype=torch.long)
    assert (model.check_parameters(made, sizes), model.forward_flops(sizes)) == TABLE[name]
    with FlopCounterMode(display=False) as counted:
        scores = made(tokens, tokens)
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
def test_what_cannot_be_run_is_refused(flags):
    with pytest.raises(BadInput, match=REFUSED[flags]):
        tiny(*flags.split())


@pytest.mark.parametrize(
    "flags", ["--epochs 0", "--seq-len x", "--target-vram 1.5", "--target-vram 5XB", "--target-vram .", "--amp-dtype fp8"]
)
def test_what_is_no_value_is_refused(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        tiny(*flags.split())
    assert ended.value.code == 2
    assert flags.split()[1] in capsys.readouterr().err


def test_gt_on_several_workers_is_not_there_yet(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="on 2 workers: data parallel training is not there yet"):
        tiny("--engine", "gt")


def test_help_explains_every_flag():
    text = parser().format_help()
    for name in (
        "epochs warmup-epochs warmup-steps batch-size seq-len vocab-size d-model nhead num-encoder-layers "
        "num-decoder-layers dim-feedforward data-dir num-shards num-samples no-amp amp-dtype compile engine results-dir "
        "target-vram"
    ).split():
        assert f"--{name}" in text
    assert all(action.help for action in parser()._actions)


def test_defaults_are_the_seeds_on_a_gpu_and_small_without():
    given = parser().parse_args([])
    gpu, cpu = (benchmark.resolve(given, cuda) for cuda in (True, False))
    assert gpu.sizes == model.Sizes()
    assert (gpu.precision, gpu.epochs, gpu.warmup_epochs, gpu.data_dir) == ("fp16", 3, 1, None)
    assert (cpu.precision, cpu.num_samples) == ("fp32", DEFAULTS["num_samples"][1])
    full = benchmark.resolve(parser().parse_args(["--num-samples", "full"]), True)
    assert full.num_samples == 7_324_218


@pytest.mark.parametrize(("text", "value"), [("0.9", 0.9), ("90%", 0.9), ("60GiB", 60 * 2**30), ("1.5 gb", 1_500_000_000)])
def test_target_vram_is_a_share_or_an_amount(text, value):
    assert parser().parse_args(["--target-vram", text]).target_vram == value


def test_the_script_passes_on_what_is_not_its_own():
    script = [str(FOLDER / "run_benchmark.sh"), "--single", "--full", "--disk", "--batch-size", "64"]
    done = subprocess.run(script, env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[1:] == ["--single", "--num-samples", "full", "--data-dir", "data", "--batch-size", "64"]
    helped = subprocess.run([script[0], "--help"], env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True)
    assert "--single" in helped.stdout
    assert helped.stdout.split()[-1] == "--help"


def test_one_process_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert (launch.processes(False), launch.processes(True)) == (8, 1)


def test_file_names_are_safe_and_a_cpu_says_so():
    gpu = torch.device("cuda", 0)
    assert benchmark.file_stem(gpu, "NVIDIA H200", 8) == "bench_H200_8gpu"
    assert benchmark.file_stem(gpu, "Tesla V100/16 GB", 1) == "bench_Tesla-V100-16-GB_1gpu"
    assert benchmark.file_stem(torch.device("cpu"), "x", 2) == "bench_CPU_2ranks"


# -- data ----------------------------------------------------------------------------------

SPEC = dataset.Spec(1000, 16, 500, 0, 3)


def test_shards_hold_what_memory_would_generate(tmp_path):
    assert dataset.prepare(tmp_path, SPEC) == {"reused": 0, "damaged": 0, "written": 3, "shards": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dataset.json", *(f"shard_000{i}.bin" for i in range(3))]
    disk, memory = dataset.OnDisk(tmp_path, SPEC), dataset.InMemory(SPEC)
    for start, stop in [(0, 1000), (332, 335), (5, 6), (600, 1000)]:
        np.testing.assert_array_equal(disk.read(start, stop), memory.read(start, stop))
    disk.close()
    tokens = memory.read(0, 1000)
    assert tokens.dtype == np.uint16
    assert (tokens.min(), tokens.max()) == (1, 499)
    assert dataset.prepare(tmp_path, SPEC)["reused"] == 3


def test_shards_are_of_about_128_mb_and_large_vocabularies_take_int32():
    assert dataset.spec_of(7_324_218, 256, 8192, 0, None).num_shards == 59
    assert dataset.Spec(1, 4, 70_000).sample_bytes == 32
    with pytest.raises(BadInput, match="--num-shards 5: 4 samples"):
        dataset.spec_of(4, 8, 16, 0, 5)


def _flip(path):
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": _flip,
    "a short file": lambda path: os.truncate(path, 10),
    "a lost file": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_shard_is_made_anew(kind, tmp_path):
    dataset.prepare(tmp_path, SPEC)
    before = (tmp_path / "shard_0001.bin").read_bytes()
    DAMAGE[kind](tmp_path / "shard_0001.bin")
    assert dataset.prepare(tmp_path, SPEC) == {"reused": 2, "damaged": 1, "written": 1, "shards": 3}
    assert (tmp_path / "shard_0001.bin").read_bytes() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 99, "spec": {}, "shards": {}}'])
def test_a_damaged_manifest_means_all_anew(text, tmp_path):
    dataset.prepare(tmp_path, SPEC)
    (tmp_path / "dataset.json").write_text(text)
    assert dataset.prepare(tmp_path, SPEC)["written"] == 3


def test_other_parameters_replace_the_data_and_what_a_killed_run_left(tmp_path):
    dataset.prepare(tmp_path, SPEC)
    (tmp_path / ".shard_0000.bin.1.tmp").touch()
    (tmp_path / "notes.txt").touch()
    dataset.prepare(tmp_path, dataset.Spec(1000, 16, 500, 1, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dataset.json", "notes.txt", "shard_0000.bin", "shard_0001.bin"]


def test_shards_of_someone_else_are_not_overwritten(tmp_path):
    (tmp_path / "shard_0000.bin").write_text("mine")
    with pytest.raises(NoDisk, match="not written by this benchmark"):
        dataset.prepare(tmp_path, SPEC)
    assert (tmp_path / "shard_0000.bin").read_text() == "mine"


def test_a_shard_cut_during_the_run_is_told(tmp_path):
    dataset.prepare(tmp_path, SPEC)
    source = dataset.OnDisk(tmp_path, SPEC)
    os.truncate(tmp_path / "shard_0002.bin", 64)
    with pytest.raises(NoDisk, match=r"shard_0002.bin ends before byte"):
        source.read(900, 1000)
    source.close()


# -- the disk ------------------------------------------------------------------------------


def test_too_little_space_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(NoDisk, match=r"no space on the disk: the data set takes 0.000 GB and 0.000 GB are free"):
        dataset.prepare(tmp_path, SPEC)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_whole_shards_alone(tmp_path):
    """By the limit on the size of a file, which anyone may lower: the second shard is larger than it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(NoDisk, match="no space on the disk"):
            dataset.prepare(tmp_path, SPEC)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_system_leaves_whole_shards_alone(tmp_path, stack, monkeypatch):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("a file system of its own can only be mounted by root")
    stack.callback(subprocess.run, ["umount", str(tmp_path)], check=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, 10**9))
    with pytest.raises(NoDisk, match="no space on the disk"):
        dataset.prepare(tmp_path, dataset.Spec(1000, 16, 500, 0, 3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dataset.json", "shard_0000.bin", "shard_0001.bin"]
    assert sorted(json.loads((tmp_path / "dataset.json").read_text())["shards"]) == ["0", "1"]


@contextlib.contextmanager
def nobody():
    """Root may write anywhere, so not as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_told_and_serves_what_is_in_it(stack):
    folder = pathlib.Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder)
    dataset.prepare(folder, SPEC)
    folder.chmod(0o555)
    with nobody():
        assert dataset.prepare(folder, SPEC)["reused"] == 3
        for where in (folder, folder / "inner"):
            with pytest.raises(NoDisk, match=r"cannot be written .*give a folder of your own with --data-dir"):
                dataset.prepare(where, dataset.Spec(1000, 16, 500, 1, 1))
    folder.chmod(0o755)


def test_reads_are_cold_warm_or_mixed(tmp_path):
    spec = dataset.Spec(4096, 128, 500, 0, 4)
    dataset.prepare(tmp_path, spec)
    source = dataset.OnDisk(tmp_path, spec)

    def labelled():
        before = pagecache.storage_bytes()
        source.read(0, 4096)
        return pagecache.label(spec.bytes, pagecache.storage_bytes() - before)

    if pagecache.storage_bytes() is None:
        pytest.skip("this system has no /proc/self/io")
    pagecache.drop(source.paths)
    first = labelled()
    if first == "warm":
        pytest.skip("this file system keeps its files in memory")
    assert (first, labelled()) == ("cold", "warm")
    pagecache.drop(source.paths[:2])
    assert labelled() == "mixed"
    source.close()


def test_labels_by_their_bounds():
    assert [pagecache.label(100, n) for n in (0, 10, 11, 89, 90, 130)] == ["warm", "warm", "mixed", "mixed", "cold", "cold"]
    assert pagecache.label(100, None) is None


# -- batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(34, 4, 2), (32, 4, 2), (35, 4, 2), (9, 4, 1), (8, 8, 1)])
def test_the_ranks_go_through_the_data_once(samples, batch, ranks):
    plans = [loader.plan(samples, batch, rank, ranks) for rank in range(ranks)]
    seen = sorted(n for spans in plans for span in spans for n in range(span.start, span.stop))
    assert seen == list(range(samples - samples % (batch * ranks) % ranks))
    assert len({len(spans) for spans in plans}) == 1
    assert [span.full for span in plans[0]] == [True] * (samples // (batch * ranks)) + [False] * (
        samples % (batch * ranks) >= ranks
    )
    assert all(span.full for span in loader.plan(samples, batch, 0, ranks, tail=False))


def test_a_short_batch_is_no_step_of_the_statistics():
    spans = loader.plan(10, 4, 0, 1)
    assert measuring.full_steps(spans, [1.0, 1.0, 0.1]) == [1.0, 1.0]


def test_the_loader_waits_and_says_how_long_and_passes_errors_on(tmp_path):
    made = loader.Loader(dataset.InMemory(SPEC), loader.plan(10, 4, 0, 1), lambda arrays: arrays)
    batches = list(made)
    assert [span.samples for span, _ in batches] == [4, 4, 2]
    assert len(made.waited) == 3
    source, seen, target = batches[0][1]
    np.testing.assert_array_equal(seen[:, 1:], target[:, :-1])
    assert (seen[:, 0] == model.BEGIN).all()
    assert source.shape == (4, 16)
    assert len(list(made.first(7))) == 7
    next(made.first(7))  # left in the middle: nothing waits for the rest
    broken = loader.Loader(dataset.InMemory(SPEC), made.spans, lambda arrays: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(broken)


# -- memory --------------------------------------------------------------------------------


def fit(budget, most=10_000, base=1000, each=10, breaks_at=10**9):
    return fitting.Fit(lambda b: None if b >= breaks_at else base + each * b, budget, most)


def test_the_largest_batch_is_predicted_and_tried():
    chosen = fit(6005).choose()
    assert (chosen["batch_size"], chosen["predicted_batch_size"], chosen["measured_peak_bytes"]) == (500, 500, 6000)
    assert chosen["fit"]["slope"] == pytest.approx(10)
    assert len(chosen["peaks_bytes"]) >= 4


def test_a_batch_that_does_not_fit_after_all_is_made_smaller():
    chosen = fit(6005, breaks_at=480).choose()
    assert (chosen["tried_first"], chosen["batch_size"]) == (500, 475)
    assert fit(6005, breaks_at=9).choose()["batch_size"] == 8


def test_samples_bound_the_batch_and_a_budget_too_small_is_told():
    assert fit(6005, most=20).choose()["limited_by_samples"]
    assert fit(6005, each=0, most=64).choose()["batch_size"] == 64
    with pytest.raises(NoMemory, match="a batch of one sample takes"):
        fit(500).choose()
    with pytest.raises(NoMemory, match="more than there is"):
        fit(500, breaks_at=1).choose()


def test_target_vram_chooses_on_a_real_engine():
    words = [w for w in TINY if w not in ("--batch-size", "4")]
    config = benchmark.options([*words, "--target-vram", "64GiB"])
    chosen = fitting.choose_batch(config, ALONE, TorchEngine, benchmark._spec(config))
    assert 1 <= chosen["batch_size"] <= 34
    assert chosen["measured_peak_bytes"] <= chosen["budget_bytes"]


def test_out_of_memory_names_the_batch_to_try():
    with pytest.raises(NoMemory, match="out of memory with --batch-size 64: try --batch-size 32"), fitting.fitting(64):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(NoMemory, match="try a smaller model"), fitting.fitting(1):
        raise MemoryError
    with pytest.raises(RuntimeError, match="else"), fitting.fitting(1):
        raise RuntimeError("something else")


# -- engines -------------------------------------------------------------------------------


def test_skipped_steps_are_counted_by_what_the_optimizer_did():
    engine = TorchEngine(tiny("--no-amp"), ALONE)
    engine.scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))  # no gradient survives this
    batch = engine.stage(loader.tensors(dataset.generated(dataset.Spec(4, 8, 64), 0, 4)))
    engine.begin()
    for _ in range(3):
        engine.step(batch)
    steps = engine.finish()
    assert (steps.skipped, len(steps.seconds), len(steps.losses)) == (3, 3, 3)
    engine.close()


def losses_of_torch(config, steps):
    """The losses the run on one rank must show, from the same engine by hand."""
    engine, spec = TorchEngine(config, ALONE), benchmark._spec(config)
    data = loader.Loader(dataset.InMemory(spec), loader.plan(34, 4, 0, 1), engine.stage)
    engine.begin()
    for _, batch in data.first(1):
        engine.step(batch)
    for _, batch in data.first(steps):
        engine.step(batch)
    found = engine.finish().losses
    engine.close()
    return found[1:]


# -- real runs -----------------------------------------------------------------------------


def test_ddp_and_fsdp_on_two_ranks(tmp_path):
    done = run(tmp_path, *TINY, "--data-dir", "data", "--num-shards", "2", ranks=2)
    ddp = record(tmp_path)
    assert "7,680 parameters" in done.stdout
    assert "no GPU found" in done.stdout
    assert (ddp["status"], ddp["world_size"], ddp["config"]["global_batch_size"]) == ("complete", 2, 8)
    assert ddp["name"] == "bench_CPU_2ranks"
    assert ddp["config"]["data"] == "disk"
    for e in ddp["results"]["epochs"].values():
        # 4 full steps and a short one, of which one sample a rank: counted, and not timed
        assert (e["samples"], e["steps"], e["timing"]["count"], len(e["losses"])) == (34, 5, 4, 5)
        assert e["samples_per_s"] == pytest.approx(34 / e["wall_s"])
        assert e["io"]["logical_bytes"] == 34 * 32
    made = ddp["results"]["summary"]
    assert made["mfu"]["mfu"] is None
    assert made["communication"]["step_s"] > 0
    assert ddp["results"]["data"]["written"] == 2
    shutil.rmtree(tmp_path / "results")

    run(tmp_path, *TINY, "--data-dir", "data", "--num-shards", "2", "--engine", "fsdp", "--page-cache", "keep", ranks=2)
    fsdp = record(tmp_path)
    assert fsdp["results"]["data"]["reused"] == 2
    assert fsdp["results"]["epochs"]["2"]["io"]["label"] == "warm"
    assert "cached_io" in [reason["code"] for reason in fsdp["verdict"]["reasons"]]
    for number in "12":
        ours, theirs = (r["results"]["epochs"][number]["losses"] for r in (fsdp, ddp))
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_gt_sees_the_losses_of_torch_and_one_table_shows_both(tmp_path):
    run(tmp_path, *TINY, "--engine", "gt", "--results-dir", "both")
    run(tmp_path, *TINY, "--results-dir", "both")
    gt, ddp = (results.load(p) for p in sorted(tmp_path.glob("both/*.json")))
    assert (gt["config"]["engine"], ddp["config"]["engine"]) == ("gt", "ddp")
    expected = losses_of_torch(tiny(), 18)
    for data in (gt, ddp):
        assert data["status"] == "complete"
        found = [loss for e in data["results"]["epochs"].values() for loss in e["losses"]]
        assert found == pytest.approx(expected, rel=1e-4)
    script = [sys.executable, str(FOLDER / "compare_results.py"), "both", "--html", "out.html"]
    done = subprocess.run(script, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert " gt " in done.stdout
    assert (tmp_path / "out.html").read_text().count("<tr>") == 3


def test_what_one_rank_cannot_do_ends_all_with_its_code(tmp_path):
    done = run(tmp_path, *TINY, "--data-dir", "/proc/nowhere", ranks=2, code=4)
    assert done.stderr.count("failed: /proc/nowhere: ") == 1
    assert "Traceback" not in done.stderr
    assert record(tmp_path)["status"] == "failed"


def test_bad_input_on_two_ranks_is_said_once(tmp_path):
    done = run(tmp_path, *TINY, "--nhead", "3", ranks=2, code=2)
    assert done.stderr.count("--nhead 3 does not divide --d-model 16") == 1


def test_out_of_memory_ends_with_the_batch_to_try(tmp_path):
    words = [*TINY, "--vocab-size", "60000", "--batch-size", "5000", "--num-samples", "5000"]  # 9.6 GB of scores
    limit = 6 * 2**30
    done = run(tmp_path, *words, code=3, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert "out of memory with --batch-size 5000: try --batch-size 2500" in done.stderr
    assert record(tmp_path)["status"] == "failed"


def interrupted(folder, until, *flags):
    """Ctrl-C once something is there; the record that is left."""
    words, env = command(*flags)
    process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: until() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
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
    words = "--seq-len 64 --num-samples 400000 --num-shards 100 --data-dir data".split()
    folder = tmp_path / "data"
    interrupted(tmp_path, lambda: (folder / "shard_0002.bin").exists(), *TINY, *words)
    left = sorted(p.name for p in folder.iterdir())
    shards = [name for name in left if name.startswith("shard")]
    assert left == ["dataset.json", *shards]
    assert len(shards) < 100
    assert {(folder / name).stat().st_size for name in shards} == {spec.bytes // 100}


def test_the_engines_share_one_protocol():
    assert {name for name in dir(engine_gt.GtEngine) if not name.startswith("_")} >= {
        "stage", "begin", "step", "finish", "reset_memory", "memory", "recover", "close",
    }  # fmt: skip
