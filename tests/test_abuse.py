"""A client that sends nonsense, beside one that works: it loses its connection or its own results, and no other client
loses anything. The worker in particular must survive whatever the dispatcher forwards, and is never blamed for it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import gt
from gt.client.stream.connect import use
from gt.client.tensor.emit import call, upload
from gt.dispatcher.debug_log import DebugLog
from gt.dispatcher.instruction_log import InstructionLog
from gt.ops import OPS, sign
from gt.testing import Cluster
from gt.types import BYTES, FLOAT, INT, TensorType
from gt.version import PROTOCOL, VERSION
from gt.wire import transfers
from gt.wire.codec import announced_weight, definition, encode
from gt.wire.messages import Ask, Bye, Chunk, ChunkTaken, Done, FailureReport, Hello, Reply, Submit, Trace
from gt.wire.shared import SharedRing, host_identity
from gt.wire.structures import Definition, SharedRange
from gt.wire.words import FETCH, FIRST_CODE, RESET, TRACE
from gt.worker.engines.numpy import NumpyEngine
from tests.support.invariants import always
from tests.support.programs import Program

pytestmark = pytest.mark.filterwarnings("ignore")
ROUNDS = int(os.environ.get("GT_FUZZ", "40"))

X = TensorType((2, 3))
FULL, ADD, SUM, UPLOAD, SPLIT, ADD_INTO, POW, INDEX = range(FIRST_CODE, FIRST_CODE + 8)
SIGNATURES = {
    FULL: sign(OPS["full"], (("shape", (2, 3)), ("dtype", "float32")), (FLOAT,)),
    ADD: sign(OPS["add"], (), (X, X)),
    SUM: sign(OPS["sum"], (("dim", (0, 1)), ("keepdim", False), ("dtype", None)), (X,)),
    UPLOAD: sign(OPS["upload"], (("shape", (4,)), ("dtype", "float32")), (BYTES,)),
    SPLIT: sign(OPS["split"], (("sizes", (1, 1)), ("dim", 0)), (X,)),
    ADD_INTO: sign(OPS["add"], (), (X, X), into=True),
    POW: sign(OPS["pow"], (), (X, INT)),
    INDEX: sign(OPS["slice"], (("items", (("i",), ("s", 3, 1))),), (X, INT, INT)),
}
DEFINITIONS = [definition(code, signature) for code, signature in SIGNATURES.items()]


class Engine(NumpyEngine):
    """Refuses allocations that would fill this machine: a huge tensor is legal, it only fails."""

    def link(self, signature: Any) -> Any:
        if any(getattr(t, "nbytes", 0) > 1 << 20 for t in (*signature.ins, *signature.outs)):
            raise MemoryError("a monster")
        return super().link(signature)

    def allocate(self, nbytes: int) -> Any:
        if nbytes > 1 << 24:
            raise MemoryError("a monster")
        return super().allocate(nbytes)


class Scene:
    """One worker, an honest client with a tensor, and another client."""

    def __init__(self, seed: int = 0, workers: int = 1) -> None:
        self.cluster = Cluster(0, seed, "numpy")
        self.cluster._engine = Engine()
        for _ in range(workers):
            self.cluster.add_worker()
        self.cluster.after_step = always
        self.honest = self.cluster.add_client()
        values = np.arange(6, dtype=np.float32)
        self.kept = upload(memoryview(values).cast("B"), TensorType((2, 3)), self.honest)
        assert self.kept.numpy().sum() == 15
        self.evil = b""
        self.rejoin()

    def rejoin(self) -> None:
        self.evil = b"evil" + str(len(self.cluster.closed)).encode()
        self.post(Hello("client", PROTOCOL, VERSION, host_identity(), os.getpid()))
        self.serial = 0
        self.cluster.settle()

    def post(self, message: Any, *rest: bytes) -> None:
        self.cluster._post(self.evil, b"", [message if isinstance(message, bytes) else encode(message), *rest])

    def submit(self, *stream: Any, definitions: list[Any] | None = None, weight: int | None = None) -> None:
        self.serial += 1
        announced = (DEFINITIONS if self.serial == 1 else []) if definitions is None else definitions
        least = len(stream) + announced_weight(announced, [])
        self.post(Submit(self.serial, announced, list(stream), least if weight is None else weight))

    @property
    def refused(self) -> bool:
        return self.evil in self.cluster.closed

    def check(self, refused: bool | None = None) -> None:
        """The others are unchanged, and the worker is alive."""
        workers = len(self.cluster.workers)
        self.cluster.settle()
        self.cluster.tick()
        self.cluster.settle()
        assert len(self.cluster.dispatcher.workers) == workers, "a worker was blamed"
        assert refused is None or refused == self.refused, self.cluster.closed
        assert call(OPS["add"], (self.kept, 1.0)).numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
        self.honest.outbox.flush()
        self.cluster.settle()
        spaces = {client for worker in self.cluster.workers.values() for client in worker.spaces}
        assert spaces <= set(self.cluster.dispatcher.clients)
        assert self.refused == (self.evil not in self.cluster.dispatcher.by_peer)


# -- streams -----------------------------------------------------------------------------------

BASE = [FULL, 0, 1, 2.5, FULL, 0, 2, 1.5]
#: name -> words after BASE, and whether they end the connection
STREAMS: dict[str, tuple[list[Any], bool]] = {
    "an unknown code": ([999, 0, 3, 1, 1], True),
    "an unknown control word": ([7, 1, 1], True),
    "a control word of the workers'": ([TRACE, 1, 1], True),
    "zero": ([0], True),
    "a fraction for a code": ([FULL + 0.5, 0, 3, 1.0], True),
    "infinity": ([float("inf")], True),
    "nan": ([float("nan")], True),
    "bytes for a code": ([b"\x10", 0, 3, 1.0], True),
    "minus nothing": ([-0.0], True),
    "a huge code": ([2**64 - 1, 0, 3, 1], True),
    "an operand that is not there": ([ADD, 0, 3, 1, 77], True),
    "an operand that is negative": ([ADD, 0, 3, 1, -1], True),
    "an operand that is bytes": ([ADD, 0, 3, 1, b"1"], True),
    "an operand that is nan": ([ADD, 0, 3, 1, float("nan")], True),
    "freed twice": ([-1, -1], True),
    "freed and used": ([-1, ADD, 0, 3, 1, 1], True),
    "freed what is not there": ([-77], True),
    "cut after the code": ([ADD], True),
    "cut after the results": ([ADD, 0, 3], True),
    "cut in the operands": ([ADD, 0, 3, 1], True),
    "cut before a number": ([FULL, 0, 3], True),
    "a read cut": ([FETCH, 5], True),
    "a read of nothing": ([FETCH, 5, 77], True),
    "a request called by a fraction": ([FETCH, 5.5, 1], True),
    "a request called by bytes": ([FETCH, b"5", 1], True),
    "a request called true": ([FETCH, True, 1], True),
    "reset cut": ([RESET], True),
    "reset to bytes": ([RESET, b"x"], True),
    "reset and used": ([RESET, 1000, ADD, 0, 3, 1, 1], True),
    "in place into another": ([ADD_INTO, 0, 2, 1, 2], True),
    "in place into nothing": ([ADD_INTO, 0, 77, 77, 2], True),
    "in place cut": ([ADD_INTO, 0], True),
    # legal, only unusual
    "a code that is a whole float": ([float(ADD), 0, 3, 1, 1, FETCH, 5, 3], False),
    "an operand that is a whole float": ([ADD, 0, 3, 1.0, 2.0, FETCH, 5, 3], False),
    "true for one": ([ADD, 0, 3, True, 1, True, 6, 3], False),
    "a result called by a fraction": ([ADD, 0, 3.5, 1, 1, FETCH, 5, 3.5, -3.5], False),
    "a result called by bytes": ([ADD, 0, b"three", 1, 1, FETCH, 5, b"three"], True),
    "a result called nan": ([ADD, 0, float("nan"), 1, 1], False),
    "a negative result": ([ADD, 0, -3, 1, 1, FETCH, 5, -3], False),
    "a result over an operand": ([ADD, 0, 1, 1, 1, FETCH, 5, 1, -1], False),
    "two results of one name": ([SPLIT, 0, 3, 3, 1, FETCH, 5, 3, -3], False),
    "a result over a failure": ([UPLOAD, 0, 3, b"x", ADD, 0, 3, 1, 1, FETCH, 5, 3, -3, ADD, 0, 4, 1, 1], False),
    "a site that is none": ([ADD, b"here", 3, 1, 1, UPLOAD, 2.5, 4, b"x", FETCH, 5, 4], False),
    "text for a number": ([FULL, 0, 3, b"2.5", FETCH, 5, 3], True),
    "bytes of another size": ([UPLOAD, 0, 3, b"123", FETCH, 5, 3], False),
    "bytes that are a number": ([UPLOAD, 0, 3, 2.5, FETCH, 5, 3], False),
    "a transfer that never was": ([UPLOAD, 0, 3, 12345, FETCH, 5, 3], False),
    "a start far outside": ([INDEX, 0, 3, 1, 2**63, -(2**63), FETCH, 5, 3], False),
    "an endless power": ([POW, 0, 3, 1, 2**62, FETCH, 5, 3], False),
    "the same request twice": ([FETCH, 5, 1, FETCH, 5, 2], False),
    "a huge request": ([FETCH, 2**64 - 1, 1, FETCH, -(2**63), 1], False),
    "reset to a float": ([RESET, -1e308, ADD, 0, 3, 1, 1], False),
    "nothing": ([], False),
}


@pytest.mark.parametrize("workers", [1, 0])
@pytest.mark.parametrize("what", STREAMS)
def test_streams(what: str, workers: int) -> None:
    stream, costs = STREAMS[what]
    scene = Scene()
    logs = [log(scene.cluster.dispatcher, [].append) for log in (InstructionLog, DebugLog)]
    if not workers:  # queued instructions are checked too
        name = next(iter(scene.cluster.workers))
        scene.cluster.kill_worker(name)
        scene.cluster.settle()
    scene.submit(*BASE, *stream)
    scene.cluster.settle()
    for log in logs:
        log.received(scene.evil, Submit(1, DEFINITIONS, [*BASE, *stream], 0))
    if not workers:
        for _ in range(4):
            scene.cluster.tick()
        scene.cluster.add_worker()
        scene.cluster.settle()
        assert len(scene.cluster.dispatcher.workers) == 1
        assert scene.refused or not costs
        return
    scene.check(refused=costs)
    if not scene.refused:
        scene.submit(FULL, 0, 9, 1.0, FETCH, 99, 9)
        scene.check(refused=False)


def test_ids_belong_to_one_client() -> None:
    """The honest client's tensor has the number 1 too: it cannot be named, read, freed or written from outside."""
    scene = Scene()
    assert scene.kept._cell.id == 1
    for stream in ([FETCH, 5, 1], [-1], [ADD, 0, 2, 1, 1], [ADD_INTO, 0, 1, 1, 1]):
        scene.submit(*stream)
        scene.check(refused=True)
        scene.rejoin()


