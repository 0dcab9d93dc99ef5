"""Compiled code of an earlier process is loaded without tracing the section again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gt
from gt.ops import operators
from gt.types import INT, TensorType, float32
from gt.worker.hot import compiled
from gt.worker.hot.compiled import build, strided_spec
from gt.worker.hot.kept_code import KeptCode, key_for_torch, stand_in
from gt.worker.hot.program import Program, interpret
from gt.worker.hot.section import Section
from gt.worker.hot.verdicts import section_key
from tests.support.processes import environment
from tests.test_hot_levels import scaled, section

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """GT's cache folder. torch's own may have code of an earlier run of the tests."""
    code = os.path.join(tempfile.gettempdir(), f"gt-tests-{os.getuid()}", "code")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", code)
    return tmp_path


@pytest.fixture
def empty(folder: Path, monkeypatch) -> Path:
    """Both folders are empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
    return folder


@pytest.fixture
def traces(monkeypatch) -> list[int]:
    """Grows by one whenever a section is traced."""
    traced: list[int] = []
    real = compiled._trace
    monkeypatch.setattr(compiled, "_trace", lambda *args: traced.append(1) or real(*args))
    return traced


def inputs() -> list[torch.Tensor]:
    return [torch.arange(12.0).view(3, 4), torch.ones(3, 4)]


def check(
    repeated: Section, folder: Path, numbers: list[int], varying: frozenset[int] = frozenset(), loaded: bool = False
) -> None:
    """Compiled or loaded as expected, the section gives what the interpreter gives, in its inputs too."""
    program = Program(repeated, numbers, varying, CPU, compiled=True)
    code = build(program, [strided_spec(x) for x in inputs()], KeptCode(str(folder)))
    assert code.loaded == loaded
    for n in (numbers, [numbers[0] + len(varying), *numbers[1:]]):
        mine, right = inputs(), inputs()
        got = code(mine, *compiled.make_cells(program, n))
        for x, y in zip([*got, *mine], [*interpret(repeated, right, n), *right], strict=True):
            assert torch.equal(x, y)


def test_kept_code_is_loaded_without_a_trace(folder, traces) -> None:
    for varying in (frozenset(), frozenset((0,))):
        check(scaled(), folder, [2, 3], varying)
        count = len(traces)
        for _ in range(2):
            check(scaled(), folder, [2, 3], varying, loaded=True)
        assert len(traces) == count > 0


@pytest.mark.parametrize(
    ("what", "numbers", "varying"),
    [
        ("a number", [2, 4], frozenset()),
        ("a number, equal as Python compares", [2, 3.0], frozenset()),
        ("its sign", [-0.0, 3], frozenset()),
        ("a number that changes", [2, 3], frozenset((0,))),
        ("another number that changes", [2, 3], frozenset((1,))),
    ],
)
def test_other_numbers_are_other_code(what, numbers, varying) -> None:
    seen = [
        section_key(Program(scaled(), n, v, CPU, compiled=True), [strided_spec(x) for x in inputs()])
        for n, v in (([2, 3], frozenset()), ([0.0, 3], frozenset()), (numbers, varying))
    ]
    assert len(set(seen)) == 3, what


def test_other_layouts_calls_and_results_are_other_code() -> None:
    x, y = inputs()
    t = TensorType((3, 4), float32)

    def two_calls(x: int, y: int) -> Section:
        calls = ("mul", (t, INT), (x, ~0), (2,), False, {}), ("add", (t, t), (2, y), (3,), False, {})
        return section(*calls, inputs=2, results=(3,))

    double, crossed = two_calls(0, 1), two_calls(1, 0)
    both = replace(double, results=(2, 3))
    keys = {
        section_key(Program(s, [2], frozenset(), CPU, compiled=True, donated=donated), [strided_spec(i) for i in where])
        for s in (double, crossed, both)
        for where in ([x, y], [x.t().contiguous().t(), y], [x.double(), y])
        for donated in ({}, {0: 1})
    }
    assert len(keys) == 18


def test_where_torch_s_files_are_gone_it_is_compiled_again(empty, traces) -> None:
    check(scaled(), empty, [5, 7])
    shutil.rmtree(empty / "torch")
    count = len(traces)
    check(scaled(), empty, [5, 7])
    assert len(traces) > count
    check(scaled(), empty, [5, 7], loaded=True)


@pytest.mark.parametrize("text", ["", "{}", "[[0], null]", "[[0], [[]]]", "not json"])
def test_a_damaged_file_is_as_none(folder, text) -> None:
    check(scaled(), folder, [5, 9])
    (path,) = (folder / "sections").iterdir()
    path.write_text(text)
    check(scaled(), folder, [5, 9])
    check(scaled(), folder, [5, 9], loaded=True)


