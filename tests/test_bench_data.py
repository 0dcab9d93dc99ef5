"""The data of the encoder-decoder benchmark: shards against damage and full disks, batches, and what fits in memory."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

import numpy as np
import pytest
import torch

from benchmarks.core.batch_fit import Fit, NothingFits, Peak
from benchmarks.transformer import dataset, fitting, loader, measuring, model, pagecache
from benchmarks.transformer.problems import BadInput, NoDisk, NoMemory

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
def test_a_damaged_shard_is_generated_again(kind, tmp_path):
    dataset.prepare(tmp_path, SPEC)
    before = (tmp_path / "shard_0001.bin").read_bytes()
    DAMAGE[kind](tmp_path / "shard_0001.bin")
    assert dataset.prepare(tmp_path, SPEC) == {"reused": 2, "damaged": 1, "written": 1, "shards": 3}
    assert (tmp_path / "shard_0001.bin").read_bytes() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 99, "spec": {}, "shards": {}}'])
def test_a_damaged_manifest_regenerates_all_shards(text, tmp_path):
    dataset.prepare(tmp_path, SPEC)
    (tmp_path / "dataset.json").write_text(text)
    assert dataset.prepare(tmp_path, SPEC)["written"] == 3


def test_other_parameters_replace_the_data_and_leftovers_of_a_killed_run(tmp_path):
    dataset.prepare(tmp_path, SPEC)
    (tmp_path / ".shard_0000.bin.1.tmp").touch()
    (tmp_path / "notes.txt").touch()
    dataset.prepare(tmp_path, dataset.Spec(1000, 16, 500, 1, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "dataset.json",
        "notes.txt",
        "shard_0000.bin",
        "shard_0001.bin",
    ]


def test_shards_of_someone_else_are_not_overwritten(tmp_path):
    (tmp_path / "shard_0000.bin").write_text("mine")
    with pytest.raises(NoDisk, match="not written by this benchmark"):
        dataset.prepare(tmp_path, SPEC)
    assert (tmp_path / "shard_0000.bin").read_text() == "mine"


def test_a_shard_truncated_during_the_run_is_reported(tmp_path):
    dataset.prepare(tmp_path, SPEC)
    source = dataset.OnDisk(tmp_path, SPEC)
    os.truncate(tmp_path / "shard_0002.bin", 64)
    with pytest.raises(NoDisk, match=r"shard_0002.bin ends before byte"):
        source.read(900, 1000)
    source.close()


# -- the disk ------------------------------------------------------------------------------


def test_too_little_space_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(NoDisk, match=r"no space on the disk: the data set takes 0.000 GB and 0.000 GB are free"):
        dataset.prepare(tmp_path, SPEC)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_whole_shards_alone(tmp_path):
    """With a limit on the size of a file, which any user may lower: the second shard is larger than it."""
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
def as_unprivileged_user():
    """Run as another user if this is root, because root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_reported_and_its_shards_are_used(stack):
    folder = pathlib.Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder)
    dataset.prepare(folder, SPEC)
    folder.chmod(0o555)
    with as_unprivileged_user():
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
    assert [pagecache.label(100, n) for n in (0, 10, 11, 89, 90, 130)] == [
        "warm",
        "warm",
        "mixed",
        "mixed",
        "cold",
        "cold",
    ]
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


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(34, 4, 2), (35, 4, 2), (50, 3, 4)])
def test_a_process_that_leads_all_ranks_reads_their_batches_in_order(samples, batch, ranks):
    plans = [loader.plan(samples, batch, rank, ranks) for rank in range(ranks)]
    together = loader.plan(samples, batch, 0, ranks, ranks_led=ranks)
    for span, *each in zip(together, *plans, strict=True):
        assert [*range(span.start, span.stop)] == [n for one in each for n in range(one.start, one.stop)]
        assert {span.full} == {one.full for one in each}


def test_a_short_batch_is_no_step_of_the_statistics():
    spans = loader.plan(10, 4, 0, 1)
    assert measuring.full_laps(spans, [(1, 1.0), (1, 1.2), (1, 0.1)]) == [(1, 1.0), (1, 1.2)]


