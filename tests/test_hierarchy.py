"""Collectives between hosts, on random topologies: the value of the flat collective, on every worker the same bits."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream import connect
from gt.dispatcher.plan.hierarchy import LineProfile, LinkSpeed, host_steps
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import MoveStep, route
from gt.ops.placement import Partial, Placement, R, Shard
from gt.testing import Cluster
from gt.types import DTYPES, TensorType
from tests.test_moves import cut, run

FAST, SLOW = LinkSpeed(20.0, 1e-4), LinkSpeed(10_000.0, 1e-2)


def profile_of(hosts: tuple[tuple[int, ...], ...], between: LinkSpeed = SLOW, crossings: int = 1) -> LineProfile:
    return LineProfile(hosts, crossings, FAST, between)


def random_line(rng: random.Random) -> tuple[Mesh, int, tuple[tuple[int, ...], ...]]:
    """A mesh, one of its axes, and the ranks of that axis on each host."""
    hosts, per_host, others = rng.randint(2, 4), rng.randint(2, 3), rng.choice([(), (2,)])
    n = hosts * per_host
    ranks = list(range(n))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    groups = tuple(tuple(sorted(ranks[i * per_host : (i + 1) * per_host])) for i in range(hosts))
    axis = rng.randint(0, len(others))
    shape = (*others[:axis], n, *others[axis:])
    workers = list(range(int(np.prod(shape))))
    rng.shuffle(workers)
    return Mesh(tuple(workers), shape), axis, groups


def random_step(rng: random.Random) -> tuple[TensorType, MoveStep, LineProfile]:
    mesh, axis, groups = random_line(rng)
    n = mesh.shape[axis]
    shape = tuple(rng.choice([1, 2, 5, n, 2 * n]) for _ in range(rng.randint(0, 3)))
    dims = [*range(len(shape))]
    kinds: list[tuple[Placement, Placement]] = [(Partial(rng.choice(["sum", "max"])), R)]
    kinds += [(Shard(d), R) for d in dims] + [(Partial("sum"), Shard(d)) for d in dims]
    before, after = rng.choice(kinds)
    others: list[Placement] = [rng.choice([R, *(Shard(d) for d in dims)]) for _ in mesh.shape]
    layouts = [Layout(mesh, (*others[:axis], p, *others[axis + 1 :])) for p in (before, after)]
    t = TensorType(shape, DTYPES[rng.choice(["float32", "float64"])])
    kind = "all_gather" if isinstance(before, Shard) else "reduce_scatter" if isinstance(after, Shard) else "all_reduce"
    if any(isinstance(p, Shard) and p in others for p in (before, after)):
        return random_step(rng)  # such a step does not occur
    return t, MoveStep(kind, *layouts, axis), profile_of(groups)


@pytest.mark.parametrize("seed", range(300))
def test_steps_between_hosts_give_the_value_of_the_flat_step(seed: int) -> None:
    rng = random.Random(seed)
    t, step, profile = random_step(rng)
    numbers = np.random.default_rng(seed)
    whole = numbers.integers(-9, 9, t.shape).astype(np.float64)
    blocks = cut(whole, step.source, numbers)
    flat = run(step, t, blocks)
    best, _ = host_steps(t, step, profile)
    for part in best.steps:
        assert part.holders == step.holders  # the words of all steps go to the same workers
        for worker in part.source.workers:
            assert blocks[worker].shape == part.source.local(t, worker).shape
        blocks = run(part, t, blocks)
    assert set(blocks) == set(flat)
    for worker, value in flat.items():
        np.testing.assert_array_equal(blocks[worker], value, err_msg=f"seed {seed}: {[p.kind for p in best.steps]}")


def test_which_steps_are_quicker() -> None:
    mesh = Mesh(tuple(range(8)))
    profile = profile_of(((0, 1), (2, 3), (4, 5), (6, 7)))
    large, small = TensorType((1024, 64)), TensorType(())

    def kinds(t: TensorType, a: Placement, b: Placement, profile: LineProfile) -> list[str]:
        (step,) = route(t, Layout(mesh, (a,)), Layout(mesh, (b,)))
        return [part.kind for part in host_steps(t, step, profile)[0].steps]

    assert kinds(large, Partial("sum"), R, profile) == ["reduce_scatter", "all_reduce", "all_gather"]
    assert kinds(small, Partial("sum"), R, profile) == ["all_reduce", "all_reduce"]
    assert kinds(large, Shard(0), R, profile) == ["all_gather", "all_gather"]
    assert kinds(large, Partial("sum"), Shard(0), profile) == ["reduce_scatter", "reduce_scatter"]
    # links between hosts that are as quick as those within: two steps more do not pay
    quick = profile_of(profile.hosts, FAST)
    for a, b in ((Partial("sum"), R), (Shard(0), R), (Partial("sum"), Shard(0))):
        assert len(kinds(TensorType((64, 8)), a, b, quick)) == 1
    # these are rounded once, which only the flat collective does
    half = TensorType((1024, 64), DTYPES["bfloat16"])
    assert kinds(half, Partial("sum"), R, profile) == ["all_reduce"]
    assert kinds(half, Partial("max"), R, profile) == ["reduce_scatter", "all_reduce", "all_gather"]
    # blocks of different sizes, and blocks whose order does not follow the hosts, are gathered flat
    assert kinds(TensorType((1023, 64)), Shard(0), R, profile) == ["all_gather"]
    mixed = profile_of(((0, 4), (1, 5), (2, 6), (3, 7)))
    assert kinds(large, Shard(0), R, mixed) == ["all_gather"]
    assert kinds(large, Partial("sum"), R, mixed) == ["reduce_scatter", "all_reduce", "all_gather"]


# -- a whole system ------------------------------------------------------------------------

HOSTS = ("a", "b", "c", "d")
#: slow between hosts
LINKS = dict.fromkeys(itertools.combinations(HOSTS, 2), (10_000.0, 100.0))


def system(order: tuple[str, ...], links: dict[tuple[str, str], tuple[float, float]] = LINKS, seed: int = 0) -> Cluster:
    cluster = Cluster(0, seed, "numpy", order)
    cluster.links = {**links, **{(host, host): (10.0, 1000.0) for host in set(order)}} if links else {}
    for _ in range(8):
        cluster.add_worker()
    cluster.settle()
    return cluster


def shard_rows() -> None:
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(0)))


@pytest.fixture(autouse=True)
def no_configuration() -> Any:
    yield
    gt.load_config(None)


def column_sums(seed: int = 0, steps: int = 3) -> list[Any]:
    """Sums over rows that the workers share: the terms are reduced. Repeated, so that fragments are replayed."""
    values = np.random.default_rng(seed).standard_normal((48, 40)).astype(np.float32)
    results = []
    for _ in range(steps):
        with gt.signal.context("rows"):
            x = gt.tensor(values)
            results.append((x.sum(0) * 1.0).numpy().copy())
    return results


@pytest.mark.parametrize("order", [("a", "a", "b", "b", "c", "c", "d", "d"), HOSTS], ids=["by host", "interleaved"])
def test_a_mesh_of_all_workers_follows_the_hosts(order: tuple[str, ...]) -> None:
    expected = list(range(8)) if order[1] == "a" else [0, 4, 1, 5, 2, 6, 3, 7]
    with system(order).client():
        shard_rows()
        with gt.signal.context("rows"):
            x = gt.ones(16, 4)
        assert list(x.layout.workers) == expected
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(0, [3, 1, 0, 2])))
        with gt.signal.context("rows"):
            assert list(gt.ones(16, 4).layout.workers) == [3, 1, 0, 2], "as the user says"


def test_a_sum_goes_by_hosts_and_explain_shows_it() -> None:
    values = np.arange(16 * 8000, dtype=np.float32).reshape(16, 8000) % 7
    with system(HOSTS).client():
        shard_rows()
        with gt.signal.context("rows"):
            y = gt.tensor(values).sum(0) * 1.0
            np.testing.assert_array_equal(y.numpy(), values.sum(0))
        text = gt.debug.explain(y)
        steps = "reduce_scatter among 0 4 …, all_reduce among 0 1 2 3 …, all_gather among 0 4 …"
        assert f"{steps} (about 60." in text
        assert "ms; flat 140." in text


def test_the_choice_does_not_change_while_the_server_runs() -> None:
    """A link that was needed before it was measured keeps the assumed figures, so the bits stay the same."""
    cluster = system(HOSTS, {})
    first = None
    for links in ({}, LINKS):
        with cluster.client():
            shard_rows()
            results = column_sums()
            first = results[0] if first is None else first
            for result in results:
                np.testing.assert_array_equal(result, first)
        cluster.links = links
    measured = system(HOSTS)
    with measured.client():
        shard_rows()
        once = column_sums()
    with measured.client():
        shard_rows()
        again = column_sums()
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, once[0])
        np.testing.assert_array_equal(a, b)


def test_recovery_adds_in_the_same_order() -> None:
    """The new worker is on another host than the lost one. The program still computes the same bits."""
    cluster = system(HOSTS)
    session = cluster.add_client()
    session.keep_program((60.0, 0.0))
    with connect.use(session):
        shard_rows()
        before = column_sums(steps=2)
        cluster.kill_worker(list(cluster.workers)[2])
        cluster.settle()
        cluster.add_worker()
        assert list(cluster.dispatcher.workers) == [0, 1, 3, 4, 5, 6, 7, 8]
        after = column_sums(steps=3)
    for result in (*before, *after):
        np.testing.assert_array_equal(result, before[0])
    with cluster.client():  # a program that begins now adds in the order of the workers that there are
        shard_rows()
        (other,) = column_sums(steps=1)
    np.testing.assert_allclose(other, before[0], rtol=1e-5, atol=1e-5)
    assert (other != before[0]).any()