@pytest.mark.parametrize(
    "message",
    [
        Done(1, 1, 1),
        FailureReport(1, 1, "RemoteError", "boo", 0),
        Reply(1, 1),
        Hello("worker", PROTOCOL, VERSION, "", 1),
        Submit(5, [], [], 0),
        Submit(1, [], [], -1),
        Submit(1, [], [-1] * 70_000, 70_000),
        Submit(1, [definition(FULL, SIGNATURES[ADD])] * 2, [], 1000),
        Submit(1, [Definition(3, "add", [], [])], [], 1000),
        Submit(1, [Definition(99, "no op", [], [])], [], 1000),
        b"",
        b"\xc0",
        b"\xff" * 100,
        encode(Bye())[:-1],
    ],
    ids=lambda m: str(m)[:40],
)
def test_messages_out_of_place(message: Any) -> None:
    scene = Scene()
    scene.post(message)
    scene.check(refused=True)


def test_a_definition_that_changes_its_meaning() -> None:
    """The worker would parse the queue with one width and the dispatcher with another."""
    scene = Scene()
    scene.submit(*BASE, ADD, 0, 3, 1, 1)
    scene.submit(definitions=[definition(ADD, SIGNATURES[SPLIT])])
    scene.check(refused=True)


def test_shapes_without_end_cost_no_time() -> None:
    scene = Scene()
    for shape in ([2**62] * 16_000, [2**63] * 1000, [1] * 100_000):
        scene.submit(
            definitions=[Definition(FULL, "full", [("shape", shape), ("dtype", "float32")], [("float", None)])]
        )
        scene.check(refused=True)
        scene.rejoin()


