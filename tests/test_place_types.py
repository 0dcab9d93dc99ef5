"""A client that runs a signature on tensors of other types than declared. Kernels trust the declared types, so it must
lose its connection before a worker receives the instruction; no other client may lose anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt.ops import OPS, sign
from gt.types import BYTES, FLOAT, TensorType, bool_, float64
from gt.wire.codec import definition
from gt.wire.messages import Configure, Submit
from gt.wire.structures import Fragment, SignalSpec
from gt.wire.words import FETCH, FIRST_CODE, FIRST_DISPATCHER_ID, FORGET, RESET, RUN
from gt.worker.engines import make_engine
from tests.support.processes import System
from tests.test_abuse import Scene

pytestmark = pytest.mark.filterwarnings("ignore")

X, LONGER, DOUBLE, TURNED = TensorType((2, 3)), TensorType((4, 3)), TensorType((2, 3), float64), TensorType((3, 2))
(
    FULL,
    FULL_LONGER,
    ADD,
    ADD_INTO,
    RELU,
    CONCAT,
    SPLIT,
    SCALED,
    TRANSPOSE,
    ADD_TURNED,
    FULL_DOUBLE,
    UPLOAD,
    ADD_LONGER,
) = range(FIRST_CODE, FIRST_CODE + 13)


def full(t: TensorType) -> Any:
    return sign(OPS["full"], (("shape", t.shape), ("dtype", t.dtype.name)), (FLOAT,))


SIGNATURES = {
    FULL: full(X),
    FULL_LONGER: full(LONGER),
    FULL_DOUBLE: full(DOUBLE),
    ADD: sign(OPS["add"], (), (X, X)),
    ADD_INTO: sign(OPS["add"], (), (X, X), into=True),
    ADD_LONGER: sign(OPS["add"], (), (LONGER, LONGER)),
    ADD_TURNED: sign(OPS["add"], (), (TURNED, TURNED)),
    RELU: sign(OPS["relu"], (), (X,)),
    CONCAT: sign(OPS["cat"], (("dim", 0),), (X, X)),
    SPLIT: sign(OPS["split"], (("sizes", (1, 3)), ("dim", 0)), (LONGER,)),
    SCALED: sign(OPS["mul"], (), (X, FLOAT)),
    TRANSPOSE: sign(OPS["permute"], (("dims", (1, 0)),), (X,)),
    UPLOAD: sign(OPS["upload"], (("shape", (2, 3)), ("dtype", "float32")), (BYTES,)),
}
DEFINITIONS = [definition(code, signature) for code, signature in SIGNATURES.items()]

#: 1 and 2 are float32[2,3], 3 is float32[4,3], 4 is float64[2,3]
BASE = [FULL, 0, 1, 1.0, FULL, 0, 2, 2.0, FULL_LONGER, 0, 3, 3.0, FULL_DOUBLE, 0, 4, 4.0]

#: name -> words after BASE, and the reason the client receives
LIES: dict[str, tuple[list[Any], str]] = {
    "another shape": ([ADD, 0, 9, 1, 3], "was given a float32[4,3] as operand 1"),
    "another dtype": ([ADD, 0, 9, 4, 1], "was given a float64[2,3] as operand 0"),
    "one operand": ([RELU, 0, 9, 3], "relu(float32[2,3]) was given a float32[4,3] as operand 0"),
    "a number beside it": ([SCALED, 0, 9, 3, 2.0], "as operand 0"),
    "where the plan is known": ([ADD, 0, 9, 1, 2, ADD, 0, 10, 1, 2, ADD, 0, 11, 1, 3], "as operand 1"),
    "into it": ([ADD_INTO, 0, 3, 3, 1], "as operand 0"),
    "from it into another": ([ADD_INTO, 0, 1, 1, 3], "as operand 1"),
    "several results": ([SPLIT, 0, 9, 10, 1], "as operand 0"),
    "the second of several results": ([SPLIT, 0, 9, 10, 3, ADD, 0, 11, 9, 10], "float32[1,3]"),
    "what a view made": ([TRANSPOSE, 0, 9, 1, ADD, 0, 10, 9, 9], "float32[3,2]"),
    "an id that was another tensor's": ([-2, FULL_LONGER, 0, 2, 1.0, ADD, 0, 9, 1, 2], "as operand 1"),
    "an id that is made anew": ([ADD, 0, 9, 1, 2, FULL_LONGER, 0, 2, 1.0, ADD, 0, 10, 1, 2], "as operand 1"),
    "a result over an operand": ([TRANSPOSE, 0, 1, 1, RELU, 0, 9, 1], "float32[3,2]"),
    "what was written in place": ([ADD_INTO, 0, 1, 1, 2, ADD_TURNED, 0, 9, 1, 1], "float32[2,3]"),
    "what was uploaded": ([UPLOAD, 0, 9, bytes(24), ADD_LONGER, 0, 10, 9, 9], "float32[2,3]"),
    "what failed": ([UPLOAD, 0, 9, bytes(4), ADD_LONGER, 0, 10, 9, 9], "float32[2,3]"),
    "two results of one id": ([SPLIT, 0, 9, 9, 3], "two results have the same id"),
    "an id of the dispatcher's": ([ADD, 0, FIRST_DISPATCHER_ID, 1, 2], "is not an id that a client may use"),
    "the same as a float": ([ADD, 0, float(FIRST_DISPATCHER_ID + 1), 1, 2], "is not an id that a client may use"),
    "the same beside a number": ([SCALED, 0, FIRST_DISPATCHER_ID + 5, 1, 2.0], "is not an id that a client may use"),
    "the same of several": ([SPLIT, 0, 9, FIRST_DISPATCHER_ID + 5, 3], "is not an id that a client may use"),
    "a number of another kind": ([SCALED, 0, 9, 1, 2], "was given '2' where it takes a float"),
    "bytes for a number": ([SCALED, 0, 9, 1, b"12"], "where it takes a float"),
    "a copy that is none": ([FETCH, 5, FIRST_DISPATCHER_ID + 1], "the stream is malformed: KeyError"),
}


def close_reason(scene: Scene) -> str:
    return str(scene.cluster.closed[scene.evil])


@pytest.mark.parametrize("signal", ["", "rows"])
@pytest.mark.parametrize("what", LIES)
def test_operands_of_another_type(what: str, signal: str) -> None:
    """On one worker, and sharded over two: nothing is sent to a worker, and the reason names the operands."""
    stream, reason = LIES[what]
    scene = Scene(workers=2)
    if signal:
        scene.post(Configure([SignalSpec("rows", [0, 1], [], [(0, "")], False, None, True, False)], False, 100))
    definitions = [definition(code, signature, signal) for code, signature in SIGNATURES.items()]
    scene.submit(*BASE, *stream, definitions=definitions)
    scene.check(refused=True)
    assert reason in close_reason(scene)


def test_honest_streams_make_no_more_plans() -> None:
    scene = Scene()
    scene.submit(*BASE, *[word for k in range(50) for word in (ADD, 0, 20 + k, 1, 2)], definitions=DEFINITIONS)
    scene.check(refused=False)
    client = scene.cluster.dispatcher.by_peer[scene.evil]
    assert len([key for key in client.plans if key[0] == ADD]) == 1


# -- between other messages ------------------------------------------------------------------


def test_a_code_does_not_come_back_after_a_reset() -> None:
    """A worker may still have queued words that use the first definition."""
    scene = Scene()
    scene.submit(*BASE, RESET, 1000, definitions=DEFINITIONS)
    scene.cluster.settle()
    scene.submit(ADD, 0, 9, 3, 3, definitions=[definition(ADD, SIGNATURES[ADD_LONGER])])
    scene.check(refused=True)
    assert "defined twice" in close_reason(scene)


def test_types_outlive_a_reset_and_a_configuration() -> None:
    scene = Scene()
    scene.submit(*BASE, RESET, 1000, definitions=DEFINITIONS)
    scene.cluster.settle()
    scene.post(Configure([], False, 100))
    scene.submit(1001, 0, 9, 1, 3, definitions=[definition(1001, SIGNATURES[ADD])])
    scene.check(refused=True)
    assert "was given a float32[4,3] as operand 1" in close_reason(scene)


def test_types_outlive_a_worker() -> None:
    """New plans are made for the remaining workers, and are checked again."""
    scene = Scene(workers=2)
    core = scene.cluster.dispatcher
    scene.submit(*BASE, ADD, 0, 9, 1, 2, definitions=DEFINITIONS)
    scene.cluster.settle()
    home = core.by_peer[scene.evil].home
    scene.cluster.kill_worker(next(name for name, worker in scene.cluster.workers.items() if worker.id != home))
    scene.cluster.settle()
    scene.submit(ADD, 0, 10, 1, 2, ADD, 0, 11, 3, 1)
    scene.cluster.settle()
    assert "was given a float32[4,3] as operand 0" in close_reason(scene)


# -- fragments -------------------------------------------------------------------------------


def fragment(number: int, inputs: int, results: int, *words: int) -> Fragment:
    return Fragment(number, inputs, results, 0, list(words))


#: y = a + b; z = relu(y); free y
PAIR = fragment(1, 2, 2, ADD, 0, 2, 0, 1, RELU, 0, 3, 2, -3)
#: the first input is replaced by a tensor of another type
REPLACED = fragment(2, 2, 1, TRANSPOSE, 0, 0, 0, RELU, 0, 2, 1)
#: an upload divides it: the results of the first section are in the store when the second begins
DIVIDED = fragment(3, 1, 3, TRANSPOSE, 0, 1, 0, UPLOAD, 0, 2, 0, RELU, 0, 3, 0)

#: a number operand
TIMES = fragment(4, 1, 1, SCALED, 0, 1, 0, 0)


def run(number: int, base: int, *rest: Any) -> list[Any]:
    return [RUN, number, 0, base, 0, *rest]


KNOWN = [word for k in range(3) for word in run(1, 100 + 10 * k, 1, 2)]
SENT = bytes(24)

#: name -> words after BASE, and the reason the client receives
FRAGMENTS: dict[str, tuple[list[Any], str]] = {
    "the first run": (run(1, 100, 1, 3), "was given a float32[4,3] as operand 1"),
    "where its course is known": ([*KNOWN, *run(1, 200, 1, 3)], "was given a float32[4,3] as operand 1"),
    "a result": ([*KNOWN, ADD_LONGER, 0, 9, 101, 101], "was given a float32[2,3] as operand 0"),
    "what it replaced": ([*run(2, 100, 1, 2), RELU, 0, 9, 1], "was given a float32[3,2]"),
    "what it replaced, known": (
        [*run(2, 100, 1, 2), FULL, 0, 5, 1.0, *run(2, 110, 5, 2), RELU, 0, 9, 5],
        "was given a float32[3,2]",
    ),
    "the same tensor twice": (run(2, 100, 1, 1), "the same tensor twice"),
    "the same tensor twice, known": (
        [*run(2, 100, 1, 2), FULL, 0, 5, 1.0, *run(2, 110, 5, 5)],
        "the same tensor twice",
    ),
    "what it makes itself": (
        [*run(3, 100, 1, SENT), *run(3, 110, 1, SENT), FULL, 0, 120, 1.0, *run(3, 120, 120, SENT)],
        "creates is also one of its inputs",
    ),
    "a number of another kind": (run(4, 100, 1, 2), "was given '2' where it takes a float"),
    "a number of another kind, known": (
        [*run(4, 100, 1, 2.0), *run(4, 110, 1, 2.0), *run(4, 120, 1, True)],
        "was given 'True' where it takes a float",
    ),
    "a base of the dispatcher's": (run(1, FIRST_DISPATCHER_ID, 1, 2), "may not run a fragment from this base"),
}


@pytest.mark.parametrize("what", FRAGMENTS)
def test_fragments_on_other_types(what: str) -> None:
    stream, reason = FRAGMENTS[what]
    scene = Scene()
    scene.serial = 1
    scene.post(
        Submit(1, DEFINITIONS, [*BASE, *stream], len(BASE) + len(stream) + 5000, [PAIR, REPLACED, DIVIDED, TIMES])
    )
    scene.check(refused=True)
    assert reason in close_reason(scene)


def test_a_fragment_s_number_does_not_come_back() -> None:
    scene = Scene()
    scene.serial = 2
    scene.post(Submit(1, DEFINITIONS, [*BASE, *KNOWN, FORGET, 1], 5000, [PAIR]))
    scene.cluster.settle()
    scene.post(Submit(2, [], run(1, 300, 3), 1000, [fragment(1, 1, 1, ADD_LONGER, 0, 1, 0, 0)]))
    scene.check(refused=True)
    assert "announced twice" in close_reason(scene)


# -- copies ----------------------------------------------------------------------------------


def test_copies_of_a_tensor_whose_id_is_reused() -> None:
    """Without its original tensor a copy is useless, above all for a tensor of another type."""
    scene = Scene(workers=2)
    specs = [SignalSpec(name, [k], [], [], True, None, True, False) for k, name in enumerate(("a", "b"))]
    scene.post(Configure(specs, False, 1000))
    under = {
        50: (full(X), "a"), 51: (full(X), "b"), 52: (SIGNATURES[ADD], "b"), 53: (full(LONGER), "a"),
        54: (full(LONGER), "b"), 55: (SIGNATURES[ADD_LONGER], "b"),
    }  # fmt: skip
    definitions = [definition(code, *of) for code, of in under.items()]
    scene.submit(50, 0, 1, 1.0, 51, 0, 2, 1.0, 52, 0, 3, 1, 2, definitions=definitions)
    scene.cluster.settle()
    client = scene.cluster.dispatcher.by_peer[scene.evil]
    assert client.copies[1]
    scene.cluster.after_step = None  # the records of the old tensor's copies are cleaned up at the next move
    scene.submit(53, 0, 1, 2.0, 54, 0, 4, 5.0, 55, 0, 5, 1, 4)
    scene.check(refused=False)
    (worker,) = [w for w in scene.cluster.workers.values() if w.id == 1]
    space = next(space for owner, space in worker.spaces.items() if owner == client.id)
    assert space.store[5].shape == (4, 3)
    assert space.store[5].tolist() == [[7.0] * 3] * 4
    scene.submit(-1, -2, -3, -4, -5)
    scene.check(refused=False)
    assert not space.store
    assert not client.copies


# -- results whose size depends on data ------------------------------------------------------

MASK = np.array([True, False, True])
COUNTS: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...], dict[str, Any]]] = {
    "masked_select": ("masked_select", (TensorType((3,)), TensorType((3,), bool_)), (np.ones(3, "f4"), MASK), {}),
    "nonzero": ("nonzero", (TensorType((3,), bool_),), (MASK,), {}),
}


def tensors(backend: str, values: tuple[Any, ...]) -> list[Any]:
    if backend == "numpy":
        return list(values)
    import torch

    return [torch.from_numpy(value) for value in values]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_the_data_contradict(name: str, backend: str) -> None:
    op, types, values, _ = COUNTS[name]
    engine = make_engine(backend, "cpu")
    for n in (0, 1, 3):
        with pytest.raises(ValueError, match="2 elements"):
            engine.link(sign(OPS[op], (("n", n),), types))(*tensors(backend, values))
    signature = sign(OPS[op], (("n", 2),), types)
    assert tuple(engine.link(signature)(*tensors(backend, values)).shape) == signature.outs[0].shape


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("sent", [b"", bytes(4), bytes(28), bytes(23)])
def test_bytes_of_another_length(backend: str, sent: bytes) -> None:
    """An empty upload is no exception: its memory belonged to another client."""
    run = make_engine(backend, "cpu").link(SIGNATURES[UPLOAD])
    with pytest.raises((ValueError, RuntimeError)):
        run(memoryview(sent))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_bools_are_zero_or_one(backend: str) -> None:
    """Kernels use bools as they are: a mask of sevens would select seven times as many."""
    signature = sign(OPS["upload"], (("shape", (3,)), ("dtype", "bool")), (BYTES,))
    engine = make_engine(backend, "cpu")
    result = engine.link(signature)(memoryview(b"\x07\x00\xff"))
    assert bytes(engine.to_host(result)) == b"\x01\x00\x01"


# -- with real processes ---------------------------------------------------------------------

LIAR = """
    from gt.client.tensor.emit import call
    from gt.ops import OPS
    from gt.types import TensorType

    x = gt.ones(4, 3)
    x.numpy()
    x._type = TensorType((400_000, 3))  # as a client says that is not ours
    try:
        call(OPS["add"], (x, x)).sum().item()
        say("it was believed")
    except gt.ClusterError as error:
        say("refused:", error)
"""
HONEST = """
    x = gt.arange(6).float().reshape(2, 3)
    say("ready")
    go()
    for i in range(50):
        assert (x * i + x).sum().item() == 15 * (i + 1)
    say("all right")
"""


def test_a_client_with_wrong_types_loses_its_connection_only(stack: Any) -> None:
    system = System(stack)
    worker = system.worker("--backend", "torch", "--device", "cpu")
    honest = system.client(HONEST)
    honest.expect("ready")
    liar = system.client(LIAR)
    refusal = liar.expect("refused:")
    assert "was given a float32[4,3] as operand 0" in refusal
    honest.tell()
    honest.expect("all right")
    assert worker.popen.poll() is None
