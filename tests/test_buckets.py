"""Reductions of a fragment start as soon as their operands exist, several at a time, and give the same values."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.dispatcher.replay import buckets
from gt.dispatcher.replay.buckets import bucket_reductions
from gt.testing import Cluster
from gt.worker.collectives.bucket import ALIGNMENT_BYTES, Bucket, BucketHandle
from gt.worker.collectives.interface import GroupBroken
from gt.worker.fragments import LinkedFragment
from gt.worker.hot.levels import Levels
from tests.support.processes import System, script

# -- the order of words ----------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    width: int
    start: int
    offsets: tuple[int, ...]


#: one result; one, two operands; a number; in place
CODES = {
    16: Shape(4, 3, (3,)),
    17: Shape(5, 3, (3, 4)),
    18: Shape(5, 3, (3,)),
    19: Shape(5, 3, (3, 4)),
    20: Shape(4, 3, (3,)),
    21: Shape(4, 3, (3,)),
}
REDUCTIONS = {20: 400 << 10, 21: 30 << 20}


def program(rng: random.Random) -> list[Any]:
    """Random words over a few tensors; many of the tensors are reduced, in place or in two steps."""
    words: list[Any] = []
    alive, fresh = [1, 2, 3], 4
    for _ in range(rng.randint(3, 60)):
        code = rng.choice([16, 17, 18, 19, 20, 20, 21, -1])
        x = rng.choice(alive)
        if code == -1:
            if len(alive) > 3:
                alive.remove(x)
                words.append(-x)
        elif code == 19:  # in place
            words += (code, 0, x, x, rng.choice(alive))
        elif code in REDUCTIONS and rng.random() < 0.7:
            words += (code, 0, x, x)
        elif code in REDUCTIONS and rng.random() < 0.5:
            words += (20, 0, fresh, x, 21, 0, x, fresh, -fresh)
            fresh += 1
        else:
            operands = {16: [x], 17: [x, rng.choice(alive)], 18: [x, 0.5], 20: [x], 21: [x]}[code]
            words += (code, 0, fresh, *operands)
            alive.append(fresh)
            fresh += 1
    return words


def meaning(words: list[Any]) -> tuple[dict[int, Any], list[Any]]:
    """The tensors that are alive after these words, as terms; and the reductions in order."""
    values: dict[int, Any] = {1: "a", 2: "b", 3: "c"}
    reduced, i = [], 0
    while i < len(words):
        code = words[i]
        if code < 0:
            del values[-code]
            i += 1
            continue
        shape = CODES[code]
        operands = [values[words[i + o]] if o in shape.offsets else words[i + o] for o in range(3, shape.width)]
        # terms grow: a name for each is enough
        values[words[i + 2]] = hash((code, *operands))
        if code in REDUCTIONS:
            reduced.append((code, operands[0]))
        i += shape.width
    return values, reduced


@pytest.mark.parametrize("seed", range(20))
def test_reordering_changes_no_value(seed):
    rng = random.Random(seed)
    for _ in range(200):
        words = program(rng)
        bucketed = bucket_reductions(words[:], CODES, REDUCTIONS)
        values, reduced = meaning(words)
        after, reduced_after = meaning(bucketed)
        assert after == values
        assert sorted(map(str, reduced_after)) == sorted(map(str, reduced))


def test_reductions_move_up_to_their_operands(monkeypatch):
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 700 << 10)
    # four products, their reductions in another order, and the instructions that use them
    words = [w for k in range(4) for w in (16, 0, 10 + k, 1)]
    words += [w for k in (3, 2, 1, 0) for w in (20, 0, 10 + k, 10 + k)]
    words += [17, 0, 20, 10, 13]
    bucketed = bucket_reductions(words, CODES, REDUCTIONS)
    assert [bucketed[i : i + 3 : 2] for i in range(0, len(bucketed) - 5, 4)] == [
        [16, 10], [20, 10], [16, 11], [16, 12], [20, 11], [20, 12], [16, 13], [20, 13],
    ]  # fmt: skip


def test_words_without_reductions_are_unchanged():
    control = [16, 0, 4, 1, 5, 3, 20, 0, 4, 4]
    unknown = [99, 0, 4, 1, 20, 0, 4, 4]
    none = [16, 0, 4, 1]
    for words in (control, unknown, none):
        assert bucket_reductions(words[:], CODES, REDUCTIONS) == words


# -- in a system -----------------------------------------------------------------------------


def _steps(count: int, accumulate: int = 1) -> Any:
    gt.manual_seed(3)
    model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 16), gt.nn.ReLU(), gt.nn.Linear(16, 4))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    x, y = gt.randn(1200, 8), gt.randn(1200, 4)
    for _ in range(count):
        optimizer.zero_grad()
        for _ in range(accumulate):
            loss = gt.nn.functional.mse_loss(model(x), y)
            loss.backward()
        optimizer.step()
        yield loss, model


def _trained(cluster: Cluster, count: int, accumulate: int = 1) -> list[bytes]:
    with cluster.client():
        gt.auto_shard()
        try:
            for loss, model in _steps(count, accumulate):
                last = loss, model
            return [last[0].detach().numpy().tobytes(), *[p.detach().numpy().tobytes() for p in last[1].parameters()]]
        finally:
            gt.auto_shard(False)


def _sections(cluster: Cluster) -> list[Any]:
    spaces = [space for worker in cluster.workers.values() for space in worker.spaces.values()]
    fragments = [f for space in spaces for f in space.fragments.values() if isinstance(f, LinkedFragment)]
    return [section for fragment in fragments for section in fragment.sections]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_gradients_of_a_step_are_one_bucket(workers, accumulate, monkeypatch):
    monkeypatch.setenv("GT_TEMPLATES", "0")
    wanted = _trained(Cluster(workers), 8, accumulate)
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster(workers)
    sizes: set[int] = set()
    cluster.after_step = lambda _: sizes.update(
        section.last - section.first for section in _sections(cluster) if section.is_bucket
    )
    assert _trained(cluster, 8, accumulate) == wanted
    assert sizes == {6}


def test_buckets_start_during_backward(monkeypatch):
    """The reduction of the last layer's gradients starts before the first layer's gradients exist."""
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    monkeypatch.setenv("GT_TEMPLATES", "0")
    wanted = _trained(Cluster(2), 8)
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster(2)
    most: list[int] = [0]

    def look(_: Cluster) -> None:
        alone = [section for section in _sections(cluster) if section.body is None]
        most[0] = max(most[0], len(alone))

    cluster.after_step = look
    assert _trained(cluster, 8) == wanted
    assert most[0] >= 12  # six on each of two workers, with other instructions between them


def test_a_gradient_that_fails_fails_alone(monkeypatch):
    """One gradient of a bucket fails on one worker. All workers take part, and the other gradients arrive."""

    def run(cluster: Cluster) -> list[Any]:
        log: list[Any] = []
        with cluster.client():
            gt.auto_shard()
            try:
                gt.manual_seed(0)
                table, w = gt.nn.Parameter(gt.randn(5, 4)), gt.nn.Parameter(gt.randn(4, 2))
                for k in range(6):
                    index = gt.tensor([0, 1, 2, 99 if k == 4 else 3] * 1024)
                    bad = gt.nn.functional.embedding(index, table).sum()
                    good = (gt.ones(4096, 4) @ w).sum()
                    (a,), (b,) = gt.autograd.grad(bad, [table]), gt.autograd.grad(good, [w])
                    total, other = a * 2 + 1, b * b
                    gt.step()
                    for x in (total, other):
                        try:
                            log.append(x.detach().numpy().tobytes())
                        except gt.GtError as error:
                            log.append(type(error).__name__)
            finally:
                gt.auto_shard(False)
        return log

    monkeypatch.setenv("GT_TEMPLATES", "0")
    wanted = run(Cluster(2))
    assert wanted.count("RemoteError") == 1
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster(2)
    sizes: set[int] = set()
    cluster.after_step = lambda _: sizes.update(
        section.last - section.first for section in _sections(cluster) if section.is_bucket
    )
    assert run(cluster) == wanted
    assert sizes == {2}


# -- between processes -----------------------------------------------------------------------

TRAINING = """
    import hashlib
    gt.auto_shard()
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(64, 700), gt.nn.ReLU(), gt.nn.Linear(700, 700), gt.nn.Linear(700, 16))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = gt.randn(500, 64), gt.randn(500, 16)
    for k in range(8):
        optimizer.zero_grad()
        gt.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    parts = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    say("hash", hashlib.sha256(parts).hexdigest())
