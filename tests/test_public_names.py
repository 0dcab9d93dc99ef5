"""What a newcomer sees in an editor: docstrings, signatures, tab completion and types of every public name."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tomllib
from types import FunctionType

import pytest

import gt
from docs import make_declarations
from gt.functions import derive
from gt.functions.derived import FUNCTIONS
from gt.testing import Cluster
from tests.support.public_names import NAMESPACES, public_callables

ROOT = pathlib.Path(__file__).parent.parent
CALLABLES = public_callables()


def first_line(doc: str) -> str:
    return inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ")


def docstring_problem(value: object) -> str:
    doc = inspect.getdoc(value)
    if not doc:
        return "has no docstring"
    line = first_line(doc)
    if not line.endswith(".") or line.startswith("See "):
        return f"its first line is {line!r}"
    return ""


def test_every_public_callable_says_what_it_does() -> None:
    problems = {name: docstring_problem(value) for name, value in CALLABLES.items()}
    assert not {name: problem for name, problem in problems.items() if problem}


#: GT's own functions, whose docstrings have an example.
WITH_EXAMPLE = """
gt.connect gt.gpu_workers gt.workers gt.step gt.compile gt.auto_shard gt.load_config gt.register_config gt.checkpoint
gt.autocast gt.to_device gt.save gt.load gt.amp.GradScaler gt.signal.context gt.signal.enter gt.signal.exit
gt.signal.place gt.signal.tensor gt.debug.explain gt.debug.get_worker_stats gt.debug.memory gt.debug.print_hot_paths
gt.debug.print_tape gt.debug.show_layout gt.debug.trace gt.launch.ray gt.launch.slurm gt.launch.slurm_workers
gt.testing.Cluster gt.recovery gt.snapshot gt.fork
"""


@pytest.mark.parametrize("name", WITH_EXAMPLE.split())
def test_docstrings_of_gts_own_functions_have_an_example(name: str) -> None:
    assert "Example::\n\n    " in (inspect.getdoc(CALLABLES[name]) or "")


#: Names with variable arguments, and why: torch's own signature has them too, or a user's function takes them.
VARIADIC = {
    "*args of torch's": """
        gt.cuda.amp.GradScaler.step gt.jit.Final gt.jit.ignore gt.nn.DataParallel.forward
        gt.nn.parallel.DataParallel.forward
        gt.nn.parallel.DistributedDataParallel gt.nn.parallel.DistributedDataParallel.forward
        gt.func.vjp gt.optim.swa_utils.AveragedModel.forward
        gt.nn.Identity gt.nn.Module.forward gt.nn.Module.to gt.nn.Sequential gt.Tensor.to gt.amp.GradScaler.step
        gt.nn.attention.flex_attention.and_masks gt.nn.attention.flex_attention.or_masks
        gt.autograd.Function.apply gt.autograd.Function.forward gt.autograd.Function.backward
        gt.autograd.function.Function.apply gt.autograd.function.Function.forward gt.autograd.function.Function.backward
    """,
    "tensors, one after the other": """
        gt.atleast_1d gt.atleast_2d gt.atleast_3d gt.block_diag gt.broadcast_tensors gt.cartesian_prod
        gt.broadcast_arrays gt.array_api.broadcast_arrays gt.chain_matmul gt.einsum gt.meshgrid gt.broadcast_shapes
        gt.autograd.function.FunctionCtx.save_for_backward gt.autograd.function.FunctionCtx.save_for_forward
        gt.autograd.function.FunctionCtx.mark_dirty gt.autograd.function.FunctionCtx.mark_non_differentiable
    """,
    "data or sizes": """
        gt.Tensor gt.BFloat16Tensor gt.BoolTensor gt.ByteTensor gt.CharTensor gt.DoubleTensor gt.FloatTensor
        gt.HalfTensor gt.IntTensor gt.LongTensor gt.ShortTensor gt.Tensor.new
        gt.sparse.DoubleTensor gt.sparse.FloatTensor gt.sparse.HalfTensor
        gt.cuda.BFloat16Tensor gt.cuda.BoolTensor gt.cuda.ByteTensor gt.cuda.CharTensor gt.cuda.DoubleTensor
        gt.cuda.FloatTensor gt.cuda.HalfTensor gt.cuda.IntTensor gt.cuda.LongTensor gt.cuda.ShortTensor
    """,
    "sizes or dims, one after the other": """
        gt.expand_copy gt.permute_copy gt.view_copy
        gt.empty gt.ones gt.rand gt.randn gt.zeros gt.randint gt.randint_like gt.flip gt.permute gt.reshape gt.tile
        gt.Tensor.expand gt.Tensor.flip gt.Tensor.new_empty gt.Tensor.new_ones gt.Tensor.new_zeros
        gt.Tensor.permute gt.Tensor.random_ gt.Tensor.repeat gt.Tensor.reshape gt.Tensor.sum_to_size gt.Tensor.tile
        gt.Tensor.view
    """,
    "gt.compile takes them": "gt.nn.Module.compile",
    "the user chooses the names": "gt.snapshot",
    "a user's function takes them": "gt.checkpoint gt.utils.checkpoint.checkpoint",
}
ALLOWED = {name for names in VARIADIC.values() for name in names.split()}


def variadic(value: object) -> bool:
    kinds = {p.kind for p in inspect.signature(value).parameters.values()}  # type: ignore[arg-type]
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def test_signatures_name_real_parameters() -> None:
    problems = {}
    for name, value in CALLABLES.items():
        if isinstance(value, property) or (isinstance(value, type) and issubclass(value, BaseException)):
            continue
        try:
            if variadic(value) and name not in ALLOWED:
                problems[name] = str(inspect.signature(value))
        except ValueError as error:
            problems[name] = str(error)
    assert not problems


def test_exceptions_to_named_parameters_are_needed() -> None:
    assert not {name for name in ALLOWED if name in CALLABLES and not variadic(CALLABLES[name])}
    assert not {name for name in ALLOWED if name not in CALLABLES} - {"gt.Tensor.new_empty"}


def test_tab_completion_lists_lazy_names_and_no_missing_ones() -> None:
    assert {"nn", "optim", "save", "autocast", "conv2d", "dropout", "exp"} <= set(dir(gt))
    assert {"Linear", "functional", "Module"} <= set(dir(gt.nn))
    names = gt.Tensor.__dir__(object.__new__(gt.Tensor))
    assert {"sum", "backward", "shape", "add_"} <= set(names)
    assert "as_strided" not in names


# -- types ---------------------------------------------------------------------------------

PROGRAM = """
from typing import assert_type

