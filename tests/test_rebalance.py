"""`gt.rebalance`: workers that join get their share, no value changes, and training goes on with the same losses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gt
from gt.client.stream import configuration
from gt.testing import Cluster
from tests.support.processes import System, wait_until
from tests.test_cluster import seeds

pytestmark = pytest.mark.filterwarnings("ignore")

SIGNALS = """
rows:    {shard: {axis: 0}}
columns: {shard: {axis: 1}}
copies:  {replicate: true}
pair:    {shard: {axis: 0, workers: [1, 0]}}
"""


@pytest.fixture
def signals(tmp_path):
    path = tmp_path / "signals.yaml"
    path.write_text(SIGNALS)
    gt.load_config(str(path))
    yield list(configuration.current.signals)
    gt.load_config(None)


@pytest.fixture
def auto():
    gt.auto_shard()
    yield
    gt.auto_shard(False)


def all_workers(x):
    return len(x.layout.workers)


def test_the_meshes_of_all_workers_grow(signals):
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client():
        arrays = {name: np.random.default_rng(3).standard_normal((31, 17)) for name in signals}
        tensors = {name: gt.signal.tensor(gt.tensor(a), name).clone() for name, a in arrays.items()}
        term = tensors["columns"] @ tensors["rows"].t().contiguous().reshape(17, 31)
        value = term.numpy().copy()
        cluster.add_worker()
        cluster.add_worker()
        before = {name: x.layout for name, x in tensors.items()}
        gt.rebalance()
        for name, x in tensors.items():
            assert x.numpy().tobytes() == arrays[name].tobytes()
            assert x.layout.placements == before[name].placements
            assert x.layout.workers == ((1, 0) if name == "pair" else (0, 1, 2, 3)), name
        assert term.numpy() == pytest.approx(value)
        assert "gt.rebalance" in repr(tensors["rows"].layout.story)
        again = gt.signal.tensor(gt.tensor(arrays["rows"]), "rows").clone()
        assert all_workers(again) == 4


def test_without_a_configuration_nothing_moves():
    cluster = Cluster(workers=1, backend="numpy")
    with cluster.client():
        x = gt.ones(1000, 100)
        cluster.add_worker()
        gt.rebalance()
        assert all_workers(x) == 1
        assert x.sum().item() == 100_000


def train(cluster, steps, joins=(), size=256):
    """The losses of a training; at some steps a worker joins, and the program calls `gt.rebalance`."""
    gt.manual_seed(1)
    model = gt.nn.Sequential(gt.nn.Linear(40, 200), gt.nn.ReLU(), gt.nn.Linear(200, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    data, labels = gt.randn(4 * size, 40), gt.randint(0, 10, (4 * size,))
    losses, kept = [], []
    for step in range(steps):
        if step in joins:
            before = [p.detach().numpy().copy() for p in model.parameters()]
            cluster.add_worker()
            gt.rebalance()
            assert all((p.detach().numpy() == b).all() for p, b in zip(model.parameters(), before, strict=True))
            kept.append([optimizer.state[p]["exp_avg"].layout for p in model.parameters() if p in optimizer.state])
        at = step % 4 * size
        loss = gt.nn.functional.cross_entropy(model(data[at : at + size]), labels[at : at + size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model, data, optimizer


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_training_goes_on(auto, first, backend):
    with Cluster(workers=first, backend=backend).client():
        wanted, *_ = train(None, 12)
    cluster = Cluster(workers=first, seed=4, backend=backend)
    with cluster.client():
        losses, model, data, optimizer = train(cluster, 12, joins=(3, 7))
        assert losses == pytest.approx(wanted, rel=1e-4)
        assert losses[:3] == wanted[:3]
        weight = model[0].weight
        assert {all_workers(x) for x in (weight, data, optimizer.state[weight]["exp_avg"])} == {first + 2}
        assert weight.layout.placements == ("R",)
        assert optimizer.state[weight]["exp_avg"].layout.placements == ("R",)
        assert data.layout.placements == ("S(0)",)


def replay_plans(client):
    return [plan for fragment in client.fragments.values() for plan in fragment.plans.values()]


def test_repeated_steps_are_planned_anew(auto):
    """The templates of before are forgotten, and the new ones are replayed on all workers."""
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client():
        w = gt.nn.Parameter(gt.ones(64, 64))
        x = gt.ones(512, 64)

        def step():
            y = x @ w
            for _ in range(20):
                y = y * 2 - y
            total = y.sum()
            gt.step()
            return total.item()

        assert {step() for _ in range(6)} == {512 * 64 * 64}
        (client,) = cluster.dispatcher.clients.values()
        assert replay_plans(client)
        cluster.add_worker()
        gt.rebalance()
        cluster.settle()
        assert not replay_plans(client)
        assert {step() for _ in range(6)} == {512 * 64 * 64}
        assert replay_plans(client)
        assert all_workers(x @ w) == 3


@seeds(10)
def test_random_programs(auto, seed):
    """Tensors of many layouts, joins and deaths of workers, rebalanced again and again: the values stay."""
    rng = np.random.default_rng(seed)
    cluster = Cluster(workers=int(rng.integers(1, 4)), seed=seed, backend="numpy")
    with cluster.client():
        arrays, tensors = [], []
        for _ in range(30):
            what = rng.integers(6)
            if what < 2 or not arrays:
                arrays.append(rng.integers(-9, 9, size=(int(rng.integers(1, 900)), int(rng.integers(1, 30)))))
                tensors.append(gt.tensor(arrays[-1]))
            elif what == 2:
                k = int(rng.integers(len(arrays)))
                arrays.append(arrays[k].sum(0))
                tensors.append(tensors[k].sum(0))
            elif what == 3:
                k = int(rng.integers(len(arrays)))
                arrays[k] = arrays[k] + 1
                tensors[k] += 1
            elif what == 4 and len(cluster.workers) < 6:
                cluster.add_worker()
            else:
                gt.rebalance()
        gt.rebalance()
        for array, x in zip(arrays, tensors, strict=True):
            assert (x.numpy() == array).all()
        assert all_workers(gt.ones(9000, 10)) == len(cluster.workers)


def test_a_program_that_runs_again_is_rebalanced_again(auto):
    cluster = Cluster(workers=2, backend="numpy")
    gt.recovery("replay")
    try:
        with cluster.client() as session:
            session.keep_program((0.0, 0.0))
            x = gt.arange(60_000).reshape(600, 100)
            y = x * 2
            assert all_workers(y) == 2
            name = cluster.add_worker()
            gt.rebalance()
            z = y + 1
            assert all_workers(z) == 3
            cluster.kill_worker(name)
            assert (z.numpy() == np.arange(60_000).reshape(600, 100) * 2 + 1).all()
            assert all_workers(z) == 2
    finally:
        gt.recovery("off")


PROGRAM = """
    import json
    gt.auto_shard()
    gt.manual_seed(1)
    model = gt.nn.Sequential(gt.nn.Linear(64, 256), gt.nn.GELU(), gt.nn.Linear(256, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    data, labels = gt.randn(512, 64), gt.randint(0, 10, (512,))
    joins = {joins}
    for step in range(12):
        if step in joins:
            count = len(gt.workers())
            say("join")
            while len(gt.workers()) <= count: time.sleep(0.01)
            before = [p.detach().numpy().copy() for p in model.parameters()]
            gt.rebalance()
            for p, b in zip(model.parameters(), before):
                assert p.detach().numpy().tobytes() == b.tobytes()
        loss = gt.nn.functional.cross_entropy(model(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(json.dumps(dict(step=step, loss=loss.item())))
    x = model[0].weight
    say(json.dumps(dict(weight=list(x.layout.workers), data=list(data.layout.workers),
        moment=list(optimizer.state[x]["exp_avg"].layout.workers))))
"""


def values_of(client, key):
    return [json.loads(line)[key] for line in client.lines if line.startswith("{") and key in line]


def test_workers_join_during_training(stack):
    system = System(stack)
    for _ in range(2):
        system.worker("--threads", "1")
    undisturbed = system.client(PROGRAM.replace("{joins}", "()"))
    assert undisturbed.end() == 0, undisturbed.output
    client = system.client(PROGRAM.replace("{joins}", "(4, 8)"))
    for count in (1, 2):
        wait_until(lambda n=count: client.lines.count("join") >= n or client.popen.poll() is not None, what="a join")
        system.worker("--threads", "1")
    assert client.end() == 0, client.output
    losses = values_of(client, "loss")
    assert losses == pytest.approx(values_of(undisturbed, "loss"), rel=1e-4)
    assert losses[:4] == values_of(undisturbed, "loss")[:4]
    for key in ("weight", "data", "moment"):
        assert values_of(client, key) == [[0, 1, 2, 3]], client.output