"""


@pytest.mark.parametrize(
    ("workers", "backend"),
    [(2, "torch"), pytest.param(3, "torch", marks=pytest.mark.long), pytest.param(2, "numpy", marks=pytest.mark.long)],
)
def test_the_same_bits_between_processes(stack, workers, backend):
    hashes = []
    for templates in ("0", "1"):
        system = System(stack)
        for _ in range(workers):
            system.worker("--backend", backend, "--threads", "1")
        client = system.client(TRAINING, GT_TEMPLATES=templates)
        hashes.append(client.expect("hash"))
        assert client.end() == 0
    assert hashes[0] == hashes[1]


LOST = """
    gt.auto_shard()
    model = gt.nn.Sequential(gt.nn.Linear(64, 700), gt.nn.ReLU(), gt.nn.Linear(700, 16))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = gt.randn(500, 64), gt.randn(500, 16)
    k = 0
    while True:
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        k += 1
        try:
            loss.item()
        except gt.errors.WorkerLost as error:
            say("lost")
            break
        if k == 10:
            say("running")
    say("again", gt.ones(3).sum().item())
"""


@pytest.mark.long
def test_a_worker_lost_while_buckets_are_pending(stack):
    system = System(stack)
    workers = [system.worker("--threads", "1") for _ in range(3)]
    client = system.client(LOST)
    client.expect("running")
    workers[2].kill()
    client.expect("lost", 12)
    client.expect("again 3.0", 12)
    assert client.end() == 0


def test_missing_memory_breaks_only_the_group(stack):
    """The other members must not wait for one that cannot allocate its bucket."""
    program = """
        import torch
        from gt.worker.collectives.processes import ProcessPlane
        planes = [ProcessPlane(), ProcessPlane()]
        for rank, plane in enumerate(planes):
            plane.admit(b"a secret")
            plane.join(1, (0, 1), rank, planes[0].address, "gloo")
        def wait(flights):
            import time
            end = time.monotonic() + 20
            while not all(f.done() for f in flights):
                assert time.monotonic() < end
                time.sleep(0.01)
        given = [torch.arange(5.0), torch.ones(2, 3)]
        both = [plane.reduce_all(1, given, {"op": "sum"}) for plane in planes]
        wait([f for flights in both for f in flights])
        for flights in both:
            a, b = (f.result() for f in flights)
            assert torch.equal(a, 2 * given[0]) and torch.equal(b, 2 * given[1]), (a, b)
        import gt.worker.collectives.adapter as adapter
        from gt.worker.collectives.interface import GroupBroken
        good = planes[0].reduce_all(1, given, {"op": "sum"})
        def none(*_):
            raise MemoryError("no memory")
        adapter._host_empty = none
        bad = planes[1].reduce_all(1, given, {"op": "sum"})
        wait(good + bad)
        for flight in good + bad:
            try:
                flight.result()
            except GroupBroken as error:
                print("broken:", error, flush=True)
    """
    process = script(program, stack=stack)
    assert process.end() == 0
    assert process.output.count("broken:") == 4
    assert "no memory" in process.output


# -- one bucket ------------------------------------------------------------------------------


class _DoneHandle:
    def __init__(self, value: Any) -> None:
        self.value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self.value is None:
            raise GroupBroken("a member is gone")
        return self.value


def test_a_bucket_is_packed_and_split():
    tensors = [torch.randn(3, 5), torch.randn(4, 2).t(), torch.zeros(0, 3), torch.tensor(2.5)]
    bucket = Bucket(tensors, lambda shape, dtype: torch.empty(shape, dtype=dtype))
    bucket.handle = _DoneHandle(bucket.flat)
    shares = [BucketHandle(bucket, k) for k in range(4)]
    assert all(share.done() for share in shares)
    results = [share.result() for share in shares]
    for x, y in zip(tensors, results, strict=True):
        assert torch.equal(x, y)
        assert y.is_contiguous()
        assert y.numel() == 0 or (y.data_ptr() - results[0].data_ptr()) % ALIGNMENT_BYTES == 0
    with pytest.raises(AssertionError, match="taken already"):
        shares[0].result()


def test_every_array_of_a_broken_bucket_is_broken():
    bucket = Bucket([torch.ones(2), torch.ones(3)], lambda shape, dtype: torch.empty(shape, dtype=dtype))
    bucket.handle = _DoneHandle(None)
    for k in range(2):
        with pytest.raises(GroupBroken, match="a member is gone"):
            BucketHandle(bucket, k).result()


# -- compiled --------------------------------------------------------------------------------


def test_fragments_with_collectives_are_compiled_as_well(monkeypatch):
    """The sections between the buckets are compiled on each worker, and give the values of the interpreter."""
    monkeypatch.setenv("GT_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"gt-tests-{os.getuid()}"))
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1 << 9)
    wanted = [np.frombuffer(x, np.float32) for x in _trained(Cluster(2), 8)]
    cluster = Cluster(2)
    for worker in cluster.workers.values():
        worker.replayer.levels = Levels(worker.engine, "all")
    levels: dict[int, set[str]] = {}

    def look(_: Cluster) -> None:
        for worker in cluster.workers.values():
            entries = [entry for entry in worker.replayer.levels.stats() if entry["runs"] > 2 and entry["length"] > 1]
            levels.setdefault(worker.id, set()).update(entry["level"] for entry in entries)

    cluster.after_step = look
    results = [np.frombuffer(x, np.float32) for x in _trained(cluster, 8)]
    for x, y in zip(results, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert all("compiled" in reached for reached in levels.values()), levels
    assert len(levels) == 2
