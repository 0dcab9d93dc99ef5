"""A trial of compiled code writes into the inputs themselves: whatever happens, they get their values back."""

from __future__ import annotations

import contextlib
from collections import deque

import pytest
import torch

from gt.types import TensorType, bfloat16, float32
from gt.worker.hot import host_copies
from gt.worker.hot.compiled import CompiledProgram, strided_spec
from gt.worker.hot.program import NotTranslatable, Program
from gt.worker.hot.section import Section
from gt.worker.hot.trial import (
    _measure_in_turns,
    alike,
    least_tolerance,
    preserved,
    rounding_step,
    run_trial,
    same,
    slower,
)
from tests.test_hot_levels import scaled, section

CPU = torch.device("cpu")


def tried(call) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs before and after a trial of this code for ``(x + 2) * 3`` and ``y += x``; one is a view."""
    x = torch.arange(24.0).reshape(4, 6)[::1, :4].T[:3]
    y = torch.ones(1, 4).expand(3, 4).clone()
    inputs = [x, y]
    program = Program(scaled(), [2, 3], frozenset(), CPU, compiled=True)
    compiled = CompiledProgram(program, call, [set()], [strided_spec(i).stride() for i in inputs], 0.0)
    before = [i.clone() for i in inputs]
    try:
        run_trial(scaled(), compiled, inputs, [2, 3])
    finally:
        after = [i.clone() for i in inputs]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return before, after


def right(x, y, *_):
    y += x
    return [(x + 2) * 3]


def test_the_inputs_are_as_they_were() -> None:
    tried(right)


def wrong_result(x, y, *_):
    return [right(x, y)[0] + 1]


def wrong_write(x, y, *_):
    y += 2 * x
    return [(x + 2) * 3]


def wrong_input(x, y, *_):
    results = right(x, y)
    x += 1
    return results


@pytest.mark.parametrize(
    ("call", "what"), [(wrong_result, "a result of mul"), (wrong_write, "input 1"), (wrong_input, "input 0")]
)
def test_other_values(call, what) -> None:
    with pytest.raises(NotTranslatable, match=what):
        tried(call)


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (20.0, False)])
def test_a_value_of_rounding_errors_may_differ_as_much_as_with_inputs_a_step_away(scale, accepted) -> None:
    """x - x, up to rounding: no code is wrong that differs as much as rounding does, and 20 times as much is."""
    torch.manual_seed(0)
    x = torch.randn(64, 64).to(torch.bfloat16)
    y = -x * (1 + 2**-8)
    t = TensorType((64, 64), bfloat16)
    add = section(("add", (t, t), (0, 1), (2,), False, {}), inputs=2, results=(2,))
    noise = torch.randn(64, 64) * (2**-8) * x.abs().mean() * scale

    def call(x, y, *_):
        return [(x + y + noise).to(torch.bfloat16)]

    program = Program(add, [], frozenset(), CPU, compiled=True)
    compiled = CompiledProgram(program, call, [set()], [strided_spec(i).stride() for i in (x, y)], 0.0)
    if accepted:
        run_trial(add, compiled, [x, y], [])
    else:
        with pytest.raises(NotTranslatable, match="a result of add"):
            run_trial(add, compiled, [x, y], [])


def largest(x, w):
    """In double precision, where the interpreter rounds the products."""
    return (x.double() @ w.double()).max(1)


def second(x, w):
    values, places = (x.double() @ w.double()).topk(2)
    return values[:, 0], places[:, 1]


def shifted(x, w):
    values, places = largest(x, w)
    return values, (places + 1) % w.shape[1]


@pytest.mark.parametrize(("code", "accepted"), [(largest, 20), (second, 0), (shifted, 0)])
def test_another_place_is_right_only_where_two_numbers_are_almost_equal(code, accepted) -> None:
    """As the next tokens of a model in bf16: some rows have two scores that are equal up to rounding."""
    rows, wide, scores = (TensorType(shape, bfloat16) for shape in ((16, 64), (64, 500), (16, 500)))
    piece = section(
        ("matmul", (rows, wide), (0, 1), (2,), False, {}),
        ("max_dim", (scores,), (2,), (3, 4), False, {"dim": 1, "keepdim": False}),
        inputs=2,
        results=(3, 4),
    )

    def call(x, w, *_):
        values, places = code(x, w)
        return [values.to(torch.bfloat16), places]

    program = Program(piece, [], frozenset(), CPU, compiled=True)
    passed = moved = 0
    for seed in range(20):
        torch.manual_seed(seed)
        x, w = torch.randn(16, 64).to(torch.bfloat16), torch.randn(64, 500).to(torch.bfloat16)
        moved += not torch.equal((x @ w).max(1)[1], largest(x, w)[1])
        with contextlib.suppress(NotTranslatable):
            run_trial(piece, CompiledProgram(program, call, [set()] * 2, [], 0.0), [x, w], [])
            passed += 1
    assert moved >= 3
    assert passed == accepted


def failing(x, y, *_):
    y += 1
    raise RuntimeError("not now")


def test_an_error() -> None:
    with pytest.raises(RuntimeError, match="not now"):
        tried(failing)


def test_repeated_elements_are_kept_as_they_are() -> None:
    row = torch.arange(4.0)
    with preserved([row.expand(3, 4), row.as_strided((3, 2), (1, 1))]):
        row += 1
    assert row.tolist() == [0, 1, 2, 3]


def test_no_input_is_copied_on_its_device() -> None:
    """What a backward pass reads is most of a step's memory, so the compiled code runs on the inputs themselves."""
    addresses: list[list[int]] = []

    def call(x, y, *_):
        addresses.append([x.data_ptr(), y.data_ptr()])
        return right(x, y)

    program = Program(scaled(), [2, 3], frozenset(), CPU, compiled=True)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    compiled = CompiledProgram(program, call, [set()], [], 0.0)
    run_trial(scaled(), compiled, inputs, [2, 3])
    assert addresses
    assert all(seen == [x.data_ptr() for x in inputs] for seen in addresses)