# -- chunks ------------------------------------------------------------------------------------


def lane() -> Iterator[SharedRing]:
    ring = SharedRing(1 << 12)
    yield ring
    ring.close()


a_lane = pytest.fixture(lane, name="lane")

PARTS: dict[str, tuple[list[tuple[Any, ...]], bool]] = {
    "a negative total": ([(Chunk(1, 0, 4, -1), b"1234")], False),
    "a huge total": ([(Chunk(1, 0, 4, 2**63), b"1234")], False),
    "the largest total": ([(Chunk(1, 0, 4, 2**64 - 1), b"1234")], False),
    "a total of nothing": ([(Chunk(1, 0, 0, 0), b"")], False),
    "more than the total": ([(Chunk(1, 0, 8, 4), b"12345678")], False),
    "an offset in the middle": ([(Chunk(1, 4, 4, 16), b"1234")], False),
    "a negative offset": ([(Chunk(1, -4, 4, 16), b"1234")], False),
    "a huge offset": ([(Chunk(1, 2**64 - 1, 4, 16), b"1234")], False),
    "the same part twice": ([(Chunk(1, 0, 8, 16), b"12345678")] * 3, False),
    "overlapping parts": ([(Chunk(1, 0, 8, 16), b"12345678"), (Chunk(1, 4, 8, 16), b"12345678")], False),
    "another total each time": ([(Chunk(1, 0, 8, 16), b"12345678"), (Chunk(1, 8, 8, 99), b"12345678")], False),
    "a part more": ([(Chunk(1, 0, 16, 16), b"x" * 16), (Chunk(1, 16, 1, 16), b"x")], False),
    "a negative transfer": ([(Chunk(-1, 0, 4, 4), b"1234")], False),
    "a client's number that is another's": ([(Chunk(1, 0, 4, 4, None, 1), b"1234")], False),
    "no bytes": ([(Chunk(1, 0, 4, 4),)], True),
    "too few bytes": ([(Chunk(1, 0, 4, 4), b"123")], True),
    "two frames": ([(Chunk(1, 0, 4, 4), b"1234", b"1234")], True),
    "a negative size": ([(Chunk(1, 0, -4, 4), b"")], True),
    "a place and bytes": ([(Chunk(1, 0, 4, 4, SharedRange(1, 1, "x", 1, 1)), b"1234")], True),
    "a place that is none": ([(Chunk(1, 0, 4, 4, SharedRange(1, 1, "x", 1, 1)),)], False),
    "a place of nobody": ([(Chunk(1, 0, 4, 4, SharedRange(-1, -1, "", -1, -1)),)], False),
    "a place of the largest numbers": (
        [(Chunk(1, 0, 4, 4, SharedRange(2**64 - 1, 2**64 - 1, "\0", 2**63, 2**63)),)],
        False,
    ),
    "parts of nothing taken": ([(ChunkTaken(1, 4),), (ChunkTaken(-1, -4),), (ChunkTaken(2**63, 2**63, 1),)], False),
}


