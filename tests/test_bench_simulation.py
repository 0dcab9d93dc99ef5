"""The simulator: its formulas against tables computed by hand, its clocks, and its determinism."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

import gt
from benchmarks import bare, simulate
from benchmarks.core import results
from benchmarks.simulation import load, machine
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.predict import predict
from benchmarks.simulation.worker import Board, MoveEntry
from benchmarks.simulation.workloads import Workload, mlp, mlp_step
from gt.client.tensor import random_state
from gt.dispatcher.state import Client
from gt.ops import OPS, sign
from gt.types import DTYPES, TensorType

near = pytest.approx


@pytest.fixture(autouse=True)
def own_seed():
    """Seeding here must not change the random numbers of other tests."""
    with random_state.restored(None):
        yield


#: round numbers: 1 TFLOP/s, 1 GB/s of memory and links, 0.1 GB/s and 100 us between nodes
PLAIN = {
    "name": "plain",
    "nodes": 2,
    "workers_a_node": 4,
    "flops": {"float32": 1e12, "bfloat16": 4e12},
    "efficiency": 0.5,
    "memory_bandwidth": 1e9,
    "launch_us": 10,
    "view_us": 1,
    "overlap": True,
    "link": {"bandwidth": 1e9, "latency_us": 1},
    "network": {"bandwidth": 1e8, "latency_us": 100},
    "control": {"client_us": 0, "instruction_us": 0, "message_us": 0, "latency_us": 0},
}
MACHINE = machine.checked(PLAIN, "plain.yaml")
MB = 10**6
TINY = Workload("tiny", mlp((64, 128, 32)), mlp_step, 256)


def tensor(*shape, dtype="float32"):
    return TensorType(shape, DTYPES[dtype])


# -- formulas --------------------------------------------------------------------------------

#: op, attributes, operands -> microseconds
OPERATIONS = [
    # 12 bytes per element at 1 GB/s, and the launch
    ("add", (), (tensor(1000, 1000), tensor(1000, 1000)), 10 + 12_000),
    # 2e9 FLOP at 0.5e12 per second take less time than 12 MB through memory
    ("matmul", (), (tensor(1000, 1000), tensor(1000, 1000)), 10 + 12_000),
    # 2e12 FLOP at 0.5e12 take more time than 1.2 GB
    ("matmul", (), (tensor(10_000, 10_000), tensor(10_000, 10_000)), 10 + 4e6),
    # and at 2e12 for halves, against 600 MB
    ("matmul", (), (tensor(10_000, 10_000, dtype="bfloat16"),) * 2, 10 + 1e6),
    ("view", (("shape", (20, 5)),), (tensor(10, 10),), 1),
]


@pytest.mark.parametrize(("name", "attrs", "ins", "microseconds"), OPERATIONS)
def test_the_cost_of_an_instruction(name, attrs, ins, microseconds):
    assert MACHINE.op_seconds(sign(OPS[name], attrs, ins)) * 1e6 == near(microseconds)


#: kind, members, bytes -> microseconds. Workers 0 to 3 are one node, 4 to 7 the other.
COLLECTIVES = [
    ("all_reduce", (0, 1), MB, 2 * 1 * 1 + 1000),
    ("all_reduce", (0, 1, 2, 3), MB, 2 * 3 * 1 + 1500),
    ("all_gather", (0, 1, 2, 3), MB, 3 * 1 + 750),
    ("reduce_scatter", (0, 1, 2, 3), MB, 3 * 1 + 750),
    ("all_to_all", (0, 1, 2, 3), MB, 3 * 1 + 750),
    ("broadcast", (0, 1, 2, 3), MB, 3 * 1 + 1000),
    ("exchange", (0, 1), MB, 1 + 1000),
    # one worker per node: one port of 0.1 GB/s, two long hops around, half of them
    ("all_reduce", (0, 4), MB, 2 * 100 + 10_000),
    # two per node: two ports in parallel; two long hops and two short ones around
    ("all_reduce", (0, 1, 4, 5), MB, 2 * (202 * 3 / 4) + 1.5 * MB / 2e8 * 1e6),
    # all: four ports, still less than a link
    ("all_gather", tuple(range(8)), MB, 206 * 7 / 8 + 7 / 8 * MB / 4e8 * 1e6),
    ("all_reduce", (3,), MB, 0),
]


@pytest.mark.parametrize(("kind", "members", "nbytes", "microseconds"), COLLECTIVES)
def test_the_cost_of_a_collective(kind, members, nbytes, microseconds):
    assert MACHINE.collective_seconds(kind, members, nbytes) * 1e6 == near(microseconds)


def test_ports_are_no_wider_than_a_link():
    wide = msgspec.structs.replace(MACHINE, network=machine.Wire(bandwidth=9e8, latency_us=100))
    assert wide.collective_seconds("broadcast", tuple(range(8)), 1e9) == near(206e-6 * 7 / 8 + 1.0)


# -- machines --------------------------------------------------------------------------------


def test_the_machines_of_the_folder():
    sizes = {name: machine.read(name).workers for name in machine.names()}
    assert sizes == {"2cpu": 2, "8xh100": 8, "2x8xh100": 16, "64x8xh100": 512}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": "two"}, r"m.yaml: Expected `int`, got `str` - at `\$.nodes`"),
        ({"link": {"bandwidth": 1e9}}, r"missing required field `latency_us` - at `\$.link`"),
        ({"nodez": 1}, "unknown field `nodez`"),
        ({"flops": {"bfloat16": 1e12}}, "m.yaml: flops names no float32"),
        ({"memory_bandwidth": 0}, "m.yaml: rates, nodes and workers are more than 0"),
    ],
)
def test_errors_in_a_machine_file_name_the_field(tmp_path, change, message):
    path = tmp_path / "m.yaml"
    path.write_text(json.dumps(PLAIN | change))
    with pytest.raises(ValueError, match=message):
        machine.read(str(path))


# -- clocks ----------------------------------------------------------------------------------


def test_collectives_meet_and_keep_their_order():
    """Worker 0 arrives at 1 s, worker 1 at 3 s; the second collective waits for the first, that of others does not."""
    board = Board(MACHINE)
    for id in range(4):
        board.workers[id] = None  # no worker waits
    move = MoveEntry("exchange", 1, (0, 1), 1e9, True, None)
    first = board.come(0, 1, 1, move, 1.0)
    second = board.come(0, 1, 2, move, 1.5)
    assert first.over is None
    assert board.come(1, 1, 1, move, 3.0) is first
    assert first.over == near(4.0, abs=1e-5)
    board.come(1, 1, 2, move, 3.0)
    assert second.over == near(5.0, abs=1e-5), "in-order streams"
    other = MoveEntry("exchange", 2, (2, 3), 1e9, True, None)
    board.come(2, 2, 1, other, 0.0)
    assert board.come(3, 2, 1, other, 0.5).over == near(1.5, abs=1e-5)
    assert board.collectives == 3


def test_a_collective_of_another_group_waits_for_the_one_before_it():
    board = Board(MACHINE)
    board.workers.update(dict.fromkeys(range(3)))
    ring, pair = MoveEntry("exchange", 1, (0, 1), 1e9, True, None), MoveEntry("exchange", 2, (0, 2), 1e9, True, None)
    board.come(0, 1, 1, ring, 0.0)
    late = board.come(0, 2, 1, pair, 0.0)
    board.come(2, 2, 1, pair, 0.0)
    assert late.over is None, "worker 0 is still in the first"
    board.come(1, 1, 1, ring, 2.0)
    assert late.over == near(4.0, abs=1e-5)


def run(workers, **change):
    """(the time of the client's clock, the cluster) after a read of a product of sharded tensors."""
    cluster = Cluster(msgspec.structs.replace(MACHINE, nodes=1, workers_a_node=8, **change), workers)
    gt.auto_shard()
    try:
        with cluster.client():
            x = gt.ones(8000, 100)
            (x + x).sum().item()
            clock = cluster.client_clock
    finally:
        gt.auto_shard(False)
    return clock, cluster


def test_work_is_divided():
    """Creating 3.2 MB, adding (9.6 MB) and summing (3.2 MB) take 16 ms on one worker; each of four does a quarter."""
    alone, _ = run(1)
    assert alone == near(16e-3 + 30e-6, rel=1e-3)
    four, cluster = run(4)
    ring = 2 * 3 * 1e-6 + 1.5 * 4 / 1e9
    assert four == near(4e-3 + 40e-6 + ring, rel=1e-3)
    assert cluster.board.collectives == 1, "one all-reduce of the sum"
    assert all(w.busy == near(4e-3 + 40e-6, rel=1e-3) for w in cluster.workers)


def test_latency_and_the_dispatcher_are_part_of_it():
    control = machine.Control(client_us=0, instruction_us=0, message_us=0, latency_us=1000)
    assert run(1, control=control)[0] == near(16e-3 + 30e-6 + 6e-3, rel=1e-3), (
        "hello and welcome, and to the value and back"
    )
    control = machine.Control(client_us=0, instruction_us=500, message_us=0, latency_us=0)
    assert run(1, control=control)[0] > run(1)[0] + 1.4e-3


def test_values_read_are_zeros():
    cluster = Cluster(MACHINE, 4)
    gt.auto_shard()
    try:
        with cluster.client():
            assert gt.ones(8000, 4).tolist() == [[0.0] * 4] * 8000
            assert gt.ones(3).tolist() == [0.0] * 3
    finally:
        gt.auto_shard(False)


# -- predictions -----------------------------------------------------------------------------


def without_wall_time(prediction):
    """Everything that is predicted or counted."""
    return replace(prediction, dispatcher_s=0.0)


def test_equal_inputs_give_equal_predictions():
    small = machine.read("2x8xh100")
    first, again = (predict(small, TINY, 16, 4096) for _ in range(2))
    assert without_wall_time(first) == without_wall_time(again)
    assert first.collectives >= 1
    assert first.dispatcher_s > 0


def test_shares_and_speedups_are_consistent():
    fast = machine.read("8xh100")
    one, eight = (predict(fast, TINY, n, 4096 * n) for n in (1, 8))
    assert (one.collectives, one.exposed_s, one.communication_s) == (0, 0, 0)
    assert 0 < eight.exposed_share < 1
    assert simulate.speedup(one, eight) == near(8 * one.step_s / eight.step_s)
    slow = msgspec.structs.replace(fast, link=machine.Wire(bandwidth=1e9, latency_us=100))
    assert predict(slow, TINY, 8, 4096 * 8).step_s > eight.step_s
    waiting = msgspec.structs.replace(fast, overlap=False)
    assert predict(waiting, TINY, 8, 4096 * 8).step_s >= eight.step_s


def test_simulate_says_that_it_predicts(tmp_path, capsys):
    words = ["--machine", "8xh100", "--workload", "small-mlp", "--workers", "2", "8", "--output-dir", str(tmp_path)]
    assert simulate.main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("PREDICTIONS: nothing below was measured")
    assert "PREDICTED: 8 x H100 SXM" in out
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert not results.problems(record)
    assert {reason["code"] for reason in record["verdict"]["reasons"]} >= {"predicted"}, "it is no valid measurement"
    rows = record["results"]["8xh100"]["small-mlp"]["predictions"]
    assert [row["workers"] for row in rows] == [1, 2, 8]
    assert [row["batch"] for row in rows] == [1024, 2048, 8192], "weak scaling"
    base = rows[0]["predicted"]["step_s"]
    assert [row["speedup"] for row in rows] == [
        near(row["workers"] * base / row["predicted"]["step_s"]) for row in rows
    ]


def test_the_recorded_load_counts_the_instructions_of_the_client():
    def setup():
        return gt.ones(1024, 64)

    def step(x):
        return [x + x for _ in range(10)]

    loads = {n: load.measured(load.record(setup, step, 3), n) for n in (1, 4)}
    for n, samples in loads.items():
        assert [one.instructions for one in samples] == [10, 10]
        assert all(one.core > 0 and one.messages >= n for one in samples)


# -- what the load showed ----------------------------------------------------------------------


def test_the_pace_of_many_workers_settles():
    """Each of 64 workers acknowledges the same submission: it must not count 64 times."""
    program = load.record(lambda: gt.ones(1024, 64), lambda x: [x + x for _ in range(200)], 4)
    drive = load.Drive(64)
    drive.run(program.opening)
    (client,) = drive.core.clients.values()
    paces = []
    for frames in program.rounds:
        drive.run(frames)
        paces.append(client.pace)
    assert max(paces) < 2 * min(paces)
    assert 1 < paces[-1] < 20, "a microsecond a word, against the estimate"


def test_a_worker_without_room_is_checked_first():
    """A client with work on n workers: n acknowledgements of one submission cost a few n steps in all."""
    visited = []

    class Busy:
        parked = ()
        may_run_ahead = False

        def __init__(self, id):
            self.id, self.free = id, False

        @property
        def ahead(self):
            visited.append(self.id)
            return 0.0 if self.free else 1.0

        def has_room_for(self, client, limit):
            visited.append(self.id)
            return self.free

    workers = {i: Busy(i) for i in range(100)}
    client = Client(1, b"", "", None, announced={i: set() for i in workers})
    for worker in workers.values():
        assert not client.has_room(workers, 1.0)
        worker.free = True
    assert client.has_room(workers, 1.0)
    assert len(visited) <= 5 * len(workers)
    workers[3].free = False
    assert not client.has_room(workers, 1.0)
    del workers[3], client.announced[3]  # it has ended
    assert client.has_room(workers, 1.0)


def test_the_dispatcher_alone_has_a_rate():
    assert bare.dispatcher_rate(2, instructions=200) > 0