def test_inputs_that_were_changed_to_find_rounding_errors_get_their_values_back() -> None:
    """Also those that the section does not write."""
    x = torch.randn(64, 64)
    y = -x * (1 + 2**-23)
    t = TensorType((64, 64), float32)
    add = section(("add", (t, t), (0, 1), (2,), False, {}), inputs=2, results=(2,))
    before = x.clone(), y.clone()
    program = Program(add, [], frozenset(), CPU, compiled=True)
    compiled = CompiledProgram(program, lambda x, y, *_: [x * 0 + 0.1], [set()], [], 0.0)
    with pytest.raises(NotTranslatable, match="a result of add"):
        run_trial(add, compiled, [x, y], [])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize(
    ("name", "device", "allowed", "step"),
    [
        ("convolution", "cuda", True, 2**-10),
        ("convolution", "cuda", False, 2**-23),
        ("convolution", "cpu", True, 2**-23),
        ("matmul", "cuda", True, 2**-23),  # torch computes products in float32, unless the program allows TF32
    ],
)
def test_the_rounding_step_of_what_a_gpu_computes_with(name, device, allowed, step) -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
        assert rounding_step(product(name), device) == step


def product(name: str) -> Section:
    x, w = TensorType((2, 3, 8, 8), float32), TensorType((4, 3, 3, 3), float32)
    if name == "matmul":
        x = w = TensorType((8, 8), float32)
        return section(("matmul", (x, w), (0, 1), (2,), False, {}), inputs=2, results=(2,))
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
    call = ("convolution", (x, w), (0, 1), (2,), False, {**how, "groups": 1})
    return section(call, inputs=2, results=(2,))


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the 10 bits of fraction that a GPU's convolutions read."""
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (20.0, False)])
def test_a_convolution_whose_terms_cancel_may_differ_as_much_as_tf32_rounds(scale, accepted, monkeypatch) -> None:
    """As in front of a batch norm: what remains of almost equal terms is rounding, in the compiled code as well."""
    monkeypatch.setattr("gt.worker.hot.trial.rounding_step", lambda section, device: rounding_step(section, "cuda"))
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    x[:, 1], w[:, 1] = x[:, 0], -w[:, 0] * (1 + 2**-12)
    w[:, 2] = 0
    convolution = product("convolution")

    def call(x, w, *_):
        exact = torch.nn.functional.conv2d(x, w, padding=1)
        return [exact + scale * (torch.nn.functional.conv2d(as_tf32(x), as_tf32(w), padding=1) - exact)]

    program = Program(convolution, [], frozenset(), CPU, compiled=True)
    compiled = CompiledProgram(program, call, [set()], [], 0.0)
    if accepted:
        run_trial(convolution, compiled, [x, w], [])
    else:
        with pytest.raises(NotTranslatable, match="a result of convolution"):
            run_trial(convolution, compiled, [x, w], [])


def test_values_are_compared_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr("gt.worker.hot.trial.COMPARED_AT_ONCE", 7)
    a = torch.randn(50)
    b = a.clone()
    a[3] = b[3] = torch.nan
    a[4] = b[4] = torch.inf
    assert alike(a, b)
    b[49] += 1
    assert not alike(a, b)
    assert not alike(a, a.double())
    assert alike(torch.zeros(0), torch.zeros(0))
    few = torch.zeros(200, dtype=torch.bool)
    other = few.clone()
    other[:2] = True
    assert alike(few, other)
    other[:20] = True
    assert not alike(few, other)