@pytest.mark.parametrize("what", PARTS)
def test_parts(what: str) -> None:
    scene = Scene()
    frames, costs = PARTS[what]
    scene.submit(*BASE)
    for message, *rest in frames:
        scene.post(message, *rest)
    scene.check(refused=costs)
    if not costs:
        scene.submit(UPLOAD, 0, 3, 1, FETCH, 5, 3, UPLOAD, 0, 4, -1, FETCH, 6, 4)
        scene.check(refused=False)


@pytest.mark.parametrize("at", [-1, 4093, 4096, 2**63])
def test_a_place_outside_its_lane(lane: SharedRing, at: int) -> None:
    scene = Scene()
    place = lane.put(memoryview(b"1234"))
    scene.post(Chunk(1, 0, 4, 16, msgspec.structs.replace(place, offset=at)))
    scene.submit(UPLOAD, 0, 3, 1, FETCH, 5, 3)
    scene.check(refused=False)


def test_the_end_of_a_client_with_a_broken_transfer(lane: SharedRing) -> None:
    """What is kept of the failure must not hold on to the lane, which goes with its client."""
    scene = Scene()
    place = lane.put(memoryview(b"1234"))
    scene.post(Chunk(1, 0, 4, 16, place))
    scene.post(Chunk(1, 9, 4, 16, place))
    scene.check(refused=False)
    (worker,) = scene.cluster.workers.values()
    (broken,) = [space.transfers[1] for space in worker.spaces.values() if space.transfers]
    assert broken.__traceback__ is None
    scene.post(Bye())
    scene.check()
    assert not worker.uploads.rings._open
    assert list(worker.spaces) == [scene.honest.id]