import gt
from gt import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(inplace=False), nn.Linear(8, 1)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        out: gt.Tensor = self.last(self.act(self.first(x)))
        return out


def train(x: gt.Tensor, y: gt.Tensor) -> float:
    model = Net()
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gt.save(model.state_dict(), "model.safetensors")
    return float(loss.item())


x = gt.randn(3, 4)
assert_type(x.sum(), gt.Tensor)
assert_type(x.reshape(4, 3) @ x + 1, gt.Tensor)
assert_type(x.split(2), tuple[gt.Tensor, ...])
assert_type(gt.exp(x), gt.Tensor)
assert_type(gt.cat([x, x], 1), gt.Tensor)
assert_type(x.sort(1).values, gt.Tensor)
assert_type(x.shape, gt.Size)
assert_type(nn.Linear(3, 4), nn.Linear)
assert_type(nn.functional.conv2d(x, x), gt.Tensor)
assert_type(gt.optim.SGD([x], lr=0.1), gt.optim.SGD)
"""
WRONG = """
import gt

gt.ones(2).summ()
gt.ones(2).sum(dimension=1)
gt.nn.Linear(3)
gt.nn.Liner
gt.cuda.is_there
gt.conv5d
"""


def check_types(path: pathlib.Path, program: str) -> subprocess.CompletedProcess[str]:
    """Check a program in a project outside of the repository."""
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(path)]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "public_names")]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(
        [*command, *cache], cwd=path.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_a_typed_program_passes_and_a_wrong_one_does_not(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    right = check_types(tmp_path / "right.py", PROGRAM)
    assert right.returncode == 0, right.stdout
    wrong = check_types(tmp_path / "wrong.py", WRONG)
    assert wrong.stdout.count("error:") == 6, wrong.stdout


#: without a property of a class that is made by a function
SEEN = [name for name in CALLABLES if "._" not in name and name != "gt.nn.Upsample.name"]
IMPORTS = "import gt\n" + "".join(f"import gt.{place}\n" for place in NAMESPACES if place)
ALL = IMPORTS + "".join(f"reveal_type({name})\n" for name in SEEN)


def test_a_type_checker_sees_every_public_callable(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    lines = [line for line in check_types(tmp_path / "all.py", ALL).stdout.splitlines() if line.startswith("all.py")]
    assert len(lines) == len(SEEN), [line for line in lines if "error:" in line]
    unseen = [name for name, line in zip(SEEN, lines, strict=True) if 'type is "Any"' in line or "error:" in line]
    assert not unseen


@pytest.mark.long
def test_pyright_sees_every_public_callable(tmp_path: pathlib.Path) -> None:
    """In a project outside of the repository. The right program has no errors, the wrong one as many as in mypy."""
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs node")
    for name, program in {"all": ALL, "right": PROGRAM, "wrong": WRONG}.items():
        (tmp_path / f"{name}.py").write_text(program)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    ]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    if "{" not in output:
        pytest.skip("pyright is not installed completely: its first run takes a package from npm")
    reports = json.loads(output[output.index("{") :])["generalDiagnostics"]
    errors = [(pathlib.Path(r["file"]).stem, r["message"]) for r in reports if r["severity"] == "error"]
    assert [file for file, _ in errors] == ["wrong"] * 6, errors
    seen = [r["message"] for r in reports if r["severity"] == "information"]
    assert len([m for m in seen if m.startswith("Type of")]) == len(SEEN)
    assert not [m for m in seen if m.endswith(('is "Any"', 'is "Unknown"'))]


def test_gt_special_lists_what_is_derived() -> None:
    assert set(derive.published(FUNCTIONS, "special")) <= set(gt.special.__all__)


def test_explain_shows_lines_in_a_notebook() -> None:
    with Cluster(backend="numpy").client():
        explanation = gt.debug.explain(gt.ones(2))
    assert repr(explanation) == str(explanation)
    assert explanation.startswith("float32[2] is placed")


def test_the_declarations_of_methods_are_current() -> None:
    assert make_declarations.FILE.read_text() == make_declarations.text(), "run python -m docs.make_declarations"


def test_type_information_and_torchs_names_are_shipped() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gt"]
    assert {"py.typed", "torch_names.txt", "**/*.pyi"} <= set(data)
    assert (ROOT / "gt" / "py.typed").exists()
    assert (ROOT / "gt" / "torch_names.txt").exists()


@pytest.mark.parametrize("place", ["gt", "gt.nn.functional", "gt.linalg", "gt.special", "gt.Tensor"])
def test_public_functions_can_be_pickled(place: str) -> None:
    """As arguments to another process, for example in a ``functools.partial``."""
    namespace = eval(place, {"gt": gt})
    names = [name for name in dir(namespace) if not name.startswith("_")]
    functions = {name: f for name in names if isinstance(f := getattr(namespace, name, None), FunctionType)}
    assert functions
    wrong = []
    for name, function in functions.items():
        try:
            if pickle.loads(pickle.dumps(function)) is not function:
                wrong.append(name)
        except (pickle.PicklingError, AttributeError):
            wrong.append(name)
    assert not wrong


def test_gt_works_without_docstrings() -> None:
    program = "import gt, gt.nn, gt.optim, gt.debug, gt.special, gt.amp, gt.cuda, gt.utils.data; print(gt.add.__doc__)"
    command = [sys.executable, "-OO", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout == "None\n"
