"""Recurrent modules and packed sequences against torch's: outputs, gradients, second gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.ops.nn.recurrent_kernels import MODES, layer_back_torch, layer_torch
from gt.testing import Cluster

LENGTHS = [2, 5, 1, 3]
#: (class, options), of input size 3 and hidden size 4
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "proj_size": 2, "bidirectional": True}),
    ("LSTM", {"bias": False, "proj_size": 2}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False, "batch_first": True}),
    ("RNN", {"bidirectional": True}),
    ("RNN", {"nonlinearity": "relu", "num_layers": 3, "bias": False}),
]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda v: str(v).replace(" ", ""))


@pytest.fixture(autouse=True, params=["torch", "numpy"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(workers=2, backend=request.param)
    with cluster.client():
        yield cluster


def pair(name: str, options: dict[str, Any], dtype: str = "float64") -> tuple[Any, Any]:
    torch.manual_seed(1)
    theirs = getattr(torch.nn, name)(3, 4, dtype=getattr(torch, dtype), **options)
    ours = getattr(gt.nn, name)(3, 4, dtype=getattr(gt, dtype), **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def flat(x: Any) -> list[Any]:
    if isinstance(x, torch.nn.utils.rnn.PackedSequence | gt.nn.utils.rnn.PackedSequence):
        return [x.data]
    return [y for part in x for y in flat(part)] if isinstance(x, tuple | list) else [x]


def same(theirs: Any, ours: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


def compare(theirs: Any, ours: Any, modules: tuple[Any, Any], inputs: tuple[Any, Any]) -> None:
    """The same outputs, and the same gradients of the sum of their cubes."""
    theirs, ours = flat(theirs), flat(ours)
    for a, b in zip(theirs, ours, strict=True):
        same(a, b)
    for outputs in (theirs, ours):
        sum((y**3).sum() for y in outputs).backward()
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        same(a.grad, b.grad)
    for a, b in zip(*inputs, strict=True):
        same(a.grad, b.grad)


def inputs(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    return [torch.tensor(a, requires_grad=True) for a in arrays], [gt.tensor(a).requires_grad_() for a in arrays]


def state_shapes(name: str, options: dict[str, Any], *batch: int) -> list[tuple[int, ...]]:
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    sizes = [options.get("proj_size") or 4, *([4] if name == "LSTM" else [])]
    return [(count, *batch, n) for n in sizes]


def states(name: str, values: list[Any]) -> Any:
    return tuple(values) if name == "LSTM" else values[0]


@each_variant
def test_layers(name: str, options: dict[str, Any]) -> None:
    modules = pair(name, options)
    shape = (2, 5, 3) if options.get("batch_first") else (5, 2, 3)
    theirs, ours = inputs(shape, *state_shapes(name, options, 2))
    results = [m(x[0], states(name, x[1:])) for m, x in zip(modules, (theirs, ours), strict=True)]
    compare(*results, modules, (theirs, ours))


@each_variant
def test_unbatched(name: str, options: dict[str, Any]) -> None:
    modules = pair(name, options)
    theirs, ours = inputs((5, 3), *state_shapes(name, options))
    results = [m(x[0], states(name, x[1:])) for m, x in zip(modules, (theirs, ours), strict=True)]
    compare(*results, modules, (theirs, ours))


@pytest.mark.parametrize("enforce_sorted", [False, True])
@each_variant
def test_packed(name: str, options: dict[str, Any], enforce_sorted: bool) -> None:
    modules = pair(name, options)
    first = options.get("batch_first", False)
    lengths = sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS
    theirs, ours = inputs((4, 5, 3) if first else (5, 4, 3), *state_shapes(name, options, 4))
    results = []
    for lib, module, (x, *initial) in ((torch, modules[0], theirs), (gt, modules[1], ours)):
        rnn = lib.nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, lengths, first, enforce_sorted)
        y, last = module(packed, states(name, initial))
        padded, ends = rnn.pad_packed_sequence(y, first, padding_value=0.5, total_length=6)
        assert ends.tolist() == lengths
        results.append([padded, *flat(last)])
    compare(*results, modules, (theirs, ours))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_only_the_last_state_is_used(name: str) -> None:
    modules = pair(name, {"num_layers": 2})
    theirs, ours = inputs((5, 2, 3))
    results = [flat(m(x[0])[1])[-1] for m, x in zip(modules, (theirs, ours), strict=True)]
    compare(*results, modules, (theirs, ours))


@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize(
    ("name", "options"),
    [("LSTMCell", {}), ("GRUCell", {"bias": False}), ("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"})],
)
def test_a_loop_over_a_cell(name: str, options: dict[str, Any], batch: tuple[int, ...]) -> None:
    modules = pair(name, options)
    theirs, ours = inputs((4, *batch, 3))
    results = []
    for module, (x,) in zip(modules, (theirs, ours), strict=True):
        state = None
        for i in range(4):
            state = module(x[i], state)
        results.append(state)
    compare(*results, modules, (theirs, ours))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("kind", ["", "Cell", "packed"])
def test_gradients_of_gradients(name: str, kind: str) -> None:
    theirs, ours = pair(name + ("Cell" if kind == "Cell" else ""), {} if kind == "Cell" else {"bidirectional": True})
    (x,), (v,) = inputs((2, 3) if kind == "Cell" else (4, 2, 3))
    grads = []
    for lib, module, value in ((torch, theirs, x), (gt, ours, v)):
        packed = lib.nn.utils.rnn.pack_padded_sequence(value, [4, 2]) if kind == "packed" else value
        outputs = flat(module(packed))
        loss = sum((y**3).sum() for y in outputs)
        (first,) = lib.autograd.grad(loss, value, create_graph=True)
        grads.append([first, *lib.autograd.grad((first**2).sum(), [value, *module.parameters()])])
    for a, b in zip(*grads, strict=True):
        same(a, b, 1e-8)


def test_dropout_between_layers() -> None:
    net = gt.nn.LSTM(3, 4, num_layers=2, dropout=0.9)
    x = gt.ones(5, 2, 3)
    assert not gt.equal(net(x)[0], net(x)[0])
    net.eval()
    assert gt.equal(net(x)[0], net(x)[0])


def test_half_precision(cluster: Cluster) -> None:
    theirs, ours = pair("LSTM", {}, "float32")
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float16)
    y, _ = ours.half()(gt.tensor(x))
    assert y.dtype is gt.float16
    same(theirs(torch.tensor(x).float())[0], y.float(), 2e-3)


# -- packed sequences ----------------------------------------------------------------------


def sequences(lib: Any) -> list[Any]:
    return [lib.arange(float(n) * 2).reshape(n, 2) for n in LENGTHS]


def test_packing_and_unpacking() -> None:
    theirs = torch.nn.utils.rnn.pack_sequence(sequences(torch), enforce_sorted=False)
    ours = gt.nn.utils.rnn.pack_sequence(sequences(gt), enforce_sorted=False)
    for a, b in zip(theirs, ours, strict=True):
        assert a.tolist() == b.tolist()
    unpacked = gt.nn.utils.rnn.unpack_sequence(ours)
    assert [x.tolist() for x in unpacked] == [x.tolist() for x in sequences(torch)]
    assert ours.to(gt.float64).data.dtype is gt.float64
    assert ours.double().data.dtype is gt.float64
    assert ours.to(gt.float32) is ours


def test_a_packed_sequence_made_by_hand() -> None:
    packed = gt.nn.utils.rnn.PackedSequence(gt.arange(3.0).reshape(3, 1), gt.tensor([2, 1]), gt.tensor([1, 0]))
    padded, lengths = gt.nn.utils.rnn.pad_packed_sequence(packed)
    assert padded.tolist() == [[[1.0], [0.0]], [[0.0], [2.0]]]
    assert lengths.tolist() == [1, 2]


REFUSED = [
    (lambda r: r.pack_padded_sequence(gt.ones(3, 2), [1, 3]), "sorted in decreasing order"),
    (lambda r: r.pack_padded_sequence(gt.ones(3, 2), [1]), r"len\(lengths\)` to be equal to batch_size"),
    (lambda r: r.pack_padded_sequence(gt.ones(3, 2), [1, 0]), "greater than 0"),
    (lambda r: r.pack_padded_sequence(gt.ones(3, 2), [4, 1]), "longer than the padded batch"),
    (
        lambda r: r.pad_packed_sequence(r.pack_sequence([gt.ones(3)]), total_length=2),
        "Expected total_length to be at least",
    ),
    (lambda r: gt.nn.LSTM(3, 4)(gt.ones(2, 2, 2)), r"Expected 3, got 2"),
    (lambda r: gt.nn.LSTM(3, 4)(gt.ones(2, 2, 2, 3)), "2D or 3D, got 4D"),
    (lambda r: gt.nn.LSTMCell(3, 4)(gt.ones(2, 2, 3)), "1D or 2D, got 3D"),
    (
        lambda r: gt.nn.GRU(3, 4)(gt.ones(2, 2, 3), gt.ones(1, 1, 4)),
        r"Expected hidden size \(1, 2, 4\), got \[1, 1, 4\]",
    ),
    (lambda r: gt.nn.LSTM(3, 4)(gt.ones(0, 2, 3)), "larger than 0 in RNN"),
    (lambda r: gt.nn.LSTM(3, 4)(gt.ones(2, 2, 3, dtype=gt.float64)), "dtypes differ"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_wrong_calls(call: Any, message: str) -> None:
    with pytest.raises((gt.GtError, ValueError), match=message):
        call(gt.nn.utils.rnn)


def test_wrong_sizes_of_a_packed_batch_fail_on_the_worker() -> None:
    packed = gt.nn.utils.rnn.PackedSequence(gt.ones(4, 3), gt.tensor([2, 1]))
    with pytest.raises(gt.RemoteError, match=r"4 packed rows of 2 sequences, largest first, are not \[2, 1\]"):
        gt.nn.LSTM(3, 4)(packed)[0].data.tolist()


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_states_written_in_place_before_the_backward_pass(name: str) -> None:
    """What the worker keeps for the backward pass does not change with the results."""
    torch.manual_seed(0)
    like = getattr(torch.nn, name)(3, 4).double()
    net = getattr(gt.nn, name)(3, 4).double()
    net.load_state_dict(like.state_dict())
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    y, last = net(gt.tensor(x.numpy()))
    for state in last if name == "LSTM" else (last,):
        state.detach().zero_()
    y.square().sum().backward()
    like(x)[0].square().sum().backward()
    np.testing.assert_allclose(net.weight_hh_l0.grad.numpy(), like.weight_hh_l0.grad.numpy(), rtol=1e-10)


def test_the_backward_kernel_with_and_without_the_kept_graph() -> None:
    """Without it, because the output was copied, the forward kernel runs again."""
    operands = [torch.randn(n, dtype=torch.float64) for n in ((5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4))]
    mode = MODES["lstm"]
    y, h, c = layer_torch(mode, torch, *operands, train=True)
    assert not hasattr(layer_torch(mode, torch, *operands, train=False)[0], "recurrent_graph")
    grads = [torch.randn_like(t) for t in (y, h, c)]
    flags = {"given": (True,) * 3, "mask": (True,) * 5}
    kept, again = (
        layer_back_torch(mode, torch, *grads, operands[0], out, *operands[1:], **flags) for out in (y, y.clone())
    )
    for a, b in zip(kept, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