def test_a_lane_cannot_be_read_by_another_client(lane: SharedRing) -> None:
    """The honest client's memory, by its process and descriptor: without its name it cannot be opened."""
    scene = Scene()
    place = lane.put(memoryview(b"our secret value"))
    wrong = msgspec.structs.replace(place, name="gt-" + "0" * 32)
    scene.post(Chunk(1, 0, 16, 16, wrong))
    scene.submit(UPLOAD, 0, 3, 1, FETCH, 5, 3)
    (worker,) = scene.cluster.workers.values()
    scene.cluster.settle()
    space = next(space for client, space in worker.spaces.items() if client != scene.honest.id)
    assert "the value did not arrive" in space.store[3].text or "is not the shared memory" in space.store[3].text


def test_parts_confirmed_that_were_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large value goes out; its reader confirms too much, too little, negative and other people's parts."""
    for name, value in (
        ("CHUNK_BYTES", 1 << 12),
        ("MAX_UNACKNOWLEDGED_BYTES", 1 << 14),
        ("SHARED_CHUNK_BYTES", 1 << 13),
        ("SHARED_RING_BYTES", 1 << 15),
    ):
        monkeypatch.setattr(transfers, name, value)
    big = sign(OPS["full"], (("shape", (50_000,)), ("dtype", "float32")), (FLOAT,))
    for seed in range(20):
        rng = random.Random(seed)
        scene = Scene(seed)
        scene.submit(99, 0, 1, 1.0, FETCH, 5, 1, 99, 0, 2, 1.0, FETCH, 6, 2, definitions=[definition(99, big)])
        for _ in range(60):
            scene.post(ChunkTaken(rng.choice((5, 6, 7, -1)), rng.choice((0, 4096, -4096, 2**63)), rng.choice((0, 1))))
        scene.check(refused=False)
        scene.post(Bye())
        scene.check()


# -- mutations of real traffic -----------------------------------------------------------------

NASTY = [
    *(0, 1, 2, 3, 15, 16, 17, 18, 30, -1, -2, -16, 2**31, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1.0, 16.0, 1.5, 1e308, float("inf"), float("-inf"), float("nan"), True, False),
    *(b"", b"\0", b"x" * 100),
]
NASTY_ATTRIBUTES = [
    None,
    -1,
    2**62,
    "x",
    "float32",
    [],
    [0],
    [-1, 2**62],
    [[0]],
    {"a": 1},
    b"x",
    1.5,
    True,
    [2**40] * 9,
]


def recorded(seed: int) -> list[list[Any]]:
    """The frames of a real client: a random program over the op table, with large values both ways."""
    cluster = Cluster(1, seed, "numpy")
    session = cluster.add_client()
    frames: list[list[Any]] = []
    send = session.connection.link.send
    session.connection.link.send = lambda sent: (frames.append(list(sent)), send(sent))[1]
    program = Program(session, random.Random(seed), "numpy")
    for i in range(50):
        program.act()
        if i % 20 == 10:
            program.send_large(80_000)
            program.read(program.slots[-1])
    with use(session):
        x = gt.arange(4)
        for i in range(3 + seed % 3):  # repeated words are sent as a fragment
            y = gt.tensor([i, 2, 3, 4]) * 2 + x
            x = x + y
            x += i
            x.numpy()
    return frames


