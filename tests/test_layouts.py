"""Layouts as users see them; copies that are created once; notices that are printed once."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

import gt
from gt.client.stream.session import Session
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.ops.placement import P, R, Shard, aligned, bounds
from gt.testing import Cluster
from tests.support.recipes import Watched

FILE = """
rows: {shard: {axis: 0, workers: [0, 1]}}
columns: {shard: {axis: 1, workers: [0, 1]}}
third: {shard: {axis: 0, workers: [2]}}
grid: {mesh: {a: 2, b: 2}, shard: {0: a, 1: b}}
"""


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    (tmp_path / "signals.yaml").write_text(FILE)
    gt.load_config(tmp_path / "signals.yaml")
    yield Cluster(workers=4)
    gt.load_config(None)


@pytest.fixture
def session(cluster: Cluster) -> Iterator[Session]:
    with cluster.client() as session:
        yield session


@pytest.mark.parametrize("size", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_block_sizes_differ_by_at_most_one(size: int, workers: int) -> None:
    blocks = [bounds(size, workers, rank) for rank in range(workers)]
    assert [start for start, _ in blocks] == [sum(n for _, n in blocks[:rank]) for rank in range(workers)]
    assert sum(n for _, n in blocks) == size
    assert max(n for _, n in blocks) - min(n for _, n in blocks) <= 1


@pytest.mark.parametrize("size", [0, 1, 2, 5, 12, 4096])
@pytest.mark.parametrize("weights", [(3, 1), (1, 2, 4), (1000, 1), (5, 5, 6)])
def test_block_sizes_follow_weights(size: int, weights: tuple[int, ...]) -> None:
    blocks = [bounds(size, weights, rank) for rank in range(len(weights))]
    assert [start for start, _ in blocks] == [sum(n for _, n in blocks[:rank]) for rank in range(len(weights))]
    assert sum(n for _, n in blocks) == size
    assert all(abs(n - size * w / sum(weights)) <= 1 for (_, n), w in zip(blocks, weights, strict=True))


def test_dims_that_are_multiples_of_the_weights_are_split_alike() -> None:
    assert aligned(32, 32 * 128, (11, 5))
    assert aligned(3, 12, (2, 1))
    assert not aligned(4, 8, (2, 1))
    assert not aligned(4, 4 * 128, (2, 1))


def test_meshes_with_weights() -> None:
    mesh = Mesh((0, 1), ((4, 2),))
    assert mesh is Mesh((0, 1), ((2, 1),))
    assert mesh is not Mesh((0, 1))
    assert (mesh.shape, mesh.largest, str(mesh)) == ((2,), 0, "0,1 weighted 2:1")
    assert Mesh((0, 1), ((3, 3),)) is Mesh((0, 1))
    assert Mesh((7, 8), ((5,), (1, 2))) is Mesh((7, 8), ((1, 2),))
    grid = Mesh((0, 1, 2, 3), ((1, 3), 2))
    assert (grid.shape, grid.largest, str(grid)) == ((2, 2), 2, "0,1,2,3 as 2x2 weighted 1:3 and even")
    assert Layout(grid, (Shard(0), Shard(1))).block((8, 5), 2) == ((2, 0), (6, 3))
    assert not Layout(mesh, (Shard(0),)).is_even((6,))
    assert Layout(mesh, (R,)).is_even((6,))


def test_layouts_are_interned_and_printed() -> None:
    mesh = Mesh((0, 1, 2, 3), (2, 2))
    assert Layout(mesh, (Shard(0), R)) is Layout(Mesh((0, 1, 2, 3), (2, 2)), (Shard(0), R))
    assert str(Layout(mesh, (Shard(0), P))) == "S(0) P(sum) on workers 0,1,2,3 as 2x2"
    assert str(Layout(Mesh((3,)))) == "worker 3"
    assert Mesh((0, 1), (2, 1)) is Mesh((0, 1))  # an axis with one worker is left out


def create(name: str, *shape: int) -> gt.Tensor:
    with gt.signal.context(name):
        return gt.ones(*shape)


def test_a_tensor_shows_its_layout(session: Session) -> None:
    x, g = create("rows", 5, 4), create("grid", 5, 4)
    assert (str(x.layout), str(gt.ones(1).layout)) == ("S(0) on workers 0, 1", "worker 0")
    assert str(g.layout) == "S(0) S(1) on workers 0, 1, 2, 3 as 2x2"
    assert g.layout.blocks == {
        0: ((0, 0), (3, 2)),
        1: ((0, 2), (3, 2)),
        2: ((3, 0), (2, 2)),
        3: ((3, 2), (2, 2)),
    }
    assert x.layout == create("rows", 2).layout != create("columns", 2, 2).layout
    assert str(x.sum(0).layout) == "P(sum) on workers 0, 1"


def test_a_layout_is_drawn(session: Session) -> None:
    shown = io.StringIO()
    gt.debug.show_layout(create("grid", 5, 4), file=shown)
    assert shown.getvalue().splitlines()[1:] == [
        "  0:2   2:4",
        "+-----+-----+",
        "|  0  |  1  |  0:3",
        "+-----+-----+",
        "|  2  |  3  |  3:5",
        "+-----+-----+",
    ]
    shown = io.StringIO()
    gt.debug.show_layout(create("rows", 5, 4).sum(0), file=shown)
    assert shown.getvalue().splitlines()[-1] == "each worker holds one term; P(sum) of all terms is the value"


def test_a_layout_is_explained(session: Session) -> None:
    x, w = create("rows", 50, 40), create("columns", 40, 60)
    text = gt.debug.explain(x @ w)
    assert "made by matmul(float32[50,40], float32[40,60])" in text
    assert "by all_gather; about " in text
    assert "a copy is kept as R on workers 0,1" in gt.debug.explain(w) + gt.debug.explain(x)
    assert gt.debug.explain(gt.ones(1)).startswith("float32[1] is placed whole on worker 0\nit was made there")


def test_the_layout_of_a_lost_tensor_says_so(cluster: Cluster, session: Session) -> None:
    x = create("rows", 5, 4)
    session.outbox.flush()
    cluster.settle()
    cluster.kill_worker(next(name for name, worker in cluster.workers.items() if worker.id == 1))
    cluster.settle()
    assert str(x.layout).startswith("lost: worker 1 (cpu, pid ")


def test_a_copy_is_made_once_while_the_tensor_lives(cluster: Cluster, session: Session) -> None:
    x, watched = create("rows", 100, 40), Watched(cluster, session)
    moves = watched.moves[0]
    for _ in range(3):
        x.sort(0)[0].sum().item()
    assert moves["all_gather"] + moves["all_to_all"] == 1
    x.add_(1)  # the copy is out of date
    assert x.sort(0)[0].sum().item() == 8000
    assert moves["all_gather"] + moves["all_to_all"] == 2


def test_an_op_without_a_split_is_gathered_with_one_notice(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    x = create("rows", 5, 4)
    for _ in range(2):
        assert x.median().item() == 1
    notices = [line for line in capsys.readouterr().err.splitlines() if "median" in line]
    assert len(notices) == 1
    assert notices[0].endswith("gathered, and every worker does all of it: the median of parts is not the median")


@pytest.mark.parametrize(
    ("values", "dtype", "act", "expected"),
    [
        ((5.0, -2.0), gt.float32, lambda x: x * float("inf"), float("inf")),
        ((0.0, 5.0), gt.float32, lambda x: x / 0, float("inf")),
        ((2.0, -5.0), gt.float32, lambda x: x / gt.zeros(()), -float("inf")),
        ((2.0, -5.0), gt.float32, lambda x: x * gt.tensor(float("inf")), -float("inf")),
        ((70000.0, -69000.0), gt.float32, lambda x: x.half(), 1000.0),
        ((1e10 + 1, -1e10), gt.float64, lambda x: x.float(), 1.0),
        ((1000001.0, -1000000.0), gt.float32, lambda x: x.bfloat16(), 1.0),
        ((3.0, 4.0), gt.float32, lambda x: x * 2, 14.0),
        ((3.0, 4.0), gt.float32, lambda x: x * 0, 0.0),
    ],
)
def test_partial_sums_are_combined_before_an_op_that_is_not_linear(
    session: Session, values, dtype, act, expected
) -> None:
    with gt.signal.context("rows"):
        x = gt.tensor(values, dtype=dtype)
    total = x.sum()
    assert str(total.layout) == "P(sum) on workers 0, 1"
    assert act(total).item() == expected
