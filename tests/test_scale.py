"""The dispatcher's work does not grow with the square of the workers: the tests count work, not time."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import simulate
from benchmarks.core.ranks import BadInput
from benchmarks.simulation import connections, load
from gt.dispatcher import ledger
from gt.dispatcher.actions import SendMessage
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import MoveStep, route, same_shares, worker_share
from gt.dispatcher.plan.planner import Choice
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.tenants import access
from gt.ops import OPS, sign
from gt.ops.placement import P, R, Shard
from gt.types import INT, TensorType
from gt.version import PROTOCOL, VERSION
from gt.wire.messages import Hello, Roster
from gt.wire.networks import parse_network


def test_a_client_hears_of_each_worker_once():
    core = Dispatcher()
    core.handle(b"c", Hello("client", PROTOCOL, VERSION, "", 0))
    described: Counter[int] = Counter()
    for i in range(50):
        for action in core.handle(b"w%d" % i, Hello("worker", PROTOCOL, VERSION, "", i, "null", "null")):
            assert isinstance(action, SendMessage)
            if isinstance(action.message, Roster):
                described.update(info.id for info in action.message.joined)
    assert described == dict.fromkeys(range(50), 1)
    gone = [action.message for action in core.gone(b"w7") if action.peer == b"c"]
    assert gone == [Roster([], [7])]


def _sharded(workers: int) -> Layout:
    return Layout(Mesh(tuple(range(workers))), (Shard(0),))


def test_a_new_worker_is_compared_with_one_at_each_address(monkeypatch):
    """Whether tensors would cross a network that is not declared: 4,096 workers took minutes to join."""

    def hello(number):
        host = number // 8
        store = f"10.0.0.{host + 1}:{5000 + number} KEY"
        return Hello("worker", PROTOCOL, VERSION, f"host{host}", number, "null", "null", "", store)

    def join(number):
        core.handle(b"w%d" % number, hello(number))

    compared = []
    real = access.on_one_host
    monkeypatch.setattr(access, "on_one_host", lambda one, other: compared.append(other) or real(one, other))
    core = Dispatcher(access=access.Access(networks=(parse_network("10.0.0.0/8"),)))
    for number in range(32):
        compared.clear()
        join(number)
        assert len(compared) == -(-number // 8)
    assert len(core.workers) == 32
    core.gone(b"w0")  # the first one at its address
    for number in range(24, 32):
        core.gone(b"w%d" % number)
    compared.clear()
    join(32)
    assert len(compared) == 3
    refused = Hello("worker", PROTOCOL, VERSION, "other", 1, "null", "null", "", "192.168.0.2:5 KEY")
    assert any("not declared" in str(action) for action in core.handle(b"stranger", refused))


@pytest.mark.parametrize(("op", "attrs"), [("relu", ()), ("view", (("shape", (256, 2, 4)),))])
def test_equal_shares_are_computed_once(monkeypatch, op, attrs):
    blocks: list[int] = []
    block = Layout.block
    monkeypatch.setattr(Layout, "block", lambda self, shape, w: blocks.append(w) or block(self, shape, w))
    counts = []
    for workers in (4, 64):
        blocks.clear()
        layout = _sharded(workers)
        shares = ledger._shares(sign(OPS[op], attrs, (TensorType((256, 8)),)), Choice((layout,), (layout,), 0.0))
        assert [having for _, having in shares] == [list(range(workers))]
        assert shares[0][0].outs[0].shape[0] == 256 // workers
        counts.append(len(blocks))
    assert counts[0] == counts[1]


def test_shares_of_uneven_blocks_and_of_ops_that_depend_on_positions():
    layout = _sharded(4)
    uneven = ledger._shares(sign(OPS["relu"], (), (TensorType((10, 8)),)), Choice((layout,), (layout,), 0.0))
    assert [(s.outs[0].shape, having) for s, having in uneven] == [((3, 8), [0, 1]), ((2, 8), [2, 3])]
    count = sign(OPS["arange"], (("n", 8), ("dtype", "int64")), (INT, INT))
    counted = ledger._shares(count, Choice((), (layout,), 0.0))
    assert [(dict(s.attrs)["first"], having) for s, having in counted] == [(2 * w, [w]) for w in range(4)]


MESH, GRID, ONE = Mesh(tuple(range(12))), Mesh(tuple(range(12)), (3, 4)), Mesh((2,))
STEPS = [
    (Layout(MESH, (P,)), Layout(MESH, (R,)), 1, 1),
    (Layout(MESH, (Shard(0),)), Layout(MESH, (R,)), 1, 2),
    (Layout(MESH, (P,)), Layout(MESH, (Shard(1),)), 1, 2),
    (Layout(GRID, (Shard(0), P)), Layout(GRID, (Shard(0), R)), 3, 3),
    (Layout(GRID, (R, Shard(0))), Layout(GRID, (R, Shard(1))), 3, 6),
    (Layout(ONE), Layout(MESH), 2, 2),
    (Layout(Mesh((3,))), Layout(Mesh((5, 6, 7))), 2, 2),
]


@pytest.mark.parametrize(("source", "target", "even", "uneven"), STEPS, ids=str)
def test_workers_with_the_same_share_of_a_collective_are_together(source, target, even, uneven):
    for shape, most in (((24, 24), even), ((25, 25), uneven)):
        t = TensorType(shape)
        for step in (step for step in route(t, source, target) if not step.is_local):
            together = [tuple(workers) for workers in same_shares(step, t)]
            assert sorted(w for workers in together for w in workers) == sorted(step.workers)
            assert len(together) <= most
            for first, *others in together:
                for other in others:
                    assert _share(step, t, first) == _share(step, t, other)


def _share(step: MoveStep, t: TensorType, worker: int) -> object:
    blocks = [ledger._wire_block(t, layout, worker) for layout in (step.source, step.target)]
    return worker_share(step, t, worker), blocks


class CountedSequence(list[int]):
    """A list that counts how often it is searched."""

    searched = 0

    def __contains__(self, item: object) -> bool:
        self.searched += 1
        return super().__contains__(item)


@pytest.mark.parametrize("substitutes", [None, {}])
def test_a_rule_does_not_search_the_workers_for_each_of_them(substitutes):
    workers = CountedSequence(range(100))
    rule = Signals(auto=True, substitutes=substitutes).rule("", workers)
    assert rule.mesh.workers == tuple(range(100))
    assert workers.searched == 0


def test_messages_of_a_repeated_step_per_worker_do_not_depend_on_the_workers():
    from benchmarks.simulation.workloads import mlp, mlp_step

    per_worker = []
    for workers in (4, 16):
        program = load.record(lambda n=workers: mlp((64, 128, 64))(64 * n), mlp_step, 8, templates=True)
        drive = load.Drive(workers)
        drive.run(program.opening)
        loads = [drive.run(frames) for frames in program.rounds]
        per_worker.append(loads[-1].messages / workers)
    assert per_worker[1] <= per_worker[0]


@pytest.mark.long
def test_simulate_scale(tmp_path, capsys):
    words = ["--scale", "8", "--connections", "3", "--rounds", "2", "--output-dir", str(tmp_path)]
    assert simulate.main(words) == 0
    out = capsys.readouterr().out
    assert "8 workers: " in out
    assert "A server process, one TCP connection per worker" in out
    assert len(list(tmp_path.glob("scale_*.json"))) == 1


def test_simulate_scale_refuses(tmp_path, capsys):
    for words, text in [(["--scale", "0"], "at least 1"), (["--connections", "4"], "belongs to --scale")]:
        assert simulate.main([*words, "--output-dir", str(tmp_path)]) == 2
        assert text in capsys.readouterr().err
    with pytest.raises(BadInput, match="10000000 connections need 80000200 descriptors"):
        connections.raise_file_limit(10_000_000)
