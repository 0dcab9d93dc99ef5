"""Gathers of a fragment start ahead of their use, and views of reductions wait: the same values, and one layer more."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pytest

import gt
from gt import nn
from gt.dispatcher.replay.deferral import defer_views
from gt.dispatcher.replay.prefetch import prefetch_gathers
from gt.testing import Cluster
from gt.wire.identities import PeerIdentity, Quota
from tests.support.processes import System
from tests.support.recipes import configured
from tests.test_buckets import CODES, Shape

GATHER, REDUCE, VIEW = 20, 21, 22
LAYER = 100 << 10
SHAPES = {**CODES, VIEW: Shape(4, 3, (3,))}
GATHERS = {GATHER: LAYER}
SHARDED = 'data: {shard: {axis: 0}}\nparameters: {match: "*", shard: {axis: 0}}\n'

# -- the order of words ----------------------------------------------------------------------


def program(rng: random.Random) -> list[Any]:
    """Random words over a few tensors: many are gathered, used and freed, or reduced, viewed and freed."""
    words: list[Any] = []
    alive, fresh = [1, 2, 3], 4
    for _ in range(rng.randint(3, 60)):
        x, other, kind = rng.choice(alive), rng.choice(alive), rng.random()
        if kind < 0.35:  # gathered for one use or two, perhaps not freed
            words += (GATHER, 0, fresh, x, 17, 0, fresh + 1, other, fresh)
            words += (18, 0, fresh + 2, fresh, 0.5) if rng.random() < 0.3 else (16, 0, fresh + 2, other)
            if rng.random() < 0.8:
                words.append(-fresh)
            else:
                alive.append(fresh)
            alive += (fresh + 1, fresh + 2)
            fresh += 3
        elif kind < 0.6:  # reduced in its place, and viewed
            words += (REDUCE, 0, x, x, VIEW, 0, fresh, x)
            if rng.random() < 0.7 and len(alive) > 3:
                alive.remove(x)
                words.append(-x)
            alive.append(fresh)
            fresh += 1
        elif kind < 0.65:
            words += (GATHER, 0, x, x)  # the tensor itself gets another layout
        elif kind < 0.7:
            words += (19, 0, x, x, other)  # in place
        elif kind < 0.8 and len(alive) > 3:
            alive.remove(x)
            words.append(-x)
        else:
            words += (17, 0, fresh, x, other)
            alive.append(fresh)
            fresh += 1
    return words


def meaning(words: list[Any]) -> dict[int, Any]:
    """The tensors that are alive after these words, as terms."""
    values: dict[int, Any] = {1: "a", 2: "b", 3: "c"}
    i = 0
    while i < len(words):
        code = words[i]
        if code < 0:
            del values[-code]
            i += 1
            continue
        shape = SHAPES[code]
        operands = [values[words[i + o]] if o in shape.offsets else words[i + o] for o in range(3, shape.width)]
        values[words[i + 2]] = hash((code, *operands))
        i += shape.width
    return values


@pytest.mark.parametrize("seed", range(10))
def test_reordering_changes_no_value(seed):
    rng = random.Random(seed)
    moved = 0
    for _ in range(200):
        words = program(rng)
        later = defer_views(words[:], SHAPES, {REDUCE}, {VIEW})
        earlier, more = prefetch_gathers(later, SHAPES, GATHERS)
        assert meaning(later) == meaning(earlier) == meaning(words)
        assert sorted(map(str, earlier)) == sorted(map(str, words))
        assert 0 <= more <= 2 * LAYER  # two gathers may have one instruction in common
        moved += (later != words) + (earlier != later)
    assert moved > 100


def test_each_layer_is_gathered_while_the_one_before_computes():
    words: list[Any] = []
    for k in range(4):  # gathered, used, freed
        words += (GATHER, 0, 10 + k, 1, 17, 0, 20 + k, 2, 10 + k, -(10 + k))
    result, more = prefetch_gathers(words, SHAPES, GATHERS)
    steps = [(17, 20), (-10, 0), (GATHER, 12), (17, 21), (-11, 0), (GATHER, 13), (17, 22), (-12, 0), (17, 23), (-13, 0)]
    assert _named(result) == [(GATHER, 10), (GATHER, 11), *steps]
    assert more == LAYER


def test_small_gathers_start_together_with_the_next_large_one():
    small = 23
    shapes = {**SHAPES, small: Shape(4, 3, (3,))}
    gathers = {GATHER: LAYER, small: LAYER // 16}
    words = [GATHER, 0, 10, 1, 17, 0, 20, 2, 10, -10, small, 0, 11, 1, 17, 0, 21, 20, 11, -11]
    words += [GATHER, 0, 12, 1, 17, 0, 22, 21, 12, -12]
    result, more = prefetch_gathers(words, shapes, gathers)
    codes = [code for code, _ in _named(result, shapes)]
    assert codes == [GATHER, small, GATHER, 17, -10, 17, -11, 17, -12]
    assert more == LAYER + LAYER // 16


def test_a_gather_of_a_new_or_written_tensor_stays_behind_it():
    new = [16, 0, 4, 1, 16, 0, 5, 2, GATHER, 0, 10, 4, 17, 0, 20, 2, 10, -10]
    assert [code for code, _ in _named(prefetch_gathers(new, SHAPES, GATHERS).words)] == [16, GATHER, 16, 17, -10]
    written = [16, 0, 4, 2, 19, 0, 1, 1, 2, 16, 0, 5, 2, GATHER, 0, 10, 1, 17, 0, 20, 2, 10, -10]
    assert [code for code, _ in _named(prefetch_gathers(written, SHAPES, GATHERS).words)] == [
        16,
        19,
        GATHER,
        16,
        17,
        -10,
    ]


def test_a_gather_into_its_operand_stays_behind_the_readers_of_its_old_layout():
    words = [GATHER, 0, 10, 1, GATHER, 0, 1, 1, 16, 0, 20, 1, 17, 0, 21, 10, 3]
    assert meaning(prefetch_gathers(words, SHAPES, GATHERS).words) == meaning(words)


def test_a_tensor_that_is_gathered_as_a_whole_after_a_part_of_it(tmp_path):
    """The third repetition runs a fragment, in which both gathers start early."""
    with Cluster(2).client(), configured(tmp_path / "rows.yaml", "rows: {shard: {axis: 0}}\n"):
        for i in range(6):
            with gt.signal.context("rows"):
                h = (gt.zeros(5, 6) + i) * 2
                h[0] = h[1] * 2
                assert h.sum().item() == 2 * i * 6 * 6


def test_views_of_reductions_wait_for_their_first_use():
    words = [REDUCE, 0, 1, 1, VIEW, 0, 10, 1, -1, 16, 0, 4, 2, REDUCE, 0, 2, 2, VIEW, 0, 11, 2, -2, 16, 0, 5, 3]
    words += [17, 0, 6, 10, 3, 16, 0, 7, 3]
    codes = [code for code, _ in _named(defer_views(words, SHAPES, {REDUCE}, {VIEW}))]
    assert codes == [REDUCE, 16, REDUCE, 16, VIEW, 17, 16, -1, VIEW, -2]


def test_words_that_cannot_be_reordered_are_unchanged():
    for words in ([GATHER, 0, 4, 1, 5, 3], [99, 0, 4, 1, GATHER, 0, 4, 4, VIEW, 0, 5, 4], [16, 0, 4, 1]):
        assert prefetch_gathers(words[:], SHAPES, GATHERS) == (words, 0)
        assert defer_views(words[:], SHAPES, {REDUCE}, {VIEW}) == words


def _named(words: list[Any], shapes: dict[int, Shape] = SHAPES) -> list[tuple[int, int]]:
    """(code, id of the first result) of each instruction."""
    result, i = [], 0
    while i < len(words):
        width = 1 if words[i] < 0 else shapes[words[i]].width
        result.append((words[i], 0 if width == 1 else words[i + 2]))
        i += width
    return result


# -- in a system -----------------------------------------------------------------------------

WIDTH, LAYERS = 16, 5


def _trained(cluster: Cluster, file: pathlib.Path, steps: int = 6, quota: int = 0) -> tuple[list[bytes], list[int]]:
    """The parameters after some steps, fully sharded; and the bytes that its replay plans prefetch."""
    with configured(file, SHARDED), cluster.client() as session:
        gt.ones(1).item()
        client = cluster.dispatcher.clients[session.id]
        client.identity = PeerIdentity("a", "client", Quota(memory=quota))
        gt.manual_seed(0)
        model = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        with gt.signal.context("data"):
            x, y = gt.randn(200, WIDTH), gt.randn(200, WIDTH)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        values = [p.detach().numpy().tobytes() for p in model.parameters()]
        plans = [plan for fragment in client.fragments.values() for plan in fragment.plans.values()]
        return values, [plan.prefetched_bytes for plan in plans]


@pytest.mark.parametrize(("workers", "backend"), [(2, "torch"), (3, "torch"), (2, "numpy")])
def test_the_same_bits_and_at_most_one_layer_more(workers, backend, monkeypatch, tmp_path):
    monkeypatch.setenv("GT_TEMPLATES", "0")
    wanted, none = _trained(Cluster(workers, backend=backend), tmp_path / "a.yaml")
    assert none == []
    monkeypatch.setenv("GT_TEMPLATES", "1")
    values, prefetched = _trained(Cluster(workers, backend=backend), tmp_path / "b.yaml")
    assert values == wanted
    weight, bias = 4 * WIDTH * WIDTH, 4 * WIDTH
    assert weight <= max(prefetched) <= weight + 2 * bias


@pytest.mark.parametrize("why", ["off", "quota"])
def test_no_prefetching_if_it_is_off_or_memory_is_limited(why, tmp_path):
    cluster = Cluster(2)
    cluster.dispatcher._prefetch = why != "off"
    _, prefetched = _trained(cluster, tmp_path / "a.yaml", quota=1 << 30 if why == "quota" else 0)
    assert prefetched
    assert not any(prefetched)


# -- between processes -----------------------------------------------------------------------

TRAINING = """
    import hashlib, pathlib
    folder = pathlib.Path({folder!r})
    (folder / "sharded.yaml").write_text({config!r})
    gt.load_config(folder / "sharded.yaml")
    gt.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (gt.nn.Linear(256, 256), gt.nn.ReLU())]
    model = gt.nn.Sequential(*layers)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    with gt.signal.context("data"):
        x, y = gt.randn(1000, 256), gt.randn(1000, 256)
    def step():
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()
    for _ in range(5):
        step()
    with gt.debug.trace(folder / "trace.json"):
        step()
    parts = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    say("hash", hashlib.sha256(parts).hexdigest())