class Mutations:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def mutate(self, frames: list[Any]) -> list[Any]:
        """Change one element, anywhere."""
        head, *rest = frames
        if self.rng.random() < 0.3:
            return [self._bytes(bytes(head)), *rest]
        message = msgspec.msgpack.decode(head)
        if message[0] == "Submit" and self.rng.random() < 0.9:
            return [msgspec.msgpack.encode(self._submission(message)), *rest]
        at = self.rng.randrange(len(message))
        message[at] = self.rng.choice(NASTY + NASTY_ATTRIBUTES)
        if message[0] == "Chunk" and isinstance(message[5], list) and len(message[5]) == 5:
            message[5][self.rng.randrange(5)] = self.rng.choice(NASTY)
        return [msgspec.msgpack.encode(message), *rest]

    def _bytes(self, data: bytes) -> bytes:
        mutated = bytearray(data)
        match self.rng.randrange(4):
            case 0:
                del mutated[self.rng.randrange(len(mutated)) :]
            case 1:
                mutated.insert(self.rng.randrange(len(mutated)), self.rng.randrange(256))
            case _:
                for _ in range(self.rng.randint(1, 3)):
                    mutated[self.rng.randrange(len(mutated))] = self.rng.randrange(256)
        return bytes(mutated)

    def _submission(self, message: list[Any]) -> list[Any]:
        _, _, definitions, stream, _, fragments = message
        if fragments and self.rng.random() < 0.5:
            self._fragment(self.rng.choice(fragments))
        elif definitions and self.rng.random() < 0.3:
            self._definition(self.rng.choice(definitions))
        elif stream:
            self._stream(stream)
        message[4] = max(message[4], len(stream))
        return message

    def _fragment(self, fragment: list[Any]) -> None:
        if self.rng.random() < 0.4:
            fragment[self.rng.randrange(5)] = self.rng.choice((0, 1, fragment[1] + 1, 2**31, 2**40, -1, "x", [1]))
        else:
            self._stream(fragment[4])

    def _definition(self, definition: list[Any]) -> None:
        attrs, ins = definition[2], definition[3]
        match self.rng.randrange(5):
            case 0:
                definition[0] = self.rng.choice((16, 17, definition[0] + 1, -1, 3, 2**63))
            case 1:
                definition[1] = self.rng.choice((*OPS, "mud"))
            case 2 if attrs:
                self.rng.choice(attrs)[1] = self.rng.choice(NASTY_ATTRIBUTES)
            case 3 if ins:
                self.rng.choice(ins)[:] = self.rng.choice(
                    (["float32", [2, 3]], ["int", None], ["bool", [0]], ["bytes", None])
                )
            case _:
                definition[4] = not definition[4]

    def _stream(self, stream: list[Any]) -> None:
        at = self.rng.randrange(len(stream))
        match self.rng.randrange(6):
            case 0:
                del stream[at]
            case 1:
                stream.insert(at, self.rng.choice(NASTY))
            case 2:
                del stream[at:]
            case 3:
                stream[at], stream[0] = stream[0], stream[at]
            case _:
                stream[at] = self.rng.choice((*NASTY, self.rng.choice(stream)))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_mutations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real traffic with one change in a hundred places, each tried on a server that another client is using."""
    for name, value in (
        ("CHUNK_BYTES", 1 << 13),
        ("MAX_UNACKNOWLEDGED_BYTES", 1 << 15),
        ("SHARED_CHUNK_BYTES", 1 << 14),
        ("SHARED_RING_BYTES", 1 << 16),
    ):
        monkeypatch.setattr(transfers, name, value)
    rng = random.Random(seed)
    frames, mutations = recorded(seed), Mutations(rng)
    scene = Scene(seed)
    tried = 0
    while tried < 100:
        for sent in frames:
            if rng.random() < 0.1:
                tried += 1
                sent = mutations.mutate(sent)
            for _ in range(1 + (rng.random() < 0.02)):
                scene.post(*sent)
            for _ in range(rng.randrange(4)):
                scene.cluster.step()
            if rng.random() < 0.05:
                scene.post(Ask(1))
            if rng.random() < 0.02:
                scene.post(Trace(rng.randrange(3), rng.random() < 0.5))
            if scene.refused:
                break
        scene.check()
        if not scene.refused:
            scene.post(Bye())
            scene.check()
        scene.rejoin()