def test_code_with_a_tensor_in_it_is_not_kept(folder) -> None:
    """Its key does not say which."""
    plain = scaled()
    first = replace(plain.calls[0], run=lambda x, n: x + torch.tensor([1.0, 2.0, 3.0, 4.0]))
    for _ in range(2):
        check(replace(plain, calls=(first, *plain.calls[1:])), folder, [2, 3])


def test_code_that_torch_refuses_to_keep_is_compiled_each_time(empty, monkeypatch) -> None:
    from torch._functorch._aot_autograd import autograd_cache

    def refuse(graph) -> None:
        raise autograd_cache.BypassAOTAutogradCache("no")

    monkeypatch.setattr(autograd_cache, "check_cacheable", refuse)
    for _ in range(2):
        check(scaled(), empty, [2, 11])


@pytest.mark.parametrize("missing", ["the module", "the function"])
def test_without_torch_s_function_nothing_is_replaced(folder, monkeypatch, missing) -> None:
    """It is internal to torch, and another version may not have it."""
    from torch._functorch import _aot_autograd

    module = _aot_autograd.autograd_cache
    if missing == "the module":
        monkeypatch.setitem(sys.modules, module.__name__, None)
        monkeypatch.delattr(_aot_autograd, "autograd_cache")
    else:
        monkeypatch.delattr(module, "autograd_cache_key")
    before = vars(module).copy()
    with key_for_torch("key"):
        assert vars(module) == before


@pytest.mark.parametrize("setting", ["flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"])
def test_another_choice_of_attention_is_other_code(setting) -> None:
    program, specs = Program(scaled(), [2, 3], frozenset(), CPU, compiled=True), [strided_spec(x) for x in inputs()]
    enable, enabled = (getattr(torch.backends.cuda, name) for name in (f"enable_{setting}", f"{setting}_enabled"))
    before, usual = enabled(), section_key(program, specs)
    enable(not before)
    try:
        assert section_key(program, specs) != usual
    finally:
        enable(before)
    assert section_key(program, specs) == usual


def test_torch_s_own_key_is_back_after_an_error() -> None:
    from torch._functorch._aot_autograd import autograd_cache

    own = autograd_cache.autograd_cache_key

    def fail() -> None:
        with key_for_torch("key"):
            assert autograd_cache.autograd_cache_key is not own
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert autograd_cache.autograd_cache_key is own


def test_a_stand_in_cannot_be_run() -> None:
    with pytest.raises(LookupError):
        stand_in(2)(*inputs())


def test_all_files_with_operators_of_torch_are_known() -> None:
    """Code that is loaded calls them, and nothing was traced that would have imported them."""
    folder = Path(gt.__file__).parent
    files = {p for p in folder.glob("ops/**/*.py") if "torch.library.custom_op(" in p.read_text()}
    assert {".".join(("gt", *p.relative_to(folder).with_suffix("").parts)) for p in files} == set(operators.FILES)


def test_operators_are_registered_before_code_is_loaded(folder, monkeypatch) -> None:
    check(scaled(), folder, [2, 13])
    imported: list[str] = []
    monkeypatch.setattr(operators, "import_module", imported.append)
    check(scaled(), folder, [2, 13], loaded=True)
    assert tuple(imported) == operators.FILES


PROGRAM = """
import gt
import gt.nn.functional as F

gt.manual_seed(0)
model = gt.nn.Sequential(gt.nn.Linear(8, 8), gt.nn.GELU(), gt.nn.Dropout(0.3), gt.nn.Linear(8, 3))
opt = gt.optim.AdamW(model.parameters(), lr=1e-2)
x, y = gt.randn(16, 8), gt.randint(0, 3, (16,))

@gt.compile
def step(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss

print(*[step(x, y).item() for _ in range(6)])
"""


def losses_of_two_starts(**variables: str) -> list[list[float]]:
    """The program in two processes, one after the other; the second one loads what the first one compiled."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment(GT_DEBUG_COMPILE="1", **variables),
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    first, second = (run.stderr for run in runs)
    assert "compiled in" in first
    assert "loaded in" not in first
    assert "loaded in" in second
    assert "compiled in" not in second
    return [[float(loss) for loss in run.stdout.split()] for run in runs]


@pytest.mark.long
def test_a_second_process_loads_the_code_of_the_first(empty) -> None:
    code = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    first, second = losses_of_two_starts(GT_CACHE_DIR=str(empty), TORCHINDUCTOR_CACHE_DIR=code, CUDA_VISIBLE_DEVICES="")
    assert first == second