"""


def _traced(stack: Any, folder: pathlib.Path, **settings: str) -> tuple[str, list[tuple[str, float, float]]]:
    """The hash of the parameters; and (name, start, end) of what worker 0 does in the last forward pass."""
    system = System(stack, **settings)
    for _ in range(2):
        system.worker("--threads", "1")
    client = system.client(TRAINING.format(folder=str(folder), config=SHARDED))
    digest = client.expect("hash")
    assert client.end() == 0
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    worker = next(e["pid"] for e in events if e["name"] == "process_name" and "worker 0" in e["args"]["name"])
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == worker}
    spans = [
        ("gather" if "all_gather" in e["name"] else e["name"], e["ts"], e["ts"] + e["dur"])
        for e in sorted((e for e in events if e["ph"] == "X" and e["pid"] == worker), key=lambda e: e["ts"])
        if rows[e["tid"]] == "instructions" and (e["name"] == "linear" or e["args"]["bytes"] == 4 * 256 * 256)
    ]
    last = max(k for k, span in enumerate(spans) if span[0] == "linear")
    return digest, [span for span in spans[: last + 1] if span[0] in ("gather", "linear")]


def test_a_layer_is_gathered_before_the_one_before_it_has_computed(stack, tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    digest, before = _traced(stack, tmp_path / "before", GT_NO_PREFETCH="1")
    assert [name for name, *_ in before] == ["gather", "linear"] * 4
    same, after = _traced(stack, tmp_path / "after")
    assert same == digest
    gathers = [span for span in after if span[0] == "gather"]
    linears = [span for span in after if span[0] == "linear"]
    assert len(linears) == 4
    for layer, next_gather in zip(linears, gathers[1:], strict=False):
        assert next_gather[1] < layer[1] < layer[2]
