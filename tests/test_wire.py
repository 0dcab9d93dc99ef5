"""The wire: every message comes through as it was, and nothing else comes through at all."""

from __future__ import annotations

import os
import struct
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gt.errors import ShapeError
from gt.ops import OPS, sign
from gt.types import BYTES, DTYPES, TensorType
from gt.wire import event_messages, link_messages, messages, recovery_messages, transfers
from gt.wire.codec import MAX_ATTRIBUTE_DEPTH, BadFrame, Decode, bytes_weight, definition, encode, signature_of
from gt.wire.messages import Submit, ToClient, ToDispatcher, ToWorker
from gt.wire.shared import SharedRing, SharedRings
from gt.wire.structures import Definition, SharedRange
from gt.wire.transfers import Channel, Incoming, Outgoing
from gt.wire.words import FIRST_CODE, MAX_INSTRUCTION_WORDS
from tests.support.samples import samples, type_of

ROLES = {"dispatcher": ToDispatcher, "client": ToClient, "worker": ToWorker}
DECODE = {role: Decode(role) for role in ROLES}

# -- strategies, from the types of the messages themselves -----------------------------------

INTS = st.integers(-(2**63), 2**64 - 1)
#: what an attribute may hold; the wire itself knows no tuples
PLAIN = st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=9)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=40),
    type(None): st.none(),
    Any: st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([strategy(a) for a in args])
    if origin is list:
        return st.lists(strategy(args[0]), max_size=5)
    if origin is dict:
        return st.dictionaries(strategy(args[0]), strategy(args[1]), max_size=3)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(strategy(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy, args))
    assert issubclass(hint, msgspec.Struct), hint
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{name: strategy(hints[name]) for name in hint.__struct_fields__})


MESSAGES = {role: typing.get_args(union) for role, union in ROLES.items()}
any_message = st.one_of([strategy(kind) for kind in {k for kinds in MESSAGES.values() for k in kinds}])