def test_inputs_that_are_only_read_must_keep_their_bytes() -> None:
    x = torch.tensor([[1.0, torch.nan], [-0.0, 3.0]])
    assert same(x.T, x.T.clone())
    assert not same(x, x + 0.0), "-0.0 became 0.0"
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert same(z.conj(), z.conj().resolve_conj())
    assert same(z.conj().imag, -z.imag)
    assert same(torch.zeros(0), torch.zeros(0))
    assert same(x[:, 0], x[:, 0].clone())
    assert same(torch.arange(6.0)[::2], torch.tensor([0.0, 2.0, 4.0]))
    assert same(torch.ones(1).expand(3)[:1], torch.ones(1))


def test_results_carry_the_rounding_of_the_lowest_precision() -> None:
    assert least_tolerance(scaled()) == 0
    wide, half = TensorType((3, 4), float32), TensorType((3, 4), bfloat16)
    cast = section(
        ("to", (wide,), (0,), (1,), False, {"dtype": "bfloat16"}),
        ("to", (half,), (1,), (2,), False, {"dtype": "float32"}),
        inputs=1,
        results=(2,),
    )
    assert least_tolerance(cast) == 0.1
    a = torch.randn(100)
    assert not alike(a, a * 1.05)
    assert alike(a, a * 1.05, 0.1)


class Replays:
    """Stands for a GPU: a graph of a function is the function."""

    def capture(self, run, operands):
        results = run(operands)
        return results, lambda: run(operands)


@pytest.mark.parametrize(
    ("seconds", "reason"), [((1e-3, 2e-3), "not faster: 2000 us, as a graph 1000 us"), ((0.0, 1.0), "")]
)
def test_compiled_code_that_is_slower_as_a_graph(seconds, reason) -> None:
    program = Program(scaled(), [2, 3], frozenset(), CPU, compiled=True)
    compiled = CompiledProgram(program, right, [set()], [], 0.0, graph_seconds=seconds)
    assert slower(compiled, on_gpu=True) == reason
    assert slower(compiled, on_gpu=False) == ""


def test_graphs_are_measured_and_the_inputs_keep_their_values() -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    own = Program(scaled(), [2, 3], frozenset(), CPU, compiled=False)
    compiled = CompiledProgram(Program(scaled(), [2, 3], frozenset(), CPU, compiled=True), right, [set()], [], 0.0)
    run_trial(scaled(), compiled, [x, y], [2, 3], Replays().capture, lambda: own)
    assert all(compiled.graph_seconds)
    assert y.tolist() == torch.ones(3, 4).tolist()


@pytest.mark.parametrize(
    ("own", "fast", "expected"),
    [
        ([3.0], [2.0], (3.0, 2.0)),
        ([3.0, 3.0], [9.0, 2.0], (3.0, 2.0)),  # others used the device during the first turn
        ([3.0, 3.0, 1.0, 3.0], [9.0, 4.0, 2.0, 4.0], (1.0, 2.0)),
        ([0.0], [], (0.0, 0.0)),  # there is no graph of its own kernels
        ([3.0], [0.0], (3.0, 0.0)),  # and none of the compiled code
    ],
)
def test_graphs_are_measured_again_if_the_compiled_one_seems_slower(own, fast, expected) -> None:
    turns = deque(own), deque(fast)
    assert _measure_in_turns(turns[0].popleft, turns[1].popleft) == expected
    assert turns == (deque(), deque())


def test_what_cannot_be_captured_is_not_compared() -> None:
    def broken(run, operands):
        raise RuntimeError("not during a capture")

    compiled = CompiledProgram(Program(scaled(), [2, 3], frozenset(), CPU, compiled=True), right, [set()], [], 0.0)
    said: list[str] = []
    inputs = [torch.ones(3, 4), torch.ones(3, 4)]
    run_trial(scaled(), compiled, inputs, [2, 3], broken, lambda: compiled.program, said.append)
    assert said == ["no time of a graph (not during a capture):"]
    assert compiled.graph_seconds == (0.0, 0.0)
    assert slower(compiled, on_gpu=True) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("least", [1, 1 << 40])
def test_copies_on_the_host(dtype: torch.dtype, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "MIN_LARGE_BYTES", least)
    x = (torch.arange(24).reshape(2, 3, 4) % 3).to(dtype)
    for tensor in (x, x.transpose(0, 2), x[:, 1:], x[0, 0, 0], x[:0]):
        copy = host_copies.to_host(tensor)
        assert torch.equal(copy, tensor)
        assert copy.dtype == dtype
        assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