def test_each_timing_sample_covers_its_stated_number_of_steps():
    spans = loader.plan(38, 4, 0, 1)  # nine full and a short one
    laps = measuring.full_laps(spans, [(4, 4.0), (4, 6.0), (1, 9.0), (1, 0.1)])
    assert laps == [(4, 4.0), (4, 6.0)]
    taken = measuring.step_times(laps)
    assert (taken["samples_s"], taken["steps_per_sample"], taken["p50_s"]) == ([1.0, 1.5], 4, 1.25)
    # means of four steps vary half as much as the steps, and the verdict is about steps
    assert measuring.step_variation(taken) == pytest.approx(2 * taken["cv"])
    assert measuring.slowest([laps, [(4, 5.0), (4, 5.0)]]) == [(4, 5.0), (4, 6.0)]


def test_a_slow_epoch_counts_in_the_throughput():
    """All samples over all of the time: three epochs of 10 samples, of which one took four times as long."""
    epochs = [
        {"wall_s": wall, "samples": 10, "timing": measuring.step_times([(1, wall)]), "data_wait_share": 0.0,
         "skipped_steps": 0, "losses": [1.0]}
        for wall in (1.0, 1.0, 4.0)
    ]  # fmt: skip
    whole = measuring.totals(epochs, seq_len=8, ranks=2)
    assert (whole["samples"], whole["wall_s"], whole["samples_per_s"]) == (30, 6.0, 5.0)
    assert whole["samples_per_s_per_rank"] == 2.5


def test_the_loader_reports_its_waiting_time_and_passes_errors_on(tmp_path):
    reader = loader.Batches(dataset.InMemory(SPEC), loader.plan(10, 4, 0, 1), lambda arrays: arrays)
    batches = list(reader.first(3))
    assert [len(source) for source, _, _ in batches] == [4, 4, 2]
    assert len(reader.waited) == 3
    source, seen, target = batches[0]
    np.testing.assert_array_equal(seen[:, 1:], target[:, :-1])
    assert (seen[:, 0] == model.BEGIN).all()
    assert source.shape == (4, 16)
    assert len(list(reader.first(7))) == 7
    next(reader.first(7))  # closed in the middle: nothing waits for the rest
    broken = loader.Batches(dataset.InMemory(SPEC), reader.spans, lambda arrays: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(broken.first(3))


# -- memory --------------------------------------------------------------------------------


def fit(budget, most=10_000, base=1000, each=10, breaks_at=10**9, **more):
    """A simulated device: a model of 1000 bytes, 10 a sample, and gaps of a hundredth."""
    held = lambda b: int((base + each * b) / 1.01)
    return Fit(lambda b: Peak(b) if b >= breaks_at else Peak(b, held(b), base + each * b), budget, most=most, **more)


def test_the_largest_batch_is_predicted_and_tried():
    chosen = fit(6005).choose()
    assert (chosen["ran"], chosen["predicted"], chosen["tries"][-1]["needed_bytes"]) == (500, 500, 6000)
    assert chosen["verified"]
    assert chosen["fit"]["bytes_per_sample"] == pytest.approx(10)
    assert chosen["measured_over_predicted"] == pytest.approx(1)
    assert [row["batch"] for row in chosen["rows"]] == [16, 32, 64]


def test_a_batch_that_does_not_fit_is_reduced():
    chosen = fit(6005, breaks_at=480).choose()
    assert ([each["batch"] for each in chosen["tries"]], chosen["ran"], chosen["verified"]) == ([500, 475], 475, False)
    assert fit(6005, breaks_at=9).choose()["ran"] == 8


def test_samples_bound_the_batch_and_a_budget_too_small_is_reported():
    assert fit(6005, most=20).choose()["limited"]
    assert fit(6005, each=0, most=64).choose()["ran"] == 64
    assert fit(6005, each=0, most=None).choose()["ran"] == 2**15  # the largest that was probed
    assert fit(6005, most=2).choose()["fit"] is None  # two batches give no line
    for breaks_at, message in ((10**9, "a batch of one sample takes 0.000 GiB"), (1, "more than there is")):
        with pytest.raises(NothingFits, match="a batch of 1 does not fit") as error:
            fit(500, breaks_at=breaks_at).choose()
        assert message in str(fitting.too_small(500, error.value.peak))


def test_out_of_memory_names_the_batch_to_try():
    with pytest.raises(NoMemory, match="out of memory with --batch-size 64: try --batch-size 32"), fitting.fitting(64):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(NoMemory, match="try a smaller model"), fitting.fitting(1):
        raise MemoryError
    with pytest.raises(RuntimeError, match="else"), fitting.fitting(1):
        raise RuntimeError("something else")