def test_every_message_has_a_receiving_role() -> None:
    declared = {
        kind
        for module in (messages, event_messages, link_messages, recovery_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    assert declared == {kind for kinds in MESSAGES.values() for kind in kinds}


@pytest.mark.parametrize(("role", "kind"), [(r, k) for r, kinds in MESSAGES.items() for k in kinds])
def test_round_trip(role: str, kind: type) -> None:
    @settings(max_examples=30, deadline=None)
    @given(strategy(kind))
    def check(message: Any) -> None:
        back = DECODE[role](encode(message))
        assert back == message
        assert type(back) is kind
        assert encode(back) == encode(message)  # == takes 1 and True for the same

    check()


@settings(max_examples=400, deadline=None)
@given(any_message)
def test_a_role_reads_its_own_messages_only(message: Any) -> None:
    for role, kinds in MESSAGES.items():
        if type(message) in kinds:
            assert DECODE[role](encode(message)) == message
        else:
            with pytest.raises(BadFrame):
                DECODE[role](encode(message))


# -- what is no message ----------------------------------------------------------------------


def decodes_or_is_bad(data: bytes) -> None:
    for decode in DECODE.values():
        try:
            message = decode(data)
        except BadFrame:
            continue
        assert isinstance(message, messages.Message)


@settings(max_examples=1500, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    decodes_or_is_bad(data)


@settings(max_examples=1000, deadline=None)
@given(any_message, st.data())
def test_truncated_and_mutated_messages(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    decodes_or_is_bad(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    for _ in range(3):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        decodes_or_is_bad(bytes(frame))
    decodes_or_is_bad(bytes(frame) + data.draw(st.binary(max_size=9)))


def wrapped(value: bytes) -> bytes:
    """A submission with one definition with one attribute of this value, in msgpack's own words."""
    attrs = b"\x91\x92\xa1x" + value
    return b"\x95\xa6Submit\x01\x91\x95\x10\xa3add" + attrs + b"\x90\xc2" + b"\x90\x00"


@pytest.mark.parametrize("depth", [1, MAX_ATTRIBUTE_DEPTH, MAX_ATTRIBUTE_DEPTH + 1, 500, 10_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k", b"\x81"])
def test_nesting(opening: bytes, depth: int) -> None:
    try:
        message = DECODE["dispatcher"](wrapped(opening * depth + b"\xc0"))
    except BadFrame:
        assert depth >= 500 or opening != b"\x91"
        return
    with pytest.raises(BadFrame):
        signature_of(message.definitions[0])


@pytest.mark.parametrize(
    "value",
    [
        b"\xc7\x0c\xff" + struct.pack(">Iq", 0, 2**62),  # a timestamp after the end of time
        b"\xd7\xff" + b"\xff" * 8,
        b"\xd6\xff" + b"\x00" * 4,
        b"\xd4\x05\x00",  # an extension type
        b"\x81\x80\xc0",  # a map with a map for a key
        b"\x81\x91\x01\xc0",
        b"\xa4\xff\xfe\xfd\xfc",  # text that is none
        b"\xdd\xff\xff\xff\xff",  # four billion elements
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_odd_values_of_msgpack(value: bytes) -> None:
    try:
        message = DECODE["dispatcher"](wrapped(value))
    except BadFrame:
        return
    with pytest.raises(BadFrame):
        signature_of(message.definitions[0])


# -- definitions -----------------------------------------------------------------------------

F32 = ("float32", (2, 3))


def defined(op: str, *ins: Any, code: int = FIRST_CODE, into: bool = False, **attrs: Any) -> Definition:
    definition = Definition(code, op, list(attrs.items()), list(ins), into)
    return DECODE["dispatcher"](encode(Submit(1, [definition], [], 0))).definitions[0]


def deep(depth: int) -> list[Any]:
    return [] if not depth else [deep(depth - 1)]


NONSENSE = {
    "unknown op": defined("mud", F32, F32),
    "no name": defined(""),
    "a name that is a path": defined("__class__", F32),
    "a control word for a code": defined("add", F32, F32, code=FIRST_CODE - 1),
    "a negative code": defined("add", F32, F32, code=-5),
    "an unknown dtype": defined("neg", ("float33", (2,))),
    "an unknown scalar": defined("neg", ("str", None)),
    "a negative size": defined("neg", ("float32", (2, -1))),
    "a size too many": defined("neg", ("float32", (1,) * 65)),
    "shapes that do not meet": defined("add", F32, ("float32", (5,))),
    "too few operands": defined("add"),
    "an attribute too many": defined("matmul", F32, ("float32", (3, 2)), colour="red"),
    "an attribute too few": defined("sum", F32),
    "a dict": defined("sum", F32, dim={"a": 1}, keepdim=False, dtype=None),
    "bytes": defined("sum", F32, dim=b"\0", keepdim=False, dtype=None),
    "a text for a number": defined("sum", F32, dim=["a"], keepdim=False, dtype=None),
    "a number for a list": defined("sum", F32, dim=3, keepdim=False, dtype=None),
    "a list for a number": defined("cumsum", F32, dim=[0]),
    "too deep": defined("sum", F32, dim=deep(MAX_ATTRIBUTE_DEPTH + 1), keepdim=False, dtype=None),
    "far too many attributes": defined(
        "full", ("float", None), shape=[2**62] * (MAX_INSTRUCTION_WORDS + 1), dtype="float32"
    ),
    "far too many dims": defined("full", ("float", None), shape=[2**62] * 1000, dtype="float32"),
    "more than any memory": defined("full", ("float", None), shape=[2**62, 2**62], dtype="float32"),
    "more and more": defined("expand", ("uint8", (1,)), shape=[2**62] * 60),
    "in place on a number": defined("add", ("float", None), F32, into=True),
    "in place, and larger": defined("add", ("float32", (3,)), F32, into=True),
    "in place, and another kind": defined("add", ("int64", (2, 3)), F32, into=True),
    "in place, of nothing": defined("full", ("float", None), shape=[2], dtype="float32", into=True),
    "numbers alone": defined("pow", ("int", None), ("int", None)),
    "a huge text": defined("sum", F32, dim=[0], keepdim=False, dtype="x" * 300_000),
    "a view that is none": defined("put_view", F32, F32, chain=[["add", []]]),
    "a view of an unknown op": defined("put_view", F32, F32, chain=[["mud", []]]),
    "a chain of nothing": defined("put_view", F32, F32, chain=[[]]),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_defines_nothing(what: str) -> None:
    with pytest.raises(BadFrame) as error:
        signature_of(NONSENSE[what])
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("sample", samples()[::7], ids=str)
def test_every_signature_survives_the_wire(sample: Any) -> None:
    operands = sample.make()
    ins = tuple(BYTES if isinstance(x, bytes) else type_of(x) for x in operands)
    signature = sign(OPS[sample.op], tuple(sample.attrs.items()), ins)
    sent = definition(FIRST_CODE, signature)
    back = signature_of(DECODE["dispatcher"](encode(Submit(1, [sent], [], 0))).definitions[0])
    assert (back.op, back.attrs, back.ins, back.outs, back.into) == (
        signature.op,
        signature.attrs,
        signature.ins,
        signature.outs,
        signature.into,
    )


any_wire_type = st.tuples(
    st.sampled_from([*DTYPES, "int", "float", "bool", "bytes", "x"]),
    st.none() | st.lists(st.integers(0, 3) | INTS, max_size=3).map(tuple),
)
ATTRIBUTES = sorted({name for s in samples() for name in s.attrs})


@settings(max_examples=2500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(OPS)),
    st.dictionaries(st.sampled_from(ATTRIBUTES), strategy(Any) | st.lists(st.integers(-3, 3), max_size=3), max_size=3),
    st.lists(any_wire_type, max_size=3),
    st.booleans(),
)
def test_any_definition_is_a_signature_or_bad(op: str, attrs: dict[str, Any], ins: list[Any], into: bool) -> None:
    wire_definition = defined(op, *ins, into=into, **attrs)
    try:
        signature = signature_of(wire_definition)
    except BadFrame:
        return
    assert definition(FIRST_CODE, signature)


@pytest.mark.parametrize(
    ("words", "weight"),
    [([], 0), ([5, -3, 2.5, True, float("inf"), -(2**63)], 0), ([b""], 0), ([7, b"x" * 80, 1.0, b"y" * 17], 12)],
)
def test_bytes_weigh_by_their_length(words: list[Any], weight: int) -> None:
    assert bytes_weight(words) == weight


def test_an_instruction_too_wide_for_the_dispatcher_fails_in_the_client() -> None:
    x = TensorType((MAX_INSTRUCTION_WORDS,))
    wide = sign(OPS["split"], (("sizes", (1,) * MAX_INSTRUCTION_WORDS), ("dim", 0)), (x,))
    with pytest.raises(ShapeError, match="do it in several"):
        definition(FIRST_CODE, wide)


# -- shared memory ---------------------------------------------------------------------------

SIZE = 256


class Model:
    """The ring as a list of bytes; each byte belongs to one chunk or to none."""

    def __init__(self, limit: int = SIZE) -> None:
        self.ring, self.reader, self.limit = SharedRing(SIZE, limit), SharedRings(), limit
        self.pending: list[tuple[SharedRange, bytes]] = []
        self.count = 0

    def put(self, nbytes: int) -> None:
        self.count += 1
        data = bytes((self.count + i) % 251 for i in range(nbytes))
        memory = self.ring.put(memoryview(data))
        if memory is None:
            assert nbytes > self.limit or self.pending, "an empty ring accepts every chunk that fits"
            assert nbytes > self.limit // 2 or self._used() + 2 * nbytes > self.limit // 2, "there was room"
            return
        taken = {i for p, d in self.pending for i in range(p.offset, p.offset + len(d))}
        assert not taken & set(range(memory.offset, memory.offset + nbytes)), "chunks overlap"
        assert 0 <= memory.offset <= memory.offset + nbytes <= self.limit
        self.pending.append((memory, data))

    def _used(self) -> int:
        return sum(len(data) for _, data in self.pending)

    def take(self) -> None:
        if self.pending:
            memory, data = self.pending.pop(0)
            assert bytes(self.reader.read(memory, len(data))) == data, "the oldest chunk has not changed"
            self.ring.release()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, SIZE + 3) | st.integers(1, 40) | st.none(), max_size=60))
def test_chunks_never_overlap(steps: list[int | None]) -> None:
    model = Model()
    for step in steps:
        model.take() if step is None else model.put(step)
    while model.pending:
        model.take()
    model.put(SIZE)
    assert model.pending, "an empty ring accepts every chunk that fits"
    model.take()
    model.ring.close()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 90) | st.none() | st.integers(-SIZE - 50, -1), max_size=60))
def test_a_ring_grows_at_any_time(steps: list[int | None]) -> None:
    """A negative number is a new size."""
    model = Model(limit=50)
    for step in steps:
        if step is None:
            model.take()
        elif step < 0:
            model.ring.grow(-step)
            model.limit = max(model.limit, min(-step, SIZE))
        else:
            model.put(step)
    while model.pending:
        model.take()
    model.put(model.limit)
    assert model.pending, "an empty ring accepts every chunk that fits"
    model.take()
    model.ring.close()


def test_a_full_ring_accepts_no_chunk() -> None:
    ring = SharedRing(100)
    assert ring.put(memoryview(bytes(101))) is None
    ranges = [ring.put(memoryview(bytes(25))) for _ in range(4)]
    assert [p and p.offset for p in ranges] == [0, 25, 50, 75]
    assert ring.put(memoryview(bytes(1))) is None
    ring.release()
    again = ring.put(memoryview(bytes(24)))
    assert again is not None
    assert again.offset == 0
    ring.close()


def test_a_ring_is_freed_with_its_last_user() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ring = SharedRing(1 << 16)
        memory = ring.put(memoryview(b"abc"))
        reader = SharedRings()
        view = reader.read(memory, 3)
        ring.close()
        assert bytes(view) == b"abc"  # a reader that has opened it can still read
        reader.forget(memory.name)
        assert bytes(view) == b"abc"
        with pytest.raises(OSError):
            reader.read(memory, 3)
        del ring, reader, view
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def memory() -> Any:
    ring = SharedRing(1 << 12)
    yield ring.put(memoryview(b"secret"))
    ring.close()


def replaced(memory: SharedRange, **fields: Any) -> SharedRange:
    return msgspec.structs.replace(memory, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": -1},
        {"offset": 1 << 12},
        {"offset": (1 << 12) - 5},
        {"offset": 2**63},
        {"size": 1 << 20},
        {"size": -1},
        {"size": 2**63},
        {"pid": 0},
        {"pid": -1},
        {"pid": 2**40},
        {"fd": -1},
        {"fd": 10**6},
        {"name": ""},
        {"name": "gt-00000000000000000000000000000000"},
        {"name": "gt\0"},
    ],
)
def test_an_invalid_range_is_refused(memory: SharedRange, fields: dict[str, Any]) -> None:
    with pytest.raises((OSError, ValueError, OverflowError)):
        SharedRings().read(replaced(memory, **fields), 6)


def test_a_ring_is_opened_by_its_name_only(memory: SharedRange) -> None:
    """Guessing a process and a descriptor opens nothing: no ring of another client, no file, no pipe."""
    reader = SharedRings()
    assert bytes(reader.read(memory, 6)) == b"secret"
    other = SharedRing(1 << 12)
    chunk = other.put(memoryview(b"mine"))
    with pytest.raises(ValueError, match="is not the shared memory"):
        SharedRings().read(replaced(chunk, fd=memory.fd), 4)
    read, write = os.pipe()
    os.close(write)  # opening it without O_NONBLOCK would block for ever
    shrinking = os.memfd_create("gt-shrinking")
    os.ftruncate(shrinking, 1 << 12)
    with open(__file__) as file:
        for fd in (read, file.fileno(), shrinking):
            with pytest.raises((OSError, ValueError)):
                SharedRings().read(replaced(chunk, fd=fd), 4)
    with pytest.raises(
        ValueError, match="not sealed against shrinking"
    ):  # its owner could remove memory while it is read
        SharedRings().read(replaced(chunk, fd=shrinking, name="gt-shrinking"), 4)
    os.close(read)
    os.close(shrinking)
    other.close()


def test_a_ring_cannot_shrink() -> None:
    ring = SharedRing(1 << 12)
    with pytest.raises(OSError):
        os.ftruncate(ring._fd, 0)
    ring.close()


# -- chunks ----------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CHUNK_BYTES", 10),
        ("MAX_UNACKNOWLEDGED_BYTES", 30),
        ("SHARED_CHUNK_BYTES", 40),
        ("SHARED_RING_BYTES", 100),
    ):
        monkeypatch.setattr(transfers, name, value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 250) | st.sampled_from([9, 10, 11, 30, 39, 40, 41, 100, 101]), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_all_bytes_arrive(short: None, sizes: list[int], shared: list[bool], rng: Any) -> None:
    """Several values, one after the other, some through memory and some in frames; acknowledged at random times."""
    channel, reader, wire = Channel(), SharedRings(), []
    for number, nbytes in enumerate(sizes):
        value = bytes(rng.randrange(256) for _ in range(nbytes))
        buffer = bytearray(nbytes)
        outgoing, incoming = Outgoing(number, memoryview(value), channel, shared[number]), Incoming(memoryview(buffer))
        while not (outgoing.all_sent and incoming.complete):
            for chunk in outgoing.ready():
                assert chunk.nbytes <= (40 if shared[number] else 10)
                wire.append((number, chunk, incoming))
            frames = sum(p.nbytes for _, p, _ in wire if p.memory is None)
            assert frames < 30 + 10
            for _ in range(rng.randint(1, len(wire))):
                whose, chunk, target = wire.pop(0)
                data = chunk.data if chunk.memory is None else reader.read(chunk.memory, chunk.nbytes)
                target.add(chunk.offset, data)
                channel.acknowledge(whose)
        assert bytes(buffer) == value
    channel.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 250), st.sampled_from([0, 60, 400]), st.booleans()), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_all_bytes_of_alternating_values_arrive(short: None, values: list[tuple[int, int, bool]], rng: Any) -> None:
    """Values with chunks of several sizes, sent in turns through one channel that grows."""
    channel, reader, wire = Channel(max_ring_bytes=300), SharedRings(), []
    sending = []
    for number, (nbytes, chunk_bytes, shared) in enumerate(values):
        value, buffer = rng.randbytes(nbytes), bytearray(nbytes)
        outgoing = Outgoing(number, memoryview(value), channel, shared, min(chunk_bytes, 100))
        sending.append((outgoing, Incoming(memoryview(buffer)), value, buffer))
    while wire or not all(outgoing.all_sent for outgoing, *_ in sending):
        outgoing, incoming, *_ = rng.choice(sending)
        chunk = next(outgoing.ready(), None)
        if chunk is not None:
            wire.append((outgoing.value, chunk, incoming))
        if wire and (chunk is None or rng.random() < 0.3):
            number, chunk, target = wire.pop(0)
            target.add(chunk.offset, chunk.data if chunk.memory is None else reader.read(chunk.memory, chunk.nbytes))
            channel.acknowledge(number)
    assert all(bytes(buffer) == value for _, _, value, buffer in sending)
    channel.close()


def test_two_of_the_largest_values_fit_wherever_the_first_begins(short: None) -> None:
    channel = Channel(max_ring_bytes=1000)
    for number in range(20):
        assert len(list(Outgoing(number, memoryview(bytes(200)), channel, True, 400).ready())) == 1
        if number:
            channel.acknowledge(number - 1)
    assert channel._ring is not None
    assert channel._ring._limit == 600
    channel.close()


def test_acknowledging_an_unknown_chunk_changes_nothing(short: None) -> None:
    channel = Channel()
    outgoing = Outgoing(7, memoryview(bytes(100)), channel, shared=False)
    assert len(list(outgoing.ready())) == 3
    for other in (0, -1, 8, 2**63):
        channel.acknowledge(other)
    assert list(outgoing.ready()) == []
    channel.acknowledge(7)
    assert len(list(outgoing.ready())) == 1
    for _ in range(50):
        channel.acknowledge(7)
    assert len(list(outgoing.ready())) == 3
    assert channel.acknowledged == 4


def test_a_chunk_that_was_never_sent_is_acknowledged_with_the_next_value(short: None) -> None:
    channel = Channel()
    lost = list(Outgoing(1, memoryview(bytes(80)), channel, shared=True).ready())  # an interrupt: none of them is sent
    assert len(lost) == 2
    outgoing = Outgoing(2, memoryview(bytes(20)), channel, shared=True)
    assert len(list(outgoing.ready())) == 1
    channel.acknowledge(2)
    assert channel.acknowledged == 3
    assert len(list(Outgoing(3, memoryview(bytes(80)), channel, shared=True).ready())) == 2
    channel.close()


@pytest.mark.parametrize(("offset", "nbytes"), [(1, 2), (-1, 2), (0, 11), (2**63, 1), (-(2**62), 0)])
def test_parts_come_in_order(offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="does not follow 0 of 10"):
        Incoming(memoryview(bytearray(10))).add(offset, memoryview(bytes(nbytes)))
